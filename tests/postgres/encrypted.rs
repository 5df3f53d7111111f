//! TLS, as libpq's modes have it.

use super::*;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Renewal};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// An authority, a certificate of the server for 127.0.0.1, and one of the role "app".
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

    fn give_to(&self, data: &Path) {
        for (name, place) in [("server.crt", "server.crt"), ("server.key", "server.key"), ("ca.crt", "root.crt")] {
            std::fs::copy(self.file(name), data.join(place)).unwrap();
        }
        std::fs::set_permissions(data.join("server.key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    }

    fn server(&self, rules: &str) -> Server {
        Server::prepared_with(&["ssl=on", "ssl_ca_file=root.crt"], |data| {
            self.give_to(data);
            std::fs::write(data.join("pg_hba.conf"), rules).unwrap();
        })
    }
}

/// Whether the store's connection is encrypted.
fn is_encrypted(server: &Server) -> bool {
    let question = "SELECT bool_and(ssl) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) \
                    WHERE application_name = 'leaderrun'";
    server.sql(question) == "t"
}

#[tokio::test]
async fn a_self_signed_certificate_that_is_named_counts_for_the_name_in_it() {
    let papers = Papers::issue();
    papers.openssl(
        "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=server \
         -addext subjectAltName=IP:127.0.0.1 -keyout server.key -out server.crt",
    );
    let server = papers.server("local all all trust\nhost all all all trust\n");
    let url =
        |mode: &str, ca: &str| server.url_with(&format!("sslmode={mode}&sslrootcert={}", papers.file(ca).display()));
    let by_name = |url: String| url.replace("@127.0.0.1", "@localhost");
    for url in
        [url("verify-full", "server.crt"), url("verify-ca", "server.crt"), by_name(url("verify-ca", "server.crt"))]
    {
        let store = open(&url).await;
        store.prepare().await.unwrap_or_else(|error| panic!("{url}: {error}"));
        assert!(is_encrypted(&server), "{url}");
    }
    for (url, word) in [
        (by_name(url("verify-full", "server.crt")), "another name"),
        (url("verify-full", "ca.crt"), "cannot be trusted"),
        (url("verify-ca", "ca.crt"), "cannot be trusted"),
    ] {
        let error = open(&url).await.claim(&candidate("one")).await.unwrap_err();
        assert!(error.kind == ErrorKind::Misconfigured && error.message.contains(word), "{url}: {error}");
    }
}

#[tokio::test]
async fn each_mode_checks_what_it_says() {
    let papers = Papers::issue();
    let server = papers.server("local all all trust\nhost all all all trust\n");
    let (ca, other) = (papers.file("ca.crt"), papers.file("other.crt"));
    let (ca, other) = (ca.display(), other.display());
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
        eventually("the connection is closed", || server.sql(gone) == "0").await;
    }
    for (url, word) in [
        (by_name(&format!("sslmode=verify-full&sslrootcert={ca}")), "another name"),
        (server.url_with(&format!("sslmode=verify-full&sslrootcert={other}")), "authority"),
        (server.url_with(&format!("sslmode=verify-ca&sslrootcert={other}")), "authority"),
        (server.url_with(&format!("sslmode=require&sslrootcert={other}")), "authority"),
        (server.url_with(&format!("sslmode=prefer&sslrootcert={other}")), "authority"),
        (server.url_with("sslrootcert=system"), "authority"),
    ] {
        let error = open(&url).await.claim(&candidate("one")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Misconfigured, "{url}: {error}");
        assert!(error.message.contains(word), "{url}: {error}");
    }
    let without = format!("sslmode=verify-ca&sslrootcert={}", papers.file("missing").display());
    let Err(error) = try_open(&server.url_with(&without), REQUEST_TIMEOUT).await else {
        panic!("there is no such file")
    };
    assert_eq!(error.kind, ErrorKind::Misconfigured);
    assert!(error.message.contains("missing"), "{error}");
}

#[tokio::test]
async fn without_tls_in_the_server_only_the_modes_that_insist_fail() {
    let server = shared();
    for mode in ["require", "verify-ca&sslrootcert=/etc/ssl/certs/ca-certificates.crt"] {
        let Ok(store) = try_open(&server.url_with(&format!("sslmode={mode}")), REQUEST_TIMEOUT).await else { continue };
        let error = store.claim(&candidate("one")).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Misconfigured);
        assert!(error.message.contains("does not speak TLS"), "{error}");
    }
    let table = Table::new().await;
    lead(&open(&table.url_with("sslmode=prefer")).await, &candidate("one")).await;
}

#[tokio::test]
async fn a_certificate_lets_in_and_another_one_does_not() {
    let papers = Papers::issue();
    let server = papers.server("host all postgres all trust\nhostssl all app all cert\n");
    server.sql("CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO app");
    let ca = papers.file("ca.crt");
    let url = |name: &str| {
        let (cert, key) = (papers.file(&format!("{name}.crt")), papers.file(&format!("{name}.key")));
        let options = format!(
            "sslmode=verify-full&sslrootcert={}&sslcert={}&sslkey={}",
            ca.display(),
            cert.display(),
            key.display()
        );
        server.url_with(&options).replace("//postgres@", "//app@")
    };
    let store = open(&url("app")).await;
    store.prepare().await.unwrap();
    let one = candidate("one");
    let term = granted(store.claim(&one).await.unwrap()).term;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    for (name, kind) in [("server", ErrorKind::Denied), ("other", ErrorKind::Denied)] {
        let error = open(&url(name)).await.claim(&one).await.unwrap_err();
        assert_eq!(error.kind, kind, "{name}: {error}");
    }
    let without = server.url_with("sslmode=require").replace("//postgres@", "//app@");
    let error = open(&without).await.claim(&one).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied, "{error}");
}

#[tokio::test]
async fn a_password_goes_with_channel_binding_over_tls() {
    let papers = Papers::issue();
    let server = papers.server("host all postgres all trust\nhostssl all all all scram-sha-256\n");
    server.sql("CREATE ROLE app LOGIN PASSWORD 'hunter2'; GRANT CREATE ON SCHEMA public TO app");
    let url = format!("postgres://app:hunter2@127.0.0.1:{}/postgres?sslmode=require", server.port());
    open(&url).await.prepare().await.unwrap();
    let error = open(&url.replace("sslmode=require", "sslmode=disable")).await.prepare().await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(!error.message.contains("hunter2"), "{error}");
}
