//! The server of a store URL, and the same URL through a proxy on this machine.
//!
//! A URL may contain a password, so no message repeats the parts before and after the host.

use crate::store::url::{Host, Secret, read_host};
use std::net::SocketAddr;
use url::form_urlencoded;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    pub host: String,
    pub port: u16,
    before: Secret,
    after: Secret,
}

const NO_PROXY: &str = "no proxy can be put before this store: its URL does not name one server at a TCP port";

impl Route {
    pub fn of(url: &str) -> Result<Self, &'static str> {
        let (scheme, rest) = url.split_once(':').unwrap_or((url, ""));
        let default_port = match scheme {
            "file" => return Err("the store needs no network"),
            "dynamodb" | "s3" | "gs" | "azblob" => return of_endpoint(scheme, rest).ok_or(NO_PROXY),
            "redis" | "rediss" => 6379,
            "postgres" | "postgresql" => 5432,
            "mysql" | "mariadb" => 3306,
            "nats" | "nats+tls" => 4222,
            "etcd" | "etcds" => 2379,
            _ => return Err(NO_PROXY),
        };
        let rest = rest.strip_prefix("//").unwrap_or(rest);
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, after) = rest.split_at(end);
        let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
        // Several servers, or a socket.
        if host.is_empty() || host.contains([',', '%']) {
            return Err(NO_PROXY);
        }
        let before = url[..url.len() - host.len() - after.len()].to_owned();
        let Host { name, port } = read_host(scheme, host).map_err(|_| NO_PROXY)?;
        let port = port.unwrap_or(default_port);
        Ok(Self { host: name, port, before: before.into(), after: after.to_owned().into() })
    }

    pub fn through(&self, proxy: SocketAddr) -> Secret {
        format!("{}{proxy}{}", self.before.expose(), self.after.expose()).into()
    }
}

/// `dynamodb://TABLE?endpoint=http://HOST:PORT`, or a bucket's.
fn of_endpoint(scheme: &str, rest: &str) -> Option<Route> {
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
    let endpoint = endpoint.filter(|endpoint| endpoint.scheme() == "http")?;
    let (host, port) = (endpoint.host_str()?, endpoint.port_or_known_default()?);
    let path: String = form_urlencoded::byte_serialize(endpoint.path().as_bytes()).collect();
    Some(Route {
        host: host.trim_matches(['[', ']']).to_owned(),
        port,
        before: format!("{scheme}:{table}?{others}{and}endpoint=http://").into(),
        after: path.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
            let route = Route::of(url).unwrap();
            assert_eq!((route.host.as_str(), route.port), (host, port), "{url}");
            assert_eq!(route.through(proxy).expose(), through);
            assert!(!format!("{route:?}").contains("p%40"));
        }
    }

    #[test]
    fn a_store_that_no_proxy_can_front_is_reported_without_its_secrets() {
        for url in [
            "redis+unix://:hunter2@/run/redis.sock",
            "redis+sentinel://:hunter2@one,two/main",
            "postgres://u:hunter2@%2Ftmp/db",
            "postgres:///db?host=/tmp",
            "mysql://u:hunter2@/db?socket=/s",
            "nats://hunter2@one,two/b",
            "dynamodb://locks",
            "dynamodb://locks?endpoint=https://host",
            "s3://locks/a",
            "kubernetes:",
        ] {
            assert_eq!(Route::of(url), Err(NO_PROXY), "{url}");
        }
    }
}
