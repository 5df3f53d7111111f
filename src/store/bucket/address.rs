//! Reads `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` and `azblob://ACCOUNT/CONTAINER/PREFIX`.

use crate::store::url::{StoreUrl, TlsFiles, read_endpoint};
use std::fmt;
use std::path::PathBuf;
use url::Url;

/// Its text is the scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, strum::EnumString, strum::IntoStaticStr)]
#[strum(const_into_str)]
pub enum Kind {
    /// Amazon S3, and servers that speak its protocol: MinIO, R2, Ceph.
    #[strum(serialize = "s3")]
    S3,
    #[strum(serialize = "gs")]
    Gcs,
    #[strum(serialize = "azblob")]
    Azure,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::S3 => "S3",
            Self::Gcs => "Google Cloud Storage",
            Self::Azure => "Azure Blob Storage",
        }
    }
}

/// The library finds what is None.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub kind: Kind,
    /// Azure's storage account; empty elsewhere.
    pub account: String,
    pub bucket: String,
    /// What the names of all objects begin with: empty, or with a `/` at the end.
    pub prefix: String,
    pub endpoint: Option<Url>,
    pub region: Option<String>,
    pub profile: Option<String>,
    /// Whether the bucket is named in the path, and not in the name of the host.
    pub path_style: bool,
    /// Only `ca` is used.
    pub tls: TlsFiles,
}

/// With this prefix and the longest shard, a name has less than the 1024 bytes that object stores allow.
const LONGEST_PREFIX: usize = 400;

impl Address {
    pub fn identity(&self) -> String {
        format!("{self} {:?}", self.endpoint.as_ref().map(Url::as_str))
    }

    pub fn read(scheme: &str, rest: &str) -> Result<Self, String> {
        let kind: Kind = scheme.parse().map_err(|_| format!("{scheme}:// is not a bucket"))?;
        let (form, known): (&str, &[&str]) = match kind {
            Kind::S3 => ("BUCKET/PREFIX", &["ca", "endpoint", "path_style", "profile", "region"]),
            Kind::Gcs => ("BUCKET/PREFIX", &["ca", "endpoint"]),
            Kind::Azure => ("ACCOUNT/CONTAINER/PREFIX", &["ca", "endpoint"]),
        };
        let mut url = StoreUrl::read(scheme, rest, known)?;
        if url.user.is_some() || url.password.is_some() {
            return Err(format!(
                "{scheme}:// takes no login: write {scheme}://{form}, and leave credentials to the environment"
            ));
        }
        let [host] = &url.hosts[..] else {
            return Err(format!("{scheme}:// names no bucket: write {scheme}://{form}"));
        };
        if host.port.is_some() || host.name.contains(':') {
            return Err(format!(
                "{scheme}:// names a bucket and no server: write {scheme}://{form}?endpoint=http://HOST:PORT"
            ));
        }
        let (account, bucket, path) = match kind {
            Kind::S3 | Kind::Gcs => (String::new(), host.name.clone(), url.path.as_str()),
            Kind::Azure => {
                let (container, path) = url.path.split_once('/').unwrap_or((&url.path, ""));
                if container.is_empty() {
                    return Err(format!("{scheme}:// names no container: write {scheme}://{form}"));
                }
                (host.name.clone(), container.to_owned(), path)
            }
        };
        let prefix = prefix(scheme, path)?;
        let path_style = match url.take("path_style").as_deref() {
            None | Some("true") => true,
            Some("false") => false,
            Some(_) => return Err(format!("the option path_style of {scheme}:// is true or false")),
        };
        let endpoint = url.take("endpoint").map(|text| read_endpoint(scheme, &text)).transpose()?;
        let (region, profile) = (url.take("region"), url.take("profile"));
        let tls = TlsFiles { ca: url.take("ca").map(PathBuf::from), ..TlsFiles::default() };
        if tls.ca.is_some() && endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http") {
            return Err(format!("the option ca of {scheme}:// is for TLS: write endpoint=https://HOST"));
        }
        Ok(Self { kind, account, bucket, prefix, endpoint, region, profile, path_style, tls })
    }
}

fn prefix(scheme: &str, path: &str) -> Result<String, String> {
    let path = path.strip_suffix('/').unwrap_or(path);
    if path.is_empty() {
        return Ok(String::new());
    }
    let is_usual = |c: char| c.is_ascii_alphanumeric() || "._-=+/".contains(c);
    let is_part = |part: &str| !part.is_empty() && part != "." && part != "..";
    if path.len() > LONGEST_PREFIX || !path.chars().all(is_usual) || !path.split('/').all(is_part) {
        return Err(format!(
            "the prefix of {scheme}:// is at most {LONGEST_PREFIX} letters, digits and . _ - = + /, without empty parts"
        ));
    }
    Ok(format!("{path}/"))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let account = if self.account.is_empty() { String::new() } else { format!("{}/", self.account) };
        write!(f, "{}://{account}{}/{}", self.kind.into_str(), self.bucket, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_each_form_are_found() {
        let read = Address::read("s3", "//locks/a/b/?region=x&endpoint=http%3A%2F%2Fh:1&path_style=false").unwrap();
        assert_eq!((read.bucket.as_str(), read.prefix.as_str(), read.path_style), ("locks", "a/b/", false));
        assert_eq!(
            (read.region.as_deref(), read.endpoint.map(String::from)),
            (Some("x"), Some("http://h:1/".to_owned()))
        );
        let read = Address::read("s3", "//locks?endpoint=https://h&ca=/a.pem").unwrap();
        assert_eq!(read.tls.ca, Some("/a.pem".into()));
        let read = Address::read("azblob", "//account/container/p").unwrap();
        assert_eq!((read.account.as_str(), read.bucket.as_str(), read.prefix.as_str()), ("account", "container", "p/"));
        assert_eq!(read.to_string(), "azblob://account/container/p/");
        let read = Address::read("gs", "//locks").unwrap();
        assert_eq!((read.kind, read.prefix.as_str(), read.to_string().as_str()), (Kind::Gcs, "", "gs://locks/"));
    }

    #[test]
    fn what_is_no_bucket_is_refused() {
        for (scheme, bad) in [
            ("s3", "//"),
            ("s3", "///x"),
            ("s3", "//b:80/x"),
            ("s3", "//key:secret@b/x"),
            ("s3", "//b/../x"),
            ("s3", "//b/a//x"),
            ("s3", "//b/a b"),
            ("s3", "//b?path_style=yes"),
            ("s3", "//b?endpoint=http://u:p@h"),
            ("s3", "//b?endpoint=nonsense"),
            ("s3", "//b?ca=/a.pem&endpoint=http://h"),
            ("gs", "//b?region=x"),
            ("azblob", "//account"),
            ("azblob", "//account/"),
        ] {
            let message = Address::read(scheme, bad).unwrap_err();
            assert!(!message.contains("secret"), "{message}");
        }
    }
}
