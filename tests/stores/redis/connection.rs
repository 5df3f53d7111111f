//! Connections that hang, break and come back.

use super::*;
use crate::support::gate::Gate;
use crate::support::proxy::{NetworkFault, Proxy};

#[tokio::test]
async fn a_renewal_on_a_connection_that_hangs_does_not_hold_up_the_next_ones() {
    let server = old_server();
    let way = Gate::to(server.address());
    let timeout = Duration::from_secs(12);
    let store = Arc::new(open_with(&format!("redis://{}", way.address), timeout).unwrap());
    let (one, term) = one_leads(&*store).await;
    way.forget();
    let hanging = renews(&store, &one, term, 1);
    // Longer than a connection may be silent.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    let sent = BootInstant::now();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert!(BootInstant::now().since(sent) < timeout / 2);
    assert!(!hanging.is_finished());
    unknown(hanging.await.unwrap(), "did not answer within 11s 900ms");
}

#[tokio::test]
async fn a_connection_on_which_a_request_was_given_up_is_not_used_again() {
    let server = old_server();
    let way = Gate::to(server.address());
    let timeout = Duration::from_secs(20);
    let store = open_with(&format!("redis://{}", way.address), timeout).unwrap();
    let (one, term) = one_leads(&store).await;
    way.forget();
    // As the driver does.
    let within = Duration::from_millis(50);
    assert!(tokio::time::timeout(within, store.renew(&one, term, 1)).await.is_err());
    let sent = BootInstant::now();
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert!(BootInstant::now().since(sent) < timeout / 2);
    eventually("it is closed", async || way.connections() == 1).await;
}

/// There a new connection needs two answers, and the second one comes too late.
#[tokio::test]
async fn a_new_connection_whose_login_was_slow_is_used_again() {
    let server = old_server();
    server.cli(&["ACL", "SETUSER", "me", "on", ">hunter2", "~*", "&*", "+@all"]);
    let way = Proxy::to(server.address());
    let url = format!("redis://me:hunter2@{}", way.address);
    let store = Arc::new(open_with(&url, Duration::from_secs(4)).unwrap());
    let (one, term) = one_leads(&*store).await;
    way.set(NetworkFault::Slow(Duration::from_millis(2400)));
    let first = renews(&store, &one, term, 1);
    tokio::time::sleep(Duration::from_millis(1400)).await;
    let on_another = renews(&store, &one, term, 2);
    assert_eq!(first.await.unwrap(), Ok(Renewal::Renewed));
    // The first connection is silent again when the other one takes its place.
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
    unknown(on_another.await.unwrap(), "did not answer within 3s 900ms");
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn whether_it_is_redis_is_asked_only_before_it_has_answered() {
    let server = old_server();
    let way = Proxy::to(server.address());
    let store = open(&format!("redis://{}", way.address)).unwrap();
    for is_known in [false, true] {
        way.set(NetworkFault::Reset);
        let said = store.observe(&shard()).await.unwrap_err().message;
        assert_eq!(said.contains("is it Redis"), !is_known, "{said}");
        way.set(NetworkFault::Fair);
        store.observe(&shard()).await.unwrap();
    }
}

#[tokio::test]
async fn a_socket_in_the_file_system_will_do() {
    let directory = tempfile::TempDir::new().unwrap();
    let socket = directory.path().join("redis.sock");
    let server = Server::with(&["--unixsocket", socket.to_str().unwrap()]);
    server.age();
    let store = open(&format!("redis+unix://{}", socket.display())).unwrap();
    let (one, term) = one_leads(&store).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let missing = open(&format!("redis+unix://{}/none", directory.path().display())).unwrap();
    not_applied(missing.claim(&one).await, "/none: no such file or directory");
}

#[tokio::test]
async fn a_server_without_memory_turns_claims_away() {
    let server = old_server();
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let store = store(&server);
    not_applied(
        store.claim(&candidate("one")).await,
        "accepts no writes now: command not allowed when used memory > 'maxmemory'",
    );
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    lead(&store, &candidate("one")).await;
}
