//! Reads the URLs of stores on a network: `SCHEME://[USER[:PASSWORD]@]HOST[:PORT][,HOST...][/PATH][?OPTIONS]`.
//!
//! The hazard: a URL may hold a password, and messages show what a user mistyped. So a message repeats only the scheme,
//! the names of options, and parts that were shown to be harmless. A [`Secret`] does not print.

use super::socket::Place;
use crate::text;
use percent_encoding::percent_decode_str;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use url::form_urlencoded;

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Secret(String);

impl Secret {
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

/// The longest name that DNS has (RFC 1035, section 2.3.4).
const LONGEST_HOST: usize = 253;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// A name or an address; an IPv6 address without its brackets.
    pub name: String,
    pub port: Option<u16>,
}

impl Host {
    pub fn place(&self, default_port: u16) -> Place {
        Place::Tcp { name: self.name.clone(), port: self.port.unwrap_or(default_port) }
    }
}

/// For identities, which must not depend on the order of hosts.
pub fn sorted(hosts: impl Iterator<Item = String>) -> String {
    hosts.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(",")
}

/// A URL in parts, with everything percent-decoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreUrl<'a> {
    scheme: &'a str,
    pub user: Option<String>,
    pub password: Option<Secret>,
    /// Empty in `scheme:///path`.
    pub hosts: Vec<Host>,
    /// The path without its first slash.
    pub path: String,
    options: BTreeMap<String, String>,
}

impl<'a> StoreUrl<'a> {
    /// Splits the text after `SCHEME:`. Each option may occur once, must not be empty, and must be among `known`.
    pub fn read(scheme: &'a str, rest: &str, known: &[&str]) -> Result<Self, String> {
        Self::parts(scheme, rest, known).map_err(|why| {
            // The user probably has a password with a '?' in it, which was not encoded.
            let (before, query) = rest.split_once('?').unwrap_or((rest, ""));
            if before.contains('@') || !query.contains('@') {
                return why;
            }
            format!(
                "{scheme}:// has an '@' after a '?': write %3F for a '?' in a password, and %40 for an '@' in an option"
            )
        })
    }

    fn parts(scheme: &'a str, rest: &str, known: &[&str]) -> Result<Self, String> {
        let Some(rest) = rest.strip_prefix("//") else {
            return Err(format!("{scheme}: needs // after it: write {scheme}://..."));
        };
        if rest.contains('#') {
            return Err(format!("{scheme}:// takes no '#': write %23 for one in a name or a password"));
        }
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        // The user probably has a password with a '/' in it, which was not encoded. It would be taken for a host and a
        // path, and printed.
        if path.contains('@') {
            return Err(format!(
                "{scheme}:// has an '@' after a '/': write %2F for a '/' in a password, and %40 for an '@' in a path"
            ));
        }
        // A password may contain an '@' that the user did not encode; a host may not.
        let (credentials, hosts) = match authority.rsplit_once('@') {
            Some((credentials, hosts)) => (Some(credentials), hosts),
            None => (None, authority),
        };
        let (mut user, mut password) = (None, None);
        if let Some(credentials) = credentials {
            let (name, secret) = match credentials.split_once(':') {
                Some((name, secret)) => (name, Some(secret)),
                None => (credentials, None),
            };
            let name = decoded(scheme, "the user", name)?;
            user = Some(name).filter(|name| !name.is_empty());
            password = secret.map(|secret| decoded(scheme, "the password", secret)).transpose()?.map(Secret);
        }
        let hosts = if hosts.is_empty() {
            Vec::new()
        } else {
            hosts.split(',').map(|host| read_host(scheme, host)).collect::<Result<_, _>>()?
        };
        // Two slashes are probably a typing error, and would name another election. In a file's path they are as one.
        let is_of_a_file = scheme == "redis+unix";
        if !is_of_a_file && (path.starts_with('/') || path.contains("//")) {
            return Err(format!(
                "the path in {scheme}:// has an empty part: write one '/' between two parts, and %2F for one that \
                 begins a name"
            ));
        }
        let path = decoded(scheme, "the path", path)?;
        if path.trim() != path {
            return Err(format!("the path in {scheme}:// begins or ends with a blank: remove it"));
        }
        Ok(Self { scheme, user, password, hosts, path, options: query_options(query, scheme, known)? })
    }

    pub fn take(&mut self, option: &str) -> Option<String> {
        self.options.remove(option)
    }

    pub fn take_number<T: std::str::FromStr>(&mut self, option: &str) -> Result<Option<T>, String> {
        let scheme = self.scheme;
        let read = |text: String| {
            text.parse().map_err(|_| format!("the option {option} of {scheme}:// is not a number: write {option}=N"))
        };
        self.take(option).map(read).transpose()
    }

    pub fn take_tls_files(&mut self, [ca, cert, key]: [&str; 3]) -> Result<TlsFiles, String> {
        let mut file = |option| self.take(option).map(PathBuf::from);
        let files = TlsFiles { ca: file(ca), cert: file(cert), key: file(key) };
        if files.cert.is_some() != files.key.is_some() {
            return Err(format!("{}:// needs both {cert}=FILE and {key}=FILE", self.scheme));
        }
        Ok(files)
    }

    pub fn some_host(&self) -> Result<(), String> {
        if self.hosts.is_empty() { Err(format!("{0}:// names no host: write {0}://HOST", self.scheme)) } else { Ok(()) }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// Authorities to trust instead of the system's.
    pub ca: Option<PathBuf>,
    /// Our own certificate, with its chain. Some if `key` is.
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

fn decoded(scheme: &str, what: &str, text: &str) -> Result<String, String> {
    let decoded = percent_decode_str(text).decode_utf8();
    let decoded = decoded.map_err(|_| format!("{what} in {scheme}:// is not UTF-8 once it is percent-decoded"))?;
    if decoded.chars().any(char::is_control) {
        return Err(format!("{what} in {scheme}:// has a control character in it"));
    }
    Ok(decoded.into_owned())
}

pub fn read_host(scheme: &str, text: &str) -> Result<Host, String> {
    let wrong =
        || format!("a host of {scheme}:// cannot be read: write {scheme}://HOST:PORT or {scheme}://[IPv6]:PORT");
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, after) = rest.split_once(']').ok_or_else(wrong)?;
            address.parse::<std::net::Ipv6Addr>().map_err(|_| wrong())?;
            (address, if after.is_empty() { None } else { Some(after.strip_prefix(':').ok_or_else(wrong)?) })
        }
        None => match text.split_once(':') {
            Some((name, port)) => (name, Some(port)),
            None => (text, None),
        },
    };
    let well_named =
        text.starts_with('[') || name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte));
    if name.is_empty() || name.len() > LONGEST_HOST || !well_named {
        return Err(wrong());
    }
    let port = port.map(|port| read_port(scheme, port)).transpose()?;
    Ok(Host { name: name.to_owned(), port })
}

#[cfg(feature = "aws")]
pub fn read_endpoint(scheme: &str, text: &str) -> Result<url::Url, String> {
    if text.contains('@') {
        return Err(format!("the endpoint of {scheme}:// takes no login: leave credentials to the environment"));
    }
    super::aws::endpoint(text).ok_or_else(|| {
        format!("the endpoint of {scheme}:// is not a URL: write endpoint=http://HOST:PORT or https://HOST")
    })
}

pub fn read_port(scheme: &str, text: &str) -> Result<u16, String> {
    let read = text.parse::<u16>().ok().filter(|&port| port != 0 && text.bytes().all(|byte| byte.is_ascii_digit()));
    read.ok_or_else(|| {
        // Anything else may be a password whose host was left out.
        let digits = text.strip_prefix('-').unwrap_or(text);
        let is_number = (1..=5).contains(&digits.len()) && digits.bytes().all(|byte| byte.is_ascii_digit());
        let shown = if is_number { format!("the port {text}") } else { "a port".to_owned() };
        format!("{shown} of {scheme}:// is not a number from 1 to 65535: write {scheme}://HOST:PORT")
    })
}

/// Reads `a=b&c=d`. Each key occurs at most once, is known, and has a value.
pub fn query_options(query: &str, scheme: &str, known: &[&str]) -> Result<BTreeMap<String, String>, String> {
    let mut options = BTreeMap::new();
    // A part of a secret may look like options: `u:pa?word=x@host`, `?sentinel_password=pa&word=x`.
    let beside_a_secret = query.contains('@') || query.contains("password");
    if query.contains('?') {
        return Err(format!("{scheme}:// has a second '?': write '&' between two options, and %3F for a '?' in one"));
    }
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        if !known.contains(&&*key) {
            // A part without a value, or that is not a word, may belong to a password that was not encoded.
            let word = key.len() <= 30 && key.bytes().all(|byte| byte.is_ascii_alphabetic() || b"_-".contains(&byte));
            let is_named = word && !value.is_empty() && !beside_a_secret;
            let option = if is_named { format!("the option {key}") } else { "an option".to_owned() };
            let meant = text::nearest(&key, known.iter().copied()).filter(|_| is_named);
            return Err(match meant {
                Some(meant) => format!("{scheme}:// does not know {option}: did you mean {meant}?"),
                None if known.is_empty() => format!("{scheme}:// does not know {option}: it takes none"),
                None => format!("{scheme}:// does not know {option}: it takes {}", known.join(", ")),
            });
        }
        if value.is_empty() {
            return Err(format!("the option {key} of {scheme}:// is empty"));
        }
        if value.contains(char::REPLACEMENT_CHARACTER) {
            return Err(format!("the option {key} of {scheme}:// is not UTF-8 once it is percent-decoded"));
        }
        if value.chars().any(char::is_control) {
            return Err(format!("the option {key} of {scheme}:// has a control character in it"));
        }
        // Also written as a '+' or as %20. A password may have one.
        if value.trim() != value && !key.contains("password") {
            return Err(format!("the option {key} of {scheme}:// begins or ends with a blank: remove it"));
        }
        if options.insert(key.clone().into_owned(), value.into_owned()).is_some() {
            return Err(format!("the option {key} of {scheme}:// is given twice"));
        }
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(name: &str, port: Option<u16>) -> Host {
        Host { name: name.to_owned(), port }
    }

    #[test]
    fn every_part_is_found_and_decoded() {
        let url = "//us%40er:p%2Fw:%23@one,two:7,[::1]:8/a%20b/c?x=1%262&y=z";
        let mut read = StoreUrl::read("redis", url, &["x", "y"]).unwrap();
        assert_eq!(read.user.as_deref(), Some("us@er"));
        assert_eq!(read.password.as_ref().map(Secret::expose), Some("p/w:#"));
        assert_eq!(read.hosts, [host("one", None), host("two", Some(7)), host("::1", Some(8))]);
        assert_eq!(read.hosts[2].place(1).to_string(), "[::1]:8");
        assert_eq!(read.hosts[0].place(1).to_string(), "one:1");
        assert_eq!(read.path, "a b/c");
        assert_eq!(
            (read.take("x").as_deref(), read.take("x"), read.take("y").as_deref()),
            (Some("1&2"), None, Some("z"))
        );
    }

    #[test]
    fn missing_parts_of_a_url_are_none() {
        let read = StoreUrl::read("redis", "//h", &[]).unwrap();
        assert_eq!((read.user, read.password, read.path.as_str()), (None, None, ""));
        let read = StoreUrl::read("redis", "//:secret@h/", &[]).unwrap();
        assert_eq!((read.user, read.password.unwrap().expose()), (None, "secret"));
        assert!(StoreUrl::read("redis", "///path", &[]).unwrap().some_host().is_err());
        // The kernel reads two slashes as one.
        assert_eq!(StoreUrl::read("redis+unix", "////run//s", &[]).unwrap().path, "/run//s");
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "h", "//h,", "//,h", "//[::1", "//[zz]", "//[::1]x", "//h h", "//h?x", "//h?x=", "//h#f", "//%ff@h",
            "//:%0a@h", "//h/%00", "//h//p", "//h/p//", "//h/a//b",
        ] {
            assert!(StoreUrl::read("redis", bad, &["x"]).is_err(), "{bad}");
        }
        let named = |length| StoreUrl::read("redis", &format!("//{}", "h".repeat(length)), &[]);
        assert!(named(253).is_ok() && named(254).is_err());
        let mut read = StoreUrl::read("redis", "//h?cert=c&x=y", &["cert", "key", "ca", "x"]).unwrap();
        assert!(read.take_tls_files(["ca", "cert", "key"]).is_err());
        assert!(read.take_number::<u32>("x").is_err());
    }

    #[test]
    fn a_mistake_is_named_with_what_was_probably_meant() {
        for (url, words) in [
            ("//h?prefx=1", "does not know the option prefx: did you mean prefix?"),
            ("//h?ssl-mode=1", "does not know the option ssl-mode: did you mean sslmode?"),
            ("//h?some-zone=1", "does not know the option some-zone: it takes prefix, sslmode"),
            ("//h?prefix=1&prefix=2", "the option prefix of redis:// is given twice"),
            ("//h:0", "the port 0 of redis:// is not a number from 1 to 65535"),
            ("//h:70000", "the port 70000 of redis:// is not a number from 1 to 65535"),
            ("//h:-1", "the port -1 of redis:// is not a number from 1 to 65535"),
            ("//h:x", "a port of redis:// is not a number from 1 to 65535"),
            ("//[::1]:+7", "a port of redis:// is not"),
            ("//h?prefix=x%20", "the option prefix of redis:// begins or ends with a blank"),
            ("//h?prefix=+x", "the option prefix of redis:// begins or ends with a blank"),
            ("//h/lr%20", "the path in redis:// begins or ends with a blank"),
        ] {
            let message = StoreUrl::read("redis", url, &["prefix", "sslmode"]).unwrap_err();
            assert!(message.contains(words), "{url}: {message}");
        }
    }

    #[test]
    fn an_option_that_may_be_a_part_of_a_password_is_not_named() {
        for url in ["//u:pass?hunter2=x@h", "//h?sentinel_password=pass&hunter2=x"] {
            let message = StoreUrl::read("redis", url, &["sentinel_password"]).unwrap_err();
            assert!(!message.contains("hunter2"), "{message}");
        }
        assert!(StoreUrl::read("redis", "//h?wiat=2", &["wait"]).unwrap_err().contains("the option wiat"));
    }

    #[test]
    fn a_password_with_a_question_mark_in_it_is_not_taken_for_a_host_and_options() {
        for url in ["//u:hunter2?x@h", "//u:hunter2?@h/0", "//u:12?hunter2=x@h", "//u:?hunter2@h", "//hunter2?x@h"] {
            let message = StoreUrl::read("redis", url, &["x"]).unwrap_err();
            assert!(message.contains("write %3F") && !message.contains("hunter2"), "{url}: {message}");
        }
        assert_eq!(StoreUrl::read("redis", "//h?x=a@b", &["x"]).unwrap().take("x").as_deref(), Some("a@b"));
    }

    #[test]
    fn a_password_with_a_slash_in_it_is_not_taken_for_a_host_and_a_path() {
        for url in ["//u:12/hunter2@h", "//u:a@hunter2/b@h", "//hunter2/b@h", "///hunter2@h"] {
            let message = StoreUrl::read("etcd", url, &[]).unwrap_err();
            assert!(message.contains("write %2F") && !message.contains("hunter2"), "{message}");
        }
        assert_eq!(StoreUrl::read("etcd", "//h/a%40b", &[]).unwrap().path, "a@b");
    }
}
