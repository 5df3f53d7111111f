//! `etcd://[USER:PASSWORD@]HOST[:PORT][,HOST...][/PREFIX]`, and `etcds://` with `?ca=`, `cert=` and `key=`.

use crate::store::socket::Place;
use crate::store::url::{Secret, StoreUrl, TlsFiles, sorted};
use std::fmt;

const PORT: u16 = 2379;
const DEFAULT_PREFIX: &str = "leaderrun";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// At least one.
    pub(super) hosts: Vec<Place>,
    pub(super) prefix: String,
    pub(super) user: Option<(String, Secret)>,
    pub(super) tls: Option<TlsFiles>,
}

impl Address {
    pub fn identity(&self) -> String {
        let hosts = sorted(self.hosts.iter().map(Place::to_string));
        format!("etcd {hosts} {}", self.prefix)
    }

    pub fn read(scheme: &str, rest: &str) -> Result<Self, String> {
        let mut url = StoreUrl::read(scheme, rest, &["ca", "cert", "key"])?;
        url.some_host()?;
        let files = url.take_tls_files(["ca", "cert", "key"])?;
        let tls = match scheme {
            "etcds" => Some(files),
            _ if files == TlsFiles::default() => None,
            _ => return Err("ca, cert and key are for encrypted connections: write etcds://HOST".to_owned()),
        };
        let user = match (url.user, url.password) {
            (None, None) => None,
            (Some(user), Some(password)) if !password.expose().is_empty() => Some((user, password)),
            (user, _) => {
                let (has, lacks) = if user.is_some() { ("user", "password") } else { ("password", "user") };
                return Err(format!("{scheme}:// has a {has} without a {lacks}: write {scheme}://USER:PASSWORD@HOST"));
            }
        };
        let prefix = match url.path.trim_end_matches('/') {
            "" if url.path.is_empty() => DEFAULT_PREFIX.to_owned(),
            // Written as %2F.
            "" => return Err(format!("the prefix in {scheme}:// is empty: write {scheme}://HOST/PREFIX")),
            prefix => prefix.to_owned(),
        };
        let hosts = url.hosts.iter().map(|host| host.place(PORT)).collect();
        Ok(Self { hosts, prefix, user, tls })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hosts: Vec<String> = self.hosts.iter().map(Place::to_string).collect();
        write!(f, "etcd at {}", hosts.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_url_is_read() {
        let address = Address::read("etcds", "//u:p%40@one,two:7,[::1]/some/prefix/?ca=/a&cert=/b&key=/c").unwrap();
        assert_eq!(address.to_string(), "etcd at one:2379,two:7,[::1]:2379");
        assert_eq!(address.prefix, "some/prefix");
        assert_eq!(address.user.as_ref().map(|(user, password)| (user.as_str(), password.expose())), Some(("u", "p@")));
        assert!(address.tls.unwrap().cert.is_some());
        let plain = Address::read("etcd", "//h").unwrap();
        assert_eq!((plain.prefix.as_str(), plain.user, plain.tls), (DEFAULT_PREFIX, None, None));
        // A prefix may be written like a path.
        assert_eq!(Address::read("etcd", "//h/%2Fservices/locks").unwrap().prefix, "/services/locks");
        assert_eq!(Address::read("etcd", "//h/lr/").unwrap().prefix, "lr");
    }

    #[test]
    fn nonsense_is_refused_and_tells_no_secret() {
        for bad in [
            "///p",
            "//u@h",
            "//u:@h",
            "//:hunter2@h",
            "//u:hunter2@h//",
            "//u:hunter2@h/%2F",
            "//u:hunter2@h?ca=/x",
            "//u:hunter2@h?zone=1",
        ] {
            let message = Address::read("etcd", bad).unwrap_err();
            assert!(!message.contains("hunter2"), "{message}");
        }
        let shown = format!("{:?}", Address::read("etcd", "//u:hunter2@h").unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
    }
}
