//! Notes: the items that they are, and by whose clock they end.

use super::*;
use crate::support::dynamo::{Fate, Proxy, Server, millis_now};
use leaderrun::internals::lease::Session;
use leaderrun::internals::store::{ErrorKind, Leases as _, Note, Notes, Page, Renewal};
use std::time::Instant;
use tokio::time::sleep;

const HOUR: u64 = 3_600_000;

fn an_hour_ahead() -> u64 {
    millis_now() + HOUR
}

fn an_hour_behind() -> u64 {
    millis_now() - HOUR
}

fn lasting(text: &str, lasts: Duration) -> Note {
    Note::lasting(text.to_owned(), Some(lasts))
}

async fn text_of(store: &DynamoDb, page: &Page) -> Option<String> {
    Notes::read(store, &shard(), page).await.unwrap().map(|note| note.text)
}

/// Until nothing stands there any more.
async fn ended(store: &DynamoDb, page: &Page) {
    let begun = Instant::now();
    while text_of(store, page).await.is_some() {
        assert!(begun.elapsed() < Duration::from_secs(10), "it never ends");
        sleep(Duration::from_millis(50)).await;
    }
}

async fn write(store: &DynamoDb, page: &Page, draft: &Note) {
    assert_eq!(store.replace(&shard(), page, None, Some(draft)).await, Ok(true));
}

#[tokio::test]
async fn dynamodbs_ttl_takes_a_note_a_day_after_its_end_and_never_one_without() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    write(&store, &Page::Orders, &lasting("soon", Duration::from_mins(1))).await;
    let note = item(&client, &table, "ORDERS").await.expect("it stands");
    assert_eq!(note["text"], text("soon"));
    let (left, ttl) = (millis_in(&note, "expiresMs") - millis_now(), millis_in(&note, "ttl"));
    assert!((59_000..=63_000).contains(&left), "{left} ms are left");
    assert!(ttl * 1000 >= millis_in(&note, "expiresMs") + 24 * HOUR, "{ttl}");

    let ever = Note::for_ever("ever");
    assert_eq!(store.replace(&shard(), &Page::Orders, Some("soon"), Some(&ever)).await, Ok(true));
    let note = item(&client, &table, "ORDERS").await.expect("it stands");
    let mut names: Vec<_> = note.keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["pk", "sk", "text"]);
}

#[tokio::test]
async fn a_note_takes_one_request_to_read_and_one_to_replace_once_the_time_is_known() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint(), &table).await;
    let (page, one) = (Page::History, lasting("one", Duration::from_mins(1)));
    write(&store, &page, &one).await;
    assert_eq!(proxy.actions(), ["GetItem", "PutItem"]);
    assert_eq!(text_of(&store, &page).await.as_deref(), Some("one"));
    assert_eq!(proxy.actions(), ["GetItem"]);
    assert_eq!(store.replace(&shard(), &page, Some("one"), Some(&one)).await, Ok(true));
    assert_eq!(store.replace(&shard(), &page, None, Some(&one)).await, Ok(false));
    assert_eq!(proxy.actions(), ["PutItem"; 2]);
    assert_eq!(store.replace(&shard(), &page, Some("one"), None).await, Ok(true));
    assert_eq!(proxy.actions(), ["DeleteItem"]);
    assert_eq!(store.standbys("").await, Ok(Vec::new()));
    assert_eq!(proxy.actions(), ["Scan"]);
}

#[tokio::test]
async fn no_look_at_notes_is_behind() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    proxy.rule(|request| {
        if request.body.contains("\"ConsistentRead\":true") {
            Fate::Pass
        } else {
            crate::support::dynamo::error_answer(400, "ValidationException", "it may be behind")
        }
    });
    let store = store(&proxy.endpoint(), &table).await;
    assert_eq!(text_of(&store, &Page::Orders).await, None);
    assert_eq!(store.standbys("").await, Ok(Vec::new()));
}

#[tokio::test]
async fn wall_clocks_that_are_an_hour_off_neither_end_a_note_nor_keep_it() {
    for (writers, readers) in [(an_hour_ahead as fn() -> u64, an_hour_behind as fn() -> u64)]
        .into_iter()
        .flat_map(|(one, other)| [(one, other), (other, one)])
    {
        let server = Server::start();
        let table = server.table("locks").await;
        let writer = store_with_wall_clock(&server.endpoint(), &table, writers).await;
        let reader = store_with_wall_clock(&server.endpoint(), &table, readers).await;
        let begun = Instant::now();
        // The very first request of this process.
        write(&writer, &Page::Orders, &lasting("soon", Duration::from_secs(2))).await;
        ended(&reader, &Page::Orders).await;
        assert!(begun.elapsed() >= Duration::from_secs(2), "it ended after {:?}", begun.elapsed());
    }
}

#[tokio::test]
async fn the_first_request_of_a_process_knows_what_has_ended() {
    let server = Server::start();
    let table = server.table("locks").await;
    let first = store(&server.endpoint(), &table).await;
    write(&first, &Page::Orders, &lasting("soon", Duration::from_millis(10))).await;
    ended(&first, &Page::Orders).await;
    // One answer leaves two seconds open.
    sleep(Duration::from_secs(2)).await;
    for draft in [None, Some(&Note::for_ever("late"))] {
        let fresh = store_with_wall_clock(&server.endpoint(), &table, an_hour_behind).await;
        assert_eq!(fresh.replace(&shard(), &Page::Orders, Some("soon"), draft).await, Ok(false));
    }
    let fresh = store_with_wall_clock(&server.endpoint(), &table, an_hour_behind).await;
    write(&fresh, &Page::Orders, &Note::for_ever("next")).await;
}

#[tokio::test]
async fn what_something_else_wrote_in_the_place_of_a_note_is_named_and_not_written_over() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let session = Session::from_record("s-1");
    let sort = "STANDBY#s-1";
    for foreign in [
        vec![],
        vec![("text", number(7))],
        vec![("text", text(""))],
        vec![("text", text("note")), ("expiresMs", text("tomorrow"))],
        vec![("text", text("note")), ("expiresMs", number("9e30"))],
    ] {
        let mut put = client.put_item().table_name(&table).item("pk", text("SHARD#db/main")).item("sk", text(sort));
        for (name, value) in foreign {
            put = put.item(name, value);
        }
        put.send().await.unwrap();
        let page = Page::Standby(session.clone());
        assert_eq!(store.replace(&shard(), &page, None, Some(&Note::for_ever("mine"))).await, Ok(false));
        for error in [
            Notes::read(&store, &shard(), &page).await.unwrap_err(),
            store.replace(&shard(), &page, None, None).await.unwrap_err(),
            store.standbys("db").await.unwrap_err(),
        ] {
            assert_eq!(error.kind, ErrorKind::Misconfigured);
            assert!(error.message.contains("pk=SHARD#db/main, sk=STANDBY#s-1"), "{error}");
        }
        assert_eq!(store.standbys("other").await, Ok(Vec::new()));
    }
}

#[tokio::test]
async fn hundreds_of_standbys_are_found_once_each_and_those_that_ended_are_deleted() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let store = store(&server.endpoint(), &table).await;
    let put = |number: usize| client.put_item().table_name(&table).item("sk", text(&format!("STANDBY#{number}")));
    let mut wanted = Vec::new();
    for waiting in 0..300 {
        let name = format!("crowd/{:03}", waiting / 2);
        put(waiting).item("pk", text(&format!("SHARD#{name}"))).item("text", text("note")).send().await.unwrap();
        wanted.push(name);
    }
    let ended = number(millis_now() - HOUR);
    let gone = put(0).item("pk", text("SHARD#crowd/x")).item("text", text("gone")).item("expiresMs", ended);
    gone.send().await.unwrap();
    let found = store.standbys("crowd/").await.unwrap();
    let mut found: Vec<_> = found.iter().map(|(shard, _)| shard.as_str()).collect();
    found.sort_unstable();
    assert_eq!(found, wanted);
    let left = client.scan().table_name(&table).consistent_read(true).send().await.unwrap();
    assert!(!left.items().iter().any(|item| item["pk"] == text("SHARD#crowd/x")));
}

#[tokio::test]
async fn a_standby_that_came_back_during_a_look_is_not_deleted() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let (looker, standby) = (store(&proxy.endpoint(), &table).await, store(&server.endpoint(), &table).await);
    let page = Page::Standby(Session::random().unwrap());
    write(&standby, &page, &lasting("waits", Duration::from_millis(10))).await;
    ended(&standby, &page).await;
    // One answer leaves two seconds open.
    sleep(Duration::from_secs(2)).await;
    let open = proxy.gate("DeleteItem");
    let look = tokio::spawn(async move { looker.standbys("").await });
    proxy.has_met("DeleteItem").await;
    write(&standby, &page, &lasting("waits", Duration::from_mins(1))).await;
    open.send(()).unwrap();
    assert_eq!(look.await.unwrap(), Ok(Vec::new()));
    assert_eq!(proxy.actions(), ["Scan", "DeleteItem"]);
    assert_eq!(text_of(&standby, &page).await.as_deref(), Some("waits"));
}

#[tokio::test]
async fn who_may_not_delete_finds_standbys_all_the_same() {
    let server = Server::start();
    let (client, table) = (server.client(), server.table("locks").await);
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint(), &table).await;
    for number in 0..3 {
        let put = client.put_item().table_name(&table).item("pk", text("SHARD#db/main"));
        let put = put.item("sk", text(&format!("STANDBY#{number}"))).item("text", text("gone"));
        put.item("expiresMs", super::number(millis_now() - HOUR)).send().await.unwrap();
    }
    proxy.deny(|action| action == "DeleteItem");
    assert_eq!(store.standbys("").await, Ok(Vec::new()));
    assert_eq!(proxy.actions(), ["Scan", "DeleteItem"]);
}

/// A leader behind a proxy, which has read its orders, and an operator who goes past it.
struct Led {
    server: Server,
    table: String,
    proxy: Proxy,
    leader: DynamoDb,
    operator: DynamoDb,
    one: Candidate,
    term: Term,
    sequence: std::cell::Cell<u64>,
}

impl Led {
    async fn new() -> Self {
        let server = Server::start();
        let table = server.table("locks").await;
        let proxy = Proxy::before(&server);
        let (leader, operator) = (store(&proxy.endpoint(), &table).await, store(&server.endpoint(), &table).await);
        let one = candidate("one");
        let term = lead(&leader, &one).await;
        let led = Self { server, table, proxy, leader, operator, one, term, sequence: std::cell::Cell::new(0) };
        assert_eq!(led.renew().await, None, "they were not read yet");
        assert_eq!(text_of(&led.leader, &Page::Orders).await, None);
        led.proxy.actions();
        led
    }

    async fn renew(&self) -> Option<Vec<Option<Note>>> {
        self.sequence.set(self.sequence.get() + 1);
        let renewed = self.leader.renew_and_read(&self.one, self.term, self.sequence.get(), &[shard()]).await.unwrap();
        assert_eq!(renewed.renewal, Renewal::Renewed);
        renewed.orders
    }

    async fn stamp(&self) -> Option<AttributeValue> {
        item(&self.server.client(), &self.table, "LOCK").await.expect("it is led").remove("ordersStamp")
    }
}

#[tokio::test]
async fn a_leader_makes_one_request_a_renewal_and_two_after_an_order() {
    let led = Led::new().await;
    for _ in 0..5 {
        assert_eq!(led.renew().await, Some(vec![None]));
    }
    assert_eq!((led.proxy.actions(), led.stamp().await), (vec!["UpdateItem".to_owned(); 5], None));
    let (one, two) = (Note::for_ever("one"), lasting("two", Duration::from_mins(1)));
    let orders = [(None, Some(&one)), (Some("one"), Some(&two)), (Some("two"), None)];
    for (expected, draft) in orders {
        let before = led.stamp().await;
        assert_eq!(led.operator.replace(&shard(), &Page::Orders, expected, draft).await, Ok(true));
        assert_ne!(led.stamp().await, before);
        assert_eq!(led.renew().await, None, "the stamp says that they changed");
        assert_eq!(text_of(&led.leader, &Page::Orders).await, draft.map(|draft| draft.text.clone()));
        let brought = led.renew().await.expect("they are known");
        assert_eq!(brought[0].as_ref().map(|note| &note.text), draft.map(|draft| &draft.text));
        let lasts = brought[0].as_ref().and_then(|note| note.lasts);
        assert!(lasts.is_none_or(|lasts| lasts > Duration::from_secs(50) && lasts < Duration::from_secs(65)));
        assert_eq!(led.proxy.actions(), ["UpdateItem", "GetItem", "UpdateItem"]);
    }
    // What was refused is no change.
    let before = led.stamp().await;
    assert_eq!(led.operator.replace(&shard(), &Page::Orders, Some("one"), None).await, Ok(false));
    assert_eq!(led.stamp().await, before);
}

#[tokio::test]
async fn a_stamp_whose_request_is_lost_is_sent_again() {
    let led = Led::new().await;
    let proxy = Proxy::before(&led.server);
    let operator = store(&proxy.endpoint(), &led.table).await;
    proxy.once("UpdateItem", Fate::LoseRequest);
    assert_eq!(operator.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("one"))).await, Ok(true));
    assert_eq!(led.renew().await, None, "the stamp says that they changed");
    assert_eq!(text_of(&led.leader, &Page::Orders).await.as_deref(), Some("one"));
}

#[tokio::test]
async fn a_stamp_is_put_into_no_item_but_a_leaders_and_is_gone_with_it() {
    let led = Led::new().await;
    assert_eq!(led.operator.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("one"))).await, Ok(true));
    assert!(led.stamp().await.is_some());
    assert_eq!(led.leader.release(&led.one, led.term).await, Ok(leaderrun::internals::store::Release::Released));
    assert_eq!(led.operator.replace(&shard(), &Page::Orders, Some("one"), None).await, Ok(true));
    assert_eq!(item(&led.server.client(), &led.table, "LOCK").await, None, "nobody leads");
    // The other library's item stays as it is.
    let theirs = [("ownerId".to_owned(), text("go")), ("ttl".to_owned(), number(millis_now() / 1000 + 60))];
    let keys = [("pk".to_owned(), text("SHARD#db/main")), ("sk".to_owned(), text("LOCK"))];
    let theirs: Item = theirs.into_iter().chain(keys).collect();
    led.server.client().put_item().table_name(&led.table).set_item(Some(theirs.clone())).send().await.unwrap();
    assert_eq!(led.operator.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("two"))).await, Ok(true));
    assert_eq!(item(&led.server.client(), &led.table, "LOCK").await, Some(theirs));
}

#[tokio::test]
async fn a_renewal_of_an_earlier_release_keeps_the_stamp_and_its_claim_drops_it_and_neither_does_harm() {
    let led = Led::new().await;
    assert_eq!(led.operator.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("one"))).await, Ok(true));
    assert_eq!(led.renew().await, None);
    assert_eq!(text_of(&led.leader, &Page::Orders).await.as_deref(), Some("one"));
    // An earlier release renews by the same update, and claims by a put that knows of no stamp.
    let stamp = led.stamp().await;
    assert!(led.renew().await.is_some());
    assert_eq!(led.stamp().await, stamp);
    let term = granted(led.leader.claim(&led.one).await.unwrap()).term;
    assert_eq!(led.stamp().await, None);
    led.sequence.set(0);
    let renewed = led.leader.renew_and_read(&led.one, term, 1, &[shard()]).await.unwrap();
    assert_eq!((renewed.renewal, renewed.orders), (Renewal::Renewed, None), "a new leadership knows nothing");
}

#[tokio::test]
async fn an_order_stands_where_its_writer_may_not_change_the_lock() {
    let led = Led::new().await;
    led.proxy.deny(|action| action == "UpdateItem");
    let operator = store(&led.proxy.endpoint(), &led.table).await;
    assert_eq!(operator.replace(&shard(), &Page::Orders, None, Some(&Note::for_ever("one"))).await, Ok(true));
    led.proxy.pass();
    assert_eq!((led.stamp().await, text_of(&led.leader, &Page::Orders).await.as_deref()), (None, Some("one")));
}
