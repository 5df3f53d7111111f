//! Notes: where they stand, and what something else wrote in their place.

use super::*;
use leaderrun::internals::lease::{Session, Shard};
use std::collections::BTreeSet;

fn standby() -> Page {
    Page::Standby(Session::from_record("11111111-2222-4333-8444-555555555555"))
}

fn note(lasts: Option<Duration>) -> Note {
    Note::lasting("{\"a\": 1}".to_owned(), lasts)
}

#[tokio::test]
async fn many_notes_are_read_in_few_requests_and_a_strange_one_harms_no_other() {
    const NOTES: usize = 250;
    let server = old_server();
    let store = store(&server).await;
    let shard = |number: usize| format!("many/{number}").parse::<Shard>().unwrap();
    let wanted: Vec<_> = (0..NOTES).map(|number| (shard(number), Page::History)).collect();
    for (shard, page) in wanted.iter().step_by(2) {
        assert_eq!(store.replace(shard, page, None, Some(&note(Some(Duration::from_mins(1))))).await, Ok(true));
        assert_eq!(store.replace(shard, &standby(), None, Some(&note(None))).await, Ok(true));
    }
    let before = server.scripts_run();
    let notes = store.read_notes(&wanted).await.unwrap();
    assert_eq!((notes.len(), server.scripts_run() - before), (NOTES, 3), "three pages");
    assert!(notes.iter().all(Result::is_ok));
    server.cli(&["RPUSH", "leaderrun:{leases}:note:history:many/7", "one"]);
    let notes = store.read_notes(&wanted).await.unwrap();
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
async fn orders_of_another_shard_come_with_the_answer_to_a_renewal_and_do_it_no_harm() {
    let server = old_server();
    let store = store(&server).await;
    let one = candidate("one");
    let parent: Shard = "db".parse().unwrap();
    let lock = "leaderrun:{leases}:lock:db";
    let term = lead(&store, &one).await;
    let sequence = std::cell::Cell::new(0);
    let renew = async |store: &Redis| {
        sequence.set(sequence.get() + 1);
        let renewed = store.renew_and_read(&one, term, sequence.get(), &[shard(), parent.clone()]).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        renewed.orders
    };
    assert_eq!(renew(&store).await, Some(vec![None, None]));
    for shard in [&shard(), &parent] {
        assert_eq!(store.replace(shard, &Page::Orders, None, Some(&note(None))).await, Ok(true));
    }
    assert_eq!(renew(&store).await, Some(vec![Some(note(None)), Some(note(None))]));
    let rules = "on >x ~leaderrun:{leases}:store ~leaderrun:{leases}:lock:db/main &* +@all";
    server.cli(&[&["ACL", "SETUSER", "app", "reset"], &rules.split(' ').collect::<Vec<_>>()[..]].concat());
    let limited = open(&server.own_url().replace("//", "//app:x@")).await.unwrap();
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
    assert_eq!(renew(&store).await, Some(vec![Some(note(None)), None]));
}
