//! TLS, as libpq's modes have it.

use super::*;
use crate::support::papers::Papers;

fn is_encrypted(server: &Server) -> bool {
    let question = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE application_name = 'leaderrun'";
    server.sql(question) == "t"
}

#[tokio::test]
async fn each_mode_checks_what_it_says_and_users_are_let_in_by_certificate_and_by_password() {
    let papers = Papers::issue("IP:127.0.0.1");
    papers.add_authority("other");
    let server = Server::prepared_with(&["ssl=on", "ssl_ca_file=root.crt"], |data| {
        for (name, place) in [("server.pem", "server.crt"), ("server.key", "server.key"), ("ca.pem", "root.crt")] {
            std::fs::copy(papers.file(name), data.join(place)).unwrap();
        }
        std::fs::set_permissions(data.join("server.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        let rules = "host all postgres all trust\nhostssl all app all cert\nhostssl all all all scram-sha-256\n";
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
    });
    server.sql("CREATE ROLE app LOGIN; CREATE ROLE guest LOGIN PASSWORD 'hunter2'");
    server.sql("GRANT CREATE ON SCHEMA public TO app, guest");
    each_mode_checks_what_it_says(&papers, &server).await;
    a_certificate_lets_in_and_another_one_does_not(&papers, &server).await;
    a_password_goes_with_channel_binding_over_tls(&server).await;
}

async fn each_mode_checks_what_it_says(papers: &Papers, server: &Server) {
    let (ca, other) = (papers.path("ca.pem"), papers.path("other.pem"));
    // The certificate is for the address, not for the name.
    let by_name = |options: &str| server.url_with(options).replace("@127.0.0.1", "@localhost");
    for (url, encrypted) in [
        (server.url_with("sslmode=disable"), false),
        (server.url_with("sslmode=allow"), true),
        (server.url_with("sslmode=prefer"), true),
        (server.url_with("table=leaderrun"), true),
        (server.url_with("sslmode=require"), true),
        (by_name("sslmode=require"), true),
        (server.url_with(&format!("sslmode=require&sslrootcert={ca}")), true),
        (server.url_with(&format!("sslmode=verify-ca&sslrootcert={ca}")), true),
        (by_name(&format!("sslmode=verify-ca&sslrootcert={ca}")), true),
        (server.url_with(&format!("sslmode=verify-full&sslrootcert={ca}")), true),
    ] {
        let store = open(&url);
        store.prepare().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        store.observe(&shard()).await.unwrap();
        assert_eq!(is_encrypted(server), encrypted, "{url}");
        drop(store);
        let gone = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'leaderrun'";
        eventually("the connection is closed", async || server.sql(gone) == "0").await;
    }
    for (url, word) in [
        (by_name(&format!("sslmode=verify-full&sslrootcert={ca}")), "do not check that with"),
        (server.url_with(&format!("sslmode=verify-full&sslrootcert={other}")), "authority"),
        (server.url_with(&format!("sslmode=verify-ca&sslrootcert={other}")), "authority"),
        (server.url_with(&format!("sslmode=require&sslrootcert={other}")), "authority"),
        (server.url_with(&format!("sslmode=prefer&sslrootcert={other}")), "authority"),
        (server.url_with("sslrootcert=system"), "authority"),
    ] {
        misconfigured(open(&url).claim(&candidate("one")).await, word);
    }
    let without = format!("sslmode=verify-ca&sslrootcert={}", papers.path("missing"));
    misconfigured(try_open(&server.url_with(&without), REQUEST_TIMEOUT), "missing");
}

async fn a_certificate_lets_in_and_another_one_does_not(papers: &Papers, server: &Server) {
    let ca = papers.path("ca.pem");
    let url = |name: &str| {
        let (cert, key) = (papers.path(&format!("{name}.pem")), papers.path(&format!("{name}.key")));
        let options = format!("table=certified&sslmode=verify-full&sslrootcert={ca}&sslcert={cert}&sslkey={key}");
        server.url_with(&options).replace("//postgres@", "//app@")
    };
    let store = open(&url("app"));
    store.prepare().await.unwrap();
    store.vouch().await.unwrap();
    let (one, term) = one_leads(&store).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    for name in ["server", "other"] {
        denied(open(&url(name)).claim(&one).await, "");
    }
    let without = server.url_with("sslmode=require").replace("//postgres@", "//app@");
    denied(open(&without).claim(&one).await, "");
}

async fn a_password_goes_with_channel_binding_over_tls(server: &Server) {
    let url = server.url_with("table=guests&sslmode=require").replace("//postgres@", "//guest:hunter2@");
    open(&url).prepare().await.unwrap();
    denied(open(&url.replace("sslmode=require", "sslmode=disable")).prepare().await, "");
}
