//! Other programs' values in our keys, and our record for other programs.

use super::*;
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Observation, Renewal};

#[tokio::test]
async fn another_programs_lock_is_respected_while_it_lives() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    for value in ["instance-7", "", "{\"a\": 1}", "a b c d e f g", "\u{7f}\n"] {
        server.cli(&["SET", LOCK, value, "PX", "60000"]);
        let holder = refused(store.claim(&one).await.unwrap());
        assert_eq!(holder.owner, format!("something else that wrote the key {LOCK}"));
        assert!(holder.expires_in.is_some_and(|left| left > Duration::from_secs(30)), "{holder:?}");
        assert_eq!(holder.session, None);
        assert!(matches!(store.observe(&shard()).await, Ok(Observation::Held(found)) if found.owner == holder.owner));
        assert!(matches!(store.renew(&one, Term(u64::MAX >> 12), 1).await, Ok(Renewal::Lost(Some(_)))));
        assert!(store.inspect(&shard()).await.unwrap().holder.is_some());
        assert_eq!(server.cli(&["GET", LOCK]), value.trim_end_matches('\n'));
    }
}

#[tokio::test]
async fn a_server_that_may_have_forgotten_a_lease_does_not_forget_another_programs() {
    let server = Server::start();
    let store = store(&server).await;
    server.cli(&["SET", LOCK, "instance-7", "PX", "60000"]);
    assert!(matches!(store.renew(&candidate("one"), Term(1), 1).await, Ok(Renewal::Lost(Some(_)))));
    assert_eq!(server.cli(&["GET", LOCK]), "instance-7");
}

#[tokio::test]
async fn bytes_that_are_no_text_are_respected_too() {
    let server = old_server();
    let store = store(&server).await;
    server.cli(&["EVAL", "return redis.call('SET', KEYS[1], '\\255\\254', 'PX', 60000)", "1", LOCK]);
    assert!(refused(store.claim(&candidate("one")).await.unwrap()).owner.starts_with("something else"));
}

#[tokio::test]
async fn a_lock_without_an_end_is_reported_and_left_alone() {
    let server = old_server();
    let store = store(&server).await;
    server.cli(&["SET", LOCK, "instance-7"]);
    let one = candidate("one");
    for error in [store.claim(&one).await.unwrap_err(), store.observe(&shard()).await.unwrap_err()] {
        assert_eq!(error.kind, ErrorKind::Misconfigured);
        assert!(error.message.starts_with(&format!("the key {LOCK} in redis at 127.0.0.1:")), "{error}");
        assert!(error.message.contains("never expires"), "{error}");
    }
    assert_eq!(server.cli(&["GET", LOCK]), "instance-7");
}

#[tokio::test]
async fn a_key_of_another_type_is_reported_and_left_alone() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    for (key, number) in [(LOCK, 1), (LAST, 2), (MARKER, 3)] {
        server.cli(&["DEL", key]);
        server.cli(&["RPUSH", key, "one", "two"]);
        let errors = [
            store.claim(&one).await.unwrap_err(),
            store.renew(&one, Term(1), 1).await.unwrap_err(),
            store.release(&one, Term(1)).await.unwrap_err(),
            store.observe(&shard()).await.unwrap_err(),
            store.inspect(&shard()).await.unwrap_err(),
        ];
        for error in errors {
            assert_eq!(error.kind, ErrorKind::Misconfigured, "{number}: {error}");
            assert!(error.message.contains(&format!("the key {key} in redis")), "{error}");
            assert!(error.message.contains("was written by something else: delete it"), "{error}");
        }
        assert_eq!(server.cli(&["LLEN", key]), "2");
        server.cli(&["DEL", key]);
        server.age();
    }
    lead(&store, &one).await;
}

#[tokio::test]
async fn nonsense_in_the_fields_is_taken_for_nothing() {
    let server = old_server();
    let store = store(&server).await;
    server.cli(&["HSET", LAST, "term", "x", "until", "-", "lease", "", "order", "1e999", "released", "maybe"]);
    assert!(lead(&store, &candidate("one")).await > Term(0));
    server.cli(&["HSET", MARKER, "since", "soon"]);
    assert_eq!(store.observe(&shard()).await, Ok(Observation::Free));
}

#[tokio::test]
async fn the_leader_is_published_in_the_words_of_other_services() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let read = || -> serde_json::Value { serde_json::from_str(&server.cli(&["GET", RECORD])).expect("JSON") };
    let first = read();
    assert_eq!((first["instance_id"].as_str(), first["hostname"].as_str()), (Some("one"), Some("here")));
    assert_eq!((first["term"].as_u64(), first["pid"].as_u64()), (Some(term.0), Some(7)));
    assert_eq!(first["session"].as_str(), Some(one.session.as_str()));
    for name in ["started_at", "last_heartbeat"] {
        humantime::parse_rfc3339(first[name].as_str().unwrap()).unwrap();
    }
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let second = read();
    assert_eq!(second["started_at"], first["started_at"]);
    assert!(second["last_heartbeat"].as_str() > first["last_heartbeat"].as_str());
    let left = |key| server.cli(&["PTTL", key]).parse::<u64>().unwrap();
    assert!(left(RECORD) > 10_000 && left(LOCK) > 10_000);
    store.release(&one, term).await.unwrap();
    assert_eq!(server.cli(&["EXISTS", RECORD]), "0");
}

#[tokio::test]
async fn prefixes_and_databases_are_places_of_their_own() {
    let server = old_server();
    let url = server.plain_url();
    let store = store(&server).await;
    lead(&store, &candidate("one")).await;
    for place in [format!("{url}?prefix=other:"), format!("{url}/3")] {
        let other = open(&place).await.unwrap();
        let two = with_lease("two", Duration::from_millis(100));
        assert_eq!(other.inspect(&shard()).await.unwrap().holder, None);
        granted_in_time(&other, &two).await;
    }
    assert_eq!(server.cli(&["-n", "3", "EXISTS", MARKER]), "1");
    assert_eq!(server.cli(&["EXISTS", "other:{leases}:store"]), "1");
    let error = open(&format!("{url}/99")).await.unwrap().inspect(&shard()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured);
    assert!(error.message.contains("has no database of that number"), "{error}");
}

#[tokio::test]
async fn a_list_shows_what_something_else_wrote_and_all_the_rest() {
    let server = old_server();
    let store = store(&server).await;
    lead(&store, &candidate("one")).await;
    server.cli(&["SET", "leaderrun:{leases}:lock:eternal", "instance-7"]);
    server.cli(&["RPUSH", "leaderrun:{leases}:lock:list", "one", "two"]);
    server.cli(&["SET", "leaderrun:{leases}:lock:other", "instance-7", "PX", "60000"]);
    for stranger in ["leaderrun:{leases}:lock:no name", "leaderrun:{leases}:lost:x", "xleaderrun:{leases}:lock:x"] {
        server.cli(&["SET", stranger, "x", "PX", "60000"]);
    }
    let list = store.list("").await.unwrap();
    let owners = list.iter().map(|(shard, report)| (shard.as_str(), report.holder.as_ref().unwrap().owner.clone()));
    let foreign = |shard: &str| format!("something else that wrote the key leaderrun:{{leases}}:lock:{shard}");
    let expected = ["eternal", "list", "other"].map(|shard| (shard, foreign(shard)));
    assert!(owners.eq([("db/main", "one".to_owned())].into_iter().chain(expected)), "{list:?}");
}

#[tokio::test]
async fn a_list_takes_no_pattern_from_the_prefix_of_its_keys() {
    let server = old_server();
    let mut stores = Vec::new();
    for prefix in ["a%2A", "ab", "%5Ba%5D", "a%5C"] {
        let store = open(&format!("{}?prefix={prefix}", server.plain_url())).await.unwrap();
        granted_in_time(&store, &with_lease(prefix, Duration::from_millis(100))).await;
        stores.push((store, prefix));
    }
    for (store, prefix) in stores {
        let term = store.inspect(&shard()).await.unwrap().last_term;
        let list = store.list("").await.unwrap();
        assert_eq!(list.iter().map(|(_, report)| report.last_term).collect::<Vec<_>>(), [term], "{prefix}");
    }
}
