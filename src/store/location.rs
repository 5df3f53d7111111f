//! Store URLs: which store, and where it is.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. So a message repeats only the scheme
//! and parts that were shown to be harmless.

use super::file::FileStore;
#[allow(unused_imports, reason = "all stores but that of files use it")]
use super::lease_store::over;
use super::{Delivery, Store, StoreError};
use crate::text;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

struct Kind {
    /// What `--store` takes. It begins with the scheme.
    form: &'static str,
    others: &'static [&'static str],
    is_built: bool,
}

/// All of them but `file:`.
const KINDS: &[Kind] = &[
    Kind { form: "dynamodb://TABLE", others: &[], is_built: cfg!(feature = "dynamodb") },
    Kind { form: "s3://BUCKET/PREFIX", others: &[], is_built: cfg!(feature = "bucket") },
    Kind { form: "gs://BUCKET/PREFIX", others: &[], is_built: cfg!(feature = "bucket") },
    Kind { form: "azblob://ACCOUNT/CONTAINER/PREFIX", others: &[], is_built: cfg!(feature = "bucket") },
    Kind {
        form: "redis://HOST",
        others: &["rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"],
        is_built: cfg!(feature = "redis"),
    },
    Kind { form: "postgres://HOST/DATABASE", others: &["postgresql"], is_built: cfg!(feature = "postgres") },
    Kind { form: "mysql://HOST/DATABASE", others: &["mariadb"], is_built: cfg!(feature = "mysql") },
    Kind { form: "nats://HOST/BUCKET", others: &["nats+tls"], is_built: cfg!(feature = "nats") },
    Kind { form: "etcd://HOST/PREFIX", others: &["etcds"], is_built: cfg!(feature = "etcd") },
    Kind { form: "kubernetes://NAMESPACE", others: &[], is_built: cfg!(feature = "kubernetes") },
];

impl Kind {
    fn scheme(&self) -> &'static str {
        self.form.split(':').next().unwrap_or_default()
    }
}

fn schemes() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| std::iter::once(kind.scheme()).chain(kind.others.iter().copied()))
}

static SCHEMES: LazyLock<String> = LazyLock::new(|| {
    let forms: Vec<&str> = std::iter::once("file:DIR").chain(KINDS.iter().map(|kind| kind.form)).collect();
    forms.join(", ")
});

pub static BUILT_IN: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let built = KINDS.iter().filter(|kind| kind.is_built).map(Kind::scheme);
    std::iter::once("file").chain(built).collect()
});

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    File {
        directory: PathBuf,
    },
    #[cfg(feature = "dynamodb")]
    DynamoDb(super::dynamodb::Address),
    #[cfg(feature = "bucket")]
    Bucket(super::bucket::Address),
    #[cfg(feature = "redis")]
    Redis(super::redis::Address),
    #[cfg(feature = "postgres")]
    Postgres(super::sql::Address),
    #[cfg(feature = "mysql")]
    Mysql(super::sql::Address),
    #[cfg(feature = "nats")]
    Nats(super::nats::Address),
    #[cfg(feature = "etcd")]
    Etcd(super::etcd::Address),
    #[cfg(feature = "kubernetes")]
    Kubernetes(super::kubernetes::Address),
}

/// What is known of a store before it is open. Its [`Store`] must say the same of `delivery` and `is_metered`.
#[derive(Default)]
struct Traits {
    delivery: Delivery,
    is_metered: bool,
    is_frugal: bool,
    keeps_whole_seconds: bool,
    foreign_lock: Option<&'static str>,
}

impl Location {
    pub fn from_url(url: &str) -> Result<Self, String> {
        if url.is_empty() {
            return Err(format!("the store URL is empty: use one of {}", *SCHEMES));
        }
        // A blank at the end would belong to a name, and so name another store.
        if url.trim() != url {
            return Err("the store URL begins or ends with a blank or a line break: remove it".to_owned());
        }
        // As a file of variables may have it, which is not read by a shell.
        if url.starts_with(['"', '\'']) {
            return Err("the store URL is in quotes: remove them".to_owned());
        }
        let Some((scheme, rest)) = url.split_once(':').filter(|(scheme, _)| is_scheme(scheme)) else {
            return Err(format!("the store URL has no scheme: use one of {}", *SCHEMES));
        };
        if scheme != "file" && rest.contains(char::is_whitespace) {
            let blank = "has a blank in it: remove it, or write %20 for one in a name or a password";
            return Err(format!("the store URL {blank}"));
        }
        if scheme != "file" && !schemes().any(|known| known == scheme) {
            return Err(match text::nearest(&scheme.to_ascii_lowercase(), schemes().chain(["file"])) {
                Some(meant) => format!("no store is called {scheme}: did you mean {meant}?"),
                None => format!("no store is called {scheme}: use one of {}", *SCHEMES),
            });
        }
        match scheme {
            "file" => file(rest),
            #[cfg(feature = "dynamodb")]
            "dynamodb" => super::dynamodb::Address::read(rest).map(Self::DynamoDb),
            #[cfg(feature = "bucket")]
            "s3" | "gs" | "azblob" => super::bucket::Address::read(scheme, rest).map(Self::Bucket),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" => {
                super::redis::Address::read(scheme, rest).map(Self::Redis)
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => {
                super::sql::Address::read(super::sql::Dialect::Postgres, rest).map(Self::Postgres)
            }
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => super::sql::Address::read(super::sql::Dialect::MySql, rest).map(Self::Mysql),
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" => super::nats::Address::read(scheme, rest).map(Self::Nats),
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => super::etcd::Address::read(scheme, rest).map(Self::Etcd),
            #[cfg(feature = "kubernetes")]
            "kubernetes" => super::kubernetes::Address::read(rest).map(Self::Kubernetes),
            _ => Err(format!(
                "this leaderrun was built without the store {scheme}: build it with all stores, as README says"
            )),
        }
    }

    /// The store `file:`: `/var/lib/leaderrun` for root, else below `$XDG_STATE_HOME` or `~/.local/state` (XDG Base
    /// Directory Specification 0.8).
    ///
    /// # Errors
    /// Neither of them is set, as in cron without HOME.
    pub fn by_default() -> Result<Self, String> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let directory = if nix::unistd::geteuid().is_root() {
            Some(PathBuf::from("/var/lib/leaderrun"))
        } else {
            let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")));
            state.map(|state| state.join("leaderrun"))
        };
        let why = "neither XDG_STATE_HOME nor HOME is set: name the store with --store or LEADERRUN_STORE";
        Ok(Self::File { directory: directory.ok_or(why)? })
    }

    fn traits(&self) -> Traits {
        match self {
            Self::File { .. } => Traits { delivery: Delivery::Kernel, ..Traits::default() },
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => Traits { delivery: Delivery::Poll, is_metered: true, ..Traits::default() },
            #[cfg(feature = "bucket")]
            Self::Bucket(_) => {
                Traits { delivery: Delivery::Poll, is_metered: true, is_frugal: true, ..Traits::default() }
            }
            #[cfg(feature = "redis")]
            Self::Redis(address) => {
                Traits { foreign_lock: address.lock_key.as_ref().map(|_| "lock_key"), ..Traits::default() }
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => {
                Traits { foreign_lock: address.advisory_lock.map(|_| "advisory_lock"), ..Traits::default() }
            }
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => Traits::default(),
            #[cfg(feature = "nats")]
            Self::Nats(address) => {
                Traits { foreign_lock: address.lock_key.as_ref().map(|_| "lock_key"), ..Traits::default() }
            }
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Traits { keeps_whole_seconds: true, ..Traits::default() },
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => {
                Traits { is_metered: true, foreign_lock: address.lease.as_ref().map(|_| "lease"), ..Traits::default() }
            }
        }
    }

    pub fn delivery(&self) -> Delivery {
        self.traits().delivery
    }

    /// The option of the URL by which a candidate also holds a lock of other programs, if there is one. Those programs
    /// do not announce themselves as standbys.
    pub fn foreign_lock(&self) -> Option<&'static str> {
        self.traits().foreign_lock
    }

    /// Whether the default timing sends few requests, because their price shows. [`Store::is_metered`]: any price.
    pub fn is_frugal(&self) -> bool {
        self.traits().is_frugal
    }

    /// How long the store keeps a lease that it is told to keep for `lease`: etcd counts in whole seconds.
    pub fn keeps(&self, lease: Duration) -> Duration {
        if self.traits().keeps_whole_seconds {
            Duration::from_secs(lease.as_secs() + u64::from(lease.subsec_nanos() > 0))
        } else {
            lease
        }
    }

    pub fn is_metered(&self) -> bool {
        self.traits().is_metered
    }

    /// Opens the store. `request_timeout` bounds each of its requests.
    ///
    /// # Errors
    /// The configuration is wrong.
    #[allow(clippy::unused_async, reason = "only some stores have to be waited for")]
    pub async fn open(&self, request_timeout: Duration) -> Result<Arc<dyn Store>, StoreError> {
        let _ = request_timeout;
        match self {
            Self::File { directory } => Ok(Arc::new(FileStore::open(directory)?)),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(address) => super::dynamodb::Table::open(address, request_timeout).await.map(over),
            #[cfg(feature = "bucket")]
            Self::Bucket(address) => super::bucket::Objects::open(address, request_timeout).await.map(over),
            #[cfg(feature = "redis")]
            Self::Redis(address) => super::redis::Hashes::open(address, request_timeout).map(over),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => super::sql::postgres::open(address, request_timeout).map(over),
            #[cfg(feature = "mysql")]
            Self::Mysql(address) => super::sql::mysql::open(address, request_timeout).map(over),
            #[cfg(feature = "nats")]
            Self::Nats(address) => super::nats::Keys::open(address, request_timeout).map(over),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => super::etcd::Keys::open(address, request_timeout).map(over),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => Ok(over(super::kubernetes::Objects::open(address, request_timeout))),
        }
    }

    /// What tells this store from others, without a login: two processes with the same text mean the same store. The
    /// reverse need not hold, because one server may have several names.
    pub fn identity(&self) -> String {
        let (_, identity) = self.names();
        identity
    }

    /// The name in messages, and the identity.
    fn names(&self) -> (String, String) {
        match self {
            Self::File { directory } => {
                let directory = directory.display();
                (format!("file:{directory}"), format!("file {directory}"))
            }
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(address) => (format!("dynamodb://{}", address.table), address.identity()),
            #[cfg(feature = "bucket")]
            Self::Bucket(address) => (address.to_string(), address.identity()),
            #[cfg(feature = "redis")]
            Self::Redis(address) => (address.to_string(), address.identity()),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => (address.to_string(), address.identity()),
            #[cfg(feature = "mysql")]
            Self::Mysql(address) => (address.to_string(), address.identity()),
            #[cfg(feature = "nats")]
            Self::Nats(address) => (address.server(), address.identity()),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => (address.to_string(), address.identity()),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => (address.to_string(), address.identity()),
        }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, _) = self.names();
        f.write_str(&name)
    }
}

fn is_scheme(scheme: &str) -> bool {
    // RFC 3986, section 3.1.
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// Whether a path may be shown. A URL with a password, written in its place, has at least an `@`.
fn is_plain(path: &str) -> bool {
    path.chars().all(|c| c.is_alphanumeric() || "/._-+ ".contains(c))
}

fn file(rest: &str) -> Result<Location, String> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err("file:// takes no host: write file:/DIR or file:///DIR".to_owned()),
        None => rest,
    };
    if path.is_empty() {
        return Location::by_default();
    }
    // The kernel accepts everything but NUL, but each message that names the directory must stay on one line.
    if path.chars().any(char::is_control) {
        return Err("the directory of file: has a control character in it".to_owned());
    }
    // The user may have written the URL of another store after `file:`. No message may repeat it.
    if text::looks_secret(path) {
        return Err("the directory of file: looks like a URL with a password: write file:/DIR".to_owned());
    }
    if path.trim() != path {
        return Err("the directory of file: begins or ends with a blank: remove it".to_owned());
    }
    // Probably meant as in other URLs. A directory of such a name would be another store.
    if path.contains(['?', '#']) {
        return Err("file: takes no options and no fragment: leave out '?' or '#' and what follows".to_owned());
    }
    if path.as_bytes().windows(3).any(|part| part[0] == b'%' && part[1..].iter().all(u8::is_ascii_hexdigit)) {
        return Err("file: takes no percent-encoding: write the character that is meant instead of %XX".to_owned());
    }
    // Cron, systemd and shells run the same line in different directories: each would have leases of its own.
    if !path.starts_with('/') {
        let absolute = std::path::absolute(path).ok().filter(|_| is_plain(path));
        let directory = absolute.map_or("/DIR".to_owned(), |path| path.display().to_string());
        return Err(format!("the directory of file: depends on the working directory: write file:{directory}"));
    }
    Ok(Location::File { directory: PathBuf::from(path) })
}

#[cfg(test)]
mod tests;
