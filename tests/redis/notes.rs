//! Notes: where they stand, and what something else wrote in their place.

use super::*;
use leaderrun::internals::lease::{Session, Shard};
use leaderrun::internals::store::Administration as _;
use leaderrun::internals::store::{ErrorKind, Note, Notes, Page, Renewal, Store as _};
use std::collections::BTreeSet;

const ORDERS: &str = "leaderrun:{leases}:note:orders:db/main";
const STANDBY: &str = "leaderrun:{leases}:note:standby:db/main=11111111-2222-4333-8444-555555555555";

fn standby() -> Page {
    Page::Standby(Session::from_record("11111111-2222-4333-8444-555555555555"))
}

fn note(lasts: Option<Duration>) -> Note {
    Note::lasting("{\"a\": 1}".to_owned(), lasts)
}

#[tokio::test]
async fn a_note_is_a_plain_string_that_ends_with_its_time() {
    let server = old_server();
    let store = store(&server).await;
    let minute = Duration::from_mins(1);
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&note(None))).await, Ok(true));
    assert_eq!(store.replace(&shard(), &standby(), None, Some(&note(Some(minute)))).await, Ok(true));
    assert_eq!((server.cli(&["GET", ORDERS]).as_str(), server.cli(&["PTTL", ORDERS]).as_str()), ("{\"a\": 1}", "-1"));
    assert_eq!(server.cli(&["GET", STANDBY]), "{\"a\": 1}");
    assert!((50_000..=60_000).contains(&server.cli(&["PTTL", STANDBY]).parse::<u64>().unwrap()));
    assert_eq!(store.list("").await, Ok(Vec::new()));
    // However long, or short.
    for lasts in [Duration::MAX, Duration::from_nanos(1)] {
        assert_eq!(store.replace(&shard(), &Page::History, None, Some(&note(Some(lasts)))).await, Ok(true));
        eventually("it is gone, or never will be", async || {
            let left = server.cli(&["PTTL", "leaderrun:{leases}:note:history:db/main"]).parse::<i64>().unwrap();
            left == -2 || left > 1 << 60
        })
        .await;
        server.cli(&["DEL", "leaderrun:{leases}:note:history:db/main"]);
    }
}

#[tokio::test]
async fn many_notes_are_read_in_few_requests_and_a_strange_one_harms_no_other() {
    const NOTES: usize = 250;
    let server = old_server();
    let store = store(&server).await;
    let shard = |number: usize| format!("many/{number}").parse::<Shard>().unwrap();
    let wanted: Vec<_> = (0..NOTES).map(|number| (shard(number), Page::Orders)).collect();
    for (shard, page) in wanted.iter().step_by(2) {
        assert_eq!(store.replace(shard, page, None, Some(&note(Some(Duration::from_mins(1))))).await, Ok(true));
        assert_eq!(store.replace(shard, &standby(), None, Some(&note(None))).await, Ok(true));
    }
    server.cli(&["RPUSH", "leaderrun:{leases}:note:orders:many/7", "one"]);
    let before = server.scripts_run();
    let notes = store.read_notes(&wanted).await.unwrap();
    assert_eq!((notes.len(), server.scripts_run() - before), (NOTES, 4), "three pages, and the strange one by itself");
    for (number, read) in notes.into_iter().enumerate() {
        match read {
            Ok(Some(read)) => {
                let lasts = read.lasts.expect("it ends");
                assert!(number % 2 == 0 && read.text == note(None).text && lasts > Duration::from_secs(30));
            }
            Ok(None) => assert!(number % 2 == 1 && number != 7),
            Err(error) => assert_eq!((number, error.kind), (7, ErrorKind::Misconfigured), "{error}"),
        }
    }
    let before = server.scripts_run();
    let standbys = store.standbys("many/").await.unwrap();
    assert_eq!((standbys.len(), server.scripts_run() - before), (NOTES / 2, 2));
    assert_eq!(standbys.iter().map(|(shard, _)| shard).collect::<BTreeSet<_>>().len(), NOTES / 2);
    assert!(standbys.iter().all(|(_, standby)| *standby == note(None)));
}

#[tokio::test]
async fn what_another_program_wrote_is_reported_and_left_alone() {
    let server = old_server();
    let store = store(&server).await;
    let list = ["RPUSH", STANDBY, "one"];
    let bytes = ["EVAL", "return redis.call('SET', KEYS[1], '\\255\\254')", "1", STANDBY];
    for strange in [&list[..], &["SET", STANDBY, ""], &bytes] {
        server.cli(&["DEL", STANDBY]);
        server.cli(strange);
        let before = server.cli(&["DUMP", STANDBY]);
        for error in [store.read(&shard(), &standby()).await.unwrap_err(), store.standbys("").await.unwrap_err()] {
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            assert!(error.message.starts_with(&format!("the key {STANDBY} in redis at")), "{error}");
            assert!(error.message.contains("was written by something else: delete it"), "{error}");
        }
        match store.replace(&shard(), &standby(), None, Some(&note(None))).await {
            Ok(replaced) => assert!(!replaced && strange == bytes),
            Err(error) => assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}"),
        }
        assert_eq!(server.cli(&["DUMP", STANDBY]), before);
    }
    // Whose names are no shards nobody waits for.
    server.cli(&["DEL", STANDBY]);
    for name in ["db/main", "no name=1", "=1"] {
        server.cli(&["SET", &format!("leaderrun:{{leases}}:note:standby:{name}"), "x"]);
    }
    assert_eq!(store.standbys("").await, Ok(Vec::new()));
}

#[tokio::test]
async fn a_prefix_of_shards_ends_where_the_session_begins() {
    let server = old_server();
    let store = store(&server).await;
    assert_eq!(store.replace(&shard(), &standby(), None, Some(&note(None))).await, Ok(true));
    for (prefix, found) in [("db/main", 1), ("db/main=", 0), ("db/main=1", 0)] {
        assert_eq!(store.standbys(prefix).await.unwrap().len(), found, "{prefix}");
    }
}

#[tokio::test]
async fn orders_come_with_the_answer_to_a_renewal_and_do_it_no_harm() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let sequence = std::cell::Cell::new(0);
    let renew = async || {
        sequence.set(sequence.get() + 1);
        let renewed = store.renew_and_read(&one, term, sequence.get(), &[shard(), shard()]).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        renewed.orders
    };
    assert_eq!(renew().await, Some(vec![None, None]));
    assert_eq!(store.replace(&shard(), &Page::Orders, None, Some(&note(None))).await, Ok(true));
    assert_eq!(renew().await, Some(vec![Some(note(None)), Some(note(None))]));
    // What another program wrote is no order. A read of the orders alone reports it.
    let bytes = ["EVAL", "return redis.call('SET', KEYS[1], '\\255\\254')", "1", ORDERS];
    for strange in [&["RPUSH", ORDERS, "one"][..], &["SET", ORDERS, ""], &bytes] {
        server.cli(&["DEL", ORDERS]);
        server.cli(strange);
        assert_eq!(renew().await, None, "{strange:?}");
        assert_eq!(store.read(&shard(), &Page::Orders).await.unwrap_err().kind, ErrorKind::Misconfigured);
    }
    server.cli(&["DEL", ORDERS]);
    assert_eq!(renew().await, Some(vec![None, None]));
}
