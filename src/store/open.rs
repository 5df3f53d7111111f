//! Store URLs: which store, and where.
//!
//! The hazard: a URL may hold a password, and what somebody mistyped is printed. No message here repeats more of
//! a URL than its scheme and what was shown to be harmless.

use super::file::FileStore;
#[cfg(feature = "dynamodb")]
use super::url::query_options;
use super::{Delivery, Store, StoreError};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The forms that `--store` takes.
pub const SCHEMES: &str = "file:DIR, dynamodb://TABLE, redis://HOST, postgres://HOST/DATABASE, nats://HOST/BUCKET, \
                           etcd://HOST/PREFIX";

/// What a build without some of the stores knows, but has not.
const OPTIONAL: [&str; 12] = [
    "dynamodb",
    "redis",
    "rediss",
    "redis+unix",
    "redis+sentinel",
    "rediss+sentinel",
    "postgres",
    "postgresql",
    "nats",
    "nats+tls",
    "etcd",
    "etcds",
];

/// A store that has been named, but not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    File {
        directory: PathBuf,
    },
    #[cfg(feature = "dynamodb")]
    DynamoDb(super::dynamodb::Address),
    #[cfg(feature = "redis")]
    Redis(super::redis::Address),
    #[cfg(feature = "postgres")]
    Postgres(super::postgres::Address),
    #[cfg(feature = "nats")]
    Nats(super::nats::Address),
    #[cfg(feature = "etcd")]
    Etcd(super::etcd::Address),
}

impl Location {
    /// Reads a store URL.
    ///
    /// # Errors
    /// One line that says what is wrong with it.
    pub fn from_url(url: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(format!("the store URL has no scheme: use one of {SCHEMES}"));
        };
        match scheme {
            "file" => file(rest),
            #[cfg(feature = "dynamodb")]
            "dynamodb" => dynamodb(rest).map(Self::DynamoDb),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" => {
                super::redis::Address::read(scheme, rest).map(Self::Redis)
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => super::postgres::Address::read(rest).map(Self::Postgres),
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" => super::nats::Address::read(scheme, rest).map(Self::Nats),
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => super::etcd::Address::read(scheme, rest).map(Self::Etcd),
            _ if OPTIONAL.contains(&scheme) => Err(format!("this leaderrun was built without the store {scheme}")),
            _ if is_scheme(scheme) => Err(format!("no store is called {scheme}: use one of {SCHEMES}")),
            _ => Err(format!("the store URL does not begin with a scheme: use one of {SCHEMES}")),
        }
    }

    /// Where leases live when nobody names a store: `/var/lib/leaderrun` for root, else below
    /// `$XDG_STATE_HOME` or `~/.local/state` (XDG Base Directory Specification 0.8).
    ///
    /// # Errors
    /// When there is neither, as in cron without HOME.
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

    /// As [`Store::delivery`], before it is opened.
    #[must_use]
    pub fn delivery(&self) -> Delivery {
        match self {
            Self::File { .. } => Delivery::Kernel,
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(_) => Delivery::Poll,
            #[cfg(feature = "redis")]
            Self::Redis(_) => Delivery::Push,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Delivery::Push,
            #[cfg(feature = "nats")]
            Self::Nats(_) => Delivery::Push,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Delivery::Push,
        }
    }

    /// Opens it. `request_timeout` bounds each of its requests.
    ///
    /// # Errors
    /// What the store says of a wrong configuration. No lease is touched here.
    #[cfg_attr(
        not(any(feature = "dynamodb", feature = "redis", feature = "postgres", feature = "nats", feature = "etcd")),
        expect(clippy::unused_async, reason = "only a store behind a network has to be waited for")
    )]
    pub async fn open(&self, request_timeout: Duration) -> Result<Arc<dyn Store>, StoreError> {
        let _ = request_timeout;
        match self {
            Self::File { directory } => Ok(Arc::new(FileStore::open(directory)?)),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb(address) => Ok(Arc::new(super::dynamodb::DynamoDb::open(address, request_timeout).await?)),
            #[cfg(feature = "redis")]
            Self::Redis(address) => Ok(Arc::new(super::redis::Redis::open(address, request_timeout).await?)),
            #[cfg(feature = "postgres")]
            Self::Postgres(address) => Ok(Arc::new(super::postgres::Postgres::open(address, request_timeout).await?)),
            #[cfg(feature = "nats")]
            Self::Nats(address) => Ok(Arc::new(super::nats::Nats::open(address, request_timeout).await?)),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => Ok(Arc::new(super::etcd::Etcd::open(address, request_timeout).await?)),
        }
    }
}

fn is_scheme(scheme: &str) -> bool {
    // RFC 3986, section 3.1.
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

fn file(rest: &str) -> Result<Location, String> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err("file:// takes no host: write file:/DIR or file:///DIR".to_owned()),
        None => rest,
    };
    if path.is_empty() {
        return Err("file: names no directory: write file:/DIR".to_owned());
    }
    // The kernel takes all but NUL, but every message that names the directory has to stay one line.
    if path.chars().any(char::is_control) {
        return Err("the directory of file: has a control character in it".to_owned());
    }
    Ok(Location::File { directory: PathBuf::from(path) })
}

#[cfg(feature = "dynamodb")]
fn dynamodb(rest: &str) -> Result<super::dynamodb::Address, String> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Err("write dynamodb://TABLE".to_owned());
    };
    let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
    // AWS, "Naming rules" of the DynamoDB Developer Guide.
    let well_named = table.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if !(3..=255).contains(&table.len()) || !well_named {
        return Err("a DynamoDB table has 3 to 255 letters, digits and _ - . in its name: \
                    write dynamodb://TABLE?region=REGION"
            .to_owned());
    }
    let mut options = query_options(query, "dynamodb", &["region", "endpoint", "profile"])?;
    let endpoint = options.remove("endpoint");
    if let Some(endpoint) = &endpoint {
        let parsed = url::Url::parse(endpoint);
        if !parsed.is_ok_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            return Err("endpoint= is not a URL: write endpoint=http://HOST:PORT or https://HOST".to_owned());
        }
    }
    let (region, profile) = (options.remove("region"), options.remove("profile"));
    Ok(super::dynamodb::Address { table: table.to_owned(), region, endpoint, profile })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_directory_may_be_written_in_three_ways() {
        for (url, path) in [("file:/a/b", "/a/b"), ("file:///a/b", "/a/b"), ("file:a/b", "a/b")] {
            assert_eq!(Location::from_url(url), Ok(Location::File { directory: path.into() }));
        }
    }

    #[cfg(feature = "dynamodb")]
    #[test]
    fn a_table_may_have_options() {
        let url = "dynamodb://locks?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&profile=p";
        let expected = Location::DynamoDb(super::super::dynamodb::Address {
            table: "locks".into(),
            region: Some("eu-west-1".into()),
            endpoint: Some("http://127.0.0.1:8000".into()),
            profile: Some("p".into()),
        });
        assert_eq!(Location::from_url(url), Ok(expected));
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "",
            "locks",
            ":",
            "://",
            "file:",
            "file://host/x",
            "dynamodb:locks",
            "dynamodb://",
            "dynamodb://ab",
            "dynamodb://a/b/c",
            "dynamodb://locks?region",
            "dynamodb://locks?region=",
            "dynamodb://locks?zone=1",
            "dynamodb://locks?region=a&region=b",
            "dynamodb://locks?endpoint=nowhere",
            "zookeeper://h",
            "FILE:/x",
            "dynamodb://user:secret@locks",
            "file:/a\0b",
            "file:/a\nb",
        ] {
            assert!(Location::from_url(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn no_url_makes_the_parser_panic_or_tells_its_password(rest in "[ -~]{0,40}") {
            for url in [rest.clone(), format!("file:{rest}"), format!("dynamodb://{rest}")] {
                let _ = Location::from_url(&url);
            }
            for scheme in ["redi", "file", "dynamodb", "dynamo db", "htps"] {
                if let Err(message) = Location::from_url(&format!("{scheme}://user:hunter2@host/{rest}")) {
                    prop_assert!(!message.contains("hunter2"), "{}", message);
                }
            }
        }
    }
}
