//! TLS, as the clients' modes have it.

use super::*;
use leaderrun::internals::store::ErrorKind;
use leaderrun::internals::store::Leases as _;
use std::path::PathBuf;
use std::process::Command;
use tempfile::TempDir;

/// An authority, a certificate of the server for 127.0.0.1, and one of the user "app".
struct Papers(TempDir);

impl Papers {
    fn issue() -> Self {
        let papers = Self(TempDir::new().unwrap());
        for authority in ["ca", "other"] {
            papers.openssl(&format!(
                "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN={authority} \
                 -addext basicConstraints=critical,CA:TRUE -addext keyUsage=critical,keyCertSign \
                 -keyout {authority}.key -out {authority}.crt"
            ));
        }
        for (name, extension) in [("server", "subjectAltName=IP:127.0.0.1"), ("app", "basicConstraints=CA:FALSE")] {
            std::fs::write(papers.file("ext"), extension).unwrap();
            papers.openssl(&format!(
                "req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN={name} -keyout {name}.key -out {name}.csr"
            ));
            papers.openssl(&format!(
                "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out {name}.crt"
            ));
        }
        papers
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl").args(arguments.split_whitespace()).current_dir(self.0.path()).output();
        let output = output.expect("openssl is missing: install the package openssl");
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    async fn server(&self) -> Server {
        crate::support::mysql::give_to_servant(self.0.path());
        let option = |name: &str, file: &str| format!("--ssl-{name}={}", self.file(file).display());
        let options = [option("ca", "ca.crt"), option("cert", "server.crt"), option("key", "server.key")];
        let started = tokio::task::spawn_blocking(move || Server::start_with(&options.each_ref().map(String::as_str)));
        started.await.unwrap()
    }
}

/// How many sessions of this user are encrypted; the status of a session is its own, so the user is asked to be.
async fn is_encrypted(server: &Server, url: &str) -> bool {
    let user = "secure";
    server.sql(&format!(
        "DROP USER IF EXISTS {user}; CREATE USER {user} REQUIRE SSL; GRANT ALL ON {DATABASE}.* TO {user}"
    ));
    open(&url.replace(&format!("//{ADMIN}@"), &format!("//{user}@"))).observe(&shard()).await.is_ok()
}

#[tokio::test]
async fn each_mode_checks_what_it_says() {
    let papers = Papers::issue();
    let server = papers.server().await;
    open(&server.url_with("")).prepare().await.unwrap();
    let (ca, other) = (papers.file("ca.crt"), papers.file("other.crt"));
    let (ca, other) = (ca.display(), other.display());
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
        (by_name(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={ca}")), "another name"),
        (server.url_with(&format!("ssl-mode=VERIFY_IDENTITY&ssl-ca={other}")), "not signed by an authority"),
        (server.url_with(&format!("ssl-mode=VERIFY_CA&ssl-ca={other}")), "not signed by an authority"),
        (server.url_with(&format!("ssl-ca={other}")), "not signed by an authority"),
        (server.url_with("ssl-ca=/nonexistent"), "/nonexistent cannot be used for TLS"),
    ] {
        let (_, rest) = url.split_once(':').unwrap();
        let opened = Mysql::open(&Address::read(rest).unwrap(), REQUEST_TIMEOUT);
        let error = match opened {
            Ok(store) => store.claim(&candidate("one")).await.unwrap_err(),
            Err(error) => error,
        };
        assert!(error.kind == ErrorKind::Misconfigured && error.message.contains(word), "{url}: {error}");
    }
}

#[tokio::test]
async fn a_server_without_tls_is_distinguished_from_one_with_it() {
    // MySQL makes a certificate for itself, and MariaDB before 11.4 does not.
    let without: &[&str] = if is_mariadb() { &[] } else { &["--tls-version="] };
    let server = tokio::task::spawn_blocking(move || Server::start_with(without)).await.unwrap();
    open(&server.url_with("ssl-mode=DISABLED")).prepare().await.unwrap();
    server.age("leaderrun");
    for mode in ["REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"] {
        let error = open(&server.url_with(&format!("ssl-mode={mode}"))).claim(&candidate("one")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Misconfigured, "{mode}");
        assert!(error.message.contains("does not speak TLS") && error.message.contains("ssl-mode"), "{error}");
    }
    lead(&open(&server.url_with("ssl-mode=PREFERRED")), &candidate("one")).await;
}

#[tokio::test]
async fn a_certificate_of_ours_counts() {
    let papers = Papers::issue();
    let server = papers.server().await;
    open(&server.url_with("")).prepare().await.unwrap();
    server.age("leaderrun");
    server.sql(&format!("CREATE USER app REQUIRE X509; GRANT ALL ON {DATABASE}.* TO app"));
    let url = |options: &str| server.url_with(options).replace(&format!("//{ADMIN}@"), "//app@");
    let papers = format!(
        "ssl-mode=VERIFY_IDENTITY&ssl-ca={}&ssl-cert={}&ssl-key={}",
        papers.file("ca.crt").display(),
        papers.file("app.crt").display(),
        papers.file("app.key").display()
    );
    lead(&open(&url(&papers)), &candidate("one")).await;
    let error = open(&url("ssl-mode=REQUIRED")).claim(&candidate("two")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
}
