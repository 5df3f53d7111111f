//! Reads `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://` and `rediss+sentinel://`.
//!
//! The hazard: if a misspelt option were ignored, two candidates could use two places, and both lead.

use crate::store::socket::Place;
use crate::store::url::{Secret, StoreUrl, TlsFiles, sorted};
use std::fmt;

pub const DEFAULT_PREFIX: &str = "leaderrun:";
const PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
/// The prefix is part of every key.
const MOST_PREFIX: usize = 200;
const MOST_LOCK_KEY: usize = 512;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub(super) target: Target,
    pub(super) login: Login,
    pub(super) db: u32,
    pub(super) prefix: String,
    /// How many replicas must have a lease before it counts.
    pub(super) replicas: u32,
    /// Also for connections to Sentinels.
    pub(super) tls: Option<Box<TlsFiles>>,
    /// A key of other programs, held beside each lease.
    pub(in crate::store) lock_key: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    At(Place),
    Sentinel { sentinels: Vec<Place>, master: String, login: Login },
}

/// Without a password there is no login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// Where the store URL has it, for messages.
    pub place: &'static str,
    pub user: Option<String>,
    pub password: Option<Secret>,
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.target {
            Target::At(place) => write!(f, "redis at {place}"),
            Target::Sentinel { master, .. } => write!(f, "the redis master {master}"),
        }
    }
}

impl Address {
    pub fn identity(&self) -> String {
        let sentinels: &[Place] = if let Target::Sentinel { sentinels, .. } = &self.target { sentinels } else { &[] };
        let sentinels = sorted(sentinels.iter().map(ToString::to_string));
        format!("{self} {sentinels} {} {}", self.db, self.prefix)
    }

    pub fn read(scheme: &str, rest: &str) -> Result<Self, String> {
        const COMMON: [&str; 6] = ["prefix", "wait", "lock_key", "ca", "cert", "key"];
        let more: &[&str] = match scheme {
            "redis+unix" => &["db"],
            "redis+sentinel" | "rediss+sentinel" => &["sentinel_user", "sentinel_password"],
            _ => &[],
        };
        let mut url = StoreUrl::read(scheme, rest, &[more, &COMMON].concat())?;
        let login = read_login(scheme, url.user.take(), url.password.take(), "USER:PASSWORD@")?;
        let prefix = url.take("prefix").unwrap_or_else(|| DEFAULT_PREFIX.to_owned());
        if prefix.len() > MOST_PREFIX {
            return Err(format!("prefix= of {scheme}:// is longer than {MOST_PREFIX} bytes"));
        }
        let replicas = url.take_number::<u32>("wait")?;
        if replicas == Some(0) {
            return Err(format!("wait=0 of {scheme}:// waits for no replica: leave it out"));
        }
        let lock_key = url.take("lock_key");
        if lock_key.as_ref().is_some_and(|key| key.len() > MOST_LOCK_KEY) {
            return Err(format!("lock_key= of {scheme}:// is longer than {MOST_LOCK_KEY} bytes"));
        }
        if lock_key.as_ref().is_some_and(|key| key.starts_with(&format!("{prefix}{{leases}}:"))) {
            return Err(format!(
                "lock_key= of {scheme}:// names a key of leaderrun itself: name the key of the other programs"
            ));
        }
        let files = url.take_tls_files(["ca", "cert", "key"])?;
        let tls = if scheme.starts_with("rediss") {
            Some(Box::new(files))
        } else if files != TlsFiles::default() {
            let with_tls = if scheme == "redis+sentinel" { "rediss+sentinel" } else { "rediss" };
            return Err(format!("{scheme}:// speaks no TLS, so it takes no ca=, cert= and key=: write {with_tls}://"));
        } else {
            None
        };
        let (target, db) = match scheme {
            "redis+unix" => unix(&mut url)?,
            "redis+sentinel" | "rediss+sentinel" => sentinel(scheme, &mut url)?,
            _ => tcp(scheme, &mut url)?,
        };
        Ok(Self { target, login, db, prefix, replicas: replicas.unwrap_or(0), tls, lock_key })
    }
}

fn read_login(
    scheme: &str,
    user: Option<String>,
    password: Option<Secret>,
    place: &'static str,
) -> Result<Login, String> {
    let password = password.filter(|password| !password.expose().is_empty());
    if user.is_some() && password.is_none() {
        return Err(format!("{scheme}:// names a user without a password: write {place}"));
    }
    Ok(Login { place, user, password })
}

fn database(scheme: &str, text: &str) -> Result<u32, String> {
    if text.is_empty() {
        return Ok(0);
    }
    text.parse().map_err(|_| format!("the database of {scheme}:// is not a number: write /0 or leave it out"))
}

fn tcp(scheme: &str, url: &mut StoreUrl<'_>) -> Result<(Target, u32), String> {
    url.some_host()?;
    if url.hosts.len() > 1 {
        return Err(format!("{scheme}:// names several servers: for those of one master write {scheme}+sentinel://"));
    }
    Ok((Target::At(url.hosts[0].place(PORT)), database(scheme, &url.path)?))
}

fn unix(url: &mut StoreUrl<'_>) -> Result<(Target, u32), String> {
    if !url.hosts.is_empty() {
        return Err("redis+unix:// takes no host: write redis+unix:///PATH/TO/SOCKET".to_owned());
    }
    if url.path.is_empty() {
        return Err("redis+unix:// names no socket: write redis+unix:///PATH/TO/SOCKET".to_owned());
    }
    let db = url.take_number::<u32>("db")?.unwrap_or(0);
    Ok((Target::At(Place::Unix(format!("/{}", url.path).into())), db))
}

fn sentinel(scheme: &str, url: &mut StoreUrl<'_>) -> Result<(Target, u32), String> {
    if url.hosts.is_empty() {
        return Err(format!("{scheme}:// names no Sentinel: write {scheme}://HOST,HOST,HOST/MASTER"));
    }
    let (master, db) = url.path.split_once('/').unwrap_or((&url.path, ""));
    if master.is_empty() {
        return Err(format!("{scheme}:// names no master: write {scheme}://HOST,HOST,HOST/MASTER"));
    }
    let (master, db) = (master.to_owned(), database(scheme, db)?);
    let (user, password) = (url.take("sentinel_user"), url.take("sentinel_password").map(Secret::from));
    let login = read_login(scheme, user, password, "sentinel_user= and sentinel_password=")?;
    let sentinels = url.hosts.iter().map(|host| host.place(SENTINEL_PORT)).collect();
    Ok((Target::Sentinel { sentinels, master, login }, db))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> Result<Address, String> {
        let (scheme, rest) = url.split_once(':').expect("a scheme");
        Address::read(scheme, rest)
    }

    fn tcp(name: &str, port: u16) -> Place {
        Place::Tcp { name: name.to_owned(), port }
    }

    #[test]
    fn every_form_is_understood() {
        let plain = read("redis://h").unwrap();
        let expected = Address {
            target: Target::At(tcp("h", 6379)),
            login: Login { place: "USER:PASSWORD@", user: None, password: None },
            db: 0,
            prefix: "leaderrun:".to_owned(),
            replicas: 0,
            tls: None,
            lock_key: None,
        };
        assert_eq!(plain, expected);

        let full = read("rediss://me:p%40ss@[::1]:7/3?prefix=a:&wait=2&ca=/ca&cert=/c&key=/k").unwrap();
        assert_eq!(full.target, Target::At(tcp("::1", 7)));
        assert_eq!(full.login.user.as_deref(), Some("me"));
        assert_eq!(full.login.password.as_ref().map(Secret::expose), Some("p@ss"));
        assert_eq!((full.db, full.prefix.as_str(), full.replicas), (3, "a:", 2));
        assert_eq!(full.tls.unwrap().ca, Some("/ca".into()));

        let unix = read("redis+unix://:pw@/run/redis.sock?db=4").unwrap();
        assert_eq!(unix.target, Target::At(Place::Unix("/run/redis.sock".into())));
        assert_eq!((unix.login.user, unix.db), (None, 4));

        let url = "redis+sentinel://:pw@one,two:7/mymaster/5?sentinel_user=s&sentinel_password=t";
        let found = read(url).unwrap();
        let Target::Sentinel { sentinels, master, login } = found.target else { panic!("{:?}", found.target) };
        assert_eq!(sentinels, [tcp("one", 26379), tcp("two", 7)]);
        assert_eq!((master.as_str(), found.db, login.user.as_deref()), ("mymaster", 5, Some("s")));
        assert!(read("rediss+sentinel://one/m").unwrap().tls.is_some());
        assert!(plain.lock_key.is_none());
    }

    #[test]
    fn nonsense_is_refused() {
        for bad in [
            "redis:",
            "redis://",
            "redis:///0",
            "redis://a,b",
            "redis://h/x",
            "redis://h/-1",
            "redis://h?db=1",
            "redis://h?wait=0",
            "redis://h?wait=-1",
            "redis://h?lock_key=",
            "redis://h?lock_key=a&lock_key=b",
            "redis://h?lock_key=a%0Ab",
            "redis://h?lock_key=a%FFb",
            "redis://h?lock_key=a?wait=1",
            "redis://h?lock_key=a&info_key=b",
            "redis://h?lock_key=leaderrun:{leases}:lock:a",
            "redis://h?prefix=p:&lock_key=p:{leases}:store",
            "redis://h?ca=/x",
            "redis://user@h",
            "redis://user:@h",
            "rediss://h?cert=/x",
            "redis+unix://h/socket",
            "redis+unix://",
            "redis+unix:///s?ca=/x",
            "redis+sentinel://h",
            "redis+sentinel:///m",
            "redis+sentinel://h/m/x",
            "redis+sentinel://h/m?sentinel_user=s",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
