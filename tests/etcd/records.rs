//! Keys in which something else has written.

use super::*;
use leaderrun::internals::store::{ErrorKind, Release, Renewal, StoreError};

const GARBAGE: [&str; 5] = ["hello", "{}", "7", r#"{"owner":"x"}"#, r#"{"origin":-1,"session":7}"#];

#[track_caller]
fn misconfigured<T: std::fmt::Debug>(answer: Result<T, StoreError>, key: &str) {
    let error = answer.expect_err("it cannot be read");
    assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
    assert!(error.message.contains(&format!("the key {key} in etcd at ")), "{error}");
}

#[tokio::test]
async fn a_lock_that_something_else_wrote_is_named_and_left_alone() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    for garbage in GARBAGE {
        server.put(LOCK, garbage);
        misconfigured(store.claim(&one).await, LOCK);
        misconfigured(store.observe(&one.shard).await, LOCK);
        misconfigured(store.inspect(&one.shard).await, LOCK);
        assert!(matches!(store.renew(&one, Term(1), 1).await, Ok(Renewal::Lost(Some(_)))), "{garbage}");
        assert_eq!(store.release(&one, Term(1)).await, Ok(Release::NotHeld));
        assert_eq!(server.value(LOCK).as_deref(), Some(garbage));
    }
    server.delete(LOCK);
    lead(&*store, &one).await;
}

#[tokio::test]
async fn a_lock_that_is_overwritten_under_its_leader_is_lost() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    let term = lead(&*store, &one).await;
    let value = server.value(LOCK).unwrap();
    server.put(LOCK, "hello");
    let Ok(Renewal::Lost(Some(holder))) = store.renew(&one, term, 1).await else { panic!("it renewed") };
    assert_eq!(holder.owner, format!("something else that wrote {LOCK}"));
    // The same words, but attached to no lease: it would never end.
    server.put(LOCK, &value);
    assert!(matches!(store.renew(&one, term, 2).await, Ok(Renewal::Lost(Some(_)))));
    misconfigured(store.claim(&candidate("two")).await, LOCK);
    assert_eq!(server.value(LOCK), Some(value));
}

#[tokio::test]
async fn other_records_that_something_else_wrote_are_named_and_left_alone() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    let base = server.value("leaderrun/base").unwrap();
    for garbage in GARBAGE {
        server.put(LAST, garbage);
        misconfigured(store.claim(&one).await, LAST);
        assert_eq!(server.value(LAST).as_deref(), Some(garbage));
        server.delete(LAST);

        server.put("leaderrun/base", garbage);
        misconfigured(store.claim(&one).await, "leaderrun/base");
        misconfigured(store.prepare().await, "leaderrun/base");
        assert!(has_bad(&store.check().await.unwrap()));
        assert_eq!(server.value("leaderrun/base").as_deref(), Some(garbage));
        server.put("leaderrun/base", &base);
    }
    assert_eq!(server.value(LOCK), None);
    lead(&*store, &one).await;
}

#[tokio::test]
async fn an_inspection_tells_all_that_is_known_of_a_leader() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    assert_eq!(store.inspect(&one.shard).await.unwrap(), leaderrun::internals::store::Report::default());
    let before = leaderrun::internals::time::wall_clock_millis();
    let term = lead(&*store, &one).await;
    let report = store.inspect(&one.shard).await.unwrap();
    let holder = report.holder.expect("one leads");
    assert_eq!(
        (holder.owner.as_str(), holder.session, holder.host.as_deref()),
        ("one", Some(one.session.clone()), Some("here"))
    );
    assert_eq!((holder.pid, holder.term, report.last_term), (Some(7), Some(term), Some(term)));
    assert!(holder.since_millis.unwrap() >= before);
    let left = holder.expires_in.unwrap();
    assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
    store.release(&one, term).await.unwrap();
    let report = store.inspect(&one.shard).await.unwrap();
    assert_eq!((report.holder, report.last_term), (None, Some(term)));
}

#[tokio::test]
async fn a_shard_may_be_called_like_our_own_keys() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    for name in ["base", "young", "lock/base", "last", "check/x"] {
        let one = Candidate { shard: name.parse().unwrap(), ..candidate("one") };
        let term = lead(&*store, &one).await;
        assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    }
}

#[tokio::test]
async fn init_and_check_say_what_they_did_and_found_and_leave_nothing_behind() {
    let server = Server::start();
    let store = open(&server.store_url()).await;
    let findings = store.check().await.unwrap();
    assert!(shown(&findings).contains("does not say since when it remembers"), "{}", shown(&findings));
    let host = server.host();
    let prefix = format!("the prefix leaderrun in etcd at {host}");
    assert_eq!(store.prepare().await.unwrap(), [format!("wrote down that {prefix} remembers from now on")]);
    assert_eq!(store.prepare().await.unwrap(), [format!("{prefix} says since when it remembers")]);
    let findings = store.check().await.unwrap();
    assert!(findings.iter().all(|finding| finding.verdict == Verdict::Good), "{}", shown(&findings));
    assert!(shown(&findings).contains("Good etcd 3."), "{}", shown(&findings));
    let keys = server.etcdctl(&["get", "--prefix", "leaderrun", "--keys-only"]);
    assert_eq!(keys.split_whitespace().collect::<Vec<_>>(), ["leaderrun/base", "leaderrun/young"]);
    // That of the mark of youth.
    assert!(server.etcdctl(&["lease", "list"]).starts_with("found 1 leases"));
}

#[tokio::test]
async fn a_list_shows_what_something_else_wrote_and_all_the_rest() {
    let server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    let term = lead(&*store, &one).await;
    for (key, value) in [("lock/a", "hello"), ("lock/no name", "{}"), ("lockx", "{}"), ("last/a", "7")] {
        server.put(&format!("leaderrun/{key}"), value);
    }
    let list = store.list("").await.unwrap();
    assert_eq!(list.iter().map(|(shard, _)| shard.as_str()).collect::<Vec<_>>(), ["a", one.shard.as_str()]);
    assert_eq!(list[0].1.holder.as_ref().unwrap().owner, "something else that wrote leaderrun/lock/a");
    assert_eq!((list[0].1.last_term, list[1].1.last_term), (None, Some(term)));
}
