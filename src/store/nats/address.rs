//! Reads `nats://` URLs, and maps shards and notes to keys.

use crate::lease::{Session, Shard};
use crate::store::Page;
use crate::store::url::{Host, Secret, StoreUrl, TlsFiles, sorted};
use std::fmt::Write as _;
use std::path::PathBuf;

pub const DEFAULT_PORT: u16 = 4222;
const OPTIONS: [&str; 7] = ["creds", "nkey", "ca", "cert", "key", "lock_key", "replicas"];
/// The key that says since when the bucket remembers. It is not a shard's key: see [`key_of`].
pub const MARKER: &str = "=born";
/// The key for a check's trials, and for asking a server's time.
pub const SCRATCH: &str = "=scratch";
/// A key that never holds anything. To purge it needs the permission, and changes nothing.
pub const NOTHING: &str = "=nothing";

/// Which bucket, on which servers, and how to log in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub hosts: Vec<Host>,
    pub bucket: String,
    pub login: Login,
    /// Whether a connection without TLS must not be used.
    pub demand_tls: bool,
    pub files: TlsFiles,
    /// How many replicas a new bucket gets.
    pub replicas: u8,
    /// The key of other programs that is held in addition to the lease.
    pub lock_key: Option<Box<LockKey>>,
}

/// A key of other programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockKey {
    pub bucket: String,
    pub key: String,
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
    #[must_use]
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
    #[must_use]
    pub fn identity(&self) -> String {
        let hosts = sorted(self.hosts.iter().map(|host| host.with_port(DEFAULT_PORT)));
        format!("nats {hosts} {}", self.bucket)
    }

    /// Reads the text after `SCHEME:`.
    ///
    /// # Errors
    /// One line that says what is wrong, and what to write.
    pub fn read(scheme: &str, rest: &str) -> Result<Self, String> {
        let (scheme, demand_tls) = if scheme == "nats+tls" { ("nats+tls", true) } else { ("nats", false) };
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
        let demand_tls = demand_tls || files.ca.is_some() || files.cert.is_some();
        Ok(Self { hosts: url.hosts, bucket: url.path, login, demand_tls, files, replicas, lock_key })
    }

    /// All servers, for messages.
    #[must_use]
    pub fn server(&self) -> String {
        let hosts = self.hosts.iter().map(|host| host.with_port(DEFAULT_PORT)).collect::<Vec<_>>();
        format!("nats at {}", hosts.join(","))
    }

    /// The stream of the bucket.
    #[must_use]
    pub fn stream(&self) -> String {
        format!("KV_{}", self.bucket)
    }

    /// The subject of a key's records in the stream.
    #[must_use]
    pub fn subject(&self, key: &str) -> String {
        format!("$KV.{}.{key}", self.bucket)
    }
}

/// The subject of a request to JetStream.
#[must_use]
pub fn api(request: &str) -> String {
    format!("$JS.API.{request}")
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

fn read_lock_key(scheme: &str, url: &mut StoreUrl) -> Result<Option<Box<LockKey>>, String> {
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
    Ok(Some(Box::new(LockKey { bucket: bucket.to_owned(), key: key.to_owned() })))
}

fn read_login(scheme: &str, url: &mut StoreUrl) -> Result<Login, String> {
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

/// The key of a shard: the shard itself, if it consists of letters, digits and `_ - /` and single dots within. A
/// character that a key may not have there (a colon; a dot at an end, or after another) becomes `=` and two upper-case
/// hexadecimal digits.
///
/// So no shard's key begins with `=` and a lower-case letter: such keys are for other uses of ours.
pub fn key_of(shard: &Shard) -> String {
    let name = shard.as_str();
    let mut key = String::with_capacity(name.len() + 8);
    for (index, c) in name.char_indices() {
        let separates = c == '.' && index > 0 && index + 1 < name.len() && !key.ends_with('.');
        if c.is_ascii_alphanumeric() || "_-/".contains(c) || separates {
            key.push(c);
        } else {
            let _ = write!(key, "={:02X}", u32::from(c));
        }
    }
    key
}

/// The shard of a key. None for our other keys, and for keys that no shard has.
pub fn shard_of(key: &str) -> Option<Shard> {
    let mut parts = key.split('=');
    let mut name = parts.next()?.to_owned();
    for part in parts {
        let byte = u8::from_str_radix(part.get(..2)?, 16).ok().filter(u8::is_ascii)?;
        name.push(char::from(byte));
        name.push_str(&part[2..]);
    }
    // A shard has one key. Another spelling belongs to no shard.
    name.parse().ok().filter(|shard| key_of(shard) == key)
}

/// The key of a shard's led mark: the record that the shard was once led.
pub fn led_mark_of(shard: &Shard) -> String {
    format!("=led.{}", key_of(shard))
}

/// The beginning of the keys of standbys' notes.
const STANDBY: &str = "=note.standby.";

/// The key of a note.
pub fn note_of(shard: &Shard, page: &Page) -> String {
    let key = key_of(shard);
    match page {
        Page::Orders => format!("=note.orders.{key}"),
        Page::History => format!("=note.history.{key}"),
        Page::Standby(session) => format!("{STANDBY}{}.{key}", session.as_str()),
        Page::Runs => format!("=note.runs.{key}"),
        Page::Jobs => format!("=note.jobs.{key}"),
        // The first dot ends the name of the job.
        Page::Once(job) => format!("=note.once.{}.{key}", job.as_str().replace('.', "=2E")),
    }
}

/// Whether a key belongs to a note of this shard.
pub fn is_note_of(key: &str, shard: &Shard) -> bool {
    let Some((kind, rest)) = key.strip_prefix("=note.").and_then(|rest| rest.split_once('.')) else { return false };
    let rest = match kind {
        "standby" | "once" => rest.split_once('.').map(|(_, rest)| rest),
        _ => Some(rest),
    };
    rest == Some(key_of(shard).as_str())
}

/// The shard and the session of a standby's note, from its key. None for other keys.
pub fn standby_of(key: &str) -> Option<(Shard, Session)> {
    // A shard may contain dots, a session does not.
    let (session, key) = key.strip_prefix(STANDBY)?.split_once('.')?;
    Some((shard_of(key)?, Session::from_record(session)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_note_is_of_the_shard_that_its_key_was_made_for_and_of_no_other() {
        let shards = ["db", "db.x", "x.db", "db/1", "a.b.c", "b.c", "c", ".", "d:e"].map(|name| match name {
            "." => "..a".parse::<Shard>().unwrap(),
            name => name.parse().unwrap(),
        });
        let session = || Session::from_record("1b4e28ba-2fa1-11d2-883f-0016d3cca427");
        for of in &shards {
            let job = "a.b".parse().unwrap();
            let pages =
                [Page::Orders, Page::History, Page::Runs, Page::Jobs, Page::Standby(session()), Page::Once(job)];
            for key in pages.map(|page| note_of(of, &page)) {
                for shard in &shards {
                    assert_eq!(is_note_of(&key, shard), shard == of, "{key} {shard}");
                }
            }
            assert!(!is_note_of(&key_of(of), of) && !is_note_of(&led_mark_of(of), of), "{of}");
        }
    }

    fn read(url: &str) -> Address {
        let (scheme, rest) = url.split_once(':').unwrap();
        Address::read(scheme, rest).unwrap()
    }

    #[test]
    fn a_url_names_servers_a_bucket_and_who_we_are() {
        let address = read("nats://u:p%40x@one,two:4333/locks?replicas=3");
        assert_eq!(address.server(), "nats at one:4222,two:4333");
        assert_eq!(address.login, Login::User { name: "u".into(), password: Secret::from("p@x".to_owned()) });
        assert_eq!((address.stream().as_str(), address.replicas, address.demand_tls), ("KV_locks", 3, false));
        assert_eq!(address.subject("a"), "$KV.locks.a");
        assert_eq!(read("nats://s3cr3t@h/b").login, Login::Token(Secret::from("s3cr3t".to_owned())));
        assert_eq!(read("nats://h/b?creds=/x.creds").login, Login::Credentials("/x.creds".into()));
        assert_eq!(read("nats://h/b?nkey=/x").login, Login::Nkey("/x".into()));
        assert_eq!(read("nats://h/b").login, Login::Nobody);
    }

    #[test]
    fn a_key_of_other_programs_is_in_this_bucket_or_in_another() {
        let of = |url: &str| read(url).lock_key.map(|lock| format!("{} {}", lock.bucket, lock.key));
        for (url, expected) in [
            ("nats://h/b?lock_key=leader", Some("b leader")),
            ("nats://h/b?lock_key=c/svc/leader.x", Some("c svc/leader.x")),
            ("nats+tls://h/b?ca=/ca&lock_key=c%2Fleader", Some("c leader")),
            ("nats://h/b?cert=/c&key=/k&lock_key=c/leader", Some("c leader")),
            ("nats://h/b?cert=/c&key=/k", None),
            ("nats://h/b", None),
        ] {
            assert_eq!(of(url).as_deref(), expected, "{url}");
        }
        assert!(!read("nats://h/b?lock_key=c/leader").demand_tls);
    }

    #[test]
    fn naming_an_authority_or_a_certificate_turns_tls_on() {
        for url in ["nats+tls://h/b", "nats://h/b?ca=/ca.pem", "nats://h/b?cert=/c.pem&key=/k.pem"] {
            assert!(read(url).demand_tls, "{url}");
        }
    }

    #[test]
    fn nonsense_is_refused_in_one_line() {
        for (rest, part) in [
            ("h/b", "write nats://HOST"),
            ("//h", "names no bucket: write nats://HOST/BUCKET"),
            ("//h/", "names no bucket"),
            ("///b", "names no host"),
            ("//h/a.b", "letters, digits, _ and -"),
            ("//h/a/b", "letters, digits, _ and -"),
            ("//h/b?x=1", "it takes creds, nkey"),
            ("//h/b?replicas=0", "between 1 and 5"),
            ("//h/b?replicas=many", "is no number"),
            ("//h/b?domain=hub", "it takes creds, nkey"),
            ("//h/b?inbox=_INBOX_lr", "it takes creds, nkey"),
            ("//h/b?cert=/c", "needs both cert=FILE and key=FILE"),
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

    #[test]
    fn a_secret_does_not_print() {
        for url in ["nats://u:hunter2@h/b", "nats://hunter2@h/b"] {
            let address = read(url);
            assert!(!format!("{address:?} {}", address.login.describe()).contains("hunter2"), "{url}");
        }
    }

    #[test]
    fn a_plain_shard_is_its_own_key_and_others_are_escaped() {
        for (shard, key) in [
            ("web", "web"),
            ("db/main.eu-1_x", "db/main.eu-1_x"),
            ("a:b", "a=3Ab"),
            (".a.", "=2Ea=2E"),
            ("a...b", "a.=2E.b"),
            ("..a", "=2E.a"),
            (":", "=3A"),
        ] {
            assert_eq!(key_of(&shard.parse().unwrap()), key, "{shard}");
        }
    }

    /// Whether a key is valid by the rules of NATS.
    fn is_key(key: &str) -> bool {
        let known = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-/_=.".contains(&byte));
        known && !key.is_empty() && !key.starts_with('.') && !key.ends_with('.') && !key.contains("..")
    }

    fn unescaped(key: &str) -> String {
        let mut parts = key.split('=');
        let mut shard = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            shard.push(char::from(u8::from_str_radix(&part[..2], 16).unwrap()));
            shard.push_str(&part[2..]);
        }
        shard
    }

    #[test]
    fn a_key_that_no_shard_can_have_names_no_shard() {
        for key in [
            MARKER,
            SCRATCH,
            "=led.a",
            "=note.orders.a",
            "=note.standby.s.a",
            "",
            "a b",
            "=61",
            "a=2F",
            "a=2",
            "a=C3=A4",
            "a=xy",
            "x=3a",
            "..",
            "a..b",
        ] {
            assert_eq!(shard_of(key), None, "{key}");
        }
    }

    proptest! {
        #[test]
        fn every_shard_has_a_key_of_its_own(shard in "[A-Za-z0-9._/:-]{1,40}") {
            if let Ok(shard) = shard.parse::<Shard>() {
                let key = key_of(&shard);
                prop_assert!(is_key(&key) && is_key(&led_mark_of(&shard)), "{}", key);
                prop_assert_eq!(unescaped(&key), shard.as_str());
                prop_assert_eq!(shard_of(&led_mark_of(&shard)), None);
                let session = Session::random().unwrap();
                let once = Page::Once("..a.".parse().unwrap());
                for page in [Page::Orders, Page::History, Page::Standby(session.clone()), Page::Runs, Page::Jobs, once] {
                    let note = note_of(&shard, &page);
                    prop_assert!(is_key(&note), "{}", note);
                    prop_assert_eq!(shard_of(&note), None);
                    let standby = matches!(page, Page::Standby(_)).then(|| (shard.clone(), session.clone()));
                    prop_assert_eq!(standby_of(&note), standby);
                }
                prop_assert_eq!(shard_of(&key), Some(shard));
            }
        }

        #[test]
        fn no_url_makes_it_panic_or_tells_a_secret(rest in "[ -~]{0,40}") {
            let _ = Address::read("nats", &rest);
            for secret in ["u:hunter2@", ":hunter2@", "hunter2@"] {
                if let Err(message) = Address::read("nats+tls", &format!("//{secret}h{rest}")) {
                    prop_assert!(!message.contains("hunter2"), "{}", message);
                }
            }
        }
    }
}
