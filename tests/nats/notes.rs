//! Notes: under which keys, what they cost, and what is swept up.

use super::*;
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::{Note, Page};
use serde_json::{Value, json};

const ORDERS: &str = "=note.orders.db/main";
const SESSION: &str = "11111111-2222-4333-8444-555555555555";
const STANDBY: &str = "=note.standby.11111111-2222-4333-8444-555555555555.db/main";

fn standby() -> Page {
    Page::Standby(Session::from_record(SESSION))
}

fn lasting(lasts: Duration) -> Note {
    Note::lasting("x".to_owned(), Some(lasts))
}

async fn written(store: &dyn Store, page: &Page, draft: &Note) {
    assert_eq!(store.replace(&shard(), page, None, Some(draft)).await, Ok(true));
}

#[tokio::test]
async fn a_note_is_a_key_beside_the_locks_and_no_shard() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    written(&*store, &Page::Orders, &Note::for_ever("x")).await;
    written(&*store, &standby(), &lasting(Duration::from_mins(1))).await;
    assert_eq!(server.client().record(ORDERS), Some(json!({ "text": "x" })));
    assert_eq!(server.client().record(STANDBY), Some(json!({ "text": "x", "lasts_ms": 60_000 })));
    assert_eq!(store.list("").await, Ok(Vec::new()));
    let left = store.standbys("db/").await.unwrap()[0].1.lasts.unwrap();
    assert!(left > Duration::from_secs(50) && left < Duration::from_mins(1), "{left:?}");
    // However long.
    written(&*store, &Page::History, &lasting(Duration::MAX)).await;
    assert!(store.read(&shard(), &Page::History).await.unwrap().unwrap().lasts > Some(Duration::from_hours(1 << 30)));
}

#[tokio::test]
async fn the_time_is_asked_for_only_where_a_note_ends() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    written(&*store, &Page::Orders, &Note::for_ever("x")).await;
    written(&*store, &Page::History, &lasting(Duration::from_mins(1))).await;
    let asked = async |page: Page, expected: &str| {
        let before = server.client().requests();
        assert!(store.read(&shard(), &page).await.unwrap().is_some());
        let read = server.client().requests() - before - 1;
        let done = store.replace(&shard(), &page, Some(expected), Some(&Note::for_ever("y"))).await;
        assert_eq!(done, Ok(true));
        (read, server.client().requests() - before - read - 2)
    };
    // Neither reads of what is there nor writes count as requests.
    assert_eq!(asked(Page::Orders, "x").await, (0, 0));
    let (read, replaced) = asked(Page::History, "x").await;
    // Servers that do not tell it are asked once more.
    assert!((1..=2).contains(&read) && read == replaced, "{read} {replaced}");
}

#[tokio::test]
async fn a_deleted_note_is_marked_as_other_programs_mark_it() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    written(&*store, &Page::Orders, &Note::for_ever("x")).await;
    let revision = server.client().revision(ORDERS);
    assert_eq!(store.replace(&shard(), &Page::Orders, Some("x"), None).await, Ok(true));
    assert!(server.client().revision(ORDERS) > revision);
    let last = json!({ "last_by_subj": format!("$KV.{BUCKET}.{ORDERS}") }).to_string();
    let mark = server.client().request(&format!("$JS.API.DIRECT.GET.KV_{BUCKET}"), "", last.as_bytes()).unwrap();
    assert!(mark.headers.contains("KV-Operation: DEL\r\n") && mark.body.is_empty(), "{}", mark.headers);
    assert_eq!(store.read(&shard(), &Page::Orders).await, Ok(None));
    // As one that somebody else deleted, or purged.
    written(&*store, &Page::Orders, &Note::for_ever("y")).await;
    server.client().delete(ORDERS);
    assert_eq!(store.read(&shard(), &Page::Orders).await, Ok(None));
    written(&*store, &Page::Orders, &Note::for_ever("z")).await;
    server.client().purge(ORDERS);
    assert_eq!(store.replace(&shard(), &Page::Orders, Some("z"), None).await, Ok(false));
    written(&*store, &Page::Orders, &Note::for_ever("z")).await;
}

#[tokio::test]
async fn a_list_of_standbys_sweeps_up_after_those_that_went() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    let stays = Page::Standby(Session::random().unwrap());
    for page in [standby(), Page::Standby(Session::random().unwrap()), Page::Orders] {
        written(&*store, &page, &lasting(Duration::from_millis(200))).await;
    }
    written(&*store, &stays, &lasting(Duration::from_mins(1))).await;
    let left = Page::Standby(Session::random().unwrap());
    written(&*store, &left, &Note::for_ever("x")).await;
    assert_eq!(store.replace(&shard(), &left, Some("x"), None).await, Ok(true));
    sleep(Duration::from_millis(250)).await;
    let kept = || server.client().info()["state"]["num_subjects"].as_u64().unwrap();
    let before = kept();
    assert_eq!(store.standbys("elsewhere").await, Ok(Vec::new()));
    assert_eq!(kept(), before);
    assert_eq!(store.standbys("").await.unwrap().len(), 1);
    assert_eq!(kept(), before - 3);
    assert_eq!(server.client().message(STANDBY), None);
    // An order that has ended is written over sooner or later.
    assert!(server.client().message(ORDERS).is_some());
}

#[tokio::test]
async fn who_may_not_sweep_lists_all_the_same() {
    let server = access::restricted(&access::NEEDED[1..], "_INBOX.>");
    let admin = open(&access::as_admin(&server)).await;
    admin.prepare().await.unwrap();
    for _ in 0..3 {
        written(&*admin, &Page::Standby(Session::random().unwrap()), &lasting(Duration::from_millis(1))).await;
    }
    written(&*admin, &standby(), &Note::for_ever("x")).await;
    let operator = open(&server.own_url()).await;
    sleep(Duration::from_millis(10)).await;
    let begun = Instant::now();
    assert_eq!(operator.standbys("").await, Ok(vec![(shard(), Note::for_ever("x"))]));
    assert!(begun.elapsed() < REQUEST_TIMEOUT / 2, "{:?}", begun.elapsed());
    assert_eq!(operator.read(&shard(), &standby()).await, Ok(Some(Note::for_ever("x"))));
    let error = operator.replace(&shard(), &standby(), Some("x"), None).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains(&format!("$KV.locks.{STANDBY}")), "{error}");
}

#[tokio::test]
async fn a_note_of_another_program_is_reported_and_left_alone() {
    let server = server().await;
    let store = open(&server.own_url()).await;
    for garbage in ["", "7", "hello", "{}", r#"{"text":1}"#, r#"{"text":"x","lasts_ms":-1}"#, "\u{1}"] {
        let revision = server.client().put(STANDBY, "", garbage);
        for error in [
            store.read(&shard(), &standby()).await.unwrap_err(),
            store.replace(&shard(), &standby(), None, Some(&Note::for_ever("x"))).await.unwrap_err(),
            store.standbys("").await.unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            assert!(error.message.contains(&format!("nats kv del locks {STANDBY}")), "{error}");
        }
        assert_eq!(server.client().revision(STANDBY), revision, "{garbage:?} was overwritten");
    }
}

#[tokio::test]
async fn a_revoked_record_is_deleted_and_standbys_hear_of_it() {
    let server = server().await;
    let (store, standby) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = with_lease("one", Duration::from_mins(1));
    let term = granted(store.claim(&one).await.unwrap()).term;
    refused(standby.claim(&candidate("two")).await.unwrap());
    let news = tokio::spawn({
        let standby = Arc::clone(&standby);
        async move { standby.changed(&shard()).await }
    });
    sleep(Duration::from_millis(200)).await;
    assert!(!news.is_finished());
    // Each of its renewals is another revision.
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let operator = open(&server.own_url()).await;
    assert_eq!(operator.revoke(&shard(), term).await, Ok(Release::Released));
    let begun = Instant::now();
    in_time(news).await.unwrap().unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Revoked));
    assert_eq!(store.release(&one, term).await, Ok(Release::NotHeld));
    let grant = granted(standby.claim(&candidate("two")).await.unwrap());
    assert!(wait_of(&grant) > Duration::from_secs(50) && grant.term > term, "{grant:?}");
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Revoked), "who leads now knows of it");
    assert_eq!(operator.revoke(&shard(), term).await, Ok(Release::NotHeld));
}

#[tokio::test]
async fn a_lease_that_is_over_is_not_revoked() {
    let server = server().await;
    let (store, operator) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = short("one");
    let term = lead(&*store, &one).await;
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    let revision = server.client().revision(KEY);
    assert_eq!(operator.revoke(&shard(), term).await, Ok(Release::NotHeld));
    let term = lead(&*store, &one).await;
    assert_eq!(operator.revoke(&shard(), Term(term.0 - 1)).await, Ok(Release::NotHeld));
    sleep(SHORT + Duration::from_millis(20)).await;
    assert_eq!(open(&server.own_url()).await.revoke(&shard(), term).await, Ok(Release::NotHeld));
    assert_eq!(server.client().revision(KEY), revision + 1, "it was deleted");
    server.client().put(KEY, "", "hello");
    let error = operator.revoke(&shard(), term).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured);
    assert_eq!(server.client().message(KEY).unwrap()["data"], Value::from("aGVsbG8="));
}

#[tokio::test]
async fn a_leader_hears_of_orders_without_asking_once_it_listens() {
    let server = server().await;
    let (store, operator) = (open(&server.own_url()).await, open(&server.own_url()).await);
    let one = candidate("one");
    let term = granted_in_time(&*store, &one).await.term;
    let sequence = std::cell::Cell::new(0);
    let renew = async || {
        sequence.set(sequence.get() + 1);
        let renewed = store.renew_and_read(&one, term, sequence.get(), &[shard()]).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        renewed.orders
    };
    assert_eq!(renew().await, None, "nobody listens");
    let listener = Arc::clone(&store);
    let listening = tokio::spawn(async move { listener.doubted(&shard()).await });
    if !Server::has_consumers_of_several_subjects() {
        sleep(SHORT).await;
        assert_eq!(renew().await, None, "orders are left to who asks for them");
        return listening.abort();
    }
    let begun = Instant::now();
    while renew().await.is_none() {
        assert!(begun.elapsed() < PATIENCE, "no news ever come");
    }
    let (ever, other) = (Note::for_ever("ever"), Note::for_ever("other"));
    for _ in 0..20 {
        let steps = [(None, Some(&ever)), (Some("ever"), Some(&other)), (Some("other"), None)];
        for (expected, draft) in steps {
            assert_eq!(operator.replace(&shard(), &Page::Orders, expected, draft).await, Ok(true));
            // Seldom the news are late, and then it asks.
            if let Some(orders) = renew().await {
                assert_eq!(orders, [draft.cloned()]);
            }
        }
    }
    let (before, written) = (server.client().requests(), revision(&server));
    let mut brought = 0;
    for _ in 0..20 {
        brought += u64::from(renew().await == Some(vec![None]));
    }
    assert!(brought >= 18, "{brought} of 20");
    // Only the two questions that this takes.
    assert_eq!((server.client().requests() - before, revision(&server) - written), (2, 20));
    // Two shards, as in a slot; what is spoilt or ends some time is left to who asks.
    let both = [shard(), "db".parse().unwrap()];
    let renew = async || {
        sequence.set(sequence.get() + 1);
        store.renew_and_read(&one, term, sequence.get(), &both).await.unwrap().orders
    };
    assert_eq!(operator.replace(&both[1], &Page::Orders, None, Some(&ever)).await, Ok(true));
    while renew().await != Some(vec![None, Some(ever.clone())]) {
        assert!(begun.elapsed() < PATIENCE, "no news of two shards ever come");
    }
    let ends = Note::lasting("ends".to_owned(), Some(Duration::from_mins(1)));
    assert_eq!(operator.replace(&shard(), &Page::Orders, None, Some(&ends)).await, Ok(true));
    assert_eq!(renew().await, None);
    listening.abort();
    assert!(listening.await.unwrap_err().is_cancelled());
    assert_eq!(renew().await, None, "nobody listens any more");
}

fn revision(server: &Server) -> u64 {
    server.client().info()["state"]["last_seq"].as_u64().expect("a number")
}
