//! Replicas, `wait=`, and Sentinel.

use super::*;
use crate::support::redis::Sentinel;
use std::io::{Read, Write};

fn replica_of(master: &Server) -> Server {
    let replica = Server::start();
    replica.cli(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    wait_until("the replica is in step", || {
        replica.info("master_link_status") == "up" && master.info("connected_slaves") != "0"
    });
    replica
}

#[tokio::test]
async fn with_wait_a_lease_counts_once_a_replica_has_it() {
    let master = old_server();
    let replica = replica_of(&master);
    // A first replica gives the replication another name.
    master.age();
    let url = format!("{}?wait=1", master.own_url());
    let patient = open_with(&url, Duration::from_secs(30)).unwrap();
    let (one, term) = one_leads_for(&patient, Duration::from_mins(5)).await;
    assert_eq!(session_in(&replica), one.session.as_str());
    assert_eq!(patient.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    all_good(&patient.check().await.unwrap());

    // Its answers are waited for in vain from here on.
    drop(replica);
    let store = open_with(&url, Duration::from_secs(4)).unwrap();
    let mut sequence = 1;
    eventually("it is told how many have it", async || {
        sequence += 1;
        let error = store.renew(&one, term, sequence).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown);
        error.message.starts_with("only 0 of the 1 replicas that wait= asks for have confirmed")
    })
    .await;
    unknown(store.claim(&one).await, "");
    // What needs no replica goes on.
    assert!(store.inspect(&shard()).await.unwrap().holder.is_some());
    store.release(&one, term).await.unwrap();
    let findings = store.check().await.unwrap();
    assert!(findings.iter().any(|finding| finding.verdict != Verdict::Good && finding.text.contains("wait=1")));
}

#[tokio::test]
async fn a_renewal_whose_wait_was_cut_off_counts_only_once_a_replica_has_it() {
    let master = Arc::new(old_server());
    let replica = replica_of(&master);
    master.age();
    let store = open_with(&format!("{}?wait=1", master.own_url()), Duration::from_secs(8)).unwrap();
    let (one, term) = one_leads_for(&store, Duration::from_mins(5)).await;
    replica.freeze();
    // The replica still counts as connected. On the new connection, the renewal finds that it was applied.
    let cut = std::thread::spawn({
        let master = Arc::clone(&master);
        move || {
            wait_until("it waits", || master.info("blocked_clients") == "1");
            master.cli(&["CLIENT", "KILL", "TYPE", "normal"]);
        }
    });
    unknown(store.renew(&one, term, 1).await, "only 0 of the 1 replicas");
    cut.join().unwrap();
    replica.thaw();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn replicas_without_wait_are_doubtful() {
    let master = old_server();
    let _replica = replica_of(&master);
    finds(&store(&master).check().await.unwrap(), Verdict::Doubtful, "write wait=1");
}

#[tokio::test]
async fn a_replica_takes_no_leases() {
    let master = old_server();
    let replica = replica_of(&master);
    let store = store(&replica);
    let one = candidate("one");
    let why = "is a replica and takes no leases";
    not_applied(store.claim(&one).await, why);
    not_applied(store.renew(&one, Term(1), 1).await, why);
    not_applied(store.observe(&shard()).await, why);
    not_applied(store.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("x"))).await, why);
    finds(&store.check().await.unwrap(), Verdict::Bad, "is a replica");
}

#[tokio::test]
async fn a_master_that_was_demoted_and_promoted_again_may_have_forgotten() {
    let first = old_server();
    let second = replica_of(&first);
    first.age();
    let store = store(&first);
    let (one, term) = one_leads_for(&store, Duration::from_mins(1)).await;
    store.release(&one, term).await.unwrap();
    // Nobody of ours spoke to the second one; only its name tells that the first one was away.
    second.cli(&["REPLICAOF", "NO", "ONE"]);
    first.cli(&["REPLICAOF", "127.0.0.1", &second.port().to_string()]);
    wait_until("it follows", || first.info("master_link_status") == "up");
    first.cli(&["REPLICAOF", "NO", "ONE"]);
    assert_eq!(refused(store.claim(&one).await.unwrap()).owner, FORGOTTEN);
}

struct World {
    first: Server,
    second: Server,
    sentinels: Vec<Sentinel>,
}

impl World {
    fn new() -> Self {
        let first = old_server();
        let second = replica_of(&first);
        first.age();
        let sentinels: Vec<Sentinel> = (0..3).map(|_| Sentinel::start(first.port())).collect();
        wait_until("the Sentinels know everybody", || {
            sentinels.iter().all(|sentinel| {
                let count = |name| sentinel.master(name);
                count("num-slaves") == "1" && count("num-other-sentinels") == "2" && count("flags") == "master"
            })
        });
        Self { first, second, sentinels }
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }

    /// Has the replica take over while the master lives. All Sentinels know of it when this returns.
    fn fail_over(&self) {
        wait_until("a failover begins", || self.sentinels[0].cli(&["SENTINEL", "FAILOVER", "main"]) == "OK");
        let port = self.second.port().to_string();
        wait_until("all know the new master", || {
            self.sentinels.iter().all(|sentinel| sentinel.master("port") == port)
                && self.second.info("role") == "master"
        });
    }
}

#[tokio::test]
async fn sentinels_lead_to_the_master_before_and_after_a_failover() {
    let world = World::new();
    let (store, other) = (open(&world.url()).unwrap(), open(&world.url()).unwrap());
    let (one, two) = (with_lease("one", Duration::from_mins(2)), candidate("two"));
    let term = lead(&store, &one).await;
    refused(other.claim(&two).await.unwrap());
    assert_eq!(world.first.cli(&["EXISTS", LOCK]), "1");
    world.fail_over();
    let mut sequence = 0;
    eventually("the new master renews", async || {
        sequence += 1;
        store.renew(&one, term, sequence).await == Ok(Renewal::Renewed)
    })
    .await;
    assert_eq!(session_in(&world.second), one.session.as_str());
    assert_eq!(refused(other.claim(&two).await.unwrap()).session, Some(one.session.clone()));
}

#[tokio::test]
async fn one_sentinel_of_three_is_enough_to_find_the_master_and_one_that_does_not_know_it_is_reported() {
    let mut world = World::new();
    let url = world.url().replace("/main", "/other");
    misconfigured(
        open(&url).unwrap().claim(&candidate("one")).await,
        "the Sentinel at 127.0.0.1: … knows no master called other: name another",
    );
    world.sentinels.truncate(2);
    let dead = crate::support::ports::free_port();
    let url = world.url().replacen("://", &format!("://127.0.0.1:{dead},"), 1);
    lead(&open(&url).unwrap(), &candidate("one")).await;
    let url = format!("redis+sentinel://127.0.0.1:{dead}/main");
    assert_eq!(
        not_applied(open(&url).unwrap().claim(&candidate("one")).await, ""),
        format!("cannot reach the Sentinel at 127.0.0.1:{dead}: connection refused")
    );
}

/// Which might still name the master.
#[tokio::test]
async fn a_sentinel_that_denies_the_login_is_named_though_another_one_is_silent() {
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = mute.local_addr().unwrap().port();
    let strict = Server::with(&["--requirepass", "hunter2"]);
    let url = format!("redis+sentinel://127.0.0.1:{silent},127.0.0.1:{}/main?sentinel_password=x", strict.port());
    let store = open_with(&url, Duration::from_secs(2)).unwrap();
    not_applied(
        store.claim(&candidate("one")).await,
        "does not accept this password of user default: see sentinel_user= … cannot reach the Sentinel at 127.0.0.1:",
    );
}

/// Says after a pause that the master is on `port` since the failover of that number. Answers where it listens.
fn false_sentinel(port: u16, epoch: u32, pause: Duration) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let own = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let _ = client.read(&mut [0; 1000]);
            std::thread::sleep(pause);
            let words = ["ip", "127.0.0.1", "port", &port.to_string(), "config-epoch", &epoch.to_string()];
            let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
            let _ = client.write_all(format!("*6\r\n{}", words.concat()).as_bytes());
        }
    });
    own
}

#[tokio::test]
async fn the_sentinel_that_has_seen_the_latest_failover_counts() {
    let server = old_server();
    let stale = false_sentinel(crate::support::ports::free_port(), 4, Duration::ZERO);
    let fresh = false_sentinel(server.port(), 5, Duration::from_millis(20));
    let url = format!("redis+sentinel://127.0.0.1:{stale},127.0.0.1:{fresh}/main");
    // On a slow machine even the fresh one's word may come too late to count.
    let store = open(&url).unwrap();
    let one = candidate("one");
    eventually("it is granted", async || matches!(store.claim(&one).await, Ok(Claim::Granted(_)))).await;
    // One that never answers is not waited for.
    let mute = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = mute.local_addr().unwrap().port();
    let url = format!("redis+sentinel://127.0.0.1:{silent},127.0.0.1:{fresh}/main");
    refused(open(&url).unwrap().claim(&candidate("two")).await.unwrap());
}
