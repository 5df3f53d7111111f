//! What a store is: named cases that every store passes against its real server.

#![cfg_attr(
    not(any(feature = "aws", feature = "tls")),
    allow(dead_code, unused_imports, unused_macros, reason = "a build may have no store behind a network")
)]

#[macro_use]
mod support;

/// The stories, each on a server of its own.
macro_rules! own_server {
    ($store:ident, $start:expr, [$($story:ident),* $(,)?]) => {
        mod $store {
            $(
                #[tokio::test]
                async fn $story() {
                    let (bench, server) = super::remote_bench(|| $start).await;
                    super::$story(&bench, Box::new(server)).await;
                }
            )*
        }
    };
}

#[path = "conformance/away.rs"]
mod away;
#[path = "conformance/forgotten.rs"]
mod forgotten;
#[path = "support/memory.rs"]
mod memory;

use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::{
    Claim, Delivery, ErrorKind, Grant, Holder, Note, Observation, Page, Release, Renewal, Report, Store, StoreError,
    Takeover, notes,
};
use memory::{Direct, Memory, Server, Style};
use std::cell::RefCell;
use std::future::{Ready, ready};
use support::claims::{self, eventually, granted_in_time, one_wins_every_race, with_lease};
use support::prelude::*;

/// Short, for expiry is waited for; whole seconds, for some stores count in them. What wants such a lease to last is told by
/// [`in_time`].
const LEASE: Duration = Duration::from_secs(5);
/// Nobody waits for its end, and no machine is too slow for it.
const LONG: Duration = Duration::from_mins(5);
/// What has to be over of it by our clock: the server's may be set right meanwhile, and count in whole milliseconds.
const LEAST: Duration = Duration::from_millis(4_900);

/// The same store, opened several times, as other processes would.
struct Bench(RefCell<Vec<Arc<dyn Store>>>);

impl Bench {
    fn of(stores: impl IntoIterator<Item = Arc<dyn Store>>) -> Self {
        Self(RefCell::new(stores.into_iter().collect()))
    }

    /// Another one each time.
    fn store(&self) -> Arc<dyn Store> {
        self.0.borrow_mut().pop().expect("no case needs more than eight")
    }
}

type AnyServer = Box<dyn support::server::Server + Send>;

/// Whatever waits for a server may not do so in here.
async fn does(
    mut server: AnyServer,
    what: impl FnOnce(&mut dyn support::server::Server) + Send + 'static,
) -> AnyServer {
    let done = tokio::task::spawn_blocking(move || {
        what(&mut *server);
        server
    });
    done.await.expect("it is done")
}

fn candidate(shard: &str, owner: &str) -> Candidate {
    Candidate { shard: shard.parse().unwrap(), ..with_lease(owner, LONG) }
}

/// One whose lease ends soon.
fn short(shard: &str, owner: &str) -> Candidate {
    Candidate { lease: LEASE, ..candidate(shard, owner) }
}

/// Tells it again, of another shard, where the machine was so late that a short lease may have ended: then it answers None.
async fn in_time<T>(shard: &str, mut story: impl AsyncFnMut(&str) -> Option<T>) -> T {
    for attempt in 0..5 {
        if let Some(told) = story(&format!("{shard}/{attempt}")).await {
            return told;
        }
    }
    panic!("the machine is late for every lease of {LEASE:?}");
}

async fn granted(store: &dyn Store, candidate: &Candidate) -> Grant {
    claims::granted(store.claim(candidate).await.expect("the store answers"))
}

async fn the_first_term_of_a_shard_is_at_least_the_milliseconds_since_1970(bench: &Bench) {
    let (store, one) = (bench.store(), candidate("since", "one"));
    assert!(matches!(store.observe(&one.shard).await, Ok(Observation::Free)));
    // Where the server has no clock, they count from when the store was prepared, which this test has just done.
    let within_the_hour = leaderrun::internals::time::wall_clock_millis() - 3_600_000;
    let grant = granted(&*store, &one).await;
    assert!(grant.term >= Term(within_the_hour) && grant.takeover == Takeover::First, "{grant:?}");
}

async fn a_claim_of_what_is_held_is_refused_with_its_holder(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let (one, two) = (candidate("refused", "one"), candidate("refused", "two"));
    let term = granted(&*store, &one).await.term;
    let Claim::Refused(holder) = other.claim(&two).await.unwrap() else { panic!("granted to two") };
    assert_eq!((holder.owner.as_str(), holder.session.as_ref()), ("one", Some(&one.session)));
    let report = other.inspect(&one.shard).await.unwrap();
    let holder = report.holder.expect("one holds it");
    assert_eq!((holder.owner.as_str(), holder.term), ("one", Some(term)));
    assert_eq!(holder.expires_in.is_some(), store.expires());
    assert!(matches!(other.observe(&one.shard).await.unwrap(), Observation::Held(holder) if holder.owner == "one"));
    // Another shard has nothing to do with it.
    granted(&*other, &candidate("refused/other", "two")).await;
}

async fn a_renewal_keeps_the_lease_beyond_its_first_end(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    in_time("renewed", async |shard| {
        let (one, two) = (short(shard, "one"), short(shard, "two"));
        let mut sent = Instant::now();
        let term = granted(&*store, &one).await.term;
        // Time is known to two seconds at the worst.
        for sequence in 1..=6 {
            tokio::time::sleep(LEASE / 4).await;
            let now = Instant::now();
            let renewal = store.renew(&one, term, sequence).await;
            if store.expires() && sent.elapsed() >= LEAST {
                return None;
            }
            assert_eq!(renewal, Ok(Renewal::Renewed));
            sent = now;
            let claim = other.claim(&two).await;
            if store.expires() && sent.elapsed() >= LEAST {
                return None;
            }
            assert!(matches!(claim, Ok(Claim::Refused(_))), "beat {sequence}");
        }
        Some(())
    })
    .await;
}

async fn a_stranger_can_neither_renew_nor_release(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    // The same owner in another process is a stranger as well.
    let (one, two) = (candidate("strange", "same"), candidate("strange", "same"));
    let term = granted(&*store, &one).await.term;
    let Ok(Renewal::Lost(holder)) = other.renew(&two, term, 99).await else { panic!("a stranger renewed") };
    assert_eq!(holder.expect("one holds it").session, Some(one.session.clone()));
    assert_eq!(other.release(&two, term).await, Ok(Release::NotHeld));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    // Nor can anybody renew what nobody holds.
    assert_eq!(store.renew(&candidate("nothing", "one"), Term(1), 1).await, Ok(Renewal::Lost(None)));
}

async fn a_release_frees_the_lease_at_once(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let (one, two) = (candidate("released", "one"), candidate("released", "two"));
    let grant = granted(&*store, &one).await;
    assert_eq!(store.release(&one, grant.term).await, Ok(Release::Released));
    assert!(matches!(other.observe(&one.shard).await, Ok(Observation::Free)));
    let report = other.inspect(&one.shard).await.unwrap();
    assert_eq!((report.holder, report.last_term), (None, Some(grant.term)));
    let next = granted(&*other, &two).await;
    assert!(next.term > grant.term && next.start_after.is_none(), "{next:?}");
    assert_eq!(next.takeover, Takeover::Released);
    assert_eq!(store.release(&one, grant.term).await, Ok(Release::NotHeld));
    assert_eq!(other.renew(&two, next.term, 1).await, Ok(Renewal::Renewed));
}

/// Beside a shard, those whose records are named most like its own.
const NEIGHBOURS: [&str; 6] = ["forgotten.x", "forgotten/1", "x/forgotten", "forgotten1", "forgotten:1", "x:forgotten"];

async fn a_shard_that_is_forgotten_is_as_one_that_was_never_led_but_for_its_terms(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let one = candidate("forgotten", "one");
    let job = "forgotten".parse().unwrap();
    let pages = [
        Page::Orders,
        Page::History,
        Page::Runs,
        Page::Jobs,
        Page::Standby(Session::random().unwrap()),
        Page::Once(job),
    ];
    let note = Note::for_ever("note");
    let mut kept = Vec::new();
    for name in NEIGHBOURS {
        let neighbour = candidate(name, "neighbour");
        let term = granted(&*store, &neighbour).await.term;
        store.release(&neighbour, term).await.unwrap();
        kept.push((neighbour.shard.clone(), term));
    }
    for shard in kept.iter().map(|(shard, _)| shard).chain([&one.shard]) {
        for page in &pages {
            assert_eq!(store.replace(shard, page, None, Some(&note)).await, Ok(true));
        }
    }
    let mut last = Term(0);
    for _ in 0..3 {
        let grant = granted(&*store, &one).await;
        assert!(grant.term > last && grant.start_after.is_none(), "{grant:?} after {last}");
        // Released where its term had to be kept.
        assert!(matches!(grant.takeover, Takeover::First | Takeover::Released), "{grant:?}");
        last = grant.term;
        assert_eq!(store.renew(&one, last, 1).await, Ok(Renewal::Renewed));
        assert_eq!(store.forget(&one, last).await, Ok(Release::Released));
        assert_eq!(other.inspect(&one.shard).await, Ok(Report::default()));
        assert!(matches!(other.observe(&one.shard).await, Ok(Observation::Free)));
        for page in &pages {
            assert_eq!(other.read(&one.shard, page).await, Ok(None), "{page:?}");
        }
        assert!(other.list("forgotten").await.unwrap().iter().all(|(shard, _)| *shard != one.shard));
        assert_eq!(store.renew(&one, last, 2).await, Ok(Renewal::Lost(None)));
        assert_eq!(store.forget(&one, last).await, Ok(Release::NotHeld));
    }
    let grant = granted(&*other, &candidate("forgotten", "two")).await;
    assert!(grant.term > last && grant.start_after.is_none(), "{grant:?} after {last}");
    for (shard, term) in kept {
        assert_eq!(other.inspect(&shard).await.unwrap().last_term, Some(term), "{shard}");
        for page in &pages {
            assert_eq!(other.read(&shard, page).await.unwrap().map(|note| note.text).as_deref(), Some("note"));
        }
    }
}

async fn a_lease_that_is_not_renewed_expires_and_not_before(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    if !store.expires() {
        return a_lease_ends_when_its_holder_is_gone(bench).await;
    }
    let (one, term, sent) = in_time("expired", async |shard| {
        let (one, begun) = (short(shard, "one"), Instant::now());
        let term = granted(&*store, &one).await.term;
        let sent = Instant::now();
        let renewal = store.renew(&one, term, 1).await;
        if begun.elapsed() >= LEAST {
            return None;
        }
        assert_eq!(renewal, Ok(Renewal::Renewed));
        Some((one, term, sent))
    })
    .await;
    let two = candidate(one.shard.as_str(), "two");
    let next = granted_in_time(&*other, &two).await;
    assert!(sent.elapsed() >= LEAST, "given away after {:?}", sent.elapsed());
    assert!(next.term > term && next.start_after.is_none() && next.takeover == Takeover::Expired, "{next:?}");
    // The old holder's late writes change nothing.
    let Ok(Renewal::Lost(Some(holder))) = store.renew(&one, term, 2).await else { panic!("the old holder renewed") };
    assert_eq!(holder.session, Some(two.session.clone()));
    assert_eq!(store.release(&one, term).await, Ok(Release::NotHeld));
    assert_eq!(other.renew(&two, next.term, 1).await, Ok(Renewal::Renewed));
}

async fn a_lease_ends_when_its_holder_is_gone(bench: &Bench) {
    let (one, two) = (candidate("expired", "one"), candidate("expired", "two"));
    let store = bench.store();
    let term = granted(&*store, &one).await.term;
    drop(store);
    let next = granted(&*bench.store(), &two).await;
    assert!(next.term > term && next.takeover == Takeover::Expired, "{next:?}");
}

async fn a_claim_whose_answer_was_lost_is_granted_when_it_is_made_again(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let (one, two) = (candidate("lost/claim", "one"), candidate("lost/claim", "two"));
    let unheard = granted(&*store, &one).await;
    let grant = granted(&*store, &one).await;
    // It may have been heard after all, and COMMAND have run under it: to the store that is the same.
    assert!(grant.term > unheard.term, "{grant:?} after {unheard:?}");
    assert!(matches!(other.claim(&two).await, Ok(Claim::Refused(_))));
    assert_eq!(store.renew(&one, grant.term, 1).await, Ok(Renewal::Renewed));
    // Who leaves in doubt knows no term.
    let _unheard = granted(&*store, &one).await;
    assert_eq!(store.release(&one, Term(0)).await, Ok(Release::Released));
    granted(&*other, &two).await;
}

async fn a_renewal_whose_answer_was_lost_is_granted_when_it_is_made_again(bench: &Bench) {
    let store = bench.store();
    let one = candidate("lost/renewal", "one");
    let term = granted(&*store, &one).await.term;
    let _unheard = store.renew(&one, term, 1).await;
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
}

async fn of_eight_candidates_one_wins_every_race(bench: &Bench) {
    let stores: Vec<_> = (0..8).map(|_| bench.store()).collect();
    one_wins_every_race(&stores, "raced", 5).await;
}

async fn a_list_tells_of_each_shard_what_a_look_at_it_tells(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let names = ["list/one", "list/two", "list_three", "listed"];
    let candidates = names.map(|name| candidate(name, "one"));
    assert_eq!(other.list("list").await, Ok(Vec::new()));
    let mut terms = Vec::new();
    for candidate in &candidates {
        terms.push(granted(&*store, candidate).await.term);
    }
    assert_eq!(store.release(&candidates[1], terms[1]).await, Ok(Release::Released));

    let list = other.list("").await.unwrap();
    assert!(list.is_sorted_by(|(one, _), (next, _)| one < next), "{list:?}");
    for candidate in &candidates {
        let (_, listed) = list.iter().find(|(shard, _)| *shard == candidate.shard).expect("it is listed");
        assert_eq!(timeless(listed.clone()), timeless(other.inspect(&candidate.shard).await.unwrap()));
    }
    let report = |name: &str| &list.iter().find(|(shard, _)| shard.as_str() == name).unwrap().1;
    let holder = report("list/one").holder.as_ref().expect("one holds it");
    assert_eq!((holder.session.as_ref(), holder.term), (Some(&candidates[0].session), Some(terms[0])));
    assert_eq!(holder.expires_in.is_some_and(|left| left > LEASE * 50), store.expires());
    assert_eq!((&report("list/two").holder, report("list/two").last_term), (&None, Some(terms[1])));

    for (prefix, found) in [
        ("list/", &["list/one", "list/two"][..]),
        ("list/t", &["list/two"]),
        ("listed", &["listed"]),
        // What stands for any letter elsewhere stands for itself.
        ("list_", &["list_three"]),
        ("lis_", &[]),
        ("list%", &[]),
        ("list*", &[]),
        ("list?", &[]),
        ("[l]ist", &[]),
        ("list\\", &[]),
        ("listed/", &[]),
        ("LIST", &[]),
    ] {
        let list = other.list(prefix).await.unwrap();
        assert_eq!(list.iter().map(|(shard, _)| shard.as_str()).collect::<Vec<_>>(), found, "{prefix}");
    }
}

/// Without what goes on between two looks.
fn timeless(report: Report) -> Report {
    let holder = report.holder.map(|holder| Holder { expires_in: None, renewed_ago: None, ..holder });
    Report { holder, ..report }
}

/// More than any store answers with at once.
const CROWD: usize = 260;

async fn a_list_of_hundreds_of_shards_has_each_once(bench: &Bench) {
    let stores: Vec<_> = (0..4).map(|_| bench.store()).collect();
    let names: Vec<_> = (0..CROWD).map(|number| format!("crowd/{number:03}")).collect();
    let mut claims = tokio::task::JoinSet::new();
    for (index, store) in stores.iter().enumerate() {
        let (store, mine) = (Arc::clone(store), names.iter().skip(index).step_by(4).cloned().collect::<Vec<_>>());
        claims.spawn(async move {
            for name in mine {
                granted(&*store, &candidate(&name, "one")).await;
            }
        });
    }
    claims.join_all().await;
    granted(&*stores[0], &candidate("crowe", "one")).await;
    let list = bench.store().list("crowd/").await.unwrap();
    assert_eq!(list.iter().map(|(shard, _)| shard.as_str()).collect::<Vec<_>>(), names);
    assert!(list.iter().all(|(_, report)| report.holder.is_some() && report.last_term.is_some()));
}

/// Written by nobody else.
async fn write(store: &dyn Store, shard: &str, page: &Page, draft: &Note) {
    let written = store.replace(&shard.parse().unwrap(), page, None, Some(draft)).await;
    assert_eq!(written, Ok(true), "{shard} {page:?}");
}

async fn text(store: &dyn Store, shard: &str, page: &Page) -> Option<String> {
    store.read(&shard.parse().unwrap(), page).await.expect("the store answers").map(|note| note.text)
}

fn standby() -> Page {
    Page::Standby(Session::random().unwrap())
}

/// One of each kind, and of jobs those whose names are hard to keep apart.
fn pages() -> Vec<Page> {
    let jobs = ["a", "A", "a.b", "a-b_1", "...", &"x".repeat(100)].map(|job| Page::Once(job.parse().unwrap()));
    [Page::Orders, Page::History, standby(), Page::Runs, Page::Jobs].into_iter().chain(jobs).collect()
}

async fn a_note_is_read_by_others_as_it_was_written(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let longest = "é".repeat(notes::LONGEST / 2);
    let shards = ["noted", "noted/a", "noted:b", "NOTED"];
    for (number, shard) in shards.into_iter().enumerate() {
        for page in pages() {
            assert_eq!(text(&*other, shard, &page).await, None);
            let longest = (number == 0).then(|| longest.clone());
            let wanted = format!("{{\"{number}\": \"\u{7}\\\"'\n%*?${{}} {page:?}\"}}");
            for wanted in [wanted].into_iter().chain(longest) {
                let before = text(&*store, shard, &page).await;
                let (name, draft) = (shard.parse().unwrap(), Note::for_ever(wanted.clone()));
                let written = store.replace(&name, &page, before.as_deref(), Some(&draft)).await;
                assert_eq!(written, Ok(true));
                assert_eq!(other.read(&name, &page).await, Ok(Some(Note::for_ever(wanted))));
            }
        }
    }
}

async fn many_notes_are_read_at_once_as_each_is_by_itself(bench: &Bench) {
    let (store, other, pages) = (bench.store(), bench.store(), pages());
    let shards = ["much", "MUCH"].map(str::to_owned).into_iter().chain((0..10).map(|number| format!("much/{number}")));
    let wanted: Vec<(Shard, Page)> = shards
        .flat_map(|shard| pages.iter().map(move |page| (shard.parse().expect("a shard"), page.clone())))
        .collect();
    let mut expected = vec![None; wanted.len()];
    for (number, ((shard, page), expected)) in wanted.iter().zip(&mut expected).enumerate().step_by(7) {
        let lasts = (number % 2 == 0).then_some(Duration::from_mins(10));
        write(&*store, shard.as_str(), page, &Note::lasting(number.to_string(), lasts)).await;
        *expected = Some((number.to_string(), lasts.is_some()));
    }
    // They are many, and a busy machine may not have read them all in time.
    let mut read = Vec::new();
    eventually("the store answers in time", async || {
        let notes = other.read_notes(&wanted).await.and_then(|notes| notes.into_iter().collect::<Result<Vec<_>, _>>());
        match notes {
            Err(StoreError { kind: ErrorKind::Unknown, .. }) => return false,
            notes => read = notes.unwrap(),
        }
        true
    })
    .await;
    let read = read.into_iter().map(|note| note.map(|note| (note.text, note.lasts.is_some())));
    assert_eq!(read.collect::<Vec<_>>(), expected);
}

async fn a_note_vanishes_after_its_time_and_not_before(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let shard: Shard = "vanishing".parse().unwrap();
    let lasting = |text: &str, lasts| Note::lasting(text.to_owned(), Some(lasts));
    write(&*store, "vanishing", &Page::History, &lasting("later", LEASE * 60)).await;
    let left = other.read(&shard, &Page::History).await.unwrap().expect("it stands").lasts.expect("not for ever");
    assert!(left > LEASE * 50 && left < LEASE * 61, "{left:?}");
    let pages = [Page::Orders, standby()];
    let mut left = Vec::new();
    for page in &pages {
        let sent = Instant::now();
        write(&*store, "vanishing", page, &lasting("soon", LEASE)).await;
        left.push((page, sent));
    }
    while !left.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
        for (page, sent) in std::mem::take(&mut left) {
            if text(&*other, "vanishing", page).await.is_some() {
                assert!(sent.elapsed() < PATIENCE, "it never vanishes");
                left.push((page, sent));
            } else {
                assert!(sent.elapsed() >= LEAST, "vanished after {:?}", sent.elapsed());
            }
        }
    }
    for page in &pages {
        assert_eq!(other.replace(&shard, page, Some("soon"), None).await, Ok(false));
        assert_eq!(other.replace(&shard, page, None, None).await, Ok(true));
        // What has vanished is not in the way.
        write(&*other, "vanishing", page, &lasting("again", LEASE * 60)).await;
        for other in [None, Some("agai"), Some("soon")] {
            assert_eq!(store.replace(&shard, page, other, Some(&Note::for_ever("ever"))).await, Ok(false), "{other:?}");
            assert_eq!(store.replace(&shard, page, other, None).await, Ok(false), "{other:?}");
        }
        // A new time begins, or none.
        assert_eq!(store.replace(&shard, page, Some("again"), Some(&Note::for_ever("ever"))).await, Ok(true));
        assert_eq!(other.read(&shard, page).await, Ok(Some(Note::for_ever("ever"))));
    }
}

async fn standbys_are_found_by_the_beginning_of_their_shard(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    assert_eq!(other.standbys("").await, Ok(Vec::new()));
    for (shard, text) in [("wait/a", "1"), ("wait/a", "2"), ("wait/a/b", "3"), ("wait", "4"), ("wait_b", "5")] {
        write(&*store, shard, &standby(), &Note::for_ever(text)).await;
        write(&*store, shard, &standby(), &Note::lasting(format!("x{text}"), Some(LEASE))).await;
    }
    for page in pages().into_iter().filter(|page| !matches!(page, Page::Standby(_))) {
        write(&*store, "wait/a", &page, &Note::for_ever("no standby")).await;
    }
    granted(&*store, &candidate("wait/a", "one")).await;
    eventually("the others are gone", async || other.standbys("").await.unwrap().len() <= 5).await;
    for (prefix, wanted) in [
        ("", &["wait 4", "wait/a 1", "wait/a 2", "wait/a/b 3", "wait_b 5"][..]),
        ("wait/", &["wait/a 1", "wait/a 2", "wait/a/b 3"]),
        ("wait/a/", &["wait/a/b 3"]),
        ("wait_", &["wait_b 5"]),
        ("wai_", &[]),
        ("WAIT", &[]),
        ("wait%", &[]),
        ("wait*", &[]),
    ] {
        let mut found: Vec<_> = other
            .standbys(prefix)
            .await
            .unwrap()
            .iter()
            .map(|(shard, note)| format!("{shard} {}", note.text))
            .collect();
        found.sort();
        assert_eq!(found, wanted, "{prefix}");
    }
    // Notes are no leases.
    let list = other.list("wait").await.unwrap();
    assert_eq!(list.iter().map(|(shard, _)| shard.as_str()).collect::<Vec<_>>(), ["wait/a"]);
}

/// The orders that come with the answer to a renewal, or else what a request for them shows.
async fn with_renewal(store: &dyn Store, one: &Candidate, term: Term, sequence: u64, of: &[&str]) -> Vec<Option<Note>> {
    let shards: Vec<Shard> = of.iter().map(|name| name.parse().unwrap()).collect();
    let renewed = store.renew_and_read(one, term, sequence, &shards).await.expect("the store answers");
    assert_eq!(renewed.renewal, Renewal::Renewed);
    if let Some(orders) = renewed.orders {
        return orders;
    }
    let mut orders = Vec::new();
    for shard in &shards {
        orders.push(store.read(shard, &Page::Orders).await.expect("the store answers"));
    }
    orders
}

async fn an_order_is_heard_with_the_next_renewal_and_so_is_its_end(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    let one = candidate("ordered/1", "one");
    let term = granted(&*store, &one).await.term;
    let mut sequence = 0;
    let mut heard = async |of: &[&str]| {
        sequence += 1;
        with_renewal(&*store, &one, term, sequence, of).await
    };
    let (own, both) = (["ordered/1"], ["ordered", "ordered/1"]);
    let replace = async |shard: &str, expected, draft| {
        assert_eq!(other.replace(&shard.parse().unwrap(), &Page::Orders, expected, draft).await, Ok(true));
    };
    let (of_all, a_while) = (Note::for_ever("of all"), Note::lasting("for a while".to_owned(), Some(LEASE * 60)));
    let ever = Note::for_ever("not even orders: \"\u{e9}\n");
    for _ in 0..3 {
        assert_eq!(heard(&own).await, [None]);
        replace("ordered/1", None, Some(&ever)).await;
        assert_eq!(heard(&own).await, [Some(ever.clone())]);
        assert_eq!(heard(&own).await, [Some(ever.clone())]);
        assert_eq!(heard(&both).await, [None, Some(ever.clone())]);
        replace("ordered", None, Some(&of_all)).await;
        assert_eq!(heard(&both).await, [Some(of_all.clone()), Some(ever.clone())]);
        replace("ordered/1", Some(&ever.text), Some(&a_while)).await;
        let [_, Some(left)] = &heard(&both).await[..] else { panic!("it is not heard") };
        assert_eq!(left.text, "for a while");
        assert!(left.lasts.is_some_and(|lasts| lasts > LEASE * 50 && lasts < LEASE * 61), "{left:?}");
        replace("ordered/1", Some("for a while"), None).await;
        assert_eq!(heard(&both).await, [Some(of_all.clone()), None]);
        replace("ordered", Some("of all"), None).await;
        assert_eq!(heard(&both).await, [None, None]);
    }
    assert_eq!(heard(&[]).await, []);
}

/// One on local files ends with its holder alone.
#[tokio::test]
async fn a_lease_that_never_ends_by_itself_cannot_be_revoked() {
    let (bench, _scratch) = file_bench().await;
    let (store, other, one) = (bench.store(), bench.store(), candidate("revoked", "one"));
    assert_eq!(other.revoke(&one.shard, Term(1)).await, Ok(Release::NotHeld));
    let term = granted(&*store, &one).await.term;
    let error = other.revoke(&one.shard, term).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Misconfigured, "{error}");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

/// A standby that hears nothing looks again when the lease that it saw would end, which is long after this.
async fn a_release_is_heard_by_a_standby_that_waits_and_nothing_else_is(bench: &Bench) {
    let (store, other) = (bench.store(), bench.store());
    if store.delivery() == Delivery::Poll {
        return;
    }
    let (one, another) = (candidate("heard/one", "one"), candidate("heard/another", "one"));
    let (term, other_term) = (granted(&*store, &one).await.term, granted(&*store, &another).await.term);
    assert!(matches!(other.claim(&candidate("heard/one", "two")).await, Ok(Claim::Refused(_))));
    let mut news = other.changed(&one.shard);
    assert!(tokio::time::timeout(LEASE / 6, &mut news).await.is_err(), "nothing happened");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(store.release(&another, other_term).await, Ok(Release::Released));
    assert!(tokio::time::timeout(LEASE / 6, &mut news).await.is_err(), "nothing happened to this lease but a renewal");
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    tokio::time::timeout(LEASE * 5, news).await.expect("it is heard long before the lease ends").unwrap();
    // One that came before the standby waits is not missed.
    let early = candidate("heard/early", "one");
    let term = granted(&*store, &early).await.term;
    assert!(matches!(other.claim(&candidate("heard/early", "two")).await, Ok(Claim::Refused(_))));
    assert_eq!(store.release(&early, term).await, Ok(Release::Released));
    tokio::time::timeout(LEASE * 5, other.changed(&early.shard)).await.expect("it looks").unwrap();
}

/// The suite, a test for each case and store.
macro_rules! suite {
    ($store:ident, $bench:expr, [$($(#[$ignored:meta])? $case:ident),* $(,)?]) => {
        mod $store {
            use super::*;
            $(
                #[tokio::test]
                $(#[$ignored])?
                async fn $case() {
                    let (bench, _world) = $bench.await;
                    super::$case(&bench).await;
                }
            )*
        }
    };
}

macro_rules! remote_suite {
    // These start for long, and only their tables or namespaces have to be apart.
    (postgres, $start:expr, $cases:tt) => {
        suite!(postgres, remote_bench(support::postgres::table), $cases);
    };
    (mysql, $start:expr, $cases:tt) => {
        suite!(mysql, remote_bench(support::mysql::table), $cases);
    };
    (kubernetes, $start:expr, $cases:tt) => {
        suite!(kubernetes, remote_bench(support::kubernetes::Server::shared), $cases);
    };
    ($store:ident, $start:expr, $cases:tt) => {
        suite!($store, remote_bench(|| $start), $cases);
    };
}

/// Servers of other makers for a store that has one above.
macro_rules! other_servers {
    ($($case:ident),*) => {
        #[cfg(feature = "bucket")]
        suite!(seaweedfs, remote_bench(support::objects::Server::seaweedfs), [$(#[ignore = "slow: tests/run has some"] $case),*]);
        #[cfg(feature = "bucket")]
        suite!(azurite, remote_bench(support::objects::Server::azurite), [$(#[ignore = "needs azurite-blob"] $case),*]);
    };
}

macro_rules! everywhere {
    ($($case:ident),* $(,)?) => {
        suite!(scripted_documents, documents_bench(Style::SCRIPTED), [$($case),*]);
        suite!(compared_documents, documents_bench(Style::COMPARING), [$($case),*]);
        suite!(file, file_bench(), [$($case),*]);
        every_store!(remote_suite: $($case),*);
        other_servers!($($case),*);
    };
}

everywhere!(
    the_first_term_of_a_shard_is_at_least_the_milliseconds_since_1970,
    a_claim_of_what_is_held_is_refused_with_its_holder,
    a_renewal_keeps_the_lease_beyond_its_first_end,
    a_stranger_can_neither_renew_nor_release,
    a_release_frees_the_lease_at_once,
    a_shard_that_is_forgotten_is_as_one_that_was_never_led_but_for_its_terms,
    a_release_is_heard_by_a_standby_that_waits_and_nothing_else_is,
    a_lease_that_is_not_renewed_expires_and_not_before,
    a_claim_whose_answer_was_lost_is_granted_when_it_is_made_again,
    a_renewal_whose_answer_was_lost_is_granted_when_it_is_made_again,
    of_eight_candidates_one_wins_every_race,
    a_list_tells_of_each_shard_what_a_look_at_it_tells,
    a_list_of_hundreds_of_shards_has_each_once,
    a_note_is_read_by_others_as_it_was_written,
    many_notes_are_read_at_once_as_each_is_by_itself,
    a_note_vanishes_after_its_time_and_not_before,
    standbys_are_found_by_the_beginning_of_their_shard,
    an_order_is_heard_with_the_next_renewal_and_so_is_its_end,
);

async fn documents_bench(style: Style) -> (Bench, ()) {
    let server = Arc::new(Server::new(style, leaderrun::internals::time::wall_clock_millis));
    let open = |_| Arc::new(LeaseStore::new(Memory::new(Arc::clone(&server), Direct))) as Arc<dyn Store>;
    let stores: Vec<_> = (0..8).map(open).collect();
    stores[0].prepare().await.unwrap();
    stores[0].vouch().await.unwrap();
    (Bench::of(stores), ())
}

fn file_bench() -> Ready<(Bench, tempfile::TempDir)> {
    let scratch = tempfile::TempDir::new().unwrap();
    let directory = scratch.path().join("leases");
    let open = |_| Arc::new(leaderrun::internals::store::file::FileStore::open(&directory).unwrap()) as Arc<dyn Store>;
    ready((Bench::of((0..8).map(open)), scratch))
}

async fn remote_bench<S>(start: impl FnOnce() -> S + Send + 'static) -> (Bench, S)
where
    S: support::server::Server + Send + 'static,
{
    // A server may be prepared by somebody who waits, which nobody may do in here.
    let started = tokio::task::spawn_blocking(|| {
        let mut server = start();
        support::server::prepare(&server);
        server.grow_old();
        server
    });
    let server = started.await.expect("the server starts");
    let location = leaderrun::internals::store::Location::from_url(&server.own_url()).unwrap();
    let mut stores: Vec<Arc<dyn Store>> = Vec::new();
    for _ in 0..8 {
        // A list of hundreds is one request, and a busy machine takes many seconds for it.
        stores.push(location.open(Duration::from_mins(1)).await.unwrap());
    }
    let (before, open) = (&location, &stores[0]);
    assert_eq!(
        (before.delivery(), before.is_metered()),
        (open.delivery(), open.is_metered()),
        "Location::traits and Documents::properties disagree about delivery or is_metered"
    );
    // The server may have forgotten a lease, as far as anybody knows, until it has run for one.
    let settling = short("settling", "nobody");
    let begun = Instant::now();
    loop {
        let claim = stores[0].claim(&settling).await.expect("the store answers");
        if let Claim::Granted(grant) = &claim {
            stores[0].release(&settling, grant.term).await.expect("the store answers");
        }
        if matches!(claim, Claim::Granted(Grant { start_after: None, .. })) {
            break;
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "the marker never grows old (Server::grow_old, Documents::clock): {claim:?}"
        );
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    (Bench::of(stores), server)
}
