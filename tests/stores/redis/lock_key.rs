//! `lock_key=`: we and programs that take `SET KEY id NX PX ttl` exclude each other.

use super::*;
use crate::support::gate::{Fate, Gate};
use crate::support::mixed::{self, Mixed};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::time::timeout;

const KEY: &str = "maplefile:leader:lock";
const INFO: &str = "maplefile:leader:info";

fn url(server: &Server) -> String {
    format!("{}?lock_key={KEY}", server.own_url())
}

fn sharing(server: &Server) -> LeaseStore {
    open(&url(server)).expect("the address is right")
}

fn take(server: &Server, id: &str, millis: &str) -> bool {
    server.cli(&["SET", KEY, id, "NX", "PX", millis]) == "OK"
}

/// A server, a way to it that misbehaves, and one who leads by a store that takes this way.
async fn led_through_a_gate() -> (Server, Gate, LeaseStore, Candidate, Term) {
    let server = old_server();
    let way = Gate::to(server.address());
    let url = url(&server).replace(&server.address().to_string(), &way.address.to_string());
    let store = open_with(&url, Duration::from_secs(4)).unwrap();
    let (one, term) = one_leads(&store).await;
    (server, way, store, one, term)
}

async fn arrive(server: &Server, way: &Gate) {
    let before = server.scripts_run();
    way.let_go();
    eventually("it has arrived", async || server.scripts_run() != before).await;
}

fn millis_left(server: &Server, key: &str) -> u64 {
    server.cli(&["PTTL", key]).parse().expect("it expires")
}

#[tokio::test]
async fn while_another_program_holds_the_key_nobody_of_us_leads_and_it_is_named() {
    let server = old_server();
    let store = sharing(&server);
    let one = candidate("one");
    assert!(take(&server, "backend-7", "60000"));
    // An earlier holder left it.
    server.cli(&["SET", INFO, r#"{"instance_id":"backend-6","hostname":"h6"}"#]);
    let holder = refused(store.claim(&one).await.unwrap());
    assert_eq!((holder.owner.as_str(), holder.named()), ("backend-7", format!("backend-7 (holds the key {KEY})")));
    assert_eq!((holder.session.as_ref(), holder.term, holder.host.as_ref()), (None, None, None));
    assert!(holder.expires_in.is_some_and(|left| left > Duration::from_secs(30)), "{holder:?}");
    // As a program in Go writes times.
    let info = r#"{"instance_id":"backend-7","hostname":"h7","started_at":"2026-11-21T14:43:31.25+01:00","last_heartbeat":"2026-11-21T08:13:31.123456789-05:30"}"#;
    server.cli(&["SET", INFO, info, "PX", "60000"]);
    let Ok(Observation::Held(seen)) = store.observe(&one.shard).await else { panic!("it is held") };
    assert_eq!((seen.owner, seen.host.as_deref()), (holder.owner, Some("h7")));
    let report = store.inspect(&one.shard).await.unwrap();
    let holder = report.holder.expect("it is held");
    assert_eq!((holder.host.as_deref(), holder.since_millis), (Some("h7"), Some(1_795_268_611_250)));
    let heartbeat =
        UNIX_EPOCH + holder.renewed_ago.map(|ago| SystemTime::now().duration_since(UNIX_EPOCH).unwrap() - ago).unwrap();
    let said = humantime::parse_rfc3339("2026-11-21T13:43:31Z").unwrap();
    assert!(heartbeat.duration_since(said).is_ok_and(|late| late < Duration::from_secs(10)), "{holder:?}");
    assert_eq!(store.list("").await.unwrap(), [], "no name is known for it");
    assert_eq!(server.cli(&["GET", KEY]), "backend-7");

    let shard = shard();
    let mut news = store.changed(&shard);
    assert!(timeout(Duration::from_secs(1), &mut news).await.is_err(), "it is held");
    server.cli(&["DEL", KEY]);
    timeout(PATIENCE, news).await.expect("it looks now and then").unwrap();
    lead(&store, &one).await;
    assert!(!take(&server, "backend-8", "1000"));
}

#[tokio::test]
async fn a_leader_holds_the_key_until_it_releases_and_every_renewal_prolongs_it() {
    let server = old_server();
    let store = sharing(&server);
    let (one, term) = one_leads(&store).await;
    assert_eq!(server.cli(&["GET", KEY]), format!("{} {term}", one.session.as_str()));
    for sequence in 1..4 {
        assert!(!take(&server, "backend-7", "1000"));
        for key in [KEY, INFO] {
            server.cli(&["PEXPIRE", key, "9000"]);
        }
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        assert!(millis_left(&server, KEY) > 9_000 && millis_left(&server, INFO) > 9_000);
    }
    // What describes the holder ends no leadership.
    server.cli(&["DEL", INFO]);
    server.cli(&["LPUSH", INFO, "a list"]);
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
    let at = |command: &[&str]| server.cli(command).parse::<u64>().expect("milliseconds since 1970");
    assert!(at(&["PEXPIRETIME", KEY]) + 100 >= at(&["HGET", LOCK, "ends"]), "it lasts as long as the lease");
    let info: serde_json::Value = serde_json::from_str(&server.cli(&["GET", INFO])).expect("JSON");
    assert_eq!((info["instance_id"].as_str(), info["hostname"].as_str()), (Some("one"), Some("here")));
    for name in ["started_at", "last_heartbeat"] {
        humantime::parse_rfc3339(info[name].as_str().unwrap()).unwrap();
    }
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert_eq!(server.cli(&["EXISTS", KEY, INFO]), "0");
    assert!(take(&server, "backend-7", "60000"));
    assert_eq!(store.release(&one, term).await, Ok(Release::NotHeld));
    assert_eq!(server.cli(&["GET", KEY]), "backend-7", "a release of another's is not ours");
}

#[tokio::test]
async fn a_key_that_was_deleted_ends_the_leadership_and_is_held_until_the_tree_is_dead() {
    let server = old_server();
    let (store, other) = (sharing(&server), sharing(&server));
    let (one, term) = one_leads(&store).await;
    server.cli(&["DEL", KEY]);
    // Again, as after an answer that did not arrive.
    for sequence in [1, 2, 3] {
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Lost(None)));
        assert!(!take(&server, "backend-7", "1000"), "the tree lives on");
        assert!(millis_left(&server, KEY) > 8_000);
    }
    refused(other.claim(&candidate("two")).await.unwrap());
    store.release(&one, term).await.unwrap();
    assert!(take(&server, "backend-7", "1000"), "it is dead");
    server.cli(&["DEL", KEY]);
    // A key that was lost is held again by a new claim alone.
    let term = lead(&store, &one).await;
    server.cli(&["DEL", KEY]);
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_request_to_give_the_key_back_that_arrives_in_the_next_leadership_changes_nothing() {
    let (server, way, store, one, term) = led_through_a_gate().await;
    way.once("let go", Fate::Hold);
    unknown(store.release(&one, term).await, "did not answer");
    store.release(&one, term).await.unwrap();
    assert_eq!(server.cli(&["EXISTS", KEY]), "0");
    let term = lead(&store, &one).await;
    arrive(&server, &way).await;
    assert!(!take(&server, "backend-7", "1000"), "we lead");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    store.release(&one, term).await.unwrap();
    assert!(take(&server, "backend-7", "1000"));
}

#[tokio::test]
async fn a_renewal_that_arrives_after_the_release_takes_no_key() {
    let (server, way, store, one, term) = led_through_a_gate().await;
    way.once("confirm", Fate::Hold);
    unknown(store.renew(&one, term, 1).await, "did not answer");
    store.release(&one, term).await.unwrap();
    arrive(&server, &way).await;
    assert!(take(&server, "backend-7", "1000"), "nobody leads");
}

#[tokio::test]
async fn a_leader_whose_key_another_program_has_taken_for_ever_has_lost_it() {
    let server = old_server();
    let store = sharing(&server);
    let (one, term) = one_leads(&store).await;
    server.cli(&["SET", KEY, "backend-7"]);
    let renewal = store.renew(&one, term, 1).await;
    let Ok(Renewal::Lost(Some(holder))) = renewal else { panic!("{renewal:?}") };
    assert_eq!((holder.owner.as_str(), holder.expires_in), ("backend-7", None));
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    assert_eq!(server.cli(&["GET", KEY]), "backend-7");
}

#[tokio::test]
async fn whatever_became_of_the_keys_a_release_gives_back_what_is_ours() {
    let server = old_server();
    let store = sharing(&server);
    let one = candidate("one");
    for strange in [KEY, INFO] {
        let term = lead(&store, &one).await;
        server.cli(&["DEL", strange]);
        server.cli(&["RPUSH", strange, "one", "two"]);
        assert_eq!(store.release(&one, term).await, Ok(Release::Released));
        assert_eq!(server.cli(&["LLEN", strange]), "2", "it is not ours");
        server.cli(&["DEL", strange]);
        assert!(take(&server, "backend-7", "1000"));
        server.cli(&["DEL", KEY]);
    }
}

#[tokio::test]
async fn a_key_that_never_expires_or_is_of_another_type_is_reported_and_left_alone() {
    let server = old_server();
    let store = sharing(&server);
    for (key, words, why) in [
        (KEY, &["SET", KEY, "backend-7"][..], "never expires, so nobody could take it"),
        (KEY, &["RPUSH", KEY, "one", "two"], "is not a string"),
        (INFO, &["RPUSH", INFO, "one", "two"], "is not a string"),
    ] {
        server.cli(words);
        if key == INFO {
            assert!(take(&server, "backend-7", "60000"));
        }
        let before = server.cli(&["DUMP", key]);
        let named = format!("the key {key} in redis at 127.0.0.1: … {why}");
        misconfigured(store.claim(&candidate("one")).await, &named);
        misconfigured(store.observe(&shard()).await, &named);
        finds(&store.check().await.unwrap(), Verdict::Bad, why);
        assert_eq!(server.cli(&["DUMP", key]), before);
        assert_eq!(server.cli(&["EXISTS", LOCK]), "0");
        server.cli(&["DEL", key]);
    }
}

#[tokio::test]
async fn a_restart_that_keeps_the_data_disturbs_nobody_and_one_that_forgets_ends_the_leadership() {
    for forgets in [false, true] {
        let mut server = if forgets { Server::forgetful() } else { Server::start() };
        server.age();
        let store = sharing(&server);
        let (one, term) = one_leads(&store).await;
        server.kill();
        server.start_again();
        let renewal = store.renew(&one, term, 1).await;
        assert_eq!(renewal, Ok(if forgets { Renewal::Lost(None) } else { Renewal::Renewed }));
        assert!(!take(&server, "backend-7", "1000"), "the tree is alive, or dies");
    }
}

#[tokio::test]
async fn a_user_who_may_not_use_the_key_is_denied_and_a_check_names_the_key() {
    let server = old_server();
    for (rights, missing) in [("~leaderrun:*", true), ("~leaderrun:* %R~maplefile:*", true), ("~*", false)] {
        let mut words = vec!["ACL", "SETUSER", "app", "reset", "on", ">pw", "+@all", "&*"];
        words.extend(rights.split(' '));
        assert_eq!(server.cli(&words), "OK");
        let store = open(&url(&server).replace("redis://", "redis://app:pw@")).unwrap();
        let findings = store.check().await.unwrap();
        let named = format!("permission missing: read and write the key {KEY}: ");
        assert_eq!(findings.iter().any(|found| found.text.starts_with(&named)), missing, "{rights}: {findings:?}");
        let claim = store.claim(&candidate("one")).await;
        assert_eq!(claim.as_ref().is_err_and(|error| error.kind == ErrorKind::Denied), missing, "{claim:?}");
        assert!(claim.is_ok() || claim.is_err_and(|error| error.message.contains("lock_key=")));
        assert_eq!(session_in(&server).is_empty(), missing, "nothing is held without the key");
    }
}

/// Names for scripts are bare, and no order is promised to a program that reads none.
#[test]
fn a_leader_that_is_another_program_takes_no_orders_and_records_nothing() {
    let server = old_server();
    assert!(take(&server, "backend-7", "60000"));
    let ask = |words: &[&str]| leaderctl().env("LEADERRUN_STORE", url(&server)).args(words).said();
    let state = || ask(&["status", "--json", "shard"]).json();
    let foreign = format!("the key {KEY}");
    assert_eq!((&state()["owner"], &state()["foreign_lock"]), (&"backend-7".into(), &foreign.into()));
    for verb in [&["step-down", "shard"][..], &["revoke", "--term", "7", "shard"], &["pause", "shard"]] {
        ask(verb).ended(75).tells("backend-7 (holds the key … leads and takes no orders");
    }
    assert_eq!(state()["paused"], true, "nobody follows it");
    ask(&["pause", "--force", "--wait=1s", "shard"]).ended(75).tells("takes no orders");
    ask(&["history", "shard"]).tells("backend-7 (holds the key … records nothing");
    server.cli(&["DEL", KEY]);
    ask(&["pause", "--force", "--wait=10s", "shard"]).good();
    assert_eq!((&state()["owner"], &state()["foreign_lock"]), (&serde_json::Value::Null, &serde_json::Value::Null));
}

/// Stopped, killed and frozen.
#[test]
fn a_program_beside_ours_waits_until_our_tree_is_dead_however_it_ends() {
    let server = old_server();
    let contender = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/contender.py");
    let (port, ttl) = (server.port().to_string(), mixed::TTL.as_millis().to_string());
    let words = ["python3", contender, "redis", &port, INFO, KEY, &ttl].map(str::to_owned).to_vec();
    Mixed::new(url(&server), words).ends_in_each_way();
}
