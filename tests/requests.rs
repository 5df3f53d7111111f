//! What a leader and a standby ask of each store in rest, counted at its server, and that docs/costs.md says so.
//!
//! All times are a fifth of the default ones, so a minute of the default timing takes twelve seconds.

#![cfg(all(
    feature = "dynamodb",
    feature = "bucket",
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "nats",
    feature = "etcd"
))]

#[macro_use]
mod support;

use leaderrun::internals::store::{Location, Page};
use std::cell::Cell;
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::Duration;
use support::fleet::{leaderctl, leaderrun, wait_until};
use support::server::{Server, prepare};
use support::{bucket, dynamo, etcd, mysql, nats, postgres, redis, wire};

const TIMING: [&str; 8] = ["--lease", "3s", "--renew", "1s", "--retry", "400ms", "--kill-after", "1s"];
/// A minute of the default timing.
const MINUTE: Duration = Duration::from_secs(12);
const MINUTES: u64 = 2;
const TRIES: u32 = 5;
const PATIENCE: Duration = Duration::from_secs(10);

/// Of one store: where it is, and how to count what its server was asked.
struct Bench<'a> {
    name: &'static str,
    server: &'a dyn Server,
    url: String,
    count: Box<dyn FnMut() -> u64 + 'a>,
}

struct Candidate(Child);

impl Drop for Candidate {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Bench<'_> {
    fn start(&self) -> Candidate {
        let mut command = leaderrun();
        command.args(["--store", &self.url, "--announce", "never"]).args(TIMING).args(["shard", "sleep", "600"]);
        command.envs(self.server.environment().iter().copied()).stdout(Stdio::null()).stderr(Stdio::null());
        Candidate(command.spawn().expect("leaderrun starts"))
    }

    fn is_led(&self) -> bool {
        let mut command = leaderctl();
        command.args(["--store", &self.url, "status", "shard"]).envs(self.server.environment().iter().copied());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("leaderctl starts").success()
    }

    /// Requests in a minute of rest, which are about as many as expected. A machine that stalls is not in rest, because
    /// a renewal without an answer is sent again: so there are several tries.
    fn in_rest(&mut self, expected: u64, slack: u64) -> u64 {
        // What begins a leadership, or a wait, is over.
        sleep(MINUTE / 2);
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let before = (self.count)();
            sleep(MINUTE * u32::try_from(MINUTES).expect("small"));
            let requests = ((self.count)() - before + MINUTES / 2) / MINUTES;
            if requests.abs_diff(expected) <= slack {
                return requests;
            }
            seen.push(requests);
        }
        panic!("{}: {seen:?} requests a minute, and never {expected}", self.name)
    }

    /// What a leader asks in a minute, and what a standby does, is about this, and docs/costs.md says it.
    fn costs(mut self, leader: u64, standby: u64) {
        prepare(self.server);
        let _leader = self.start();
        wait_until("somebody leads", || self.is_led());
        let alone = self.in_rest(leader, 1 + leader / 20);
        let _standby = self.start();
        let both = self.in_rest(alone + standby, 2 + standby / 20);
        println!("{}: {alone} requests a minute of a leader, {both} with a standby", self.name);
        let row = format!("| {} | {leader} | {standby} |", self.name);
        assert!(include_str!("../docs/costs.md").contains(&row), "docs/costs.md lacks {row}");
    }

    /// Many notes are read in few requests: `leaderctl list` reads two for each shard. `has_counted` once the client has
    /// gone.
    fn reads_many_notes_in_few(mut self, has_counted: impl Fn() -> bool) -> Self {
        const NOTES: usize = 300;
        const MOST: u64 = 8;
        prepare(self.server);
        let wanted: Vec<_> =
            (0..NOTES).map(|number| (format!("shard-{number}").parse().expect("a shard"), Page::Orders)).collect();
        let before = (self.count)();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let notes = runtime.block_on(async {
            let store = Location::from_url(&self.url).expect("a URL").open(PATIENCE).await.expect("it is opened");
            store.read_notes(&wanted).await.expect("it answers")
        });
        assert!(notes == vec![Ok(None); NOTES], "{notes:?}");
        drop(runtime);
        wait_until("the server has counted", has_counted);
        let asked = (self.count)() - before;
        assert!(asked > 0, "{}: nothing was counted", self.name);
        assert!(asked <= MOST, "{}: {asked} requests for {NOTES} notes", self.name);
        self
    }
}

fn bench<'a>(name: &'static str, server: &'a dyn Server, count: impl FnMut() -> u64 + 'a) -> Bench<'a> {
    Bench { name, server, url: server.url(server.address()), count: Box::new(count) }
}

/// Of a server that does not count: the proxy before it does.
fn counted_by<'a>(proxy: &'a wire::Proxy, name: &'static str, server: &'a dyn Server) -> Bench<'a> {
    let mut sum = 0;
    let count = move || {
        sum += proxy.actions().len() as u64;
        sum
    };
    let endpoint = proxy.endpoint();
    let address: SocketAddr = endpoint.strip_prefix("http://").expect("a URL").parse().expect("an address");
    Bench { url: server.url(address), ..bench(name, server, count) }
}

#[test]
fn redis() {
    let server = redis::Server::start();
    bench("Redis", &server, || server.scripts_run()).reads_many_notes_in_few(|| true).costs(12, 4);
}

#[test]
fn postgres() {
    let server = postgres::Server::start();
    let asked = Cell::new(0);
    let ask = |question: &str| {
        asked.set(asked.get() + 1);
        server.sql(question).parse::<u64>().expect("a number")
    };
    let sum = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
    // A session that ends first adds to the sum, and then disappears.
    let others =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()";
    let bench = bench("PostgreSQL", &server, || ask(sum) - asked.get());
    bench.reads_many_notes_in_few(|| ask(others) == 0).costs(12, 6);
}

#[test]
fn mysql() {
    let server = mysql::Server::start();
    let before = server.requests();
    let counting = server.requests() - before;
    let mut asked = 0;
    let count = || {
        asked += counting;
        server.requests() - asked
    };
    bench("MySQL", &server, count).reads_many_notes_in_few(|| true).costs(12, 6);
}

#[test]
fn nats() {
    let server = nats::Server::start();
    let mut asked = 0;
    let count = || {
        let mut client = server.client();
        asked += 2;
        let written = client.info()["state"]["last_seq"].as_u64().expect("a number");
        client.requests() + written - asked
    };
    // Before 2.10 a leader asks for orders with each renewal.
    let (name, leader) =
        if nats::Server::has_consumers_of_several_subjects() { ("NATS", 13) } else { ("NATS before 2.10", 24) };
    bench(name, &server, count).reads_many_notes_in_few(|| true).costs(leader, 0);
}

#[test]
fn etcd() {
    let server = etcd::Server::start();
    let all = ["Range", "Txn", "Put", "DeleteRange", "LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"];
    bench("etcd", &server, || server.calls(&all)).reads_many_notes_in_few(|| true).costs(24, 8);
}

#[test]
fn dynamodb() {
    let server = dynamo::Server::durable();
    let proxy = wire::Proxy::before(&server);
    counted_by(&proxy, "DynamoDB", &server).costs(13, 30);
}

#[test]
fn bucket() {
    let server = bucket::Server::durable();
    let proxy = wire::Proxy::before(&server);
    counted_by(&proxy, "S3, with their timing", &server).costs(12, 30);
}
