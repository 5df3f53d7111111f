//! How standbys hear of a release: the leader lock.

use super::*;
use crate::support::fleet::{Fleet, leaderctl, wait_until};
use crate::support::proxy::{NetworkFault, Proxy};
use crate::support::server::Server as _;
use leaderrun::internals::lease::Candidate;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::Notes as _;
use leaderrun::internals::store::{Claim, Note, Observation, Page, Release, Renewal, StoreError};
use std::pin::Pin;
use std::process::{Child, Stdio};
use tokio::time::timeout;

/// A standby that waits does not look by itself for a minute, so it may take that long on a slow machine.
const AT_ONCE: Duration = Duration::from_secs(10);
/// Long enough for what would happen without a cause.
const A_WHILE: Duration = Duration::from_millis(500);

type News<'a> = Pin<Box<dyn Future<Output = Result<(), StoreError>> + Send + 'a>>;

/// A server of one's own, whose sessions can be counted and ended, with a table that has remembered for an hour.
pub(super) async fn alone() -> Server {
    let mut server = tokio::task::spawn_blocking(Server::start).await.expect("it starts");
    open(&server.url_with("")).prepare().await.expect("it can be made");
    server.grow_old();
    server
}

/// Has a long lease, so that no standby looks at its end.
fn leader() -> Candidate {
    with_lease("one", Duration::from_mins(10))
}

/// Sessions that wait for a leader lock.
fn waits(server: &Server) -> Vec<String> {
    let waits = "SELECT id FROM information_schema.processlist \
                 WHERE info LIKE '%SELECT GET_LOCK(%' AND id <> CONNECTION_ID()";
    server.sql(waits).lines().map(str::to_owned).collect()
}

/// Returns once the standby with this wait has a session that waits.
async fn until_it_waits(server: &Server, news: &mut News<'_>) {
    let waiting = async {
        while waits(server).is_empty() {
            assert!(timeout(A_WHILE / 10, &mut *news).await.is_err(), "the lease is held");
        }
    };
    timeout(support::fleet::PATIENCE, waiting).await.expect("it waits for the lock");
}

#[tokio::test]
async fn a_standby_that_waits_asks_nothing_while_the_leader_renews() {
    let server = alone().await;
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    let (one, shard) = (leader(), shard());
    let term = lead(&store, &one).await;
    let mut news = standby.changed(&shard);
    until_it_waits(&server, &mut news).await;
    let before = server.requests();
    let counting = server.requests() - before;
    for sequence in 1..10 {
        assert!(timeout(A_WHILE, &mut news).await.is_err(), "a renewal is no news");
        let renewed = store.renew_and_read(&one, term, sequence, std::slice::from_ref(&shard)).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
    }
    assert_eq!(server.requests() - before - 2 * counting, 9, "the renewals");
    drop(news);
    eventually("a wait that was given up ends", async || waits(&server).is_empty()).await;
}

#[tokio::test]
async fn the_lock_takes_no_connection_of_a_leader_and_one_of_a_standby() {
    let table = Table::new().await;
    let leaders = table.candidate();
    let standbys = format!("waiting_{leaders}");
    table.sql(&format!("CREATE USER {standbys}"));
    table.sql(&format!("GRANT SELECT, INSERT, UPDATE ON $T TO {standbys}"));
    let (store, standby) = (open(&table.url_as(&leaders)), open(&table.url_as(&standbys)));
    let (one, shard) = (leader(), shard());
    let term = lead(&store, &one).await;
    let mut news = standby.changed(&shard);
    for sequence in 1..4 {
        assert!(timeout(A_WHILE / 4, &mut news).await.is_err());
        assert!(matches!(standby.observe(&shard).await, Ok(Observation::Held(_))));
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    let sessions = (table.sessions(&leaders), table.sessions(&standbys));
    assert_eq!(sessions, (1, 2), "of the leader, and of the standby");
}

/// As where a leader of an earlier version leads, or one whose session was lost.
#[tokio::test]
async fn a_lease_without_its_leader_lock_is_polled() {
    let server = alone().await;
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    let (one, shard) = (leader(), shard());
    let term = lead(&store, &one).await;
    let sessions = "SELECT id FROM information_schema.processlist WHERE db IS NOT NULL AND id <> CONNECTION_ID()";
    for id in server.sql(sessions).lines() {
        server.sql(&format!("KILL {id}"));
    }
    let mut news = standby.changed(&shard);
    let before = server.requests();
    assert!(timeout(A_WHILE * 6, &mut news).await.is_err(), "the lease is held");
    let asked = server.requests() - before;
    assert!(asked <= 12, "{asked} requests in three seconds");
    // A leader that lives on takes it again.
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    until_it_waits(&server, &mut news).await;
    store.release(&one, term).await.unwrap();
    timeout(AT_ONCE, news).await.expect("the standby hears of it").unwrap();
}

#[tokio::test]
async fn a_leader_that_lost_its_lease_keeps_no_leader_lock() {
    let table = Table::new().await;
    let (store, operator) = (table.store(), table.store());
    let one = with_lease("one", Duration::from_secs(3));
    let term = lead(&store, &one).await;
    operator.revoke(&one.shard, term).await.unwrap();
    assert!(matches!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(_))));
    timeout(AT_ONCE, operator.changed(&shard())).await.expect("the revoked lease ends").unwrap();
}

/// Its host is gone without a sign. The lease of the next leader is long, so that no standby looks at its end.
#[tokio::test]
async fn a_leader_whose_host_is_gone_keeps_its_leader_lock_no_longer_than_its_lease() {
    let server = alone().await;
    let proxy = Proxy::to(([127, 0, 0, 1], server.port()).into());
    let behind_proxy =
        server.url_with("").replace(&format!(":{}/", server.port()), &format!(":{}/", proxy.address.port()));
    let (store, second, standby) = (open(&behind_proxy), open(&server.url_with("")), open(&server.url_with("")));
    let (one, two, shard) = (with_lease("one", Duration::from_secs(4)), leader(), shard());
    lead(&store, &one).await;
    proxy.set(NetworkFault::Partition);
    let mut term = None;
    eventually("the lease is over", async || {
        server.sql("SELECT expires < UTC_TIMESTAMP(6) FROM leaderrun WHERE shard <> ''") == "1"
    })
    .await;
    while term.is_none() {
        if let Claim::Granted(grant) = second.claim(&two).await.unwrap() {
            term = Some(grant.term);
        }
    }
    let term = term.expect("it leads");
    let mut news = standby.changed(&shard);
    for sequence in 1..6 {
        assert!(timeout(A_WHILE, &mut news).await.is_err(), "it is led");
        assert_eq!(second.renew(&two, term, sequence).await, Ok(Renewal::Renewed));
    }
    second.release(&two, term).await.unwrap();
    timeout(AT_ONCE, news).await.expect("the standby hears of it").unwrap();
}

#[tokio::test]
async fn a_wait_that_the_server_ends_begins_again() {
    let server = alone().await;
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    let (one, shard) = (leader(), shard());
    let term = lead(&store, &one).await;
    let mut news = standby.changed(&shard);
    for _ in 0..3 {
        until_it_waits(&server, &mut news).await;
        for id in waits(&server) {
            // It may have ended by itself.
            let _ = server.ask(&format!("KILL {id}"));
        }
    }
    until_it_waits(&server, &mut news).await;
    store.release(&one, term).await.unwrap();
    timeout(AT_ONCE, news).await.expect("the standby hears of it").unwrap();
}

#[tokio::test]
async fn a_server_that_is_gone_ends_the_wait_with_an_error() {
    let mut server = alone().await;
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    let shard = shard();
    lead(&store, &leader()).await;
    let mut news = standby.changed(&shard);
    until_it_waits(&server, &mut news).await;
    server.kill();
    assert!(timeout(AT_ONCE, news).await.expect("it says so").is_err());
}

/// A transaction that locks rows, until this is dropped.
pub(super) struct Lockup(Child);

impl Lockup {
    pub(super) async fn of(server: &Server, rows: &str) -> Self {
        let mut command = server.client();
        command.args(["-e", &format!("BEGIN; SELECT * FROM {rows} FOR UPDATE; SELECT SLEEP(600)")]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("mariadb starts");
        let lockup = Self(child);
        let attempt = format!("SELECT * FROM {rows} FOR UPDATE NOWAIT");
        eventually("the rows are locked", async || server.ask(&attempt).is_err()).await;
        lockup
    }

    /// Its transaction ends at once, and not when the server notices that the client is gone.
    pub(super) fn end(mut self, server: &Server, rows: &str) {
        self.stop();
        let sessions = "SELECT id FROM information_schema.processlist WHERE info = 'SELECT SLEEP(600)' ORDER BY id";
        let sessions = server.sql(sessions);
        let attempt = format!("SELECT * FROM {rows} FOR UPDATE NOWAIT");
        for id in sessions.lines().take_while(|_| server.ask(&attempt).is_err()) {
            let _ = server.ask(&format!("KILL {id}"));
        }
    }

    fn stop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Lockup {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How many changes of rows are under way.
pub(super) fn updates(server: &Server) -> String {
    server.sql("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE 'UPDATE%' AND command = 'Query'")
}

/// The note takes the connection that holds the leader lock, so the release needs another one.
#[tokio::test]
async fn a_release_beside_a_note_is_heard_at_once() {
    const NOTES: &str = "leaderrun_notes WHERE page = 'history'";
    const ROW: &str = "leaderrun WHERE shard = 'db/main'";
    let server = alone().await;
    let (store, standby) = (open(&server.url_with("")), open(&server.url_with("")));
    let (one, shard) = (leader(), shard());
    let [before, after] = ["before", "after"].map(|text| Note::lasting(text.to_owned(), None));
    assert_eq!(standby.replace(&shard, &Page::History, None, Some(&before)).await, Ok(true));
    let term = lead(&store, &one).await;
    let mut news = standby.changed(&shard);
    until_it_waits(&server, &mut news).await;
    let (note_lockup, row_lockup) = (Lockup::of(&server, NOTES).await, Lockup::of(&server, ROW).await);
    let note = async {
        let written = store.replace(&shard, &Page::History, Some("before"), Some(&after)).await;
        assert_eq!(written, Ok(true));
        // Its connection is idle, and the release still waits.
        row_lockup.end(&server, ROW);
    };
    let release = async {
        eventually("the note waits", async || updates(&server) == "1").await;
        store.release(&one, term).await
    };
    let free = async {
        eventually("both wait", async || updates(&server) == "2").await;
        note_lockup.end(&server, NOTES);
    };
    let ((), released, ()) = tokio::join!(note, release, free);
    assert_eq!(released, Ok(Release::Released));
    timeout(AT_ONCE, news).await.expect("the standby hears of it").unwrap();
}

/// The note takes the connection that holds the leader lock, so another one finds out that the lease is lost.
#[tokio::test]
async fn a_note_beside_a_loss_gives_the_leader_lock_up() {
    const NOTES: &str = "leaderrun_notes WHERE page = 'history'";
    let server = alone().await;
    let [store, second, third] = [(); 3].map(|()| open(&server.url_with("")));
    let (one, two, shard) = (leader(), with_lease("two", Duration::from_mins(10)), shard());
    let [before, after] = ["before", "after"].map(|text| Note::lasting(text.to_owned(), None));
    assert_eq!(second.replace(&shard, &Page::History, None, Some(&before)).await, Ok(true));
    let former = lead(&store, &one).await;
    let lockup = Lockup::of(&server, NOTES).await;
    let note = store.replace(&shard, &Page::History, Some("before"), Some(&after));
    let loss = async {
        eventually("the note waits", async || updates(&server) == "1").await;
        server.sql("UPDATE leaderrun SET released = 1 WHERE shard = 'db/main'");
        assert_eq!(store.renew(&one, former, 1).await, Ok(Renewal::Lost(None)));
        let term = lead(&second, &two).await;
        // It waits over the connection that found out.
        let mut news = store.changed(&shard);
        until_it_waits(&server, &mut news).await;
        lockup.end(&server, NOTES);
        (term, news)
    };
    let (written, (term, mut news)) = tokio::join!(note, loss);
    assert_eq!(written, Ok(true));
    let mut others_news = third.changed(&shard);
    for sequence in 1..4 {
        assert!(timeout(A_WHILE, &mut others_news).await.is_err() && timeout(A_WHILE, &mut news).await.is_err());
        assert_eq!(second.renew(&two, term, sequence).await, Ok(Renewal::Renewed));
    }
    second.release(&two, term).await.unwrap();
    timeout(AT_ONCE, others_news).await.expect("a standby hears of it").unwrap();
    timeout(AT_ONCE, news).await.expect("the old leader hears of it").unwrap();
}

/// With the default timing, a standby looks at a lease that it does not hear of when that would end.
#[tokio::test]
async fn after_a_step_down_the_other_candidate_leads_long_before_the_lease_would_end() {
    let table = Table::new().await;
    let story = move || {
        let mut fleet = Fleet::new();
        let url = table.url();
        for owner in ["one", "two"] {
            fleet.start(owner, &["--store", &url], &[], &[]);
        }
        let mut last = fleet.leader();
        for _ in 0..4 {
            let mut order = leaderctl();
            order.args(["step-down", "shard", "--wait=1m", "--store", &url]);
            wait_until("a standby has announced itself", || order.output().expect("it runs").status.success());
            let next = fleet.leader_where(|life| life.term > last.term);
            let ended = fleet.lives().into_iter().find(|life| life.term == last.term).expect("it led").last;
            let pause = Duration::from_nanos(next.first - ended);
            assert!(next.owner != last.owner && pause < LEASE / 3, "{pause:?}: {}", fleet.logs());
            last = next;
        }
        fleet.conclude();
    };
    tokio::task::spawn_blocking(story).await.unwrap();
}
