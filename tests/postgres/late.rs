//! Writes that arrive after later ones: they do no harm.

use super::*;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::future::pending;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

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
async fn a_claim_that_is_sent_twice_and_applied_late_changes_neither_term_nor_sequence() {
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
    eventually("the first attempt was served", async || table.connections(&way.name) == 1).await;
    assert_eq!(table.sql("SELECT term, sequence FROM $T WHERE part = 'lease'"), format!("{term}|1"));
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
        eventually("both attempts were served", async || table.connections(&way.name) == 1).await;
        assert_eq!(table.sql("SELECT term, sequence FROM $T WHERE part = 'lease'"), format!("{term}|0"));
        assert_eq!(way.store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
        assert_eq!(way.store.release(&one, term).await, Ok(Release::Released));
    }
}
