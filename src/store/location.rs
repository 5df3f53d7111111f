//! Store URLs: which store, and where it is.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. No message here repeats more of a URL
//! than its scheme and the parts that were shown to be harmless.

use super::file::FileStore;
use super::{Delivery, Store, StoreError};
use crate::lease::Timing;
use crate::text;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The forms that `--store` takes.
pub const SCHEMES: &str = "file:DIR, dynamodb://TABLE, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
                           azblob://ACCOUNT/CONTAINER/PREFIX, redis://HOST, postgres://HOST/DATABASE, \
                           mysql://HOST/DATABASE, nats://HOST/BUCKET, etcd://HOST/PREFIX, kubernetes://NAMESPACE";

/// The stores of this build, by their schemes.
pub const BUILT_IN: &[&str] = &[
    "file",
    #[cfg(feature = "dynamodb")]
    "dynamodb",
    #[cfg(feature = "bucket")]
    "s3",
    #[cfg(feature = "bucket")]
    "gs",
    #[cfg(feature = "bucket")]
    "azblob",
    #[cfg(feature = "redis")]
    "redis",
    #[cfg(feature = "postgres")]
    "postgres",
    #[cfg(feature = "mysql")]
    "mysql",
    #[cfg(feature = "nats")]
    "nats",
    #[cfg(feature = "etcd")]
    "etcd",
    #[cfg(feature = "kubernetes")]
    "kubernetes",
];

/// Schemes that the program knows, although this build may lack their stores.
const OPTIONAL: [&str; 18] = [
    "dynamodb",
    "s3",
    "gs",
    "azblob",
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "postgres",
    "postgresql",
    "mysql",
    "mariadb",
    "nats",
    "nats+tls",
    "etcd",
    "etcds",
    "kubernetes",
];

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

impl Location {
    /// Reads a store URL.
    ///
    /// # Errors
    /// One line that says what is wrong with the URL.
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
            _ if OPTIONAL.contains(&scheme) => Err(format!(
                "this leaderrun was built without the store {scheme}: build it with all stores, as README says"
            )),
            _ if is_scheme(scheme) => {
                let near = nearest(scheme).map(|near| format!(", but one is called {near}")).unwrap_or_default();
                Err(format!("no store is called {scheme}{near}: use one of {SCHEMES}"))
            }
            _ => Err(format!("the store URL does not begin with a scheme: use one of {SCHEMES}")),
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

    /// As [`Store::delivery`], but known before the store is open.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::File { .. } => Delivery::Kernel,
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => Delivery::Poll,
            #[cfg(feature = "bucket")]
            Self::Bucket(_) => Delivery::Poll,
            _ => Delivery::Push,
        }
    }

    /// The option of the URL by which a candidate also holds a lock of other programs, if there is one. Those programs do
    /// not announce themselves as standbys.
    #[must_use]
    pub fn foreign_lock(&self) -> Option<&'static str> {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis(address) => address.lock_key.as_ref().map(|_| "lock_key"),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => address.advisory_lock.map(|_| "advisory_lock"),
            #[cfg(feature = "nats")]
            Self::Nats(address) => address.lock_key.as_ref().map(|_| "lock_key"),
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(address) => address.lease.as_ref().map(|_| "lease"),
            _ => None,
        }
    }

    /// Whether the default timing makes few requests here. [`Store::is_metered`](super::Store::is_metered) is about any
    /// price, this about one that shows.
    #[must_use]
    pub fn is_frugal(&self) -> bool {
        match self {
            #[cfg(feature = "bucket")]
            Self::Bucket(_) => true,
            _ => false,
        }
    }

    /// How long the store keeps a lease that it is told to keep for `lease`: etcd counts in whole seconds.
    #[must_use]
    pub fn keeps(&self, lease: Duration) -> Duration {
        match self {
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Duration::from_secs(lease.as_secs() + u64::from(lease.subsec_nanos() > 0)),
            _ => lease,
        }
    }

    /// As [`Store::is_metered`].
    #[must_use]
    pub fn is_metered(&self) -> bool {
        match self {
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => true,
            #[cfg(feature = "bucket")]
            Self::Bucket(_) => true,
            #[cfg(feature = "kubernetes")]
            Self::Kubernetes(_) => true,
            _ => false,
        }
    }

    /// The price of a shard with a leader and two standbys, and what it is for. None where none is known.
    #[must_use]
    pub fn price(&self, timing: &Timing) -> Option<(String, String)> {
        let _ = timing;
        match self {
            #[cfg(feature = "bucket")]
            Self::Bucket(address) => super::bucket::price(address, timing),
            _ => None,
        }
    }

    /// Opens the store. `request_timeout` bounds each of its requests.
    ///
    /// # Errors
    /// What the store says about a wrong configuration. Opening touches no lease.
    #[cfg_attr(
        not(any(feature = "dynamodb", feature = "bucket", feature = "redis", feature = "postgres", feature = "nats")),
        expect(clippy::unused_async, reason = "only some stores have to be waited for")
    )]
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
    if let Some((scheme, rest)) = url.split_once("//").filter(|(scheme, _)| OPTIONAL.contains(scheme)) {
        let (host, port) = rest.split_once(':').unwrap_or((rest, ""));
        let is_shown = is_plain(host) && port.chars().all(|c| c.is_ascii_digit() || c == '/');
        return Some(format!("{scheme}://{}", if is_shown { rest } else { "..." }));
    }
    let (host, port) = url.rsplit_once(':')?;
    let (scheme, path) = match port {
        "6379" => ("redis", ""),
        "5432" => ("postgres", "/DATABASE"),
        "3306" => ("mysql", "/DATABASE"),
        "4222" => ("nats", "/BUCKET"),
        "2379" => ("etcd", "/PREFIX"),
        _ => return None,
    };
    // RFC 3986, section 3.2.2: only an address in brackets has colons.
    let plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || ".-".contains(c));
    let address = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let is_host = address.map_or(plain(host), |address| address.parse::<std::net::Ipv6Addr>().is_ok());
    (!host.is_empty() && is_host).then(|| format!("{scheme}://{host}:{port}{path}"))
}

/// Whether a path may be shown: a URL with a password, written in its place, has an `@` at least.
fn is_plain(path: &str) -> bool {
    path.chars().all(|c| c.is_alphanumeric() || "/._-+ ".contains(c))
}

/// The known scheme that the user probably meant.
fn nearest(scheme: &str) -> Option<&'static str> {
    let scheme = scheme.to_ascii_lowercase();
    text::nearest(&scheme, std::iter::once("file").chain(OPTIONAL))
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
