//! Keys in which something else has written, and lists of keys.

use super::*;

#[track_caller]
fn is_strange<T>(answer: Result<T, StoreError>, key: &str) {
    misconfigured(answer, &format!("the key {key} in etcd at "));
}

#[tokio::test]
async fn a_key_beside_a_document_that_would_never_end_is_named_and_left_alone() {
    let server = old_server().await;
    let store = open(&server.own_url()).await;
    let (one, term) = one_leads(&*store).await;
    // Attached to no lease.
    server.put(LOCK, "one");
    is_strange(store.renew(&one, term, 1).await, LOCK);
    is_strange(open(&server.own_url()).await.claim(&candidate("two")).await, LOCK);
    assert_eq!(server.value(LOCK).as_deref(), Some("one"));
    server.put("leaderrun/young", "by hand");
    let store = open(&server.own_url()).await;
    is_strange(store.claim(&one).await, LOCK);
    server.delete(LOCK);
    is_strange(store.claim(&one).await, "leaderrun/young");
}

#[tokio::test]
async fn a_key_on_the_lease_of_something_else_is_lost_and_in_the_way_until_it_ends() {
    let server = old_server().await;
    let (store, other) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let (one, term) = one_leads_for(&*store, Duration::from_secs(2)).await;
    let granted = server.etcdctl(&["lease", "grant", "600"]);
    let lease = granted.split(' ').nth(1).expect("its number");
    server.etcdctl(&["put", LOCK, "something else", "--lease", lease]);
    let Ok(Renewal::Lost(Some(holder))) = store.renew(&one, term, 1).await else { panic!("it renewed") };
    assert_eq!(holder.owner, "something else");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(refused(other.claim(&candidate("two")).await.unwrap()).owner, "something else");
    server.etcdctl(&["lease", "revoke", lease]);
    assert!(granted_in_time(&*other, &candidate("two")).await.term > term);
}

#[tokio::test]
async fn init_and_check_say_what_they_did_and_found_and_leave_nothing_behind() {
    let server = Server::start();
    let store = open(&server.own_url()).await;
    finds(&store.check().await.unwrap(), Verdict::Doubtful, "was started, promoted or wiped");
    let host = server.host();
    let prefix = format!("the prefix leaderrun in etcd at {host}");
    assert_eq!(store.prepare().await.unwrap(), [format!("{prefix} has recorded since when it remembers leases")]);
    server.etcdctl(&["del", "--prefix", "leaderrun/"]);
    assert_eq!(store.prepare().await.unwrap(), [format!("recorded in {prefix} that it remembers leases from now on")]);
    let findings = store.check().await.unwrap();
    // Debian's is of a version with a known fault, which is named.
    let is_good = |of: &Finding| of.verdict == Verdict::Good || of.text.contains("may end a lease that was renewed");
    assert!(findings.iter().all(is_good), "{findings:#?}");
    finds(&findings, Verdict::Good, "etcd 3.");
    let keys = server.etcdctl(&["get", "--prefix", "leaderrun", "--keys-only"]);
    assert_eq!(keys.split_whitespace().collect::<Vec<_>>(), ["leaderrun/base", "leaderrun/young"]);
}

#[tokio::test]
async fn what_something_else_wrote_is_named_and_left_alone_and_a_list_shows_it_and_all_the_rest() {
    let server = old_server().await;
    let store = open(&server.own_url()).await;
    let (one, term) = one_leads_for(&*store, Duration::from_mins(1)).await;
    for (key, value) in [("shard/a", "hello"), ("shard/no name", "{}"), ("shardx", "{}"), ("lock/b", "7")] {
        server.put(&format!("leaderrun/{key}"), value);
    }
    let list = store.list("").await.unwrap();
    assert_eq!(list.iter().map(|(shard, _)| shard.as_str()).collect::<Vec<_>>(), ["a", one.shard.as_str()]);
    assert!(list[0].1.holder.is_some());
    assert_eq!((list[0].1.last_term, list[1].1.last_term), (None, Some(term)));
    let of_a = Candidate { shard: "a".parse().unwrap(), ..one };
    is_strange(store.claim(&of_a).await, "leaderrun/shard/a");
    assert_eq!(server.value("leaderrun/shard/a").as_deref(), Some("hello"));
}
