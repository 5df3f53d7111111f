//! How many requests a server was asked, second by second.
//!
//! The hazard: a server that is away counts nothing, and who asks it for the count waits for it. So the count is taken
//! before it goes, and what was asked meanwhile falls into the first second in which it is back: that is when it has
//! the work.

use crate::support::server::{Server, prepare};
use crate::support::{dynamo, etcd, nats, postgres, redis};
use std::net::SocketAddr;
use std::rc::Rc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A prepared server, and how often it was asked.
pub struct Counted {
    pub server: Rc<dyn Server>,
    /// Where candidates reach it.
    pub address: SocketAddr,
    count: Box<dyn FnMut() -> u64>,
}

/// How many requests there were in each second.
#[derive(Default)]
pub struct Seconds(Vec<f64>);

impl Seconds {
    pub fn busiest(&self) -> f64 {
        self.0.iter().copied().fold(0.0, f64::max)
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / f64::from(u32::try_from(self.0.len().max(1)).expect("few"))
    }
}

impl Counted {
    fn new<S: Server + 'static>(mut server: S, mut count: impl FnMut(&S) -> u64 + 'static) -> Self {
        prepare(&server);
        server.grow_old();
        let (address, server) = (server.address(), Rc::new(server));
        let counted = Rc::clone(&server);
        Self { server, address, count: Box::new(move || count(&counted)) }
    }

    pub fn redis() -> Self {
        Self::new(redis::Server::start(), redis::Server::scripts_run)
    }

    /// With a connection for each candidate, and one for each that listens.
    pub fn postgres() -> Self {
        // The server's own counts come late.
        let settings = [
            "max_connections=2500",
            "shared_buffers=256MB",
            "shared_preload_libraries=pg_stat_statements",
            "pg_stat_statements.track_utility=off",
        ];
        let server = postgres::Server::start_with(&settings);
        server.sql("CREATE EXTENSION pg_stat_statements");
        Self::new(server, |server| {
            let sum = server.sql("SELECT coalesce(sum(calls), 0) FROM pg_stat_statements");
            sum.parse().expect("a number")
        })
    }

    pub fn nats() -> Self {
        let mut asked = 0;
        Self::new(nats::Server::start(), move |server| {
            let client = server.client();
            asked += 2;
            let written = client.info()["state"]["last_seq"].as_u64().expect("a number");
            client.requests() + written - asked
        })
    }

    pub fn etcd() -> Self {
        const ALL: [&str; 8] =
            ["Range", "Txn", "Put", "DeleteRange", "LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"];
        Self::new(etcd::Server::start(), |server| server.calls(&ALL))
    }

    /// Counted by a proxy: the stand-in does not count.
    pub fn dynamodb() -> Self {
        let server = dynamo::Server::durable();
        let proxy = dynamo::Proxy::before(&server);
        let endpoint = proxy.endpoint();
        let address = endpoint.strip_prefix("http://").expect("a URL").parse().expect("an address");
        let mut answered = 0;
        let count = move |_: &_| {
            answered += proxy.actions().len() as u64;
            answered
        };
        Self { address, ..Self::new(server, count) }
    }

    pub fn asked(&mut self) -> u64 {
        (self.count)()
    }

    pub fn url(&self) -> String {
        self.server.url(self.address)
    }

    /// Watches for this long. `before` is how often it was asked when that began.
    pub fn watch(&mut self, before: u64, time: Duration) -> Seconds {
        let (begun, mut seconds) = (Instant::now(), Seconds::default());
        let (mut last, mut at) = (before, begun);
        while begun.elapsed() < time {
            sleep(Duration::from_secs(1).saturating_sub(at.elapsed()));
            let (now, then) = (self.asked(), Instant::now());
            let count = f64::from(u32::try_from(now.saturating_sub(last)).expect("few"));
            seconds.0.push(count / then.duration_since(at).as_secs_f64());
            (last, at) = (now, then);
        }
        seconds
    }
}
