//! Records that vanish without a release: nobody starts a tree beside one that may still run, and terms rise.
//!
//! The story that all stores share is in tests/conformance/forgotten.rs. Here is what is special about this one.

use super::*;
use leaderrun::internals::store::{Observation, Release, Renewal};
use tokio::time::sleep;

#[tokio::test]
async fn a_deleted_lock_makes_the_next_leader_wait_for_a_lease_of_the_last_one() {
    let mut server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let (one, two) = (with_lease("one", Duration::from_secs(30)), candidate("two"));
    let term = lead(&*first, &one).await;
    server.remove_lock("db/main");

    assert_eq!(second.observe(&two.shard).await, Ok(Observation::Free));
    let grant = granted(second.claim(&two).await.unwrap());
    assert!(grant.term > term);
    let wait = wait_of(&grant);
    // A whole lease, though a part of it had passed: the first one may have a renewal under way.
    assert!(wait > Duration::from_secs(25) && wait <= Duration::from_millis(30_300), "{wait:?}");
    assert!(matches!(first.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
    assert_eq!(first.release(&one, term).await, Ok(Release::NotHeld));
    assert_eq!(second.renew(&two, grant.term, 1).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_young_store_is_waited_for_with_n_but_not_behind_another_candidate() {
    let server = Server::start();
    open(&server.store_url()).await.prepare().await.expect("the server answers");
    let candidate = || {
        let mut command = support::fleet::leaderrun();
        command.args(["--store", &server.store_url(), "-n", "young", "echo", "it ran"]);
        command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap()
    };
    let mut ended = [candidate(), candidate()].map(|child| child.wait_with_output().unwrap());
    ended.sort_by_key(|output| output.status.code());
    let [ran, left] = &ended;
    let said = [ran, left].map(|output| String::from_utf8_lossy(&output.stderr));
    assert_eq!((ran.status.code(), left.status.code()), (Some(0), Some(75)), "{said:?}");
    assert_eq!((&*ran.stdout, &*left.stdout), (&b"it ran\n"[..], &b""[..]));
    assert!(said[0].contains("holding the lease and starting the command in"), "{said:?}");
    assert!(said[1].contains(" leads"), "{said:?}");
}

#[tokio::test]
async fn lock_and_last_leadership_deleted_at_once_make_the_next_leader_wait_and_terms_rise() {
    let mut server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let (one, two) = (with_lease("one", Duration::from_secs(30)), candidate("two"));
    let term = lead(&*first, &one).await;
    server.remove_records("db/main");
    let grant = granted(second.claim(&two).await.unwrap());
    assert!(grant.term > term);
    assert!(wait_of(&grant) > Duration::from_secs(25), "{grant:?}");
    assert!(matches!(first.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
    // What is released leaves nothing that anybody waits for.
    let other = Candidate { shard: "other".parse().unwrap(), ..candidate("one") };
    let term = lead(&*first, &other).await;
    first.release(&other, term).await.unwrap();
    server.remove_records("other");
    let next = Candidate { session: candidate("two").session, ..other };
    assert!(lead(&*second, &next).await > term);
}

#[tokio::test]
async fn a_leader_whose_lock_was_deleted_loses_it_and_claims_again_without_waiting_for_its_own_etcd_lease() {
    let mut server = old_server().await;
    let store = open(&server.store_url()).await;
    let one = candidate("one");
    let term = lead(&*store, &one).await;
    server.remove_lock("db/main");
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert!(lead(&*store, &one).await > term);
}

#[tokio::test]
async fn an_expiry_makes_nobody_wait_once_the_prefix_is_old() {
    let server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let term = lead(&*first, &with_lease("one", Duration::from_secs(1))).await;
    let grant = granted_in_time(&*second, &candidate("two")).await;
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
}

#[tokio::test]
async fn an_etcd_that_lost_its_data_makes_the_next_leader_wait_and_terms_go_on_rising() {
    let mut server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let one = candidate("one");
    let mut term = Term(0);
    for _ in 0..3 {
        term = lead(&*first, &one).await;
        first.release(&one, term).await.unwrap();
    }
    let term = term.max(lead(&*first, &one).await);
    server.wipe();
    let grant = granted(second.claim(&candidate("two")).await.unwrap());
    assert!(grant.term > term, "{grant:?} after {term}");
    assert!(wait_of(&grant) > Duration::from_secs(10), "{grant:?}");
    assert!(matches!(first.renew(&one, term, 1).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
}

#[tokio::test]
async fn a_deleted_prefix_makes_the_next_leader_wait_without_anybody_running_store_init() {
    let server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let one = candidate("one");
    let term = lead(&*first, &one).await;
    server.etcdctl(&["del", "--prefix", "leaderrun/"]);
    let grant = granted(second.claim(&candidate("two")).await.unwrap());
    assert!(grant.term > term, "{grant:?} after {term}");
    assert!(wait_of(&grant) > Duration::from_secs(12), "{grant:?}");
    // It remembers from now on, and says so to the next shard as well.
    let another = Candidate { shard: "another".parse().unwrap(), ..candidate("one") };
    let grant = granted(first.claim(&another).await.unwrap());
    assert!(wait_of(&grant) <= LEASE + LEASE / 100);
}

#[tokio::test]
async fn the_first_leader_of_a_shard_waits_until_the_prefix_is_a_lease_old_and_no_longer() {
    let server = Server::start();
    let store = open(&server.store_url()).await;
    store.prepare().await.unwrap();
    sleep(Duration::from_secs(5)).await;
    let grant = granted(store.claim(&candidate("one")).await.unwrap());
    // etcd tells whole seconds.
    let left = wait_of(&grant);
    assert!(left > Duration::from_secs(5) && left <= Duration::from_millis(11_200), "{left:?}");
    let short = Candidate { shard: "short".parse().unwrap(), ..with_lease("one", Duration::from_secs(2)) };
    lead(&*store, &short).await;
}

#[tokio::test]
async fn a_mark_of_youth_that_never_ends_makes_nobody_wait_longer_than_a_lease() {
    let server = old_server().await;
    server.put("leaderrun/young", "by hand");
    let store = open(&server.store_url()).await;
    assert!(wait_of(&granted(store.claim(&candidate("one")).await.unwrap())) <= LEASE + LEASE / 100);
    assert!(shown(&store.check().await.unwrap()).contains("leaderrun/young is attached to no lease"));
}

#[tokio::test]
async fn neither_a_release_nor_a_crash_of_the_first_leader_makes_a_young_prefix_old() {
    let server = Server::start();
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let one = candidate("one");
    let grant = granted(first.claim(&one).await.unwrap());
    assert!(wait_of(&grant) > Duration::from_secs(13));
    first.release(&one, grant.term).await.unwrap();
    let two = with_lease("two", Duration::from_secs(1));
    granted(second.claim(&two).await.unwrap());
    let grant = granted_in_time(&*first, &candidate("three")).await;
    assert!(wait_of(&grant) > Duration::from_secs(8), "{grant:?}");
}

#[tokio::test]
async fn a_lease_lives_on_over_a_restart_of_etcd() {
    let mut server = old_server().await;
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let one = with_lease("one", Duration::from_secs(10));
    let term = lead(&*first, &one).await;
    refused(second.claim(&candidate("two")).await.unwrap());
    sleep(Duration::from_secs(2)).await;
    server.kill();
    server.start_again();
    // The very next request.
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    assert_eq!(refused(second.claim(&candidate("two")).await.unwrap()).owner, "one");
}

#[tokio::test]
async fn terms_rise_though_the_clock_of_the_host_that_makes_the_next_base_is_far_behind() {
    let server = Server::start();
    // Made in the year 2200.
    server.put("leaderrun/base", r#"{"origin":7258118400000000}"#);
    let (first, second) = (open(&server.store_url()).await, open(&server.store_url()).await);
    let one = candidate("one");
    let term = lead(&*first, &one).await;
    assert!(term > Term(7_258_118_400_000_000), "{term}");
    first.release(&one, term).await.unwrap();
    server.delete("leaderrun/base");
    let two = candidate("two");
    let next = granted(second.claim(&two).await.unwrap()).term;
    assert!(next > term, "{next} after {term}");
    // Somebody else made the base, and did not know of this shard.
    second.release(&two, next).await.unwrap();
    server.put("leaderrun/base", r#"{"origin":1}"#);
    let after = granted(first.claim(&one).await.unwrap()).term;
    assert!(after > next, "{after} after {next}");
    let report = second.inspect(&one.shard).await.unwrap();
    assert_eq!((report.holder.unwrap().term, report.last_term), (Some(after), Some(after)));
}

#[tokio::test]
async fn terms_count_the_revisions_since_the_birth_of_the_prefix() {
    let server = Server::start();
    for number in 0..20 {
        server.put("unrelated", &number.to_string());
    }
    let before = millis_now() * 1000;
    let store = open(&server.store_url()).await;
    store.prepare().await.unwrap();
    let term = granted(store.claim(&candidate("one")).await.unwrap()).term.0;
    // Had the 20 revisions before counted, a wipe soon after could bring lower terms.
    assert!(term > before, "{term} {before}");
    let base: serde_json::Value = serde_json::from_str(&server.value("leaderrun/base").unwrap()).unwrap();
    assert_eq!(term, base["origin"].as_u64().unwrap() + 1);
}

fn millis_now() -> u64 {
    leaderrun::internals::time::wall_clock_millis()
}
