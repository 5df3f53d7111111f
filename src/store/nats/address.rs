//! Reads `nats://` URLs.

use crate::store::url::{Secret, StoreUrl, TlsFiles, sorted};
use std::path::PathBuf;

const DEFAULT_PORT: u16 = 4222;
const OPTIONS: [&str; 7] = ["creds", "nkey", "ca", "cert", "key", "lock_key", "replicas"];

/// Which bucket, on which servers, and how to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Each as HOST:PORT.
    pub hosts: Vec<String>,
    pub bucket: String,
    pub login: Login,
    /// None: TLS only if the server asks for it.
    pub tls: Option<TlsFiles>,
    /// How many replicas a new bucket gets.
    pub replicas: u8,
    /// The bucket and the key of other programs that is held in addition to the lease.
    pub lock_key: Option<(String, String)>,
}

/// How to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Login {
    Nobody,
    User {
        name: String,
        password: Secret,
    },
    Token(Secret),
    /// A file with a JWT and the seed that goes with it.
    Credentials(PathBuf),
    /// A file with a seed.
    Nkey(PathBuf),
}

impl Login {
    /// The login in words, for messages.
    pub fn describe(&self) -> String {
        match self {
            Self::Nobody => {
                "a client without credentials: set USER:PASSWORD@, creds= or nkey= in the store URL".to_owned()
            }
            Self::User { name, .. } => format!("the user {name:?} or its password"),
            Self::Token(_) => "the token in the store URL".to_owned(),
            Self::Credentials(file) => format!("the credentials in {}", file.display()),
            Self::Nkey(file) => format!("the nkey in {}", file.display()),
        }
    }
}

impl Address {
    /// As [`Location::identity`](crate::store::Location::identity).
    pub fn identity(&self) -> String {
        format!("nats {} {}", sorted(self.hosts.iter().cloned()), self.bucket)
    }

    /// Reads the text after `SCHEME:`.
    pub fn read(scheme: &str, rest: &str) -> Result<Self, String> {
        let mut url = StoreUrl::read(scheme, rest, &OPTIONS)?;
        url.some_host()?;
        if url.path.is_empty() {
            return Err(format!("{scheme}:// names no bucket: write {scheme}://HOST/BUCKET"));
        }
        if !is_name(&url.path) {
            return Err(format!("a bucket of {scheme}:// has letters, digits, _ and - in its name, and nothing else"));
        }
        let lock_key = read_lock_key(scheme, &mut url)?;
        let files = url.take_tls_files(["ca", "cert", "key"])?;
        let replicas = url.take_number("replicas")?.unwrap_or(1);
        if !matches!(replicas, 1..=5) {
            return Err(format!("the option replicas of {scheme}:// is not between 1 and 5"));
        }
        let login = read_login(scheme, &mut url)?;
        let tls = (scheme == "nats+tls" || files != TlsFiles::default()).then_some(files);
        let hosts = url.hosts.iter().map(|host| host.place(DEFAULT_PORT).to_string()).collect();
        Ok(Self { hosts, bucket: url.path, login, tls, replicas, lock_key })
    }

    /// All servers, for messages.
    pub fn server(&self) -> String {
        format!("nats at {}", self.hosts.join(","))
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn read_lock_key(scheme: &str, url: &mut StoreUrl<'_>) -> Result<Option<(String, String)>, String> {
    let Some(name) = url.take("lock_key") else { return Ok(None) };
    let (bucket, key) = name.split_once('/').unwrap_or((&url.path, &name));
    let plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/_=.".contains(&byte));
    // Ours begin with it.
    let is_ours = key.starts_with('=');
    if !is_name(bucket) || is_ours || !plain || key.split('.').any(str::is_empty) {
        return Err(format!(
            "the option lock_key of {scheme}:// names no key of other programs: write lock_key=BUCKET/KEY"
        ));
    }
    Ok(Some((bucket.to_owned(), key.to_owned())))
}

fn read_login(scheme: &str, url: &mut StoreUrl<'_>) -> Result<Login, String> {
    let (creds, nkey) = (url.take("creds"), url.take("nkey"));
    match (url.user.take(), url.password.take(), creds, nkey) {
        (None, None, None, None) => Ok(Login::Nobody),
        (Some(name), Some(password), None, None) => Ok(Login::User { name, password }),
        (Some(token), None, None, None) => Ok(Login::Token(Secret::from(token))),
        (None, None, Some(file), None) => Ok(Login::Credentials(file.into())),
        (None, None, None, Some(file)) => Ok(Login::Nkey(file.into())),
        (None, Some(_), None, None) => {
            Err(format!("{scheme}:// has a password without a user: write USER:PASSWORD@HOST, or TOKEN@HOST"))
        }
        _ => Err(format!("{scheme}:// takes one of USER:PASSWORD@, TOKEN@, creds=FILE and nkey=FILE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Address {
        let (scheme, rest) = url.split_once(':').unwrap();
        Address::read(scheme, rest).unwrap()
    }

    #[test]
    fn a_url_names_servers_a_bucket_and_who_we_are() {
        let address = read("nats://u:p%40x@one,two:4333/locks?replicas=3");
        assert_eq!(address.server(), "nats at one:4222,two:4333");
        assert_eq!(address.login, Login::User { name: "u".into(), password: Secret::from("p@x".to_owned()) });
        assert_eq!((address.bucket.as_str(), address.replicas, address.tls), ("locks", 3, None));
        assert_eq!(read("nats://s3cr3t@h/b").login, Login::Token(Secret::from("s3cr3t".to_owned())));
        assert_eq!(read("nats://h/b?creds=/x.creds").login, Login::Credentials("/x.creds".into()));
        assert_eq!(read("nats://h/b?nkey=/x").login, Login::Nkey("/x".into()));
        assert_eq!(read("nats://h/b").login, Login::Nobody);
    }

    #[test]
    fn a_key_of_other_programs_is_in_this_bucket_or_in_another() {
        let of = |url: &str| read(url).lock_key.map(|(bucket, key)| format!("{bucket} {key}"));
        for (url, expected) in [
            ("nats://h/b?lock_key=leader", Some("b leader")),
            ("nats://h/b?lock_key=c/svc/leader.x", Some("c svc/leader.x")),
            ("nats://h/b?lock_key=c%2Fleader", Some("c leader")),
            ("nats://h/b", None),
        ] {
            assert_eq!(of(url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn naming_an_authority_or_a_certificate_turns_tls_on() {
        for url in ["nats+tls://h/b", "nats://h/b?ca=/ca.pem", "nats://h/b?cert=/c.pem&key=/k.pem"] {
            assert!(read(url).tls.is_some(), "{url}");
        }
    }

    #[test]
    fn nonsense_is_refused_in_one_line() {
        for (rest, part) in [
            ("//h", "names no bucket: write nats://HOST/BUCKET"),
            ("//h/", "names no bucket"),
            ("///b", "names no host"),
            ("//h/a.b", "letters, digits, _ and -"),
            ("//h/b?x=1", "it takes creds, nkey"),
            ("//h/b?replicas=0", "between 1 and 5"),
            ("//h/b?key=c/leader", "needs both cert=FILE and key=FILE"),
            ("//h/b?lock_key=c/", "write lock_key=BUCKET/KEY"),
            ("//h/b?lock_key=c.d/k", "write lock_key=BUCKET/KEY"),
            ("//h/b?lock_key=c/a..b", "write lock_key=BUCKET/KEY"),
            ("//h/b?lock_key=c/a%20b", "write lock_key=BUCKET/KEY"),
            ("//h/b?lock_key=c/=led.a", "write lock_key=BUCKET/KEY"),
            ("//h/b?creds=/c&nkey=/n", "takes one of"),
            ("//u:p@h/b?creds=/c", "takes one of"),
            ("//:hunter2@h/b", "a password without a user"),
        ] {
            let message = Address::read("nats", rest).unwrap_err();
            assert!(message.contains(part) && !message.contains("hunter2"), "{rest}: {message}");
        }
    }
}
