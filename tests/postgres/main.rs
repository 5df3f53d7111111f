//! The store `postgres://` against a real PostgreSQL: what is particular to it. What every store promises is tested by
//! the conformance suite.

#![cfg(feature = "postgres")]

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

mod access;
mod advisory;
mod check;
mod encrypted;
mod faults;
mod forgotten;
mod pooler;
mod rows;
mod watch;

use leaderrun::internals::lease::{Candidate, Term};
use leaderrun::internals::store::sql::postgres::Postgres;
use leaderrun::internals::store::sql::{Address, Dialect};
use leaderrun::internals::store::{
    Administration as _, Claim, ErrorKind, Leases as _, Note, Notes as _, Observation, Page, Release, Renewal,
    StoreError, Verdict,
};
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use support::claims::*;
use support::fleet::leaderctl;
use support::postgres::{LOCKS, Server, shared};
use support::process::Process;
use support::server::Server as _;
use tokio::time::timeout;

const REQUEST_TIMEOUT: Duration = Duration::from_secs(20);

async fn try_open(url: &str, request_timeout: Duration) -> Result<Postgres, StoreError> {
    let rest = url.strip_prefix("postgres:").expect("one of ours");
    Postgres::open(&Address::read(Dialect::Postgres, rest).expect("a store URL"), request_timeout).await
}

async fn open(url: &str) -> Postgres {
    try_open(url, REQUEST_TIMEOUT).await.expect("the address is right")
}

/// A table of one's own on the server that the tests share; it has remembered for an hour.
struct Table {
    server: &'static Server,
    name: String,
}

impl Table {
    async fn new() -> Self {
        let table = Self::young().await;
        table.server.age(&table.name);
        table
    }

    /// It begins to remember now.
    async fn young() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let table = Self { server: shared(), name: format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)) };
        table.store().await.prepare().await.expect("it can be made");
        table
    }

    fn url(&self) -> String {
        self.url_with("application_name=leaderrun")
    }

    fn url_with(&self, options: &str) -> String {
        self.server.url_with(&format!("table={}&{options}", self.name))
    }

    async fn store(&self) -> Postgres {
        open(&self.url()).await
    }

    /// What psql says of a query with $T in place of the table.
    fn sql(&self, statements: &str) -> String {
        self.server.sql(&statements.replace("$T", &self.name))
    }

    /// How many connections go by that name.
    fn connections(&self, application_name: &str) -> usize {
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{application_name}'");
        self.server.sql(&count).parse().expect("a number")
    }
}

/// A store with a table that has remembered for an hour, on a server of one's own.
async fn ready(server: &Server) -> Postgres {
    let store = open(&server.url_with("application_name=leaderrun")).await;
    store.prepare().await.expect("it can be made");
    server.age(LOCKS);
    store
}

/// A psql that stays, with what its session holds.
struct Psql {
    child: Process,
    answers: BufReader<std::process::ChildStdout>,
}

impl Psql {
    fn start(server: &Server) -> Self {
        let mut command = server.client("postgres");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = Process::start(&mut command);
        let answers = BufReader::new(child.stdout.take().expect("a pipe"));
        Self { child, answers }
    }

    /// What it says to these statements.
    fn say(&mut self, statements: &str) -> String {
        let mut input = self.child.stdin.as_ref().expect("a pipe");
        writeln!(input, "{statements};\n\\echo (done)").expect("psql listens");
        let mut said = String::new();
        loop {
            let mut line = String::new();
            assert!(self.answers.read_line(&mut line).expect("psql speaks") > 0, "psql ended: {statements}");
            if line.trim_end() == "(done)" {
                return said.trim_end().to_owned();
            }
            said.push_str(&line);
        }
    }
}
