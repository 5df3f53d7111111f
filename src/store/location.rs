//! Store URLs: which store, and where it is.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. No message here repeats more of a URL
//! than its scheme and the parts that were shown to be harmless.

use super::file::FileStore;
#[cfg(feature = "dynamodb")]
use super::url::query_options;
use super::{Delivery, Store, StoreError};
use crate::lease::Timing;
use crate::text;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The forms that `--store` takes.
pub const SCHEMES: &str = "file:DIR, dynamodb://TABLE, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX, \
                           azblob://ACCOUNT/CONTAINER/PREFIX, redis://HOST, postgres://HOST/DATABASE, \
                           mysql://HOST/DATABASE, nats://HOST/BUCKET, etcd://HOST/PREFIX";

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
];

/// Schemes that the program knows, although this build may lack their stores.
const OPTIONAL: [&str; 17] = [
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
    Postgres(super::postgres::Address),
    #[cfg(feature = "mysql")]
    Mysql(super::mysql::Address),
    #[cfg(feature = "nats")]
    Nats(super::nats::Address),
    #[cfg(feature = "etcd")]
    Etcd(super::etcd::Address),
}

impl Location {
    /// Reads a store URL.
    ///
    /// # Errors
    /// One line that says what is wrong with the URL.
    pub fn from_url(url: &str) -> Result<Self, String> {
        if let Some(meant) = meant_by_a_path_or_address(url) {
            return Err(format!("the store URL has no scheme: did you mean {meant}?"));
        }
        let Some((scheme, rest)) = url.split_once(':') else {
            return Err(format!("the store URL has no scheme: use one of {SCHEMES}"));
        };
        match scheme {
            "file" => file(rest),
            #[cfg(feature = "dynamodb")]
            "dynamodb" => dynamodb(rest).map(Self::DynamoDb),
            #[cfg(feature = "bucket")]
            "s3" | "gs" | "azblob" => super::bucket::Address::read(scheme, rest).map(Self::Bucket),
            #[cfg(feature = "redis")]
            "redis" | "rediss" | "redis+unix" | "redis+sentinel" | "rediss+sentinel" => {
                super::redis::Address::read(scheme, rest).map(Self::Redis)
            }
            #[cfg(feature = "postgres")]
            "postgres" | "postgresql" => super::postgres::Address::read(rest).map(Self::Postgres),
            #[cfg(feature = "mysql")]
            "mysql" | "mariadb" => super::mysql::Address::read(rest).map(Self::Mysql),
            #[cfg(feature = "nats")]
            "nats" | "nats+tls" => super::nats::Address::read(scheme, rest).map(Self::Nats),
            #[cfg(feature = "etcd")]
            "etcd" | "etcds" => super::etcd::Address::read(scheme, rest).map(Self::Etcd),
            _ if OPTIONAL.contains(&scheme) => Err(format!("this leaderrun was built without the store {scheme}")),
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
            #[cfg(feature = "redis")]
            Self::Redis(_) => Delivery::Push,
            #[cfg(feature = "postgres")]
            Self::Postgres(_) => Delivery::Push,
            #[cfg(feature = "mysql")]
            Self::Mysql(_) => Delivery::Poll,
            #[cfg(feature = "nats")]
            Self::Nats(_) => Delivery::Push,
            #[cfg(feature = "etcd")]
            Self::Etcd(_) => Delivery::Push,
        }
    }

    /// Whether requests cost so much that the default timing should make few.
    #[must_use]
    pub fn is_dear(&self) -> bool {
        match self {
            #[cfg(feature = "bucket")]
            Self::Bucket(_) => true,
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
            Self::Postgres(address) => Ok(Arc::new(super::postgres::Postgres::open(address, request_timeout).await?)),
            #[cfg(feature = "mysql")]
            Self::Mysql(address) => Ok(Arc::new(super::mysql::Mysql::open(address, request_timeout)?)),
            #[cfg(feature = "nats")]
            Self::Nats(address) => Ok(Arc::new(super::nats::Nats::open(address, request_timeout).await?)),
            #[cfg(feature = "etcd")]
            Self::Etcd(address) => Ok(Arc::new(super::etcd::Etcd::open(address, request_timeout)?)),
        }
    }
}

fn is_scheme(scheme: &str) -> bool {
    // RFC 3986, section 3.1.
    scheme.starts_with(|first: char| first.is_ascii_alphabetic())
        && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
}

/// What a path, or a host with a server's usual port, stands for.
fn meant_by_a_path_or_address(url: &str) -> Option<String> {
    if url.starts_with('/') {
        return is_plain(url).then(|| format!("file:{url}"));
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
    // Cron, systemd and shells run the same line in different directories: each would have leases of its own.
    if !path.starts_with('/') {
        let absolute = std::path::absolute(path).ok().filter(|_| is_plain(path));
        let directory = absolute.map_or("/DIR".to_owned(), |path| path.display().to_string());
        return Err(format!("the directory of file: depends on the working directory: write file:{directory}"));
    }
    Ok(Location::File { directory: PathBuf::from(path) })
}

#[cfg(feature = "dynamodb")]
fn dynamodb(rest: &str) -> Result<super::dynamodb::Address, String> {
    let Some(rest) = rest.strip_prefix("//") else {
        return Err("dynamodb: lacks its // after it: write dynamodb://TABLE".to_owned());
    };
    let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
    if table.is_empty() {
        return Err("dynamodb:// names no table: write dynamodb://TABLE?region=REGION".to_owned());
    }
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
    use crate::fuzz;
    use proptest::prelude::*;

    #[test]
    fn a_directory_may_be_written_in_three_ways() {
        for url in ["file:/a/b", "file:///a/b"] {
            assert_eq!(Location::from_url(url), Ok(Location::File { directory: "/a/b".into() }));
        }
        assert_eq!(Location::from_url("file:"), Location::by_default());
    }

    #[test]
    fn a_path_or_an_address_is_answered_with_the_url_that_was_meant() {
        for (url, meant) in [
            ("/tmp/x", "file:/tmp/x"),
            ("127.0.0.1:6379", "redis://127.0.0.1:6379"),
            ("db.example:5432", "postgres://db.example:5432/DATABASE"),
            ("[::1]:2379", "etcd://[::1]:2379/PREFIX"),
        ] {
            let error = Location::from_url(url).unwrap_err();
            assert_eq!(error, format!("the store URL has no scheme: did you mean {meant}?"));
        }
        for url in ["127.0.0.1:9999", "app:secret@db:6379", "app:6379/x:6379", "//app:secret@db", "app:secret:6379"] {
            assert!(!Location::from_url(url).unwrap_err().contains("did you mean"), "{url}");
        }
    }

    #[test]
    fn a_directory_does_not_depend_on_where_the_program_runs() {
        let error = Location::from_url("file:a/b").unwrap_err();
        assert!(error.contains("working directory: write file:/") && error.ends_with("/a/b"), "{error}");
        let error = Location::from_url("file:app:secret@db").unwrap_err();
        assert!(error.ends_with("write file:/DIR"), "{error}");
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

    /// Checks that a location is the same after it was written as a URL and read again.
    fn assert_is_stable(url: &str, location: &Location) {
        let (scheme, _) = url.split_once(':').expect("it was accepted");
        let written = match location {
            Location::File { directory } => {
                let directory = directory.to_str().expect("it was text");
                if directory.starts_with('/') { format!("//{directory}") } else { directory.to_owned() }
            }
            #[cfg(feature = "dynamodb")]
            Location::DynamoDb(super::super::dynamodb::Address { table, region, endpoint, profile }) => {
                let mut options = url::form_urlencoded::Serializer::new(String::new());
                for (name, value) in [("profile", profile), ("endpoint", endpoint), ("region", region)] {
                    options.extend_pairs(value.as_ref().map(|value| (name, value)));
                }
                format!("//{table}?{}", options.finish())
            }
            #[cfg(feature = "bucket")]
            Location::Bucket(address) => {
                let mut options = url::form_urlencoded::Serializer::new(String::new());
                let super::super::bucket::Address { profile, endpoint, region, path_style, tls, .. } = address;
                let ca = tls.ca.as_ref().and_then(|path| path.to_str());
                options.extend_pairs(ca.map(|ca| ("ca", ca)));
                for (name, value) in [("profile", profile), ("endpoint", endpoint), ("region", region)] {
                    options.extend_pairs(value.as_ref().map(|value| (name, value)));
                }
                options.extend_pairs((!path_style).then_some(("path_style", "false")));
                let whole = address.to_string();
                let (_, rest) = whole.split_once(':').expect("it has a scheme");
                format!("{rest}?{}", options.finish())
            }
            #[cfg(any(feature = "redis", feature = "postgres", feature = "mysql", feature = "nats", feature = "etcd"))]
            _ => {
                const OPTIONS: [&str; 33] = [
                    "prefix",
                    "wait",
                    "lock_key",
                    "info_key",
                    "ca",
                    "cert",
                    "key",
                    "db",
                    "sentinel_user",
                    "sentinel_password",
                    "schema",
                    "table",
                    "advisory_lock",
                    "sslmode",
                    "sslrootcert",
                    "sslcert",
                    "sslkey",
                    "application_name",
                    "host",
                    "port",
                    "creds",
                    "nkey",
                    "domain",
                    "inbox",
                    "replicas",
                    "get_lock",
                    "socket",
                    "ssl-mode",
                    "ssl-ca",
                    "ssl-cert",
                    "ssl-key",
                    "server-public-key-path",
                    "get-server-public-key",
                ];
                let rest = &url[scheme.len() + 1..];
                match super::super::url::StoreUrl::read("any", rest, &OPTIONS) {
                    Ok(read) => read.written(),
                    // A URL may name the directory of a socket in place of a host.
                    Err(message) => {
                        assert!(scheme.starts_with("postgres") && rest.contains('%'), "{message}");
                        rest.to_owned()
                    }
                }
            }
        };
        assert_eq!(Location::from_url(&format!("{scheme}:{written}")).as_ref(), Ok(location), "{written}");
    }

    fn bend_urls(what: &str, seeds: &[&str]) {
        fuzz::bent_text(what, seeds, |url, _| {
            let read = Location::from_url(url);
            match &read {
                Ok(location) => assert_is_stable(url, location),
                Err(message) => {
                    // The scheme may be as long as the text that a user pasted.
                    let message: String = message.chars().take(1000).collect();
                    fuzz::assert_is_one_line(&message);
                    let named =
                        ["://", "file:", "scheme", "no store is called", "endpoint=", "DynamoDB", "host=", "ca, cert"];
                    assert!(named.iter().any(|part| message.contains(part)), "{message}");
                }
            }
            (&read).into()
        });
    }

    #[test]
    fn a_million_file_urls_are_read_or_refused() {
        bend_urls("file: URL", &["file:/a/b", "file:///var/lib/leaderrun", "file:a/b", "file:/a%20b/ä"]);
    }

    #[cfg(feature = "dynamodb")]
    #[test]
    fn a_million_dynamodb_urls_are_read_or_refused() {
        bend_urls(
            "dynamodb:// URL",
            &[
                "dynamodb://locks",
                "dynamodb://locks?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&profile=p",
                "dynamodb://my_table.1-a?endpoint=https://host.example",
            ],
        );
    }

    #[cfg(feature = "redis")]
    #[test]
    fn a_million_redis_urls_are_read_or_refused() {
        bend_urls(
            "redis:// URL",
            &[
                "redis://h",
                "rediss://me:p%40ss@[::1]:7/3?prefix=a:&wait=2&ca=/ca&cert=/c&key=/k",
                "redis+unix://:pw@/run/redis.sock?db=4",
                "redis+sentinel://:pw@one,two:7/mymaster/5?sentinel_user=s&sentinel_password=t",
                "rediss+sentinel://one/m",
                "redis://h?lock_key=maplefile:leader:lock&info_key=maplefile:leader:info",
            ],
        );
    }

    #[cfg(feature = "postgres")]
    #[test]
    fn a_million_postgres_urls_are_read_or_refused() {
        bend_urls(
            "postgres:// URL",
            &[
                "postgres://app:p%40ss@one,two:6000/main?schema=s&table=my%20locks&advisory_lock=-7&sslmode=verify-full",
                "postgresql://h/db?sslrootcert=/ca&sslcert=/c&sslkey=/k&application_name=x",
                "postgres:///db?host=/tmp&port=7000",
                "postgres://u@%2Ftmp:7000/db",
                "postgres://h/db?sslrootcert=system",
            ],
        );
    }

    #[cfg(feature = "mysql")]
    #[test]
    fn a_million_mysql_urls_are_read_or_refused() {
        bend_urls(
            "mysql:// URL",
            &[
                "mysql://app:p%40ss@one,two:6000/main?table=my%20locks&get_lock=old&ssl-mode=VERIFY_IDENTITY",
                "mariadb://h/db?ssl-ca=/ca&ssl-cert=/c&ssl-key=/k&get-server-public-key=1",
                "mysql:///db?socket=/run/mysqld/mysqld.sock",
            ],
        );
    }

    #[cfg(feature = "nats")]
    #[test]
    fn a_million_nats_urls_are_read_or_refused() {
        bend_urls(
            "nats:// URL",
            &[
                "nats://u:p%40x@one,two:4333/locks?domain=hub&replicas=3&inbox=_INBOX_lr",
                "nats://s3cr3t@h/b",
                "nats+tls://h/b?creds=/x.creds&ca=/ca",
                "nats://h/b?nkey=/x&cert=/c&key=/k",
                "nats://h/b?key=other/leader&lock_key=c/d",
            ],
        );
    }

    #[cfg(feature = "etcd")]
    #[test]
    fn a_million_etcd_urls_are_read_or_refused() {
        bend_urls(
            "etcd:// URL",
            &[
                "etcds://u:p%40@one,two:7,[::1]/some/prefix/?ca=/a&cert=/b&key=/c",
                "etcd://h",
                "etcd://h//services/locks",
                "etcd://u:p@h:1/x",
            ],
        );
    }

    #[test]
    fn a_million_urls_with_passwords_that_nobody_encoded_do_not_tell_them() {
        const WORDS: [&str; 3] = ["Kiwi7Qx", "Plum8Zy", "Pear9Wv"];
        let ends: [&[u8]; 7] = [
            b"h",
            b"h:1/0?prefix=a&wait=2",
            b"one,two:7/m/5?sentinel_user=s",
            b"h/db?schema=s&sslmode=require&advisory_lock=7",
            b"h/b?domain=hub&replicas=3",
            b"[::1]/some/prefix?ca=/a&cert=/b&key=/c",
            b"/run/redis.sock?db=4",
        ];
        let schemes = [&OPTIONAL[..], &["file", "redi", "htps", "dynamo db", ""]].concat();
        fuzz::run("store URL with a password", |source, input| {
            let mut password = WORDS[0].to_owned();
            for word in &WORDS[1..=source.below(3)] {
                password.push_str(
                    source.of::<&str>(&["@", "/", "?", "#", "&", "=", ":", ",", "%41", "%", " ", "[", "]", "+", "\\"]),
                );
                password.push_str(word);
            }
            let end = String::from_utf8_lossy(&source.bend(&ends)).into_owned();
            let (scheme, option) = (*source.of(&schemes), source.one_in(8));
            let url = match source.below(8) {
                _ if option => format!("{scheme}://h/m?sentinel_password={password}&{end}"),
                0 => format!("{scheme}://:{password}@{end}"),
                1 => format!("{scheme}:u:{password}@{end}"),
                2 => format!("u:{password}@{end}"),
                _ => format!("{scheme}://u:{password}@{end}"),
            };
            input.show(|| url.clone());
            let read = Location::from_url(&url);
            // A directory is not a secret, whatever its name is.
            let is_directory = matches!(&read, Ok(Location::File { .. }));
            let shown = match &read {
                Ok(_) if is_directory => String::new(),
                Ok(location) => format!("{location:?}"),
                Err(message) => {
                    fuzz::assert_is_one_line(&message.chars().take(1000).collect::<String>());
                    message.clone()
                }
            };
            assert!(!WORDS.iter().any(|word| shown.contains(word)), "{shown}");
            (&read).into()
        });
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
