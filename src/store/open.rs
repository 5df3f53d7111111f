//! Store URLs: which store, and where.
//!
//! The hazard: a URL may hold a password, and what somebody mistyped is printed. No message here repeats more of
//! a URL than its scheme and what was shown to be harmless.

use super::file::FileStore;
use super::{Store, StoreError};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use url::form_urlencoded;

/// The forms that `--store` takes.
pub const SCHEMES: &str = "file:DIR, dynamodb://TABLE";

/// A store that has been named, but not opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Location {
    File { directory: PathBuf },
    DynamoDb { table: String, region: Option<String>, endpoint: Option<String>, profile: Option<String> },
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
            "dynamodb" => dynamodb(rest),
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

    /// Opens it. `request_timeout` bounds each of its requests.
    ///
    /// # Errors
    /// What the store says of a wrong configuration. No lease is touched here.
    #[cfg_attr(
        not(feature = "dynamodb"),
        expect(clippy::unused_async, reason = "only a store behind a network has to be waited for")
    )]
    pub async fn open(&self, request_timeout: Duration) -> Result<Arc<dyn Store>, StoreError> {
        match self {
            Self::File { directory } => Ok(Arc::new(FileStore::open(directory)?)),
            #[cfg(feature = "dynamodb")]
            Self::DynamoDb { table, region, endpoint, profile } => {
                let address = super::dynamodb::Address {
                    table: table.clone(),
                    region: region.clone(),
                    endpoint: endpoint.clone(),
                    profile: profile.clone(),
                };
                Ok(Arc::new(super::dynamodb::DynamoDb::open(&address, request_timeout).await?))
            }
            #[cfg(not(feature = "dynamodb"))]
            Self::DynamoDb { .. } => {
                let _ = request_timeout;
                Err(StoreError::misconfigured("this leaderrun was built without the store dynamodb"))
            }
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
    if path.contains('\0') {
        return Err("the directory has a NUL byte in it".to_owned());
    }
    Ok(Location::File { directory: PathBuf::from(path) })
}

fn dynamodb(rest: &str) -> Result<Location, String> {
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
    Ok(Location::DynamoDb { table: table.to_owned(), region, endpoint, profile })
}

/// Reads `a=b&c=d`, each key at most once and only keys that are known, none empty.
fn query_options(query: &str, scheme: &str, known: &[&str]) -> Result<BTreeMap<String, String>, String> {
    let mut options = BTreeMap::new();
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if !known.contains(&&*key) {
            return Err(format!("{scheme}:// does not know the option {key:?}: it takes {}", known.join(", ")));
        }
        if value.is_empty() {
            return Err(format!("the option {key} of {scheme}:// is empty"));
        }
        if options.insert(key.clone().into_owned(), value.into_owned()).is_some() {
            return Err(format!("the option {key} of {scheme}:// stands there twice"));
        }
    }
    Ok(options)
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

    #[test]
    fn a_table_may_have_options() {
        let url = "dynamodb://locks?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1%3A8000&profile=p";
        let expected = Location::DynamoDb {
            table: "locks".into(),
            region: Some("eu-west-1".into()),
            endpoint: Some("http://127.0.0.1:8000".into()),
            profile: Some("p".into()),
        };
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
