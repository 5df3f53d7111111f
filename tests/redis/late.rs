//! Requests that arrive late, twice or in another order.

use super::*;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{Release, Renewal};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// Two ways to one server: the requests on the slow one arrive when they are let.
struct Ways {
    server: Server,
    proxy: Proxy,
    slow: Redis,
    quick: Redis,
}

impl Ways {
    async fn new() -> Self {
        let server = old_server();
        let proxy = Proxy::to(SocketAddr::from(([127, 0, 0, 1], server.port())));
        let slow = open_with(&format!("redis://{}", proxy.address), Duration::from_secs(2)).await.unwrap();
        let quick = store(&server).await;
        // All scripts are known to the server, and the slow way has its connection: one request is one command.
        let nobody = candidate("nobody");
        let term = lead(&quick, &nobody).await;
        quick.renew(&nobody, term, 1).await.unwrap();
        quick.release(&nobody, term).await.unwrap();
        slow.inspect(&shard()).await.unwrap();
        Self { server, proxy, slow, quick }
    }

    fn hold(&self) {
        self.proxy.set(NetworkFault::Partition);
    }

    /// Lets through what was held, and waits until the server has had it.
    async fn deliver(&self) {
        let before = self.server.scripts_run();
        self.proxy.set(NetworkFault::Fair);
        eventually("the late request has arrived", async || self.server.scripts_run() > before).await;
    }
}

#[tokio::test]
async fn a_late_claim_does_not_disturb_a_later_leadership_of_the_same_session() {
    let ways = Ways::new().await;
    let one = candidate("one");
    ways.hold();
    ways.slow.claim(&one).await.unwrap_err();
    let term = lead(&ways.quick, &one).await;
    assert_eq!(ways.quick.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    ways.deliver().await;
    assert_eq!(ways.quick.inspect(&shard()).await.unwrap().holder.unwrap().term, Some(term));
    assert_eq!(ways.quick.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_late_claim_does_not_take_what_the_session_has_released() {
    let ways = Ways::new().await;
    let one = candidate("one");
    ways.hold();
    ways.slow.claim(&one).await.unwrap_err();
    let term = lead(&ways.quick, &one).await;
    ways.quick.release(&one, term).await.unwrap();
    ways.deliver().await;
    assert_eq!(ways.quick.inspect(&shard()).await.unwrap().holder, None);
}

#[tokio::test]
async fn a_late_release_does_not_end_a_later_leadership_of_the_same_session() {
    let ways = Ways::new().await;
    let one = candidate("one");
    let term = lead(&ways.quick, &one).await;
    ways.hold();
    ways.slow.release(&one, term).await.unwrap_err();
    assert_eq!(ways.quick.release(&one, term).await, Ok(Release::Released));
    let term = lead(&ways.quick, &one).await;
    ways.deliver().await;
    assert_eq!(ways.quick.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_late_renewal_does_not_take_what_the_session_has_released() {
    let ways = Ways::new().await;
    let one = candidate("one");
    let term = lead(&ways.quick, &one).await;
    ways.hold();
    ways.slow.renew(&one, term, 1).await.unwrap_err();
    ways.quick.release(&one, term).await.unwrap();
    ways.deliver().await;
    assert_eq!(ways.quick.inspect(&shard()).await.unwrap().holder, None);
}

#[tokio::test]
async fn a_late_renewal_does_not_belong_to_a_later_leadership_of_the_same_session() {
    let ways = Ways::new().await;
    let one = candidate("one");
    let old = lead(&ways.quick, &one).await;
    ways.hold();
    ways.slow.renew(&one, old, 7).await.unwrap_err();
    ways.quick.release(&one, old).await.unwrap();
    let term = lead(&ways.quick, &one).await;
    ways.deliver().await;
    assert_eq!(ways.quick.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_renewal_that_is_overtaken_changes_nothing() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Renewed));
    let lock = server.cli(&["GET", LOCK]);
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Overtaken));
    assert_eq!(store.renew(&one, term, 5).await, Ok(Renewal::Overtaken));
    assert_eq!(server.cli(&["GET", LOCK]), lock);
    assert_eq!(store.renew(&one, term, 6).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_new_leadership_of_the_same_session_counts_its_renewals_from_the_start() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    store.renew(&one, term, 40).await.unwrap();
    // Its deadline passed, its answers were lost: it is a standby again, and claims what it still holds.
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn every_request_is_one_script() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let before = server.scripts_run();
    let term = lead(&store, &one).await;
    for sequence in 1..=5 {
        store.renew(&one, term, sequence).await.unwrap();
    }
    store.release(&one, term).await.unwrap();
    assert_eq!(server.scripts_run() - before, 7);
    // And one more where somebody had the server forget them.
    let term = lead(&store, &one).await;
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(server.scripts_run() - before, 10);
}

/// A way to a server that keeps what was said on it last.
struct Recorder {
    address: SocketAddr,
    said: Arc<Mutex<Vec<u8>>>,
    server: u16,
}

impl Recorder {
    fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let recorder = Self { address: listener.local_addr().unwrap(), said: Arc::default(), server };
        let said = Arc::clone(&recorder.said);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = TcpStream::connect(("127.0.0.1", server)).unwrap();
                let (mut answers, mut back) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut answers, &mut back));
                let said = Arc::clone(&said);
                std::thread::spawn(move || {
                    let (mut client, mut server) = (client, server);
                    let mut buffer = vec![0; 1 << 20];
                    while let Ok(length @ 1..) = client.read(&mut buffer) {
                        // Sooner than anybody hears the answer.
                        *said.lock().unwrap() = buffer[..length].to_vec();
                        if server.write_all(&buffer[..length]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
        recorder
    }

    /// What was said last.
    fn last(&self) -> Vec<u8> {
        self.said.lock().unwrap().clone()
    }

    /// Has the server hear it once more. Answers what it says.
    fn repeat(&self, said: &[u8]) -> String {
        let mut server = TcpStream::connect(("127.0.0.1", self.server)).unwrap();
        server.write_all(said).unwrap();
        let mut answer = vec![0; 4096];
        let length = server.read(&mut answer).unwrap();
        String::from_utf8_lossy(&answer[..length]).into_owned()
    }
}

#[tokio::test]
async fn a_request_that_arrives_twice_counts_once() {
    let server = old_server();
    let way = Recorder::to(server.port());
    let store = open(&format!("redis://{}", way.address)).await.unwrap();
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let claim = way.last();
    // Both times the same answer: nobody can tell which of them is heard.
    assert!(way.repeat(&claim).contains(&format!("granted\r\n$13\r\n{term}\r\n")), "{}", way.repeat(&claim));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let renewal = way.last();
    assert!(way.repeat(&renewal).contains("renewed"));
    assert!(way.repeat(&claim).contains("stale"));
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert!(way.repeat(&renewal).contains("overtaken"));
    store.release(&one, term).await.unwrap();
    let release = way.last();
    assert!(way.repeat(&claim).contains("stale"));
    assert!(way.repeat(&renewal).contains("lost"));
    let term = lead(&store, &one).await;
    assert!(way.repeat(&release).contains("not held"));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}
