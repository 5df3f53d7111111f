//! TLS, as the clients' modes have it.

use super::*;
use crate::support::papers::Papers;

/// How many sessions of this user are encrypted; the status of a session is its own, so the user is asked to be.
async fn is_encrypted(server: &Server, url: &str) -> bool {
    let user = "secure";
    server.sql(&format!(
        "DROP USER IF EXISTS {user}; CREATE USER {user} REQUIRE SSL; GRANT ALL ON {DATABASE}.* TO {user}"
    ));
    open(&url.replace(&format!("//{ADMIN}@"), &format!("//{user}@"))).observe(&shard()).await.is_ok()
}

#[tokio::test]
async fn each_mode_checks_what_it_says_and_a_certificate_of_ours_counts() {
    let papers = Papers::issue("IP:127.0.0.1");
    papers.add_authority("other");
    crate::support::mysql::SERVANT.gets(papers.directory());
    let option = |name: &str, file: &str| format!("--ssl-{name}={}", papers.path(file));
    let options = [option("ca", "ca.pem"), option("cert", "server.pem"), option("key", "server.key")];
    let server = Server::start_with(&options.each_ref().map(String::as_str));
    open(&server.url_with("")).prepare().await.unwrap();
    let (ca, other) = (papers.path("ca.pem"), papers.path("other.pem"));
    // The certificate is for the address, not for the name.
    let by_name = |options: &str| server.url_with(options).replace("@127.0.0.1", "@localhost");
    for (url, encrypted) in [
        (server.url_with("ssl-mode=DISABLED"), false),
        (server.url_with("ssl-mode=PREFERRED"), true),
        (server.url_with("table=leaderrun"), true),
        (server.url_with("ssl-mode=REQUIRED"), true),
        (by_name("ssl-mode=REQUIRED"), true),
        (server.url_with(&format!("ssl-ca={ca}")), true),
        (by_name(&format!("ssl-mode=verify_ca&ssl-ca={ca}")), true),
        (server.url_with(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")), true),
    ] {
        open(&url).observe(&shard()).await.unwrap_or_else(|error| panic!("{url}: {error}"));
        assert_eq!(is_encrypted(&server, &url).await, encrypted, "{url}");
    }
    for (url, word) in [
        (by_name(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")), "do not check that with"),
        (server.url_with(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={other}")), "signed by no authority"),
        (server.url_with(&format!("ssl-mode=VERIFY_CA&ssl-ca={other}")), "signed by no authority"),
        (server.url_with(&format!("ssl-ca={other}")), "signed by no authority"),
        (server.url_with("ssl-ca=/nonexistent"), "/nonexistent cannot be used for TLS"),
    ] {
        let (_, rest) = url.split_once(':').unwrap();
        let opened = mysql::open(&Address::read(Dialect::MySql, rest).unwrap(), REQUEST_TIMEOUT);
        let claim = match opened {
            Ok(rows) => LeaseStore::new(rows).claim(&candidate("one")).await,
            Err(error) => Err(error),
        };
        misconfigured(claim, word);
    }

    // A certificate of ours counts.
    server.age("leaderrun");
    server.sql(&format!("CREATE USER app REQUIRE X509; GRANT ALL ON {DATABASE}.* TO app"));
    let url = |options: &str| server.url_with(options).replace(&format!("//{ADMIN}@"), "//app@");
    let own = format!("ssl-cert={}&ssl-key={}", papers.path("app.pem"), papers.path("app.key"));
    lead(&open(&url(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}&{own}"))), &candidate("one")).await;
    denied(open(&url("ssl-mode=REQUIRED")).claim(&candidate("two")).await, "");
}
