//! `advisory_lock=N`: we and programs that elect with `pg_try_advisory_lock(N)` exclude each other.

use super::*;
use crate::support::gate::{Fate, Gate, Mischief};
use std::sync::atomic::AtomicI64;
use tokio::task::JoinHandle;

/// In the question by which a renewal makes the server confirm that a session holds the lock.
const CONFIRMS: &str = "pid = pg_backend_pid()";

struct Lock {
    table: Table,
    key: i64,
}

impl Lock {
    async fn new() -> Self {
        static NEXT: AtomicI64 = AtomicI64::new(1);
        // Both halves of the key are used.
        let key = -(NEXT.fetch_add(1, Ordering::Relaxed) << 33) - 1;
        Self { table: Table::new().await, key }
    }

    fn url(&self) -> String {
        self.table.url_with(&format!("advisory_lock={}&application_name={}", self.key, self.table.name))
    }

    fn store(&self) -> LeaseStore {
        open(&self.url())
    }

    fn attempt(&self) -> String {
        format!("SELECT pg_try_advisory_lock({})", self.key)
    }

    /// Whether a stranger gets it, for a moment.
    fn is_free(&self) -> bool {
        // It is given back at once: the end of a session comes a moment after that of its psql.
        let Self { table, key } = self;
        let attempt =
            format!("SELECT CASE WHEN pg_try_advisory_lock({key}) THEN pg_advisory_unlock({key}) ELSE false END");
        table.server.sql(&attempt) == "t"
    }

    /// This of the server's list of those that hold it or wait for it.
    fn listed(&self, what: &str) -> String {
        let class = (self.key >> 32) & 0xffff_ffff;
        let of = "FROM pg_locks WHERE locktype = 'advisory'";
        self.table.server.sql(&format!("SELECT {what} {of} AND classid::bigint = {class}"))
    }

    fn terminate(&self) {
        assert_eq!(self.listed("pg_terminate_backend(pid)"), "t");
    }

    /// How many sessions the candidates have.
    fn sessions(&self) -> usize {
        let Table { server, name } = &self.table;
        let count = format!("SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'");
        server.sql(&count).parse().unwrap()
    }

    /// Another program waits for it, until it has it or is cancelled.
    async fn waited_for(&self) -> JoinHandle<bool> {
        let stranger = Stranger::at(self.table.server).await;
        let wait = format!("SELECT pg_advisory_lock({})", self.key);
        let waits = tokio::spawn(async move { stranger.0.simple_query(&wait).await.is_ok() });
        eventually("it waits", async || self.listed("bool_or(NOT granted)") == "t").await;
        waits
    }

    async fn is_lost_and_taken_again(&self) {
        let before = self.listed("pid");
        self.terminate();
        eventually("it was taken again", async || {
            let now = self.listed("pid");
            !now.is_empty() && now != before
        })
        .await;
    }
}

/// A lock, a way to its server that misbehaves, and one who leads by a store that takes this way.
async fn led_through_a_gate(timeout: Duration) -> (Lock, Gate, LeaseStore, Candidate, Term) {
    let lock = Lock::new().await;
    let server = lock.table.server.address();
    let gate = Gate::to(server);
    let store = try_open(&lock.url().replace(&server.to_string(), &gate.address.to_string()), timeout).unwrap();
    let (one, term) = one_leads(&store).await;
    (lock, gate, store, one, term)
}

#[tokio::test]
async fn while_a_stranger_holds_the_lock_no_candidate_leads_and_the_stranger_is_named() {
    let lock = Lock::new().await;
    let store = lock.store();
    let stranger = Stranger::at(lock.table.server).await;
    assert_eq!(stranger.ask(&lock.attempt()).await, "t");
    let one = candidate("one");
    let holder = refused(store.claim(&one).await.unwrap());
    assert!(holder.owner == "stranger" && holder.named().starts_with("stranger (holds advisory lock"), "{holder:?}");
    assert_eq!(holder.host.as_deref(), Some("127.0.0.1"));
    assert!(matches!(store.observe(&one.shard).await, Ok(Observation::Held(seen)) if seen == holder));
    assert_eq!(store.inspect(&one.shard).await.unwrap().holder, Some(holder));
    assert_eq!(lock.table.sql("SELECT count(*) FROM $T WHERE part = 'lease'"), "0", "the row was left alone");

    let shard = shard();
    let mut news = store.changed(&shard);
    assert!(timeout(Duration::from_secs(1), &mut news).await.is_err(), "it is held");
    stranger.ask(&format!("SELECT pg_advisory_unlock({})", lock.key)).await;
    timeout(PATIENCE, news).await.expect("it looks now and then").unwrap();
    let term = lead(&store, &one).await;
    assert_eq!(stranger.ask(&lock.attempt()).await, "f");
    // Its session ends, and the stranger is faster.
    lock.terminate();
    eventually("the lock is free", async || stranger.ask(&lock.attempt()).await == "t").await;
    let renewal = store.renew(&one, term, 1).await;
    assert!(matches!(&renewal, Ok(Renewal::Lost(Some(holder))) if holder.owner == "stranger"), "{renewal:?}");
}

#[tokio::test]
async fn a_leader_whose_session_was_ended_hears_it_and_takes_the_lock_again() {
    let lock = Lock::new().await;
    let store = lock.store();
    let (one, term) = one_leads(&store).await;
    let shard = shard();
    let mut doubt = store.doubted(&shard);
    assert!(timeout(Duration::from_millis(300), &mut doubt).await.is_err(), "all is well");
    lock.terminate();
    timeout(PATIENCE, doubt).await.expect("it is told");
    // Each doubt makes a renewal due at once, and while the server is away there must not be one after the other.
    let begun = Instant::now();
    timeout(PATIENCE, store.doubted(&shard)).await.expect("there is still a doubt");
    assert!(begun.elapsed() > Duration::from_millis(500), "{:?}", begun.elapsed());
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert!(!lock.is_free());
    assert!(timeout(Duration::from_millis(300), store.doubted(&shard)).await.is_err(), "all is well again");
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(lock.is_free());
}

#[tokio::test]
async fn a_renewal_asks_the_server_and_not_the_connection_whether_the_lock_is_held() {
    let (lock, gate, store, one, term) = led_through_a_gate(Duration::from_secs(4)).await;
    gate.lose_answers();
    lock.terminate();
    assert!(timeout(Duration::from_millis(300), store.doubted(&shard())).await.is_err(), "nobody tells");
    // Of the two connections that are silent now, each costs an attempt at most.
    let mut renewal = store.renew(&one, term, 1).await;
    for sequence in 2..5 {
        if renewal.is_err() {
            renewal = store.renew(&one, term, sequence).await;
        }
    }
    assert_eq!(renewal, Ok(Renewal::Renewed));
    assert!(!lock.is_free());
}

/// As if all our processes were frozen, or the host had vanished behind a proxy.
#[tokio::test]
async fn a_lock_of_a_leader_that_asks_nothing_is_freed_when_its_lease_is_over_and_not_a_moment_before() {
    let lock = Lock::new().await;
    let store = lock.store();
    let (one, term) = one_leads_for(&store, Duration::from_secs(2)).await;
    let mut asked = Instant::now();
    for sequence in 1..4 {
        tokio::time::sleep(Duration::from_millis(800)).await;
        assert!(!lock.is_free());
        asked = Instant::now();
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    eventually("it is free", async || lock.is_free()).await;
    assert!(asked.elapsed() >= one.lease, "{:?}", asked.elapsed());
    assert!(lock.is_free(), "the candidate is still there");
}

#[tokio::test]
async fn a_lock_that_a_lost_session_of_ours_keeps_is_not_in_our_way() {
    let (lock, gate, store, one, term) = led_through_a_gate(REQUEST_TIMEOUT).await;
    for sequence in 1..4 {
        gate.sever();
        timeout(PATIENCE, store.doubted(&shard())).await.expect("the connection ended");
        assert!(!lock.is_free(), "the server believes in it");
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        assert!(!lock.is_free());
    }
    gate.sever();
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(granted(store.claim(&one).await.unwrap()).term > term);
    assert!(!lock.is_free());
}

#[tokio::test]
async fn a_lock_that_a_lost_session_passes_on_to_the_next_is_never_free() {
    let (lock, gate, store, one, term) = led_through_a_gate(REQUEST_TIMEOUT).await;
    let stranger = Stranger::at(lock.table.server).await;
    let attempt = lock.attempt();
    let tries = tokio::spawn(async move { while stranger.ask(&attempt).await == "f" {} });
    for sequence in 1..6 {
        gate.sever();
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        assert!(!tries.is_finished(), "another program has got it");
    }
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    timeout(PATIENCE, tries).await.expect("it is free").unwrap();
}

#[tokio::test]
async fn a_lock_for_which_another_program_waits_stays_with_a_lost_session_until_the_tree_is_dead() {
    let (lock, gate, store, one, term) = led_through_a_gate(Duration::from_secs(6)).await;
    let waits = lock.waited_for().await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    gate.sever();
    for sequence in 2..4 {
        let error = store.renew(&one, term, sequence).await.unwrap_err();
        assert!(!error.kind.is_final() && error.message.contains("does a program wait for it?"), "{error:?}");
        assert!(!waits.is_finished(), "it has got it");
    }
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(timeout(PATIENCE, waits).await.expect("it is free").unwrap());
}

#[tokio::test]
async fn a_session_that_has_been_silent_costs_later_renewals_no_time() {
    let (lock, gate, store, one, term) = led_through_a_gate(Duration::from_secs(6)).await;
    let store = Arc::new(store);
    gate.once(CONFIRMS, Fate::LoseAnswer);
    let first = renews(&store, &one, term, 1);
    tokio::time::sleep(Duration::from_millis(500)).await;
    // No other session can be opened.
    gate.set(Mischief::Delay(Duration::from_mins(1)));
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert!(!first.is_finished());
    gate.set(Mischief::None);
    let begun = Instant::now();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(!lock.is_free());
}

#[tokio::test]
async fn a_session_that_hung_while_another_program_waited_is_heard_as_soon_as_it_answers() {
    let lock = Lock::new().await;
    let store = Arc::new(try_open(&lock.url(), Duration::from_secs(4)).unwrap());
    let (one, term) = one_leads(&*store).await;
    let backend = Pid::from_raw(lock.listed("pid").parse().unwrap());
    let waits = lock.waited_for().await;
    kill(backend, Signal::SIGSTOP).unwrap();
    let renewal = renews(&store, &one, term, 1);
    tokio::time::sleep(Duration::from_secs(2)).await;
    kill(backend, Signal::SIGCONT).unwrap();
    assert_eq!(timeout(Duration::from_secs(1), renewal).await.expect("it is heard").unwrap(), Ok(Renewal::Renewed));
    assert!(!waits.is_finished());
}

#[tokio::test]
async fn a_lock_whose_session_hangs_is_passed_on_as_soon_as_no_other_program_waits_for_it() {
    let (lock, gate, store, one, term) = led_through_a_gate(Duration::from_secs(3)).await;
    let store = Arc::new(store);
    let waits = lock.waited_for().await;
    gate.once(CONFIRMS, Fate::LoseAnswer);
    let mut most = 0;
    // Some of them are given up.
    let mut renewals = Vec::new();
    for sequence in 1..12 {
        renewals.push(renews(&store, &one, term, sequence));
        tokio::time::sleep(Duration::from_millis(500)).await;
        most = most.max(lock.sessions());
        if sequence % 3 == 0 {
            renewals.remove(0).abort();
        }
    }
    // For the lease, the one that hangs, the one that waits, and one that is opened.
    assert!(most <= 4, "{most} sessions");
    assert!(!waits.is_finished());
    let cancel = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE application_name = 'stranger'";
    lock.table.server.sql(&format!("{cancel} AND query LIKE '%({})'", lock.key));
    assert!(!waits.await.unwrap(), "it is cancelled");
    let begun = Instant::now();
    assert_eq!(store.renew(&one, term, 12).await, Ok(Renewal::Renewed));
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(!lock.is_free());
    eventually("no session is left", async || lock.sessions() == 2).await;
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert!(lock.is_free());
}

/// COMMAND ignores SIGTERM, so it lives for the whole grace after its candidate was killed. The lease outlasts a stall of the
/// machine.
const FLAGS: [&str; 8] = ["--lease", "12s", "--renew", "1s", "--kill-after", "3s", "--retry", "1s"];

#[tokio::test]
async fn a_lock_that_was_taken_again_outlives_a_killed_candidate_as_well() {
    let lock = Lock::new().await;
    let mut fleet = Fleet::new();
    let url = lock.url();
    fleet.start("one", &[&FLAGS, &["--store", &url][..]].concat(), &["ignore-term"], &[]);
    let leader = fleet.leader();
    for _ in 0..3 {
        lock.is_lost_and_taken_again().await;
    }
    let now = fleet.leader();
    assert_eq!((now.term, fleet.lives().len()), (leader.term, 1), "COMMAND was not disturbed\n{}", fleet.logs());
    fleet.signal("one", Signal::SIGSTOP);
    fleet.kill_and_watch("one", || lock.is_free());
}

/// The longest that a lease can last after its last renewal, by any clock, and time for a slow machine.
const LEASE_BOUND: Duration = Duration::from_secs(12 * 13 / 12 + 50);

#[tokio::test]
async fn a_frozen_leader_keeps_the_lock_until_its_tree_is_dead_and_another_leads_within_the_lease() {
    let lock = Lock::new().await;
    let mut fleet = Fleet::new();
    let url = lock.url();
    let settings = [&FLAGS, &["--store", &url, "--stop-timeout", "1s"][..]].concat();
    fleet.start("one", &settings, &["ignore-term", "daemon"], &[]);
    fleet.leader();
    fleet.start("two", &settings, &["ignore-term", "daemon"], &[]);
    // The session that is shut down is the one that holds the lock by then.
    lock.is_lost_and_taken_again().await;
    fleet.signal("one", Signal::SIGSTOP);
    let frozen = Instant::now();
    let next = fleet.leader_where(|life| life.owner == "two");
    assert!(frozen.elapsed() < LEASE_BOUND, "{:?}\n{}", frozen.elapsed(), fleet.logs());
    fleet.signal("one", Signal::SIGCONT);
    std::thread::sleep(Duration::from_secs(2));
    let now = fleet.leader();
    assert_eq!((&now.owner, now.term), (&next.owner, next.term), "{}", fleet.logs());
    // It is a candidate like any other again.
    fleet.kill("two");
    fleet.leader_where(|life| life.owner == "one");
    fleet.conclude();
}
