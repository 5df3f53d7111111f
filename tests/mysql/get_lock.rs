//! `get_lock=NAME`: we and programs that elect with `GET_LOCK('NAME', ...)` exclude each other.

use super::*;
use crate::support::fleet::{Fleet, PATIENCE};
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Observation, Release, Renewal};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Stdio};
use std::time::Instant;

/// A lock of one's own, on the server that the tests share.
struct Lock {
    table: Table,
    name: String,
}

impl Lock {
    async fn new() -> Self {
        let table = Table::new().await;
        let name = format!("the 'job' of {}", table.name);
        Self { table, name }
    }

    fn url(&self) -> String {
        let encoded: String = url::form_urlencoded::byte_serialize(self.name.as_bytes()).collect();
        self.table.url_with(&format!("get_lock={encoded}"))
    }

    fn store(&self) -> Mysql {
        open(&self.url())
    }

    fn literal(&self) -> String {
        format!("'{}'", self.name.replace('\'', "''"))
    }

    fn holder(&self) -> String {
        self.table.sql(&format!("SELECT IS_USED_LOCK({})", self.literal()))
    }

    fn is_free(&self) -> bool {
        self.holder() == "NULL"
    }

    /// Another program takes it.
    fn stranger(&self) -> Stranger {
        let mut command = self.table.server.client();
        command.args(["-e", &format!("SELECT GET_LOCK({}, 60); SELECT SLEEP(600)", self.literal())]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mariadb starts");
        Stranger(child)
    }
}

struct Stranger(Child);

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn while_a_stranger_holds_the_lock_nobody_of_us_leads() {
    let lock = Lock::new().await;
    let (store, one) = (lock.store(), candidate("one"));
    let stranger = lock.stranger();
    eventually("the stranger has it", async || !lock.is_free()).await;
    let holder = refused(store.claim(&one).await.unwrap());
    assert!(holder.owner.contains("of GET_LOCK") && holder.owner.contains(&lock.holder()), "{holder:?}");
    assert!(matches!(store.observe(&shard()).await, Ok(Observation::Held(holder)) if holder.session.is_none()));
    // It did not even take the row.
    assert_eq!(lock.table.sql("SELECT COUNT(*) FROM $T WHERE shard = 'db/main'"), "0");
    lock.table.sql(&format!("KILL {}", lock.holder()));
    drop(stranger);
    eventually("it is free", async || lock.is_free()).await;
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
    let term = lead(&store, &one).await;
    assert!(!lock.is_free());
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(refused(lock.store().claim(&candidate("two")).await.unwrap()).owner, "one");
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(lock.is_free());
}

#[tokio::test]
async fn a_refused_claim_gives_the_lock_back() {
    let lock = Lock::new().await;
    // By a candidate that does not take the lock.
    lead(&lock.table.store(), &candidate("one")).await;
    assert_eq!(refused(lock.store().claim(&candidate("two")).await.unwrap()).owner, "one");
    assert!(lock.is_free());
}

#[tokio::test]
async fn a_session_that_was_ended_is_replaced_and_its_lock_taken_again() {
    let lock = Lock::new().await;
    let (store, one) = (lock.store(), candidate("one"));
    let term = lead(&store, &one).await;
    for sequence in 1..4 {
        let holder = lock.holder();
        lock.table.sql(&format!("KILL {holder}"));
        tokio::time::timeout(PATIENCE, store.doubted(&shard())).await.expect("it is noticed at once");
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        assert!(!lock.is_free() && lock.holder() != holder);
    }
}

#[tokio::test]
async fn a_leader_whose_lock_was_taken_by_a_stranger_has_lost() {
    let lock = Lock::new().await;
    let (store, one) = (lock.store(), candidate("one"));
    let term = lead(&store, &one).await;
    let ours = lock.holder();
    let _stranger = lock.stranger();
    let waits =
        format!("SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User lock' AND id <> {ours}");
    eventually("the stranger waits", async || lock.table.sql(&waits) != "0").await;
    lock.table.sql(&format!("KILL {ours}"));
    eventually("the stranger has it", async || !["NULL", &ours].contains(&lock.holder().as_str())).await;
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.session.is_none()));
}

/// The server does not notice, and keeps the lock for a session that nobody has.
#[tokio::test]
async fn a_session_that_we_lost_and_the_server_did_not_is_killed() {
    use crate::support::proxy::{NetworkFault, Proxy};
    let lock = Lock::new().await;
    let proxy = Proxy::to(([127, 0, 0, 1], lock.table.server.port()).into());
    let url = lock.url().replace(&format!("@127.0.0.1:{}/", lock.table.server.port()), &format!("@{}/", proxy.address));
    let store = open_for(&url, Duration::from_secs(6));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let before = lock.holder();
    proxy.set(NetworkFault::Partition);
    store.renew(&one, term, 1).await.unwrap_err();
    assert_eq!(lock.holder(), before);
    proxy.set(NetworkFault::Fair);
    let begun = Instant::now();
    for sequence in 2.. {
        match store.renew(&one, term, sequence).await {
            Ok(Renewal::Renewed) => break,
            Ok(other) => panic!("{other:?}"),
            Err(_) => assert!(begun.elapsed() < PATIENCE),
        }
    }
    assert!(!lock.is_free());
}

/// COMMAND ignores SIGTERM, so it lives for the whole grace after its candidate was killed.
#[tokio::test]
async fn the_lock_outlives_a_killed_candidate_for_as_long_as_its_tree() {
    let lock = Lock::new().await;
    let mut fleet = Fleet::new();
    let url = lock.url();
    let flags = ["--lease", "9s", "--renew", "1s", "--kill-after", "3s", "--retry", "1s", "--store", &url];
    fleet.start("one", &flags, &["ignore-term"], &[]);
    fleet.leader();
    assert!(!lock.is_free());
    fleet.kill_and_watch("one", || lock.is_free());
}

/// A server numbers its sessions from the beginning after each start.
#[tokio::test]
async fn a_stranger_that_has_our_number_after_a_restart_keeps_the_lock_and_its_session() {
    let start = || {
        let server = Server::start();
        // Nothing but the test connects as often before the number comes again.
        for _ in 0..60 {
            server.sql("DO 0");
        }
        server
    };
    let mut server = tokio::task::spawn_blocking(start).await.unwrap();
    let store = open(&server.url_with("get_lock=job"));
    store.prepare().await.unwrap();
    server.age("leaderrun");
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let ours: u64 = server.sql("SELECT IS_USED_LOCK('job')").parse().expect("we hold it");
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        while server.sql("SELECT CONNECTION_ID()").parse::<u64>().expect("a number") < ours - 1 {}
        server
    });
    let server = server.await.unwrap();
    let mut command = server.client();
    command.args(["--unbuffered", "-e", "SELECT GET_LOCK('job', 0) * CONNECTION_ID(); SELECT SLEEP(600)"]);
    let mut stranger = Stranger(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("mariadb starts"));
    let mut number = String::new();
    BufReader::new(stranger.0.stdout.take().expect("a pipe")).read_line(&mut number).expect("it says so");
    assert_eq!(number.trim(), ours.to_string(), "the stranger has the lock, and our number");
    let holder = || server.sql("SELECT COALESCE(IS_USED_LOCK('job'), 0)");
    let renewed = store.renew(&one, term, 1).await;
    assert!(matches!(&renewed, Ok(Renewal::Lost(Some(holder))) if holder.session.is_none()), "{renewed:?}");
    assert_eq!(holder(), ours.to_string(), "the stranger was not disturbed");
    store.release(&one, term).await.unwrap();
    let seen = store.observe(&shard()).await;
    assert!(matches!(&seen, Ok(Observation::Held(holder)) if holder.session.is_none()), "{seen:?}");
}
