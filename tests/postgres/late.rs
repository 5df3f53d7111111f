//! Writes that arrive after later ones: they do no harm.

use super::*;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::future::{Future, pending};
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const LATE: &str = "late";

/// A store whose requests can be held up on their way.
struct Detour {
    proxy: Proxy,
    store: Postgres,
}

impl Detour {
    async fn to(table: &Table) -> Self {
        let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
        let port = proxy.address.port();
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?table={}&application_name={LATE}", table.name);
        let url = url.replace(LATE, &format!("{LATE}_{}", table.name));
        let store = open(&url).await;
        store.observe(&shard()).await.expect("the way is free");
        Self { proxy, store }
    }

    /// Sends it, and gives up on it before it has arrived.
    async fn hold_up<T>(&self, request: impl Future<Output = T>) {
        self.proxy.set(NetworkFault::Partition);
        let cut_off = tokio::time::timeout(Duration::from_millis(200), request).await;
        assert!(cut_off.is_err(), "nothing answers through a black hole");
    }

    /// Lets it arrive. Returns once the server is through with it.
    async fn let_arrive(&self, table: &Table) {
        self.proxy.set(NetworkFault::Fair);
        eventually("the late connection was served", || table.connections(&format!("{LATE}_{}", table.name)) == 0)
            .await;
    }
}

#[tokio::test]
async fn a_claim_that_arrives_after_our_release_takes_nothing() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store().await);
    let one = candidate("one");
    let term = lead(&store, &one).await;
    detour.hold_up(detour.store.claim(&one)).await;
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    detour.let_arrive(&table).await;
    assert_eq!(table.sql("SELECT released FROM $T WHERE shard = 'db/main'"), "t");
    lead(&store, &candidate("two")).await;
}

#[tokio::test]
async fn a_claim_that_arrives_after_a_later_one_changes_neither_term_nor_beat() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store().await);
    let one = candidate("one");
    lead(&store, &one).await;
    detour.hold_up(detour.store.claim(&one)).await;
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
    detour.let_arrive(&table).await;
    assert_eq!(table.sql("SELECT term, beat FROM $T WHERE shard = 'db/main'"), format!("{term}|3"));
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_release_that_arrives_after_our_next_claim_frees_nothing() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store().await);
    let one = candidate("one");
    lead(&store, &one).await;
    detour.hold_up(detour.store.release(&one, Term(0))).await;
    let term = lead(&store, &one).await;
    detour.let_arrive(&table).await;
    assert_eq!(refused(store.claim(&candidate("two")).await.unwrap()).owner, "one");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_of_an_earlier_leadership_does_not_overtake_those_of_the_next() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store().await);
    let one = candidate("one");
    let earlier = lead(&store, &one).await;
    detour.hold_up(detour.store.renew(&one, earlier, 99)).await;
    let term = lead(&store, &one).await;
    detour.let_arrive(&table).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_that_arrives_after_a_release_or_a_takeover_changes_nothing() {
    let table = Table::new().await;
    let (detour, store) = (Detour::to(&table).await, table.store().await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&store, &one).await;
    detour.hold_up(detour.store.renew(&one, term, 1)).await;
    store.release(&one, term).await.unwrap();
    detour.let_arrive(&table).await;
    assert_eq!(table.sql("SELECT released FROM $T WHERE shard = 'db/main'"), "t");
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(None)));

    let next = lead(&store, &two).await;
    assert!(matches!(store.renew(&one, term, 3).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
    assert_eq!(store.release(&one, Term(0)).await, Ok(Release::NotHeld));
    assert_eq!(store.renew(&two, next, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_that_was_overtaken_says_so_and_takes_nothing_back() {
    let table = Table::new().await;
    let store = table.store().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Renewed));
    let row = table.sql("SELECT beat, expires FROM $T WHERE shard = 'db/main'");
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Overtaken));
    assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Overtaken));
    assert_eq!(table.sql("SELECT beat, expires FROM $T WHERE shard = 'db/main'"), row);
}

#[tokio::test]
async fn a_release_of_another_term_frees_nothing() {
    let table = Table::new().await;
    let store = table.store().await;
    let one = candidate("one");
    let earlier = lead(&store, &one).await;
    let term = lead(&store, &one).await;
    assert!(term > earlier);
    assert_eq!(store.release(&one, earlier).await, Ok(Release::NotHeld));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
}

/// A way to the server that passes one request on, and then ends the connection of its client alone.
struct Severed {
    next: Arc<AtomicBool>,
    name: String,
    store: Postgres,
}

impl Severed {
    async fn from(table: &Table) -> Self {
        let next = Arc::new(AtomicBool::new(false));
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let (port, target, name) =
            (listener.local_addr().unwrap().port(), table.server.port(), format!("severed_{}", table.name));
        let armed = Arc::clone(&next);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                tokio::spawn(pass(client, target, Arc::clone(&armed)));
            }
        });
        let url = format!("postgres://postgres@127.0.0.1:{port}/postgres?table={}&application_name={name}", table.name);
        let store = open(&url).await;
        store.observe(&shard()).await.expect("the way is free");
        Self { next, name, store }
    }

    fn sever(&self) {
        self.next.store(true, Ordering::Relaxed);
    }
}

async fn pass(mut client: TcpStream, target: u16, armed: Arc<AtomicBool>) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", target)).await?;
    let (mut question, mut answer) = ([0; 16 * 1024], [0; 16 * 1024]);
    loop {
        tokio::select! {
            asked = client.read(&mut question) => {
                let asked = asked?;
                server.write_all(&question[..asked]).await?;
                if asked == 0 {
                    return Ok(());
                }
                if armed.swap(false, Ordering::Relaxed) {
                    server.shutdown().await?;
                    drop(client);
                    return pending().await;
                }
            }
            answered = server.read(&mut answer) => {
                let answered = answered?;
                client.write_all(&answer[..answered]).await?;
                if answered == 0 {
                    return Ok(());
                }
            }
        }
    }
}

/// The connection of the first attempt ends, and a new one is faster.
#[tokio::test]
async fn a_claim_that_is_sent_twice_and_applied_late_changes_neither_term_nor_beat() {
    let table = Table::new().await;
    let way = Severed::from(&table).await;
    let pid = table.sql(&format!("SELECT pid FROM pg_stat_activity WHERE application_name = '{}'", way.name));
    let first = Pid::from_raw(pid.parse().unwrap());
    kill(first, Signal::SIGSTOP).unwrap();
    way.sever();
    let one = candidate("one");
    let term = lead(&way.store, &one).await;
    assert_eq!(way.store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    kill(first, Signal::SIGCONT).unwrap();
    eventually("the first attempt was served", || table.connections(&way.name) == 1).await;
    assert_eq!(table.sql("SELECT term, beat FROM $T WHERE shard = 'db/main'"), format!("{term}|1"));
    assert_eq!(way.store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_claim_that_is_sent_twice_is_granted_once() {
    let table = Table::new().await;
    let way = Severed::from(&table).await;
    let one = candidate("one");
    for _ in 0..5 {
        way.sever();
        let term = lead(&way.store, &one).await;
        eventually("both attempts were served", || table.connections(&way.name) == 1).await;
        assert_eq!(table.sql("SELECT term, beat FROM $T WHERE shard = 'db/main'"), format!("{term}|0"));
        assert_eq!(way.store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
        assert_eq!(way.store.release(&one, term).await, Ok(Release::Released));
    }
}
