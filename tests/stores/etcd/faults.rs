//! Servers that are away, silent, full, or no etcd at all.

use super::*;
use crate::support::ports::free_port;
use crate::support::proxy::{NetworkFault, Proxy};

#[tokio::test]
async fn a_server_that_is_away_is_passed_over_within_one_attempt() {
    let server = old_server().await;
    let url = format!("etcd://127.0.0.1:{},{}", free_port(), server.host());
    lead(&*open(&url).await, &candidate("one")).await;
}

#[tokio::test]
async fn a_renewal_does_not_follow_another_into_a_hole() {
    let server = old_server().await;
    let way = Proxy::to(server.address());
    // Two ways to one server.
    let store = open(&format!("etcd://{},{}", way.address, server.host())).await;
    let (one, term) = one_leads(&*store).await;
    way.set(NetworkFault::Partition);
    let hung = renews(&store, &one, term, 1);
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let begun = Instant::now();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert!(!hung.is_finished());
    way.set(NetworkFault::Fair);
    // Late, and of no consequence.
    assert!(matches!(hung.await.unwrap(), Ok(Renewal::Renewed)));
}

#[tokio::test]
async fn a_full_etcd_is_distinguished_from_a_denial() {
    let server = Server::start_with(&["--quota-backend-bytes", "1024"]);
    let store = open(&server.own_url()).await;
    let one = candidate("one");
    for error in [store.claim(&one).await.unwrap_err(), store.prepare().await.unwrap_err()] {
        not_applied(Err::<(), _>(error), "is out of space and accepts no writes");
    }
    eventually("the alarm is raised", async || server.etcdctl(&["alarm", "list"]).contains("NOSPACE")).await;
    finds(&store.check().await.unwrap(), Verdict::Bad, "NOSPACE");
}
