//! What a leader and a standby ask of each store in rest, counted at its server, and that docs/costs.md says so.
//!
//! The timing is the default one: a shorter one has requests sent twice on a slow machine.

#![cfg(feature = "default")]

#[macro_use]
mod support;

use std::net::SocketAddr;
use std::thread::sleep;
use support::prelude::*;
use support::server::Server;
use support::{bucket, dynamo, etcd, kubernetes, mysql, nats, postgres, redis, wire};

/// The default timing, also on object storage.
const TIMING: [&str; 8] = ["--lease", "15s", "--renew", "5s", "--retry", "2s", "--kill-after", "3s"];
/// Half a minute: in less, the few requests of a standby are within what is tolerated.
const REST: Duration = Duration::from_secs(30);
const TRIES: usize = 5;

/// Of one store: where it is, and how to count what its server was asked.
struct Bench<'a> {
    name: &'static str,
    server: &'a dyn Server,
    url: String,
    count: Box<dyn FnMut() -> u64 + 'a>,
}

impl Bench<'_> {
    fn start(&self) -> Process {
        let mut command = leaderrun();
        command.args(["--store", &self.url]).args(TIMING).args(["shard", "sleep", "600"]);
        command.envs(self.server.environment().iter().copied()).env("LEADERRUN_ANNOUNCE", "never");
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Process::start(&mut command)
    }

    fn is_led(&self) -> bool {
        let mut command = leaderctl();
        command.args(["--store", &self.url, "status", "shard"]).envs(self.server.environment().iter().copied());
        command.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("leaderctl starts").success()
    }

    /// Requests in that rest, which are about as many as expected of a minute. A machine that stalls is not in rest, because a
    /// renewal without an answer is sent again: so there are several tries.
    fn in_rest(&mut self, a_minute: u64) -> u64 {
        // What begins a leadership, or a wait, is over.
        sleep(REST / 2);
        let expected = a_minute / 2;
        let mut seen = Vec::new();
        for _ in 0..TRIES {
            let before = (self.count)();
            sleep(REST);
            let requests = (self.count)() - before;
            if requests.abs_diff(expected) <= 1 + expected / 10 {
                return requests;
            }
            seen.push(requests);
        }
        panic!("{}: {seen:?} requests in {REST:?}, and never {expected}", self.name)
    }

    /// What a leader asks in a minute, and what a standby does, is about this, and docs/costs.md says it.
    fn costs(self, leader: u64, standby: u64) {
        self.costs_with_looks(leader, standby, 0);
    }

    /// The same. A standby looks besides, so many times a second, whatever the timing is.
    fn costs_with_looks(mut self, leader: u64, standby: u64, looks: u64) {
        prepare(self.server);
        let _leader = self.start();
        wait_until("somebody leads", || self.is_led());
        let alone = self.in_rest(leader);
        let _standby = self.start();
        let standby = standby + looks * 60;
        let both = self.in_rest(leader + standby);
        println!("{}: {alone} requests of a leader in {REST:?}, {both} with a standby", self.name);
        let row = format!("| {} | {leader} | {standby} |", self.name);
        assert!(include_str!("../docs/costs.md").contains(&row), "docs/costs.md lacks {row}");
    }

    /// A run of a job with a period asks about this, and so does a start that finds it done; docs/costs.md says it.
    fn runs_a_job(mut self, run: u64, done: u64, has_counted: impl Fn() -> bool) -> Self {
        prepare(self.server);
        let start = |shard: &str| {
            let mut command = leaderrun();
            command.args(["-q", "--store", &self.url]).args(TIMING).args(["--every", "1h", shard, "true"]);
            command.envs(self.server.environment().iter().copied());
            assert!(command.status().expect("leaderrun starts").success());
            wait_until("the server has counted", &has_counted);
        };
        // A new store makes its first leader wait.
        start("warm");
        // On a machine that stalls, more is asked: so there are several tries.
        let mut seen = Vec::new();
        let is_near = |asked: &[u64; 2]| asked[0].abs_diff(run) <= 2 && asked[1].abs_diff(done) <= 1;
        while seen.len() < TRIES && !seen.last().is_some_and(is_near) {
            let job = format!("job-{}", seen.len());
            let mut asked = [0; 2];
            for asked in &mut asked {
                let before = (self.count)();
                start(&job);
                *asked = (self.count)() - before;
            }
            seen.push(asked);
        }
        println!("{}: {seen:?} requests of a run, and of a start that finds it done", self.name);
        assert!(seen.last().is_some_and(is_near), "{}: {seen:?}", self.name);
        let row = format!("| {} | {run} | {done} |", self.name);
        assert!(include_str!("../docs/costs.md").contains(&row), "docs/costs.md lacks {row}");
        self
    }
}

fn bench<'a>(name: &'static str, server: &'a dyn Server, count: impl FnMut() -> u64 + 'a) -> Bench<'a> {
    Bench { name, server, url: server.own_url(), count: Box::new(count) }
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
    bench("Redis", &server, || server.scripts_run()).runs_a_job(21, 5, || true).costs(12, 4);
}

#[test]
fn postgres() {
    // It has transactions of its own, each minute.
    let server = postgres::Server::start_with(&["autovacuum=off"]);
    // From another database, because each connection of psql is counted as well.
    let ask = |question: &str| {
        let answer = server.psql("template1", question).expect("PostgreSQL answers");
        answer.parse::<u64>().expect("a number")
    };
    let sum = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = 'postgres'";
    // A session that ends first adds to the sum, and then disappears.
    let sessions =
        "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = 'postgres'";
    let bench = bench("PostgreSQL", &server, || ask(sum));
    let has_counted = || ask(sessions) == 0;
    bench.runs_a_job(21, 8, has_counted).costs(12, 6);
}

#[test]
fn mysql() {
    let server = mysql::Server::start();
    let bench = bench("MySQL", &server, || server.requests());
    bench.runs_a_job(19, 6, || true).costs_with_looks(12, 4, 2);
}

#[test]
fn nats() {
    let server = nats::Server::start();
    let mut asked = 0;
    let count = || {
        let client = server.client();
        asked += 2;
        let written = client.info()["state"]["last_seq"].as_u64().expect("a number");
        client.requests() + written - asked
    };
    bench("NATS", &server, count).runs_a_job(21, 4, || true).costs(13, 0);
}

#[test]
fn etcd() {
    let server = etcd::Server::start();
    let all = ["Range", "Txn", "Put", "DeleteRange", "LeaseKeepAlive", "LeaseGrant", "LeaseRevoke", "LeaseTimeToLive"];
    let bench = bench("etcd", &server, || server.calls(&all));
    bench.runs_a_job(27, 9, || true).costs(24, 8);
}

#[test]
fn kubernetes() {
    let server = kubernetes::Server::start();
    bench("Kubernetes", &server, || server.api.requests()).runs_a_job(23, 11, || true).costs(12, 0);
}

#[test]
fn dynamodb() {
    let server = dynamo::Server::durable();
    let proxy = wire::Proxy::before(&server);
    counted_by(&proxy, "DynamoDB", &server).runs_a_job(23, 11, || true).costs(12, 30);
}

#[test]
fn bucket() {
    let server = bucket::Server::durable();
    let proxy = wire::Proxy::before(&server);
    counted_by(&proxy, "S3, lease 15 s", &server).runs_a_job(21, 7, || true).costs(12, 30);
}
