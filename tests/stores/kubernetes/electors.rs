//! `lease=NAME`: we and programs that elect with client-go exclude each other.

use super::*;
use crate::support::kubernetes::elector;
use crate::support::mixed::{self, Mixed};

const THEIRS: &str = "theirs";

fn url(server: &Server) -> String {
    server.url_with(&format!("&lease={THEIRS}"))
}

fn mixed(server: &Server) -> Mixed {
    let (program, lease) = (elector().display().to_string(), mixed::TTL.as_secs().to_string());
    let url = server.url_with("");
    let (_, kubeconfig) = url.split_once("kubeconfig=").expect("it names one");
    let words = [program.as_str(), kubeconfig, &server.namespace, THEIRS, &lease];
    Mixed::new(self::url(server), words.map(str::to_owned).to_vec())
}

/// Stopped, killed and frozen.
#[test]
fn theirs_waits_until_our_tree_is_dead_however_it_ends() {
    mixed(&server()).ends_in_each_way();
}

/// As an elector writes it.
fn held(holder: &str, renewed: &str, seconds: u64) -> Value {
    json!({
        "metadata": { "name": THEIRS },
        "spec": { "holderIdentity": holder, "leaseDurationSeconds": seconds, "renewTime": renewed, "leaseTransitions": 3 },
    })
}

/// Its times are those of another clock, which may be wrong.
#[tokio::test]
async fn a_lease_of_theirs_has_ended_when_it_stood_unchanged_for_its_duration_on_our_clock() {
    const SECONDS: u64 = 4;
    let server = server();
    let store = open(&url(&server)).await;
    let one = candidate("one");
    let mut lease = server.post(&held("other-1", "2020-01-01T00:00:00.000000Z", SECONDS)).body;
    let mut changed = std::time::Instant::now();
    for year in 2021..2024 {
        assert!(refused(store.claim(&one).await.unwrap()).named().contains("other-1"));
        sleep(Duration::from_secs(SECONDS / 2)).await;
        lease["spec"]["renewTime"] = format!("{year}-01-01T00:00:00.000000Z").into();
        changed = std::time::Instant::now();
        let answer = server.put(&lease);
        assert_eq!(answer.status, 200, "{answer:?}");
        lease = answer.body;
    }
    let grant = granted_in_time(&*store, &one).await;
    assert!(changed.elapsed() > Duration::from_secs(SECONDS), "{:?}", changed.elapsed());
    assert_eq!(store.release(&one, grant.term).await, Ok(Release::Released));
}

#[tokio::test]
async fn one_that_was_freed_is_taken_at_once_and_its_standby_hears_it() {
    let server = server();
    let store = open(&url(&server)).await;
    let one = candidate("one");
    let mut lease = server.post(&held("other-1", "2020-01-01T00:00:00.000000Z", 3_600)).body;
    refused(store.claim(&one).await.unwrap());
    let shard = shard();
    let mut news = store.changed(&shard);
    timeout(Duration::from_secs(1), &mut news).await.expect_err("it is held");
    lease["spec"]["holderIdentity"] = "".into();
    lease["spec"]["leaseDurationSeconds"] = 1.into();
    assert_eq!(server.put(&lease).status, 200);
    timeout(PATIENCE, news).await.expect("it is heard").unwrap();
    let Claim::Granted(grant) = store.claim(&one).await.unwrap() else { panic!("it is free") };
    assert!(wait_of(&grant).is_zero(), "{grant:?}");
    let taken = server.lease(THEIRS).unwrap();
    assert!(taken["spec"]["holderIdentity"].as_str().unwrap().starts_with("one_"), "{taken}");
    assert_eq!(taken["spec"]["leaseTransitions"], 4);
}
