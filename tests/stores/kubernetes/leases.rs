//! What is in a Lease, and what happens to it when others write there.

use super::*;

fn lease(server: &Server) -> Value {
    server.lease(&name_of("db/main")).expect("it is there")
}

#[tokio::test]
async fn the_fields_say_who_leads_as_electors_of_client_go_say_it() {
    let server = server();
    let store = store(&server).await;
    let one = Candidate { lease: Duration::from_millis(4_200), ..of("db", "one") };
    let term = lead(&*store, &one).await;
    let first = server.lease("db").expect("a name of a Lease is kept");
    let holder = first["spec"]["holderIdentity"].as_str().unwrap().to_owned();
    assert!(holder.starts_with("one_"), "{holder}");
    assert_eq!(first["spec"]["leaseDurationSeconds"], 5, "whole seconds, and not shorter");
    assert!(time(&first, "acquireTime") <= time(&first, "renewTime"));
    assert!(first["metadata"]["ownerReferences"].is_null(), "it must not be collected with a Pod");
    let transitions = first["spec"]["leaseTransitions"].as_i64().unwrap();

    // Electors compare whole seconds, and take what they see twice for a holder that is dead.
    let mut before = time(&first, "renewTime");
    for sequence in 1..4 {
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        let renewed = server.lease("db").unwrap();
        let now = time(&renewed, "renewTime");
        assert!(now >= before + Duration::from_secs(1), "{now:?} after {before:?}");
        assert_eq!(renewed["spec"]["acquireTime"], first["spec"]["acquireTime"]);
        assert_eq!(renewed["metadata"]["uid"], first["metadata"]["uid"]);
        before = now;
    }
    assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    let released = server.lease("db").unwrap();
    assert_eq!(
        (&released["spec"]["holderIdentity"], &released["spec"]["leaseDurationSeconds"]),
        (&json!(""), &json!(1))
    );
    lead(&*store, &of("db", "two")).await;
    let next = server.lease("db").unwrap();
    assert_eq!(next["spec"]["leaseTransitions"].as_i64(), Some(transitions + 1));
}

#[tokio::test]
async fn a_write_never_makes_a_lease_again_that_somebody_deleted() {
    let server = server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&*store, &one).await;
    server.delete(&name_of("db/main"));
    assert_eq!(store.renew(&one, term, 1).await, Ok(Renewal::Lost(None)));
    assert!(server.lease(&name_of("db/main")).is_none_or(|lease| lease["spec"]["holderIdentity"] == ""));
    // Nobody starts beside its tree, and the term is a higher one.
    if let Claim::Granted(grant) = other.claim(&two).await.unwrap() {
        assert!(grant.start_after.is_some() && grant.term > term, "{grant:?}");
    }
}

/// With the resourceVersion alone, the server would make it again.
#[tokio::test]
async fn the_lease_that_stands_in_place_of_a_deleted_one_is_left_alone() {
    let server = server();
    let store = store(&server).await;
    let (one, term) = one_leads(&*store).await;
    let name = name_of("db/main");
    server.delete(&name);
    let theirs = json!({
        "metadata": { "name": name },
        "spec": { "holderIdentity": "theirs", "leaseDurationSeconds": 3_600, "renewTime": "2026-01-01T00:00:00.000000Z" },
    });
    let made = server.post(&theirs);
    assert_eq!(made.status, 201, "{made:?}");
    let Ok(Renewal::Lost(Some(holder))) = store.renew(&one, term, 1).await else { panic!("it is lost") };
    assert!(holder.named().contains("theirs"), "{holder:?}");
    store.release(&one, term).await.unwrap();
    assert_eq!(lease(&server)["spec"], made.body["spec"]);
    assert_eq!(lease(&server)["metadata"]["resourceVersion"], made.body["metadata"]["resourceVersion"]);
}

/// client-go writes back the metadata that it read.
#[tokio::test]
async fn annotations_that_another_elector_carried_along_say_nothing_of_its_lease() {
    let server = server();
    let (store, other) = (store(&server).await, store(&server).await);
    let (one, two) = (candidate("one"), candidate("two"));
    let term = lead(&*store, &one).await;
    let mut taken = lease(&server);
    assert!(taken["metadata"]["annotations"]["leaderrun/record"].is_string(), "{taken}");
    taken["spec"]["holderIdentity"] = "theirs".into();
    taken["spec"]["leaseDurationSeconds"] = 3_600.into();
    assert_eq!(server.put(&taken).status, 200);
    for claim in [store.claim(&one).await, other.claim(&two).await] {
        assert!(refused(claim.unwrap()).named().contains("theirs"));
    }
    let Ok(Renewal::Lost(Some(holder))) = store.renew(&one, term, 1).await else { panic!("it is lost") };
    assert!(holder.named().contains("theirs"), "{holder:?}");
    let listed = other.list("").await.unwrap();
    assert!(listed.iter().any(|(shard, report)| {
        shard.as_str() == "db/main" && report.holder.as_ref().is_some_and(|holder| holder.named().contains("theirs"))
    }));

    // Another elector may have none of ours at all, and frees it.
    let mut freed = lease(&server);
    freed["metadata"]["annotations"] = json!({});
    freed["metadata"]["labels"] = json!({});
    freed["spec"]["holderIdentity"] = "".into();
    assert_eq!(server.put(&freed).status, 200);
    let grant = granted_in_time(&*other, &two).await;
    assert!(grant.term > term, "{grant:?} after {term:?}");
    // The former tree may still be stopped.
    assert!(wait_of(&grant) > Duration::from_secs(5), "{grant:?}");
}

#[tokio::test]
async fn shards_with_names_that_look_alike_have_each_a_lease_and_are_listed_by_their_own_names() {
    let server = server();
    let store = store(&server).await;
    let long = format!("long/{}", "Z".repeat(180));
    let shards = ["a/b", "xa-2fb", "leaderrun.xa-2fb", "a.b", "A", "a", "leaderrun.marker", "a_b", "w#2", &long];
    let mut terms = Vec::new();
    for shard in shards {
        let one = of(shard, &format!("of {shard}"));
        terms.push((one.clone(), lead(&*store, &one).await));
    }
    for (one, term) in &terms {
        let holder = store.inspect(&one.shard).await.unwrap().holder.expect("it is led");
        assert_eq!((holder.owner.as_str(), holder.term), (one.owner.as_str(), Some(*term)));
    }
    let mut listed: Vec<_> = store.list("").await.unwrap().into_iter().map(|(shard, _)| shard.to_string()).collect();
    let mut expected = shards.map(str::to_owned);
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert!(server.lease("a.b").is_some(), "what is a name stays one");
    let labels: Vec<_> =
        server.all().iter().map(|lease| lease["metadata"]["labels"]["leaderrun/kind"].clone()).collect();
    assert!(labels.iter().all(Value::is_string), "a label selects ours: {labels:?}");
}

#[tokio::test]
async fn what_electors_of_the_cluster_itself_write_there_stays() {
    let server = server();
    let store = store(&server).await;
    let theirs = json!({
        "metadata": { "name": "db", "labels": { "app": "web" }, "annotations": { "note": "ours" } },
        "spec": { "holderIdentity": "" },
    });
    assert_eq!(server.post(&theirs).status, 201);
    let one = of("db", "one");
    let term = granted_in_time(&*store, &one).await.term;
    store.renew(&one, term, 1).await.unwrap();
    store.release(&one, term).await.unwrap();
    let lease = server.lease("db").unwrap();
    assert_eq!(
        (&lease["metadata"]["labels"]["app"], &lease["metadata"]["annotations"]["note"]),
        (&json!("web"), &json!("ours"))
    );
}
