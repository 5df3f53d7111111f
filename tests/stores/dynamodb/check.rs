//! `leaderctl store init` and `leaderctl store check`.

use super::*;
use crate::support::dynamo::{denial, make_table};
use aws_sdk_dynamodb::types::{KeyType, TimeToLiveStatus};

#[tokio::test]
async fn init_makes_a_table_that_a_check_finds_nothing_wrong_with() {
    let server = Server::start();
    let store = store(&server.endpoint(), "locks").await;
    let lines = store.prepare().await.unwrap();
    assert!(lines[0].starts_with("created table locks in DynamoDB at http://127.0.0.1:"), "{lines:?}");
    let ttl = server.client().describe_time_to_live().table_name("locks").send().await.unwrap();
    let ttl = ttl.time_to_live_description.unwrap();
    assert_eq!(ttl.attribute_name(), Some("ttl"));
    assert!(matches!(ttl.time_to_live_status(), Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)));

    let findings = store.check().await.unwrap();
    all_good(&findings);
    let last = &findings.last().unwrap().text;
    assert!(last.contains("a round trip takes") && last.contains("clock is known to within"), "{last}");
    let left = server.client().scan().table_name("locks").send().await.unwrap();
    assert_eq!(left.count(), 1, "only the marker is in the table: {:?}", left.items());
}

#[tokio::test]
async fn a_table_with_other_keys_is_refused_by_everything() {
    let server = Server::start();
    make_table(&server.client(), "locks", &[("id", KeyType::Hash)]).await;
    let store = store(&server.endpoint(), "locks").await;
    misconfigured(store.claim(&candidate("one")).await, "does not have the keys pk and sk");
    misconfigured(store.observe(&shard()).await, "");
    misconfigured(store.prepare().await, "does not have the keys pk and sk");
    let ttl = server.client().describe_time_to_live().table_name("locks").send().await.unwrap();
    let status = ttl.time_to_live_description.and_then(|ttl| ttl.time_to_live_status);
    assert!(matches!(status, None | Some(TimeToLiveStatus::Disabled)), "{status:?}");
    finds(&store.check().await.unwrap(), Verdict::Bad, "does not have the keys pk and sk");
}

#[tokio::test]
async fn a_check_names_every_permission_that_is_missing() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    store(&server.endpoint(), "locks").await.prepare().await.unwrap();
    let store = store(&proxy.endpoint(), "locks").await;
    for (denied, verdict) in [
        ("GetItem", Verdict::Bad),
        ("UpdateItem", Verdict::Bad),
        ("Scan", Verdict::Doubtful),
        ("DeleteItem", Verdict::Doubtful),
    ] {
        proxy.rule(move |request| if request.action == denied { denial() } else { Fate::Pass });
        let findings = store.check().await.unwrap();
        let missing = texts(&findings, verdict);
        assert!(missing[0].starts_with("permission missing: "), "{findings:#?}");
        assert!(missing[0].contains(&format!(" denied dynamodb:{denied} on table locks: ")), "{findings:#?}");
        let left = server.client().scan().table_name("locks").send().await.unwrap();
        for item in left.items().iter().filter(|item| item["sk"] == text("LOCK")) {
            assert_eq!(denied, "DeleteItem", "{item:?} was left behind");
            assert!(item.contains_key("ttl"));
        }
    }
}

#[tokio::test]
async fn a_check_tells_replicas_that_are_not_strongly_consistent_and_a_server_without_dates() {
    let server = Server::start();
    let proxy = Proxy::before(&server);
    store(&server.endpoint(), "locks").await.prepare().await.unwrap();
    for (consistency, count) in [("EVENTUAL", 1), ("STRONG", 0)] {
        proxy.rule(move |request| {
            if request.action != "DescribeTable" {
                return Fate::Pass;
            }
            Fate::Rewrite(Box::new(move |response| {
                let replicas = format!(
                    r#""MultiRegionConsistency":"{consistency}","Replicas":[{{"RegionName":"us-east-1"}}],"TableName""#
                );
                response.body = response.body.replace(r#""TableName""#, &replicas);
            }))
        });
        let findings = store(&proxy.endpoint(), "locks").await.check().await.unwrap();
        let texts = texts(&findings, Verdict::Bad);
        let named = texts.iter().filter(|text| text.starts_with("the replicas in us-east-1 are not")).count();
        assert_eq!(named, count, "{findings:#?}");
    }

    proxy.rule(|_| {
        Fate::Rewrite(Box::new(|response| response.headers.retain(|(name, _)| !name.eq_ignore_ascii_case("date"))))
    });
    finds(&store(&proxy.endpoint(), "locks").await.check().await.unwrap(), Verdict::Doubtful, "answers have no Date");
}
