//! Store URLs: which store, and where it is.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. No message here repeats more of a URL
//! than its scheme and the parts that were shown to be harmless.

use super::file::FileStore;
use super::{Delivery, Store, StoreError};
use crate::text;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// A store behind a URL, whether or not this build has it.
struct Kind {
    /// What `--store` takes. It begins with the scheme.
    form: &'static str,
    /// Other schemes of the same store.
    others: &'static [&'static str],
    /// The usual port of its servers, from which an address without a scheme is understood.
    port: Option<&'static str>,
    is_built: bool,
}

/// All of them but `file:`. A scheme that is not here names no store.
const KINDS: [Kind; 10] = [
    Kind { form: "dynamodb://TABLE", others: &[], port: None, is_built: cfg!(feature = "dynamodb") },
    Kind { form: "s3://BUCKET/PREFIX", others: &[], port: None, is_built: cfg!(feature = "bucket") },
    Kind { form: "gs://BUCKET/PREFIX", others: &[], port: None, is_built: cfg!(feature = "bucket") },
    Kind { form: "azblob://ACCOUNT/CONTAINER/PREFIX", others: &[], port: None, is_built: cfg!(feature = "bucket") },
    Kind {
        form: "redis://HOST",
        others: &["rediss", "redis+unix", "redis+sentinel", "rediss+sentinel"],
        port: Some("6379"),
        is_built: cfg!(feature = "redis"),
    },
    Kind {
        form: "postgres://HOST/DATABASE",
        others: &["postgresql"],
        port: Some("5432"),
        is_built: cfg!(feature = "postgres"),
    },
    Kind { form: "mysql://HOST/DATABASE", others: &["mariadb"], port: Some("3306"), is_built: cfg!(feature = "mysql") },
    Kind { form: "nats://HOST/BUCKET", others: &["nats+tls"], port: Some("4222"), is_built: cfg!(feature = "nats") },
    Kind { form: "etcd://HOST/PREFIX", others: &["etcds"], port: Some("2379"), is_built: cfg!(feature = "etcd") },
    Kind { form: "kubernetes://NAMESPACE", others: &[], port: None, is_built: cfg!(feature = "kubernetes") },
];

impl Kind {
    fn scheme(&self) -> &'static str {
        self.form.split(':').next().unwrap_or_default()
    }
}

/// All schemes but `file`.
fn schemes() -> impl Iterator<Item = &'static str> {
    KINDS.iter().flat_map(|kind| std::iter::once(kind.scheme()).chain(kind.others.iter().copied()))
}

/// The forms that `--store` takes, one after another.
pub const SCHEMES: Forms = Forms;

/// Prints them.
pub struct Forms;

impl fmt::Display for Forms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("file:DIR")?;
        KINDS.iter().try_for_each(|kind| write!(f, ", {}", kind.form))
    }
}

/// The stores of this build, by their schemes.
pub static BUILT_IN: LazyLock<Vec<&str>> = LazyLock::new(|| {
    let built = KINDS.iter().filter(|kind| kind.is_built).map(Kind::scheme);
    std::iter::once("file").chain(built).collect()
});

/// A store that was named, but is not open.
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

/// What sets a store apart before it is open. Once it is, its [`Store`] says the same of `delivery` and `is_metered`.
struct Traits {
    delivery: Delivery,
    is_metered: bool,
    is_frugal: bool,
    keeps_whole_seconds: bool,
    foreign_lock: Option<&'static str>,
}

impl Default for Traits {
    /// Of most servers.
    fn default() -> Self {
        Self {
            delivery: Delivery::Push,
            is_metered: false,
            is_frugal: false,
            keeps_whole_seconds: false,
            foreign_lock: None,
        }
    }
}

impl Location {
    /// Reads a store URL.
    pub fn from_url(url: &str) -> Result<Self, String> {
        // A blank would be part of a name at the end of the URL, and so name another store than the same URL without
        // it.
        if !url.is_empty() && url.trim() != url {
            return Err("the store URL begins or ends with a blank or a line break: remove it".to_owned());
        }
        if let Some(meant) = meant_by_a_path_or_address(url) {
            return Err(format!("the store URL has no scheme: did you mean {meant}?"));
        }
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(format!("the store URL has no scheme: use one of {SCHEMES}"));
        };
        if scheme != "file" && rest.contains(char::is_whitespace) {
            let blank = "has a blank in it: remove it, or write %20 for one in a name or a password";
            return Err(format!("the store URL {blank}"));
        }
        if scheme != "file" && !schemes().any(|known| known == scheme) {
            return Err(unknown(scheme));
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

    /// The store `file:`, also when the user names none: `/var/lib/leaderrun` for root, else below `$XDG_STATE_HOME` or
    /// `~/.local/state` (XDG Base Directory Specification 0.8).
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

    /// What is known of the store before it is open.
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

    /// As [`Store::delivery`], but known before the store is open.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        self.traits().delivery
    }

    /// The option of the URL by which a candidate also holds a lock of other programs, if there is one. Those programs
    /// do not announce themselves as standbys.
    #[must_use]
    pub fn foreign_lock(&self) -> Option<&'static str> {
        self.traits().foreign_lock
    }

    /// Whether the default timing makes few requests here. [`Store::is_metered`](super::Store::is_metered) is about any
    /// price, this about one that shows.
    #[must_use]
    pub fn is_frugal(&self) -> bool {
        self.traits().is_frugal
    }

    /// How long the store keeps a lease that it is told to keep for `lease`: etcd counts in whole seconds.
    #[must_use]
    pub fn keeps(&self, lease: Duration) -> Duration {
        if self.traits().keeps_whole_seconds {
            Duration::from_secs(lease.as_secs() + u64::from(lease.subsec_nanos() > 0))
        } else {
            lease
        }
    }

    /// As [`Store::is_metered`].
    #[must_use]
    pub fn is_metered(&self) -> bool {
        self.traits().is_metered
    }

    /// Opens the store. `request_timeout` bounds each of its requests.
    ///
    /// # Errors
    /// What the store says about a wrong configuration. Opening touches no lease.
    #[allow(clippy::unused_async, reason = "only some stores have to be waited for")]
    pub async fn open(&self, request_timeout: Duration) -> Result<Arc<dyn Store>, StoreError> {
        let _ = request_timeout;
        match self {
            Self::File { directory } => Ok(Arc::new(FileStore::open(directory)?)),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(address) => Ok(Arc::new(super::dynamodb::DynamoDb::open(address, request_timeout).await?)),
            #[cfg(feature = "bucket")]
            Self::Bucket(address) => Ok(Arc::new(super::bucket::Bucket::open(address, request_timeout).await?)),
            #[cfg(feature = "redis")]
            Self::Redis(address) => Ok(Arc::new(super::redis::Redis::open(address, request_timeout).await?)),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => {
                Ok(Arc::new(super::sql::postgres::Postgres::open(address, request_timeout).await?))
            }
            #[cfg(feature = "mysql")]
            Self::Mysql(address) => Ok(Arc::new(super::sql::mysql::Mysql::open(address, request_timeout)?)),
            #[cfg(feature = "nats")]
            Self::Nats(address) => Ok(Arc::new(super::nats::Nats::open(address, request_timeout).await?)),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => Ok(Arc::new(super::etcd::Etcd::open(address, request_timeout)?)),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => {
                let objects = super::kubernetes::Objects::open(address, request_timeout);
                Ok(Arc::new(super::kubernetes::Kubernetes::new(objects)))
            }
        }
    }
}

impl Location {
    /// What tells this store from others, without a login: two processes with the same text mean the same store. The
    /// reverse need not hold, because one server may have several names.
    #[must_use]
    pub fn identity(&self) -> String {
        match self {
            Self::File { directory } => format!("file {}", directory.display()),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(address) => address.identity(),
            #[cfg(feature = "bucket")]
            Self::Bucket(address) => address.identity(),
            #[cfg(feature = "redis")]
            Self::Redis(address) => address.identity(),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => address.identity(),
            #[cfg(feature = "mysql")]
            Self::Mysql(address) => address.identity(),
            #[cfg(feature = "nats")]
            Self::Nats(address) => address.identity(),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => address.identity(),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => address.identity(),
        }
    }
}

impl fmt::Display for Location {
    /// As messages name the store.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { directory } => write!(f, "file:{}", directory.display()),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(address) => write!(f, "dynamodb://{}", address.table),
            #[cfg(feature = "bucket")]
            Self::Bucket(address) => write!(f, "{address}"),
            #[cfg(feature = "redis")]
            Self::Redis(address) => write!(f, "{address}"),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => write!(f, "{address}"),
            #[cfg(feature = "mysql")]
            Self::Mysql(address) => write!(f, "{address}"),
            #[cfg(feature = "nats")]
            Self::Nats(address) => f.write_str(&address.server()),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => write!(f, "{address}"),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => write!(f, "{address}"),
        }
    }
}

/// The error of a URL whose scheme is that of no store.
fn unknown(scheme: &str) -> String {
    if !is_scheme(scheme) {
        return format!("the store URL does not begin with a scheme: use one of {SCHEMES}");
    }
    let near = nearest(scheme).map(|near| format!(", but one is called {near}")).unwrap_or_default();
    format!("no store is called {scheme}{near}: use one of {SCHEMES}")
}

fn is_scheme(scheme: &str) -> bool {
    // RFC 3986, section 3.1.
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// What a path, a scheme without its colon, or a host with a server's usual port, stands for.
fn meant_by_a_path_or_address(url: &str) -> Option<String> {
    if url.starts_with('/') {
        return is_plain(url).then(|| format!("file:{url}"));
    }
    if let Some((scheme, rest)) = url.split_once("//").filter(|(scheme, _)| schemes().any(|known| known == *scheme)) {
        let (host, port) = rest.split_once(':').unwrap_or((rest, ""));
        let is_shown = is_plain(host) && port.chars().all(|c| c.is_ascii_digit() || c == '/');
        return Some(format!("{scheme}://{}", if is_shown { rest } else { "..." }));
    }
    let (host, port) = url.rsplit_once(':')?;
    let kind = KINDS.iter().find(|kind| kind.port == Some(port))?;
    // RFC 3986, section 3.2.2: only an address in brackets has colons.
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c));
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = address.map_or(plain(host), |address| address.parse::<std::net::Ipv6Addr>().is_ok());
    (!host.is_empty() && is_host).then(|| kind.form.replacen("HOST", url, 1))
}

/// Whether a path may be shown: a URL with a password, written in its place, has an `@` at least.
fn is_plain(path: &str) -> bool {
    path.chars().all(|c| c.is_alphanumeric() || "/._-+ ".contains(c))
}

/// The known scheme that the user probably meant.
fn nearest(scheme: &str) -> Option<&'static str> {
    let scheme = scheme.to_ascii_lowercase();
    text::nearest(&scheme, std::iter::once("file").chain(schemes()))
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
    // The user may have written the URL of another store behind this scheme. Then no message may repeat it.
    if text::looks_secret(path) {
        return Err("the directory of file: looks like a URL with a password: write file:/DIR".to_owned());
    }
    if path.trim() != path {
        return Err("the directory of file: begins or ends with a blank: remove it".to_owned());
    }
    // As in the URLs of other stores. A directory of such a name would be another store than the one that was meant.
    if let Some(at) = path.find(['?', '#']) {
        let what = if path[at..].starts_with('?') { "options" } else { "fragment" };
        let harmless = |c: char| c.is_ascii_alphanumeric() || "?#=&._-".contains(c);
        let is_shown = path.starts_with('/') && path.len() - at <= 40 && path[at..].chars().all(harmless);
        let shown = if is_shown { &path[at..] } else { &path[at..=at] };
        let behind = if is_shown { "" } else { " and what follows" };
        return Err(format!("file: takes no {what}: leave out '{shown}'{behind}"));
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
