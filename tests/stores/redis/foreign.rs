//! Other programs' values in our keys, and those of earlier builds.

use super::*;

#[tokio::test]
async fn what_something_else_wrote_is_reported_and_left_alone() {
    let server = old_server();
    let store = store(&server);
    let one = candidate("one");
    let list = |key| vec!["RPUSH", key, "one", "two"];
    // As an earlier build of leaderrun wrote it.
    let lock = vec!["SET", LOCK, "session 7 0 9 7 host owner", "PX", "60000"];
    let marker = vec!["HSET", MARKER, "run", "a b", "since", "1"];
    let later = vec!["HSET", LOCK, "format", "3", "text", "x"];
    let number = vec!["HSET", LOCK, "format", "2", "sequence", "x"];
    for (key, words, why) in [
        (LOCK, list(LOCK), "it is not a hash"),
        (MARKER, list(MARKER), "it is not a hash"),
        (LOCK, lock, "it is not a hash"),
        (MARKER, marker, "it has no format"),
        (LOCK, later, "its format is 3, and this release reads 2"),
        (LOCK, number, "its sequence is not a number"),
    ] {
        server.cli(&["DEL", key]);
        server.cli(&words);
        let before = server.cli(&["DUMP", key]);
        let expected = format!(
            "the key {key} in redis at 127.0.0.1:{} was written by another program ({why}): delete it or use another prefix=",
            server.port()
        );
        let claim = open(&server.own_url()).unwrap().claim(&one).await;
        assert_eq!(misconfigured(claim, ""), expected);
        if key == LOCK {
            assert_eq!(misconfigured(store.renew(&one, Term(1), 1).await, ""), expected);
        }
        assert_eq!(server.cli(&["DUMP", key]), before);
        server.cli(&["DEL", key]);
        server.age();
    }
    lead(&store, &one).await;
}

/// The marker's key has those of other shards too.
#[tokio::test]
async fn a_led_mark_that_something_else_wrote_is_named_by_its_field() {
    let server = old_server();
    server.cli(&["HSET", MARKER, "led:db/main", "nonsense"]);
    let claim = store(&server).claim(&candidate("one")).await;
    misconfigured(claim, &format!("the field led:db/main of the key {MARKER} in redis at "));
}

/// A prefix is no pattern.
#[tokio::test]
async fn prefixes_and_databases_are_places_of_their_own() {
    let server = old_server();
    let url = server.own_url();
    let mut stores = Vec::new();
    for place in ["?prefix=a%2A", "?prefix=ab", "?prefix=%5Ba%5D", "?prefix=a%5C", "/3"] {
        let store = open(&format!("{url}{place}")).unwrap();
        assert_eq!(store.inspect(&shard()).await.unwrap().holder, None);
        granted_in_time(&store, &with_lease("one", Duration::from_millis(100))).await;
        stores.push((store, place));
    }
    for (store, place) in stores {
        let term = store.inspect(&shard()).await.unwrap().last_term;
        let list = store.list("").await.unwrap();
        assert_eq!(list.iter().map(|(_, report)| report.last_term).collect::<Vec<_>>(), [term], "{place}");
    }
    assert_eq!(server.cli(&["-n", "3", "EXISTS", MARKER]), "1");
    assert_eq!(server.cli(&["EXISTS", "ab{leases}:store"]), "1");
    misconfigured(open(&format!("{url}/99")).unwrap().inspect(&shard()).await, "has no database of that number");
}

#[tokio::test]
async fn a_strange_note_harms_no_other_and_strange_or_denied_orders_no_renewal() {
    let server = old_server();
    let store = store(&server);
    let one = candidate("one");
    let parent: Shard = "db".parse().unwrap();
    let lock = "leaderrun:{leases}:lock:db";
    let note = Note::for_ever("{\"a\": 1}");
    let term = lead(&store, &one).await;
    for shard in [&shard(), &parent] {
        assert_eq!(store.replace(shard, &Page::Orders, None, Some(&note)).await, Ok(true));
    }
    assert_eq!(store.replace(&shard(), &Page::History, None, Some(&note)).await, Ok(true));
    server.cli(&["RPUSH", "leaderrun:{leases}:note:history:db", "one"]);
    let read = store.read_notes(&[parent.clone(), shard()].map(|shard| (shard, Page::History))).await.unwrap();
    assert_eq!(read[0].as_ref().unwrap_err().kind, ErrorKind::Misconfigured);
    assert_eq!(read[1], Ok(Some(note.clone())));

    let sequence = std::cell::Cell::new(0);
    let renew = async |store: &LeaseStore| {
        sequence.set(sequence.get() + 1);
        let renewed = store.renew_and_read(&one, term, sequence.get(), &[shard(), parent.clone()]).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        renewed.orders
    };
    let rules = "on >x ~leaderrun:{leases}:store ~leaderrun:{leases}:lock:db/main &* +@all";
    server.cli(&[&["ACL", "SETUSER", "app", "reset"], &rules.split(' ').collect::<Vec<_>>()[..]].concat());
    let limited = open(&server.own_url().replace("//", "//app:x@")).unwrap();
    assert_eq!(renew(&limited).await, None, "they are denied");
    // What another program wrote is no order. A read of the orders alone reports it.
    let bytes = ["EVAL", "return redis.call('HSET', KEYS[1], 'format', '2', 'text', '\\255\\254')", "1", lock];
    for strange in [&["RPUSH", lock, "one"][..], &["SET", lock, ""], &bytes] {
        server.cli(&["DEL", lock]);
        server.cli(strange);
        assert_eq!(renew(&store).await, None, "{strange:?}");
        misconfigured(store.read(&parent, &Page::Orders).await, "");
    }
    server.cli(&["DEL", lock]);
    assert_eq!(renew(&store).await, Some(vec![Some(note), None]));
}
