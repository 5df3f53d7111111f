//! Who is let in, and what it may do there.

use super::*;
use crate::support::papers::Papers;
use std::sync::LazyLock;

/// Made for these tests, and good for nothing else.
const NKEY_SEED: &str = "SUAD33FXPTBP3O4ZS3SAJSDJW5QM4KTLXBU3AQWXIZ3G5DK43HPZRIU7MM";
const NKEY_PUBLIC: &str = "UAZE7T5ZOS427QLMM7EQ6Y3V5JXFVCSQVK4CA6URPQC6TJGSNZCECMR4";
const USER_SEED: &str = "SUAG3IRDXNGBXTYP7IIW3MOR5G6YIPWZRZ6UAKQFFEAQ2KSINYFS5TS3DU";

async fn works(server: &Server) {
    let store = open(&server.own_url()).await;
    store.prepare().await.unwrap();
    store.vouch().await.unwrap();
    let one = candidate("one");
    let grant = granted(store.claim(&one).await.unwrap());
    assert_eq!(store.renew(&one, grant.term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(store.release(&one, grant.term).await, Ok(Release::Released));
}

async fn observed(url: &str) -> Result<Observation, StoreError> {
    open(url).await.observe(&shard()).await
}

#[tokio::test]
async fn a_user_with_its_password_is_let_in_and_nobody_else() {
    let users = "jetstream: enabled\nauthorization { timeout: 60, users = [{user: u, password: 's3cr3t/@'}] }";
    let mut server = Server::configured(users, r#"{"user":"u","pass":"s3cr3t/@"}"#);
    server.login = "u:s3cr3t%2F%40@".to_owned();
    works(&server).await;
    for (login, named) in [("u:hunter2@", "the user \"u\" or its password"), ("", "a client without credentials")] {
        let url = format!("nats://{login}{}/{BUCKET}", server.address());
        let said = denied(observed(&url).await, &format!("denied {named}"));
        assert_eq!(open(&url).await.check().await, Err(StoreError::denied(said)));
    }
}

#[tokio::test]
async fn a_token_is_let_in_and_never_shown() {
    let lines = "jetstream: enabled\nauthorization { timeout: 60, token: 's3cr3t' }";
    let mut server = Server::configured(lines, r#"{"auth_token":"s3cr3t"}"#);
    server.login = "s3cr3t@".to_owned();
    works(&server).await;
    denied(observed(&format!("nats://hunter2@{}/{BUCKET}", server.address())).await, "denied the token");
}

#[tokio::test]
async fn an_nkey_is_let_in() {
    let lines = format!(
        "jetstream: enabled\nauthorization {{ timeout: 60, users = [{{nkey: {NKEY_PUBLIC}}}, {{user: admin, password: admin}}] }}"
    );
    let mut server = Server::configured(&lines, r#"{"user":"admin","pass":"admin"}"#);
    let file = server.path("seed");
    fs::write(&file, format!("# of the leader\n{NKEY_SEED}\n")).unwrap();
    server.options = format!("?nkey={}", file.display());
    works(&server).await;
    // Another one's.
    fs::write(&file, USER_SEED).unwrap();
    let said = denied(observed(&server.own_url()).await, "the nkey in /");
    assert!(!said.contains(USER_SEED), "{said}");
}

#[tokio::test]
async fn a_credentials_file_is_let_in_and_read_again_when_it_was_renewed() {
    let operator: Value = serde_json::from_str(include_str!("operator.json")).unwrap();
    let of = |name: &str| operator[name].as_str().unwrap().to_owned();
    let lines = format!(
        "jetstream: enabled\nauthorization {{ timeout: 60 }}\noperator: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
        of("operator"),
        of("system"),
        of("systemJwt"),
        of("account"),
        of("accountJwt")
    );
    let mut server = Server::configured(&lines, "");
    let file = server.path("leader.creds");
    let creds = |seed: &str| {
        format!(
            "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n-----BEGIN USER NKEY \
             SEED-----\n{seed}\n------END USER NKEY SEED------\n",
            of("userJwt")
        )
    };
    fs::write(&file, creds(USER_SEED)).unwrap();
    server.options = format!("?creds={}", file.display());
    works(&server).await;
    let store = open(&server.own_url()).await;
    fs::write(&file, creds(NKEY_SEED)).unwrap();
    let said = denied(store.observe(&shard()).await, "the credentials in /");
    assert!(!said.contains(NKEY_SEED), "{said}");
    fs::write(&file, creds(USER_SEED)).unwrap();
    store.observe(&shard()).await.unwrap();
}

#[tokio::test]
async fn a_file_that_cannot_be_used_is_named_when_the_store_is_opened() {
    let scratch = TempDir::new().unwrap();
    let wrong = scratch.path().join("wrong");
    fs::write(&wrong, "SUAhunter2 and nothing else").unwrap();
    let there = wrong.display();
    for (options, part) in [
        ("creds=/nowhere".to_owned(), "/nowhere cannot be used to log in: no such file or directory"),
        ("nkey=/nowhere".to_owned(), "/nowhere cannot be used to log in"),
        (format!("creds={there}"), "does not hold a user JWT and a seed"),
        (format!("nkey={there}"), "does not hold the seed of a user"),
        ("ca=/nowhere".to_owned(), "/nowhere cannot be used for TLS"),
        (format!("ca={there}"), "it holds no certificate"),
        (format!("cert={there}&key={there}"), "cannot be used for TLS"),
    ] {
        let location = Location::from_url(&format!("nats://h/{BUCKET}?{options}")).unwrap();
        misconfigured(location.open(REQUEST_TIMEOUT).await, part);
    }
}

/// What an election needs, as examples/infrastructure and leaderrun-stores(7) have it; the first is what writes.
static NEEDED: LazyLock<[&str; 4]> = LazyLock::new(|| {
    let file = include_str!("../../../examples/infrastructure/nats.conf");
    let (_, candidate) = file.split_once("{user: leaderrun,").expect("there is a candidate");
    let subjects = candidate.lines().filter_map(|line| line.trim().strip_prefix('"')?.strip_suffix('"'));
    subjects.take(4).collect::<Vec<_>>().try_into().expect("four subjects")
});

#[tokio::test]
async fn a_check_and_a_candidate_name_each_permission_that_is_missing() {
    // What each user may publish to, what it may hear, and what it is told.
    let lacking = |missing: &&str| {
        let granted: Vec<_> = NEEDED.iter().filter(|subject| *subject != missing).map(|it| format!("'{it}'")).collect();
        (granted.join(", "), "_INBOX.>", format!("for Publish to \"{}", missing.trim_end_matches('>')))
    };
    let mut users: Vec<_> = NEEDED.iter().map(lacking).collect();
    let all = NEEDED.map(|subject| format!("'{subject}'")).join(", ");
    users.push((all, "elsewhere.>", "for Subscription to \"_INBOX.".to_owned()));
    let own = users.iter().enumerate().map(|(number, (publish, hear, _))| {
        let permissions = format!("{{ publish: [{publish}], subscribe: ['{hear}'] }}");
        format!("{{user: u{number}, password: u, permissions: {permissions} }}")
    });
    let own: Vec<_> = own.collect();
    let lines = format!(
        "jetstream: enabled\nauthorization {{ timeout: 60, users = [\n{{user: admin, password: admin}}\n{}\n] }}",
        own.join("\n")
    );
    let server = Server::configured(&lines, r#"{"user":"admin","pass":"admin"}"#);
    let at = |login: &str| format!("nats://{login}@{}/{BUCKET}", server.address());
    ready(&at("admin:admin")).await;
    for (number, (.., sign)) in users.iter().enumerate() {
        let begun = Instant::now();
        let bound = Duration::from_mins(1);
        let findings = open_with(&at(&format!("u{number}:u")), bound).await.check().await.unwrap();
        let bad = texts(&findings, Verdict::Bad);
        assert_eq!(bad.len(), 1, "{findings:#?}");
        assert!(bad[0].starts_with("permission missing: ") && bad[0].contains(sign), "{bad:?}");
        // What is forbidden is not waited for.
        assert!(begun.elapsed() < bound, "{:?}", begun.elapsed());
    }
    let writes_nothing = open(&at("u0:u")).await;
    denied(writes_nothing.claim(&short("one")).await, "denied the user \"u0\" or its password … $KV.locks.");
    assert!(server.client().record(KEY).is_none());
}

fn with_tls(more: &str) -> Server {
    let lines = format!(
        "jetstream: enabled\ntls {{ timeout: 60, cert_file: 'DATA/server.pem', key_file: 'DATA/server.key'{more} }}"
    );
    Server::prepared(Papers::issue("IP:127.0.0.1").into_directory(), &lines, "")
}

#[tokio::test]
async fn over_tls_the_server_is_checked_by_the_named_authority() {
    let mut server = with_tls("");
    server.options = format!("?ca={}", server.path("ca.pem").display());
    works(&server).await;
    server.scheme = "nats+tls";
    works(&server).await;
    // By the system's authorities: they did not sign it.
    for scheme in ["nats", "nats+tls"] {
        let url = format!("{scheme}://{}/{BUCKET}", server.address());
        let Ok(store) = Location::from_url(&url).unwrap().open(REQUEST_TIMEOUT).await else {
            continue; // This system has none.
        };
        misconfigured(store.observe(&shard()).await, "the certificate of nats at 127.0.0.1: … ca=FILE");
    }
    // The name has to fit as well.
    let other = format!("nats+tls://localhost:{}/{BUCKET}{}", server.address().port(), server.options);
    misconfigured(observed(&other).await, "name the host as its certificate does");
}

#[tokio::test]
async fn a_client_certificate_is_shown_where_it_is_wanted() {
    let mut server = with_tls(", ca_file: 'DATA/ca.pem', verify: true");
    let at = |name: &str| server.path(name).display().to_string();
    let (ca, own) = (format!("?ca={}", at("ca.pem")), format!("&cert={}&key={}", at("app.pem"), at("app.key")));
    server.options = format!("{ca}{own}");
    works(&server).await;
    server.options = ca;
    denied(observed(&server.own_url()).await, "cert=FILE and key=FILE");
}

#[tokio::test]
async fn who_demands_tls_does_not_go_on_without() {
    let server = server().await;
    let papers = Papers::issue("IP:127.0.0.1");
    let url = format!("nats+tls://{}/{BUCKET}?ca={}", server.address(), papers.path("ca.pem"));
    misconfigured(observed(&url).await, "the server does not answer with TLS");
}
