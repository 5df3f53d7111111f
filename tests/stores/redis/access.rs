//! Passwords, ACL users, and TLS.

use super::*;
use crate::support::papers::Papers;
use std::sync::LazyLock;

/// A candidate, as in examples/infrastructure and leaderrun-stores(7).
static MINIMAL: LazyLock<&str> = LazyLock::new(|| {
    let file = include_str!("../../../examples/infrastructure/redis.conf");
    file.lines().find_map(|line| line.strip_prefix("user leaderrun ")).expect("the file has that user")
});

fn allow(server: &Server, rules: &str) {
    let mut words = vec!["ACL", "SETUSER", "leaderrun", "reset"];
    words.extend(rules.split(' '));
    assert_eq!(server.cli(&words), "OK");
}

fn url(server: &Server) -> String {
    format!("redis://leaderrun:PASSWORD@127.0.0.1:{}", server.port())
}

#[tokio::test]
async fn each_missing_command_is_named() {
    let server = old_server();
    for command in MINIMAL.split(' ').filter_map(|rule| rule.strip_prefix('+')) {
        let without: Vec<_> = MINIMAL.split(' ').filter(|rule| rule.strip_prefix('+') != Some(command)).collect();
        allow(&server, &without.join(" "));
        let store = open(&url(&server)).unwrap();
        let findings = store.check().await.unwrap();
        let is_about = |finding: &&Finding| finding.verdict != Verdict::Good && !finding.text.contains("'scan'");
        let bad: Vec<_> = findings.iter().filter(is_about).collect();
        assert_eq!(bad.len(), 1, "{command}: {findings:#?}");
        // A leader can do without.
        let is_needed = command != "del";
        assert_eq!(bad[0].verdict == Verdict::Bad, is_needed, "{bad:?}");
        assert!(bad[0].text.starts_with("permission missing: "), "{bad:?}");
        assert!(bad[0].text.to_lowercase().contains(command), "{bad:?}");
        assert!(bad[0].text.contains("denied user leaderrun"), "{bad:?}");
        // An election says so too, where it needs it.
        if !["del", "publish", "subscribe", "evalsha"].contains(&command) {
            let store = open(&url(&server)).unwrap();
            let said = denied(store.claim(&candidate("one")).await, "denied user leaderrun");
            assert!(said.to_lowercase().contains(command), "{said}");
            assert_eq!(server.cli(&["EXISTS", LOCK]), "0", "{command}");
        }
        let left = server.cli(&["KEYS", "*check*"]);
        if command == "del" {
            assert_eq!(left.lines().count(), 5, "what was tried stays there: {left}");
            for key in left.lines() {
                server.cli(&["DEL", key]);
            }
        } else {
            assert_eq!(left, "", "{command}");
        }
    }
}

#[tokio::test]
async fn missing_keys_and_channels_are_named() {
    let server = old_server();
    allow(&server, &MINIMAL.replace("~leaderrun:*", "~other:*"));
    let store = open(&url(&server)).unwrap();
    let findings = store.check().await.unwrap();
    let bad = findings.iter().find(|finding| finding.verdict == Verdict::Bad).unwrap();
    assert!(bad.text.starts_with("permission missing: ") && bad.text.contains("key"), "{bad:?}");
    denied(store.claim(&candidate("one")).await, "");

    allow(&server, &MINIMAL.replace("&leaderrun:*", "resetchannels"));
    let store = open(&url(&server)).unwrap();
    let findings = store.check().await.unwrap();
    let bad: Vec<_> = findings.iter().filter(|finding| finding.verdict == Verdict::Bad).collect();
    assert_eq!(bad.len(), 2, "to publish, and to subscribe: {bad:?}");
    for bad in bad {
        assert!(bad.text.starts_with("permission missing: ") && bad.text.contains("channel"), "{bad:?}");
    }
    denied(store.changed(&shard()).await, "");
    // A release gives the lease back all the same.
    let (one, term) = one_leads(&store).await;
    store.release(&one, term).await.unwrap();
    lead(&store, &one).await;
    store.release(&one, term).await.unwrap();

    let mut leader = std::process::Command::new(env!("CARGO_BIN_EXE_leaderrun"));
    let output = leader.args(["--store", &url(&server), "quiet", "true"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert_eq!(said.matches("denies PUBLISH to leaderrun:{leases}:changed:quiet").count(), 1, "{said}");
}

#[tokio::test]
async fn passwords_are_asked_for_and_never_shown() {
    let server = Server::with(&["--requirepass", "hunter2"]);
    let at = format!("127.0.0.1:{}", server.port());
    let claim = async |url: &str| {
        let store = open(url).unwrap();
        let claimed = store.claim(&candidate("one")).await;
        let heard = match store.changed(&shard()).await {
            Ok(()) => String::new(),
            Err(error) => error.message,
        };
        assert!(!heard.contains("hunter"), "{heard}");
        claimed
    };
    denied(claim(&format!("redis://{at}")).await, "asks for a password: write it into the store URL");
    for (login, user) in [(":hunter3", "default"), ("me:hunter2", "me")] {
        let expected =
            format!("redis at {at} does not accept this password of user {user}: see USER:PASSWORD@ in the store URL");
        assert_eq!(denied(claim(&format!("redis://{login}@{at}")).await, ""), expected);
    }
    assert!(open(&format!("redis://:hunter2@{at}")).unwrap().claim(&candidate("one")).await.is_ok());

    let open_server = Server::start();
    let at = format!("127.0.0.1:{}", open_server.port());
    let said = misconfigured(claim(&format!("redis://:hunter2@{at}")).await, "");
    assert_eq!(said, format!("redis at {at} has no password: leave it out of the store URL"));
}

/// A server that speaks TLS on a port of its own, besides its plain one.
fn with_tls(papers: &Papers, wants_certificates: bool) -> (Server, u16) {
    let port = crate::support::ports::free_port();
    let (cert, key, ca) = (papers.path("server.pem"), papers.path("server.key"), papers.path("ca.pem"));
    let wants = if wants_certificates { "yes" } else { "no" };
    let text = port.to_string();
    let mut words = vec!["--tls-port", &text, "--tls-cert-file", &cert, "--tls-key-file", &key];
    words.extend(["--tls-ca-cert-file", &ca, "--tls-auth-clients", wants, "--requirepass", "hunter2"]);
    (Server::with(&words), port)
}

fn issue() -> Papers {
    Papers::issue("IP:127.0.0.1,DNS:localhost")
}

async fn works(url: &str) {
    let store = Arc::new(open(url).unwrap());
    let one = with_lease("one", Duration::from_secs(1));
    let grant = granted_in_time(&*store, &one).await;
    assert!(store.renew(&one, grant.term, 1).await.is_ok());
    let news = listens(&store);
    tokio::time::sleep(Duration::from_millis(50)).await;
    store.release(&one, grant.term).await.unwrap();
    tokio::time::timeout(PATIENCE, news).await.expect("it is heard").unwrap().unwrap();
}

#[tokio::test]
async fn tls_trusts_the_authority_that_is_named_and_no_other() {
    let papers = issue();
    let (server, port) = with_tls(&papers, false);
    let ca = papers.path("ca.pem");
    works(&format!("rediss://:hunter2@127.0.0.1:{port}?ca={ca}")).await;
    works(&format!("rediss://:hunter2@localhost:{port}?ca={ca}")).await;

    let claim = async |url: String| match open_with(&url, Duration::from_secs(3)) {
        Ok(store) => store.claim(&candidate("one")).await,
        Err(error) => Err(error),
    };
    let others = issue();
    let other = format!("rediss://:hunter2@127.0.0.1:{port}?ca={}", others.path("ca.pem"));
    misconfigured(claim(other).await, &format!("the certificate of redis at 127.0.0.1:{port} cannot be trusted"));
    let plain = format!("rediss://:hunter2@127.0.0.1:{}?ca={ca}", server.port());
    not_applied(claim(plain).await, "does the server use TLS there?");
    let told = claim(format!("redis://:hunter2@127.0.0.1:{port}")).await.unwrap_err();
    assert!(!told.message.contains("hunter2") && told.message.contains("does it need TLS, by rediss://?"), "{told}");
    let nowhere = format!("rediss://127.0.0.1:{port}?ca=/nowhere/ca.pem");
    misconfigured(claim(nowhere).await, "/nowhere/ca.pem cannot be used for TLS");
    assert!(Path::new(&ca).exists());
}

#[tokio::test]
async fn tls_shows_a_certificate_where_one_is_asked_for() {
    let papers = issue();
    let (_server, port) = with_tls(&papers, true);
    let (ca, cert, key) = (papers.path("ca.pem"), papers.path("app.pem"), papers.path("app.key"));
    works(&format!("rediss://:hunter2@127.0.0.1:{port}?ca={ca}&cert={cert}&key={key}")).await;
    let store = open(&format!("rediss://:hunter2@127.0.0.1:{port}?ca={ca}")).unwrap();
    let told = store.claim(&candidate("one")).await.unwrap_err();
    assert!(told.message.contains("it asks for a certificate: add cert=FILE and key=FILE"), "{told}");
}
