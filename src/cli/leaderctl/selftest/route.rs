//! The server of a store URL, and the same URL through a proxy on this machine.
//!
//! The hazard: a URL may contain a password. The parts before and after the host are copied unchanged, and no message
//! repeats them.

use crate::store::Location;
use crate::store::url::Secret;
use std::net::SocketAddr;
use url::form_urlencoded;

/// The only server of a store, and the parts of the URL around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub host: String,
    pub port: u16,
    before: Secret,
    after: Secret,
}

const OF_TLS: &str = "TLS asks for the server's own name, which a proxy on this machine does not have";
const OF_SOCKET: &str = "it is reached over a unix socket";

impl Route {
    pub fn of(url: &str, location: &Location) -> Result<Self, String> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let default_port = match scheme {
            "file" => return Err("the store is not behind a network".to_owned()),
            "rediss" | "nats+tls" | "etcds" | "kubernetes" => return Err(OF_TLS.to_owned()),
            "redis+unix" => return Err(OF_SOCKET.to_owned()),
            "redis+sentinel" | "rediss+sentinel" => return Err("its Sentinels say where the server is".to_owned()),
            "s3" if has_option(rest, "path_style", "false") => {
                return Err("the name of its host begins with that of the bucket: leave path_style out".to_owned());
            }
            "dynamodb" | "s3" | "gs" | "azblob" => return of_endpoint(scheme, rest),
            "redis" => 6379,
            "postgres" | "postgresql" => 5432,
            "mysql" | "mariadb" => 3306,
            "nats" => 4222,
            "etcd" => 2379,
            _ => return Err(format!("no proxy can stand before a store of {scheme}:")),
        };
        if demands_a_name(location) {
            return Err(OF_TLS.to_owned());
        }
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        let (login, host) = authority.rsplit_once('@').map_or(("", authority), |(login, host)| (login, host));
        if host.is_empty() || host.contains('%') {
            return Err(OF_SOCKET.to_owned());
        }
        if host.contains(',') {
            return Err("it names several servers: name one of them alone".to_owned());
        }
        let (host, port) = split_port(host);
        let port = port.unwrap_or(default_port);
        let at = if authority.contains('@') { "@" } else { "" };
        Ok(Self {
            host: host.to_owned(),
            port,
            before: format!("{scheme}://{login}{at}").into(),
            after: after.to_owned().into(),
        })
    }

    pub fn through(&self, proxy: SocketAddr) -> Secret {
        format!("{}{proxy}{}", self.before.expose(), self.after.expose()).into()
    }
}

/// The URL without the lock that all its shards share with other programs, and the option that names that lock. None if
/// it has no such lock.
pub fn without_shared_lock(url: &str) -> Option<(String, &'static str)> {
    let (scheme, rest) = url.split_once(':')?;
    let (before, query) = rest.split_once('?')?;
    let shared = match scheme {
        "postgres" | "postgresql" => "advisory_lock",
        "nats" | "nats+tls" => "lock_key",
        "kubernetes" => "lease",
        _ if scheme.starts_with("redis") => "lock_key",
        _ => return None,
    };
    let (locks, others): (Vec<&str>, Vec<&str>) = query.split('&').partition(|option| is_called(option, shared));
    if locks.is_empty() {
        return None;
    }
    Some((format!("{scheme}:{before}?{}", others.join("&")), shared))
}

fn is_called(option: &str, expected: &str) -> bool {
    form_urlencoded::parse(option.as_bytes()).next().is_some_and(|(name, _)| name == expected)
}

fn demands_a_name(location: &Location) -> bool {
    match location {
        #[cfg(feature = "postgres")]
        Location::Postgres(address) => address.tls_mode == crate::store::tls_mode::TlsMode::VerifyFull,
        #[cfg(feature = "mysql")]
        Location::Mysql(address) => address.tls_mode == crate::store::tls_mode::TlsMode::VerifyFull,
        #[cfg(feature = "nats")]
        Location::Nats(address) => address.demand_tls,
        _ => false,
    }
}

fn split_port(host: &str) -> (&str, Option<u16>) {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((name, after)) => (name, after.strip_prefix(':')),
        None => host.split_once(':').map_or((host, None), |(name, port)| (name, Some(port))),
    };
    (name, port.and_then(|port| port.parse().ok()))
}

fn has_option(rest: &str, name: &str, value: &str) -> bool {
    let query = rest.split_once('?').map_or("", |(_, query)| query);
    form_urlencoded::parse(query.as_bytes()).any(|(known, set)| known == name && set == value)
}

/// `dynamodb://TABLE?endpoint=http://HOST:PORT`, and the same for a bucket.
fn of_endpoint(scheme: &str, rest: &str) -> Result<Route, String> {
    let (table, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut endpoint = None;
    let mut others = form_urlencoded::Serializer::new(String::new());
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if name == "endpoint" {
            endpoint = url::Url::parse(&value).ok();
        } else {
            others.append_pair(&name, &value);
        }
    }
    let others = others.finish();
    let and = if others.is_empty() { "" } else { "&" };
    let endpoint = endpoint.filter(|endpoint| endpoint.scheme() == "http").ok_or(OF_TLS)?;
    let (Some(host), Some(port)) = (endpoint.host_str(), endpoint.port_or_known_default()) else {
        return Err(OF_TLS.to_owned());
    };
    let path: String = form_urlencoded::byte_serialize(endpoint.path().as_bytes()).collect();
    Ok(Route {
        host: host.trim_matches(['[', ']']).to_owned(),
        port,
        before: format!("{scheme}:{table}?{others}{and}endpoint=http://").into(),
        after: path.into(),
    })
}

#[cfg(all(
    test,
    feature = "dynamodb",
    feature = "bucket",
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "nats",
    feature = "etcd"
))]
mod tests {
    use super::*;

    fn of(url: &str) -> Result<Route, String> {
        Route::of(url, &Location::from_url(url).unwrap())
    }

    #[test]
    fn the_host_alone_is_replaced() {
        let proxy: SocketAddr = "127.0.0.1:9".parse().unwrap();
        for (url, host, port, through) in [
            ("redis://h", "h", 6379, "redis://127.0.0.1:9"),
            ("redis://u:p%40@x@h:7/3?wait=1", "h", 7, "redis://u:p%40@x@127.0.0.1:9/3?wait=1"),
            ("redis://[::1]:8/0", "::1", 8, "redis://127.0.0.1:9/0"),
            ("postgres://u@h/db?sslmode=require", "h", 5432, "postgres://u@127.0.0.1:9/db?sslmode=require"),
            ("mysql://u@h/db?table=t", "h", 3306, "mysql://u@127.0.0.1:9/db?table=t"),
            ("nats://token@h/b", "h", 4222, "nats://token@127.0.0.1:9/b"),
            ("etcd://h:1", "h", 1, "etcd://127.0.0.1:9"),
            (
                "dynamodb://locks?endpoint=http%3A%2F%2Fh%3A8000%2F&region=eu-west-1",
                "h",
                8000,
                "dynamodb://locks?region=eu-west-1&endpoint=http://127.0.0.1:9%2F",
            ),
            (
                "s3://locks/a/b?endpoint=http%3A%2F%2Fh%3A9000&region=eu-west-1",
                "h",
                9000,
                "s3://locks/a/b?region=eu-west-1&endpoint=http://127.0.0.1:9%2F",
            ),
        ] {
            let route = of(url).unwrap();
            assert_eq!((route.host.as_str(), route.port), (host, port), "{url}");
            assert_eq!(route.through(proxy).expose(), through);
            assert!(Location::from_url(through).is_ok(), "{through}");
            assert!(!format!("{route:?}").contains("p%40"));
        }
    }

    #[test]
    fn a_lock_that_is_shared_whatever_the_shard_is_left_out_and_nothing_else() {
        for (url, without) in [
            ("postgres://u:p%40@h/db?table=t&advisory_lock=7&schema=s", "postgres://u:p%40@h/db?table=t&schema=s"),
            ("postgresql://h/db?advisory%5Flock=-7", "postgresql://h/db?"),
        ] {
            assert_eq!(without_shared_lock(url), Some((without.to_owned(), "advisory_lock")));
            let Ok(Location::Postgres(with)) = Location::from_url(url) else { panic!("{url}") };
            assert!(with.advisory_lock.is_some());
            let read = Location::from_url(without);
            assert_eq!(read, Ok(Location::Postgres(crate::store::sql::Address { advisory_lock: None, ..with })));
        }
        for (url, without, option) in [
            ("redis://h/3?wait=1&lock_key=a", "redis://h/3?wait=1", "lock_key"),
            ("rediss+sentinel://h/m?lock%5Fkey=a", "rediss+sentinel://h/m?", "lock_key"),
            ("nats://h/b?lock_key=c/k&replicas=3", "nats://h/b?replicas=3", "lock_key"),
            ("nats+tls://h/b?key=/k&cert=/c&lock_key=c/k", "nats+tls://h/b?key=/k&cert=/c", "lock_key"),
        ] {
            assert_eq!(without_shared_lock(url), Some((without.to_owned(), option)));
        }
        let tables =
            ["postgres://h/db", "postgres://h/db?table=advisory_lock", "redis://h?prefix=advisory_lock", "file:/a"];
        let keys = ["nats+tls://h/b?key=/k&cert=/c", "etcds://h/p?key=/k", "rediss://h?cert=/c&key=/k"];
        for url in tables.into_iter().chain(keys) {
            assert_eq!(without_shared_lock(url), None);
        }
    }

    #[test]
    fn a_server_that_no_proxy_can_front_is_reported_without_its_secrets() {
        for (url, why) in [
            ("file:/var/lib/hunter2", "network"),
            ("rediss://:hunter2@h", "TLS"),
            ("redis+unix://:hunter2@/run/redis.sock", "socket"),
            ("redis+sentinel://:hunter2@one,two/main", "Sentinels"),
            ("postgres://u:hunter2@h/db?sslmode=verify-full", "TLS"),
            ("postgres://u:hunter2@%2Ftmp/db", "socket"),
            ("postgres:///db?host=/tmp", "socket"),
            ("postgres://u:hunter2@one,two/db", "several"),
            ("mysql://u:hunter2@h/db?ssl-mode=VERIFY_IDENTITY", "TLS"),
            ("mysql://u:hunter2@/db?socket=/s", "socket"),
            ("nats+tls://hunter2@h/b", "TLS"),
            ("nats://hunter2@h/b?ca=/ca", "TLS"),
            ("nats://hunter2@one,two/b", "several"),
            ("etcds://u:hunter2@h", "TLS"),
            ("etcd://one,two", "several"),
            ("dynamodb://locks", "TLS"),
            ("dynamodb://locks?endpoint=https://host", "TLS"),
            ("s3://locks/a", "TLS"),
            ("s3://locks/a?endpoint=http://h&path_style=false", "path_style"),
        ] {
            let refusal = of(url).unwrap_err();
            assert!(refusal.contains(why) && !refusal.contains("hunter2"), "{url}: {refusal}");
        }
    }
}
