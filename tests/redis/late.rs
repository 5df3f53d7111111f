//! Requests that arrive late, twice or in another order.

use super::*;
use crate::support::proxy::{NetworkFault, Proxy};
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::Renewal;
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
async fn every_request_is_one_script() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let counted = std::cell::Cell::new(server.scripts_run());
    let asked = || server.scripts_run() - counted.replace(server.scripts_run());
    let term = lead(&store, &one).await;
    assert_eq!(asked(), 5, "a first claim");
    for sequence in 1..=5 {
        store.renew(&one, term, sequence).await.unwrap();
    }
    assert_eq!(asked(), 5, "renewals");
    store.release(&one, term).await.unwrap();
    assert_eq!(asked(), 1, "a release");
    let term = lead(&store, &one).await;
    assert_eq!(asked(), 1, "a claim of what is known");
    // And one more where somebody had the server forget them.
    server.cli(&["SCRIPT", "FLUSH"]);
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(asked(), 2);
    store.release(&one, term).await.unwrap();
    counted.set(server.scripts_run());
    lead(&open(&server.plain_url()).await.unwrap(), &candidate("two")).await;
    assert_eq!(asked(), 2, "a claim in a new process");
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
    store.release(&one, term).await.unwrap();
    let term = lead(&store, &one).await;
    let claim = way.last();
    // Both times the same answer: nobody can tell which of them is heard.
    assert!(way.repeat(&claim).contains("done\r\n"), "{}", way.repeat(&claim));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let renewal = way.last();
    assert!(way.repeat(&renewal).contains("done\r\n"));
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    let ends = server.cli(&["HGET", LOCK, "ends"]);
    assert!(way.repeat(&renewal).contains("overtaken\r\n"));
    assert!(way.repeat(&claim).contains("done\r\n"), "it changes nothing");
    assert_eq!((server.cli(&["HGET", LOCK, "ends"]), server.cli(&["HGET", LOCK, "sequence"])), (ends, "2".to_owned()));
    store.release(&one, term).await.unwrap();
    let release = way.last();
    for late in [&claim, &renewal] {
        assert!(way.repeat(late).contains("refused\r\n"));
    }
    let term = lead(&store, &one).await;
    for late in [&claim, &renewal, &release] {
        assert!(way.repeat(late).contains("refused\r\n"));
    }
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}
