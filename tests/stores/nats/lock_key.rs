//! `key=BUCKET/KEY`: we and programs that keep a leader record in a bucket exclude each other.

use super::*;
use crate::support::mixed::{self, Mixed};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

const ELECTIONS: &str = "elections";
const LEADER: &str = "svc/leader";
/// Without a slash, which would follow the name of a bucket.
const LEADER_HERE: &str = "svc-leader";
const NAME: &str = "the key svc/leader of bucket elections";

/// A server with our bucket, and one that forgets what is so old.
async fn shared(ttl: Duration) -> Server {
    let server = server().await;
    make_bucket(&server, &json!({ "max_age": u64::try_from(ttl.as_nanos()).unwrap() }));
    server
}

fn make_bucket(server: &Server, settings: &Value) {
    let mut all = json!({ "allow_rollup_hdrs": true, "duplicate_window": 1_000_000_000_u64 });
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    make(server, ELECTIONS, &all);
}

fn url(server: &Server) -> String {
    format!("{}?lock_key={ELECTIONS}/{LEADER}", server.own_url())
}

async fn sharing(server: &Server) -> Arc<dyn Store> {
    open(&url(server)).await
}

/// The revision of what holds the key. The mark of a deletion has no content.
fn held(server: &Server) -> Option<u64> {
    let message = server.client_of(ELECTIONS).message(LEADER)?;
    message["data"].as_str().filter(|data| !data.is_empty())?;
    message["seq"].as_u64()
}

/// Another program creates the key, as it would: also over the mark of a deletion.
fn take(server: &Server, value: &str) -> bool {
    let client = server.client_of(ELECTIONS);
    let revision = client.message(LEADER).filter(|_| held(server).is_none()).map(|message| message["seq"].clone());
    let expected = revision.unwrap_or(json!(0));
    let headers = format!("Nats-Expected-Last-Subject-Sequence: {expected}\r\n");
    client.try_put(LEADER, &headers, value)["error"].is_null()
}

fn delete(server: &Server) {
    server.client_of(ELECTIONS).delete(LEADER);
}

const LONG: Duration = Duration::from_mins(1);

#[tokio::test]
async fn while_another_program_holds_the_key_nobody_of_us_leads_and_it_is_named() {
    let server = shared(LONG).await;
    let store = sharing(&server).await;
    let one = candidate("one");
    assert!(take(&server, r#"{"leader":"backend-7","host":"h7"}"#));
    let holder = refused(store.claim(&one).await.unwrap());
    assert_eq!((holder.owner.as_str(), holder.named()), ("backend-7", format!("backend-7 (holds {NAME})")));
    assert_eq!((holder.session.as_ref(), holder.host.as_deref()), (None, Some("h7")));
    assert!(holder.expires_in.is_some_and(|left| left > Duration::from_secs(30) && left <= LONG), "{holder:?}");
    let Ok(Observation::Held(seen)) = store.observe(&one.shard).await else { panic!("it is held") };
    assert_eq!(seen.owner, holder.owner);
    assert_eq!(store.inspect(&one.shard).await.unwrap().holder.map(|holder| holder.owner), Some(holder.owner));
    assert_eq!(store.list("").await.unwrap(), [], "no name is known for it");

    delete(&server);
    lead(&*store, &one).await;
    assert!(!take(&server, "backend-8"));
}

#[tokio::test]
async fn a_leader_holds_the_key_until_it_releases_and_every_renewal_prolongs_it() {
    let server = shared(LONG).await;
    let store = sharing(&server).await;
    let (one, term) = one_leads(&*store).await;
    let mut before = held(&server).expect("it is held");
    for sequence in 1..4 {
        assert!(!take(&server, "backend-7"));
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        let now = held(&server).expect("it is held");
        assert!(now > before, "it was written again");
        before = now;
    }
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert_eq!(held(&server), None);
    assert!(take(&server, "backend-7"));
    assert_eq!(store.release(&one, Term(0)).await, Ok(Release::NotHeld));
    assert!(held(&server).is_some(), "a release of another's is not ours");
}

#[tokio::test]
async fn a_key_that_was_deleted_ends_the_leadership_and_is_held_until_the_tree_is_dead() {
    let server = shared(LONG).await;
    let (store, other) = (sharing(&server).await, sharing(&server).await);
    let (one, term) = one_leads(&*store).await;
    delete(&server);
    // Again, as after an answer that did not arrive.
    for sequence in 1..4 {
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Lost(None)));
        assert!(!take(&server, "backend-7"), "the tree lives on");
    }
    refused(other.claim(&candidate("two")).await.unwrap());
    store.release(&one, term).await.unwrap();
    assert_eq!(held(&server), None, "it is dead");
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Lost(None)));
    assert_eq!(held(&server), None, "a late renewal takes nothing");
}

#[tokio::test]
async fn a_key_that_changes_faster_than_it_can_be_given_back_is_not_called_given_back() {
    let server = shared(LONG).await;
    let store = sharing(&server).await;
    let (one, term) = one_leads(&*store).await;
    let told = Arc::new(AtomicBool::new(false));
    let writers = [(); 4].map(|()| {
        let (client, told) = (server.client_of(ELECTIONS), Arc::clone(&told));
        let record = json!({ "session": one.session }).to_string();
        std::thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                client.try_put(LEADER, "", &record);
            }
        })
    });
    // Sometimes nobody writes in between.
    eventually("it is told", async || {
        let error = store.release(&one, term).await.err();
        error.is_some_and(|error| error.message.contains("changes faster than it can be written"))
    })
    .await;
    told.store(true, Ordering::Relaxed);
    for writer in writers {
        writer.join().unwrap();
    }
}

#[tokio::test]
async fn a_bucket_that_forgets_too_soon_or_never_is_refused() {
    let server = server().await;
    let claim = async |server: &Server| sharing(server).await.claim(&short("one")).await.unwrap_err();
    let error = claim(&server).await;
    assert!(error.message.contains("no bucket elections") && error.message.contains("must create it"), "{error}");
    for (config, part) in [
        (
            json!({ "max_age": 1_400_000_000_u64 }),
            "after 1s 400ms, sooner than the lease ends in the store, after 1s 500ms",
        ),
        (json!({ "max_age": 0 }), "forgets nothing, so the key svc/leader of bucket elections would never be free"),
    ] {
        make_bucket(&server, &config);
        misconfigured(Err::<(), _>(claim(&server).await), part);
        assert_eq!(held(&server), None);
        // Also while another program holds the key, or a standby would hear of it when it is to take over.
        assert!(take(&server, "other"));
        misconfigured(Err::<(), _>(claim(&server).await), part);
        server.client().api(&format!("STREAM.DELETE.KV_{ELECTIONS}"), &Value::Null);
    }
    assert!(nobody_leads(&server));
    // Our own records must not be where everything is forgotten.
    make_bucket(&server, &json!({ "max_age": 60_000_000_000_u64 }));
    let both = server.own_url().replace(BUCKET, ELECTIONS) + "?lock_key=leader";
    let error = open(&both).await.claim(&short("one")).await.unwrap_err();
    assert!(error.message.ends_with("or name another bucket than that of lock_key="), "{error}");
}

#[tokio::test]
async fn a_user_who_may_not_use_the_key_is_denied_and_a_check_names_it() {
    let deny = format!(r#"publish: {{ deny: "$KV.{ELECTIONS}.>" }}"#);
    let lines = format!(
        "jetstream: enabled\nauthorization {{ users: [ {{ user: admin, password: pw }}, {{ user: app, password: pw, \
         permissions: {{ {deny} }} }} ] }}"
    );
    let mut server = Server::configured(&lines, r#"{"user":"admin","pass":"pw"}"#);
    server.login = "app:pw@".to_owned();
    ready(&server.own_url()).await;
    make_bucket(&server, &json!({ "max_age": 60_000_000_000_u64 }));
    let store = sharing(&server).await;
    denied(store.claim(&short("one")).await, "$KV.elections.svc/leader");
    assert!(nobody_leads(&server), "nothing is held without the key");
    let findings = store.check().await.unwrap();
    let named = format!("permission missing: read and write {NAME}: ");
    assert!(texts(&findings, Verdict::Bad)[0].starts_with(&named), "{findings:?}");
}

/// Of our records and the key, where each message says when it is forgotten.
async fn both_in_one_bucket() -> (Server, Arc<dyn Store>) {
    let server = Server::start();
    make_bucket(&server, &json!({ "allow_msg_ttl": true }));
    let both = server.own_url().replace(BUCKET, ELECTIONS) + "?lock_key=" + LEADER_HERE;
    let store = open(&both).await;
    ready(&both).await;
    (server, store)
}

#[tokio::test]
async fn where_messages_say_when_they_are_forgotten_one_bucket_is_enough() {
    let (server, store) = both_in_one_bucket().await;
    let one = with_lease("one", Duration::from_secs(5));
    let client = server.client_of(ELECTIONS);
    let write = |headers: &str| client.try_put(LEADER_HERE, headers, "backend-7");
    assert!(write("")["error"].is_null());
    misconfigured(store.claim(&one).await, "without a TTL");
    assert!(write("Nats-TTL: 5s\r\n")["error"].is_null());
    let holder = refused(store.claim(&one).await.unwrap());
    assert!(holder.expires_in.is_some_and(|left| left <= Duration::from_secs(5)), "{holder:?}");
    let term = granted_in_time(&*store, &one).await.term;
    assert!(write("Nats-Expected-Last-Subject-Sequence: 0\r\n")["error"]["err_code"].is_number());
    let shown = store.list("").await.unwrap();
    assert_eq!(shown.iter().map(|(shard, _)| shard.as_str()).collect::<Vec<_>>(), ["db/main"]);
    let mut renewed = Instant::now();
    for sequence in 1..6 {
        sleep(Duration::from_millis(1200)).await;
        renewed = Instant::now();
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    // As if the process had died: the key ends by itself, and our records stay.
    eventually("it ends", async || {
        write("Nats-Expected-Last-Subject-Sequence: 0\r\nNats-TTL: 1s\r\n")["error"].is_null()
    })
    .await;
    // The server counts in whole seconds.
    let most = renewed.elapsed();
    assert!(most > one.lease - Duration::from_secs(1), "{most:?}");
    assert!(store.inspect(&one.shard).await.unwrap().last_term.is_some());
}

#[tokio::test]
async fn a_leader_whose_key_another_program_has_taken_for_ever_has_lost_it() {
    let (server, store) = both_in_one_bucket().await;
    let (one, term) = one_leads(&*store).await;
    assert!(server.client_of(ELECTIONS).try_put(LEADER_HERE, "", "backend-7")["error"].is_null());
    let renewal = store.renew(&one, term, 1).await;
    assert!(matches!(&renewal, Ok(Renewal::Lost(Some(holder))) if holder.owner == "backend-7"), "{renewal:?}");
}

/// Stopped, killed and frozen.
#[tokio::test]
async fn a_program_that_judges_the_expiry_in_the_record_waits_until_our_tree_is_dead() {
    let server = shared(mixed::TTL).await;
    let contender = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/contender.py");
    let (port, ttl) = (server.address().port().to_string(), mixed::TTL.as_millis().to_string());
    let words = ["python3", contender, "snake", &port, ELECTIONS, LEADER, &ttl].map(str::to_owned).to_vec();
    Mixed::new(url(&server), words).ends_in_each_way();
}

#[tokio::test]
async fn the_record_in_the_key_says_what_other_programs_read_and_each_renewal_says_it_again() {
    let server = shared(LONG).await;
    let store = sharing(&server).await;
    let one = candidate("one");
    let record = || server.client_of(ELECTIONS).record(LEADER).expect("a record is JSON");
    let time = |record: &Value, name: &str| humantime::parse_rfc3339(record[name].as_str().unwrap()).unwrap();
    let term = lead(&*store, &one).await;
    let first = record();
    let claimed = SystemTime::now();
    let left = time(&first, "expires_at").duration_since(claimed).unwrap();
    assert!(left > LONG && left <= LONG + one.lease, "{left:?}");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let second = record();
    assert!(time(&second, "expires_at") > time(&first, "expires_at"));
    for (names, value) in [
        (["leader_id", "leaderId", "LeaderID"], json!("one")),
        (["term", "term", "Term"], json!(term.0)),
        (["started_at", "startedAt", "StartedAt"], first["started_at"].clone()),
        (["expires_at", "expiresAt", "ExpiresAt"], second["expires_at"].clone()),
    ] {
        assert_eq!(names.map(|name| second[name].clone()), [value.clone(), value.clone(), value]);
    }
    store.release(&one, term).await.unwrap();
    // The next leadership is known by its predecessor's term.
    let term = lead(&*store, &one).await;
    assert_eq!(record()["term"], json!(term.0));
}
