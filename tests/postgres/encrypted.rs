//! TLS, as libpq's modes have it.

use super::*;
use crate::support::papers::Papers;

fn server(papers: &Papers, rules: &str) -> Server {
    Server::prepared_with(&["ssl=on", "ssl_ca_file=root.crt"], |data| {
        for (name, place) in [("server.pem", "server.crt"), ("server.key", "server.key"), ("ca.pem", "root.crt")] {
            std::fs::copy(papers.file(name), data.join(place)).unwrap();
        }
        std::fs::set_permissions(data.join("server.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
    })
}

/// Whether the store's connection is encrypted.
fn is_encrypted(server: &Server) -> bool {
    let question = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE application_name = 'leaderrun'";
    server.sql(question) == "t"
}

#[tokio::test]
async fn each_mode_checks_what_it_says() {
    let papers = Papers::issue("IP:127.0.0.1");
    papers.add_authority("other");
    let server = server(&papers, "local all all trust\nhost all all all trust\n");
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
        let store = open(&url).await;
        store.prepare().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        store.observe(&shard()).await.unwrap();
        assert_eq!(is_encrypted(&server), encrypted, "{url}");
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
        misconfigured(open(&url).await.claim(&candidate("one")).await, word);
    }
    let without = format!("sslmode=verify-ca&sslrootcert={}", papers.path("missing"));
    misconfigured(try_open(&server.url_with(&without), REQUEST_TIMEOUT).await, "missing");
}

#[tokio::test]
async fn a_certificate_lets_in_and_another_one_does_not() {
    let papers = Papers::issue("IP:127.0.0.1");
    papers.add_authority("other");
    let server = server(&papers, "host all postgres all trust\nhostssl all app all cert\n");
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app");
    let ca = papers.path("ca.pem");
    let url = |name: &str| {
        let (cert, key) = (papers.path(&format!("{name}.pem")), papers.path(&format!("{name}.key")));
        let options = format!("sslmode=verify-full&sslrootcert={ca}&sslcert={cert}&sslkey={key}");
        server.url_with(&options).replace("//postgres@", "//app@")
    };
    let store = open(&url("app")).await;
    store.prepare().await.unwrap();
    store.vouch().await.unwrap();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    for name in ["server", "other"] {
        denied(open(&url(name)).await.claim(&one).await, "");
    }
    let without = server.url_with("sslmode=require").replace("//postgres@", "//app@");
    denied(open(&without).await.claim(&one).await, "");
}

#[tokio::test]
async fn a_password_goes_with_channel_binding_over_tls() {
    let papers = Papers::issue("IP:127.0.0.1");
    let server = server(&papers, "host all postgres all trust\nhostssl all all all scram-sha-256\n");
    server.sql("CREATE ROLE app LOGIN PASSWORD 'hunter2'; GRANT CREATE ON SCHEMA public TO app");
    let url = format!("postgres://app:hunter2@127.0.0.1:{}/postgres?sslmode=require", server.port());
    open(&url).await.prepare().await.unwrap();
    denied(open(&url.replace("sslmode=require", "sslmode=disable")).await.prepare().await, "");
}
