//! Answers that are lost, late, or not what one hopes for.

use super::*;
use crate::support::denied::{self, User};
use crate::support::dynamo::{ENVIRONMENT, Fate, Proxy, Server, denial, error_answer};
use crate::support::fleet::leaderctl;
use crate::support::ports::free_port;
use leaderrun::internals::store::Leases as _;
use leaderrun::internals::store::{ErrorKind, Observation, Release, Renewal};
use std::time::Instant;
use tokio::time::sleep;

/// A server, a table in it, and a store that reaches it through a proxy.
async fn behind_a_proxy() -> (Server, String, Proxy, DynamoDb) {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint(), &table).await;
    (server, table, proxy, store)
}

#[tokio::test]
async fn a_claim_whose_answer_was_lost_is_granted_when_it_is_made_again() {
    let (_server, _table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    proxy.once("PutItem", Fate::LoseAnswer);
    assert_eq!(store.claim(&one).await.unwrap_err().kind, ErrorKind::Unknown);
    assert!(matches!(store.observe(&one.shard).await.unwrap(), Observation::Held(holder) if holder.owner == "one"));
    let term = lead(&store, &one).await;
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Renewed);
}

#[tokio::test]
async fn a_term_whose_answer_was_lost_is_taken_again_and_rises() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let first = lead(&store, &one).await;
    store.release(&one, first).await.unwrap();
    proxy.once("UpdateItem", Fate::LoseAnswer);
    assert_eq!(store.claim(&one).await.unwrap_err().kind, ErrorKind::Unknown);
    assert!(lead(&store, &one).await > first);
    drop((server, table));
}

#[tokio::test]
async fn a_lost_answer_does_not_shorten_the_wait_for_a_vanished_leader() {
    let (server, table, proxy, second) = behind_a_proxy().await;
    let first = store(&server.endpoint(), &table).await;
    lead(&first, &with_lease("one", Duration::from_secs(30))).await;
    delete(&server.client(), &table, "SHARD#db/main", "LOCK").await;
    for lost in ["PutItem", "UpdateItem"] {
        proxy.once(lost, Fate::LoseAnswer);
        second.claim(&candidate("two")).await.unwrap_err();
        delete(&server.client(), &table, "SHARD#db/main", "LOCK").await;
    }
    let two = candidate("two");
    proxy.once("PutItem", Fate::LoseAnswer);
    second.claim(&two).await.unwrap_err();
    // The update that finds out is the first, the one that takes the term the second.
    let mut updates = 0;
    proxy.rule(move |request| {
        updates += usize::from(request.action == "UpdateItem");
        if updates == 2 { Fate::LoseAnswer } else { Fate::Pass }
    });
    second.claim(&two).await.unwrap_err();
    proxy.pass();
    let start_after = granted(second.claim(&two).await.unwrap()).start_after.expect("it has to wait");
    let wait = start_after.since(leaderrun::internals::time::BootInstant::now());
    assert!(wait > Duration::from_secs(27), "{wait:?}");
}

#[tokio::test]
async fn a_claim_that_failed_at_the_term_can_be_released() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    proxy.once("UpdateItem", error_answer(400, "ThrottlingException", "slow down"));
    // Throttled, but the lock was taken before.
    assert_eq!(store.claim(&one).await.unwrap_err().kind, ErrorKind::Unknown);
    assert_eq!(store.release(&one, Term(0)).await.unwrap(), Release::Released);
    assert_eq!(item(&server.client(), &table, "LOCK").await, None);
    assert_eq!(store.release(&one, Term(0)).await.unwrap(), Release::NotHeld);
}

#[tokio::test]
async fn a_claim_that_may_not_take_terms_leaves_no_lock_behind() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    proxy.deny(|action| action == "UpdateItem");
    let error = store.claim(&candidate("one")).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Denied);
    assert!(error.message.contains("denied dynamodb:UpdateItem on table locks: User x is not authorized"), "{error}");
    assert_eq!(item(&server.client(), &table, "LOCK").await, None);
}

#[tokio::test]
async fn a_renewal_whose_answer_was_lost_has_renewed() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let before = millis_in(&item(&server.client(), &table, "LOCK").await.unwrap(), "expiresMs");
    sleep(Duration::from_secs(3)).await;
    proxy.once("UpdateItem", Fate::LoseAnswer);
    assert_eq!(store.renew(&one, term, 1).await.unwrap_err().kind, ErrorKind::Unknown);
    let after = millis_in(&item(&server.client(), &table, "LOCK").await.unwrap(), "expiresMs");
    assert!(after > before);
    assert_eq!(store.renew(&one, term, 2).await.unwrap(), Renewal::Renewed);
}

#[tokio::test]
async fn a_renewal_that_arrives_after_a_later_one_changes_nothing() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    proxy.once("UpdateItem", Fate::Late(Duration::from_secs(1)));
    store.renew(&one, term, 1).await.unwrap_err();
    assert_eq!(store.renew(&one, term, 2).await.unwrap(), Renewal::Renewed);
    let after_the_second = item(&server.client(), &table, "LOCK").await.unwrap();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(item(&server.client(), &table, "LOCK").await.unwrap(), after_the_second);
    assert_eq!(store.renew(&one, term, 1).await.unwrap(), Renewal::Overtaken);
    assert_eq!(store.renew(&one, term, 3).await.unwrap(), Renewal::Renewed);
}

#[tokio::test]
async fn a_claim_that_arrives_after_the_next_one_changes_nothing() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    proxy.once("PutItem", Fate::Late(Duration::from_secs(1)));
    store.claim(&one).await.unwrap_err();
    let term = lead(&store, &one).await;
    store.renew(&one, term, 1).await.unwrap();
    let record = item(&server.client(), &table, "LOCK").await.unwrap();
    sleep(Duration::from_millis(1500)).await;
    assert_eq!(item(&server.client(), &table, "LOCK").await.unwrap(), record);
}

#[tokio::test]
async fn a_release_that_arrives_late_does_not_end_the_next_leadership() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    for late in ["DeleteItem", "UpdateItem"] {
        proxy.once(late, Fate::Late(Duration::from_secs(4)));
        assert_eq!(store.release(&one, term).await.unwrap_err().kind, ErrorKind::Unknown);
    }
    assert_eq!(store.release(&one, term).await.unwrap(), Release::Released);
    let next = lead(&store, &one).await;
    sleep(Duration::from_millis(4500)).await;
    assert!(!item(&server.client(), &table, "TERM").await.unwrap().contains_key("released"));
    assert_eq!(store.renew(&one, next, 1).await.unwrap(), Renewal::Renewed);
}

/// A candidate that gives a slow release up and claims again must not find its new lock deleted by the rest of that
/// release.
#[tokio::test]
async fn a_release_that_is_slower_than_the_next_claim_does_not_end_the_next_leadership() {
    for slow in ["UpdateItem", "DeleteItem"] {
        let (server, table, proxy, store) = behind_a_proxy().await;
        let one = candidate("one");
        let term = lead(&store, &one).await;
        proxy.once(slow, Fate::Held(Duration::from_millis(500)));
        let next = async {
            sleep(Duration::from_millis(150)).await;
            lead(&store, &one).await
        };
        let (_released, next) = tokio::join!(store.release(&one, term), next);
        assert!(item(&server.client(), &table, "LOCK").await.is_some(), "a slow {slow}");
        assert_eq!(store.renew(&one, next, 1).await.unwrap(), Renewal::Renewed);
    }
}

#[tokio::test]
async fn a_release_whose_answer_was_lost_has_released() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let other = store_of(&server, &table).await;
    let one = candidate("one");
    let term = lead(&store, &one).await;
    proxy.once("DeleteItem", Fate::LoseAnswer);
    assert_eq!(store.release(&one, term).await.unwrap_err().kind, ErrorKind::Unknown);
    assert_eq!(store.release(&one, term).await.unwrap(), Release::NotHeld);
    lead(&other, &candidate("two")).await;
}

async fn store_of(server: &Server, table: &str) -> DynamoDb {
    store(&server.endpoint(), table).await
}

#[tokio::test]
async fn a_server_that_returns_no_item_with_a_failed_condition_is_asked_for_it() {
    let (server, table, proxy, standby) = behind_a_proxy().await;
    let leader = store(&server.endpoint(), &table).await;
    proxy.rule(|request| {
        assert!(request.action != "PutItem" || request.body.contains("ReturnValuesOnConditionCheckFailure"));
        Fate::Rewrite(Box::new(|response| {
            if response.status == 400 && response.body.contains("ConditionalCheckFailedException") {
                response.body = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
                    "message":"The conditional request failed"}"#
                    .to_owned();
            }
        }))
    });
    let (one, two) = (with_lease("one", Duration::from_secs(1)), with_lease("two", Duration::from_secs(1)));
    let term = lead(&leader, &one).await;
    assert_eq!(refused(standby.claim(&two).await.unwrap()).owner, "one");
    assert!(
        matches!(standby.renew(&two, term, 1).await.unwrap(), Renewal::Lost(Some(holder)) if holder.owner == "one")
    );
    assert_eq!(standby.release(&two, term).await.unwrap(), Release::NotHeld);
    loop {
        match standby.claim(&two).await.unwrap() {
            Claim::Granted(grant) => break assert_eq!(grant.start_after, None),
            Claim::Refused(_) => sleep(Duration::from_millis(50)).await,
        }
    }
    delete(&server.client(), &table, "SHARD#db/main", "LOCK").await;
    assert_eq!(standby.renew(&two, term, 1).await.unwrap(), Renewal::Lost(None));
}

#[tokio::test]
async fn what_was_never_sent_or_turned_away_was_not_applied() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    for code in ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"] {
        proxy.once("PutItem", error_answer(400, code, "slow down"));
        assert_eq!(store.claim(&one).await.unwrap_err().kind, ErrorKind::NotApplied, "{code}");
    }
    let endpoint = format!("http://127.0.0.1:{}", free_port());
    let error = super::store(&endpoint, &table).await.claim(&one).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotApplied);
    assert_eq!(error.message, format!("cannot reach DynamoDB at {endpoint}: connection refused"));
    // A server that does not speak TLS.
    let endpoint = server.endpoint().replace("http:", "https:");
    let error = super::store(&endpoint, &table).await.claim(&one).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::NotApplied);
    assert!(error.message.starts_with(&format!("cannot reach DynamoDB at {endpoint}: ")), "{error}");
}

#[tokio::test]
async fn what_may_have_been_applied_is_unknown() {
    let (_server, _table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let page = || Fate::Rewrite(Box::new(|response| response.body = "<html>\nno</html>".to_owned()));
    for fate in [
        Fate::LoseRequest,
        Fate::LoseAnswer,
        page(),
        error_answer(500, "InternalServerError", "oops"),
        error_answer(503, "ServiceUnavailable", "later"),
    ] {
        proxy.once("PutItem", fate);
        let error = store.claim(&one).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Unknown, "{error}");
        assert!(!error.message.contains('\n'), "{error}");
    }
}

#[tokio::test]
async fn a_request_takes_no_longer_than_it_may() {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let address = address(&proxy.endpoint(), &table);
    let store = DynamoDb::open(&address, Duration::from_secs(1)).await.unwrap();
    let one = candidate("one");
    proxy.rule(|_| Fate::Slow(Duration::from_secs(20)));
    let start = Instant::now();
    let error = store.claim(&one).await.unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert_eq!(error.kind, ErrorKind::Unknown);
    assert_eq!(error.message, format!("cannot reach DynamoDB at {}: no answer in time", proxy.endpoint()));
    assert_eq!(proxy.actions(), ["PutItem"], "it was not tried again behind our back");
}

#[tokio::test]
async fn every_kind_of_denial_names_what_was_denied() {
    let (_server, _table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    for code in ["AccessDeniedException", "UnrecognizedClientException", "ExpiredTokenException"] {
        proxy.once("PutItem", error_answer(400, code, "no."));
        let error = store.claim(&one).await.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied, "{code}");
        assert_eq!(
            error.message,
            format!("DynamoDB at {} denied dynamodb:PutItem on table locks: no", proxy.endpoint())
        );
    }
}

#[tokio::test]
async fn a_missing_table_says_how_to_make_it() {
    let server = Server::start();
    let store = store(&server.endpoint(), "missing").await;
    let one = candidate("one");
    for error in [
        store.claim(&one).await.unwrap_err(),
        store.observe(&one.shard).await.unwrap_err(),
        store.renew(&one, Term(1), 1).await.unwrap_err(),
        store.release(&one, Term(1)).await.unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::Misconfigured);
        let server = server.endpoint();
        let expected = format!("no table missing in DynamoDB at {server}: make it with leaderctl store init");
        assert_eq!(error.message, expected);
    }
}

/// Run by the test below in an environment of its own.
#[tokio::test]
#[ignore = "run by what_the_environment_lacks_is_said_in_one_line"]
async fn prints_what_goes_wrong() {
    let (region, endpoint) = (std::env::var("TEST_REGION").ok(), std::env::var("TEST_ENDPOINT").unwrap());
    let address = Address { region, ..address(&endpoint, "locks") };
    let error = match DynamoDb::open(&address, REQUEST_TIMEOUT).await {
        Ok(store) => store.observe(&shard()).await.unwrap_err(),
        Err(error) => error,
    };
    println!("{:?}: {error}", error.kind);
}

#[test]
fn what_the_environment_lacks_is_said_in_one_line() {
    // An address of this machine that does not look like one, so that nothing is made easy for it.
    const ENDPOINT: &str = "https://[::ffff:127.0.0.1]:1";
    let run = |environment: &[(&str, &str)]| {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "faults::prints_what_goes_wrong", "--ignored", "--nocapture", "--test-threads=1"])
            .env_clear()
            .envs([("HOME", "/nonexistent"), ("AWS_EC2_METADATA_DISABLED", "true"), ("TEST_ENDPOINT", ENDPOINT)])
            .envs(environment.iter().copied())
            .output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let printed = run(&[]);
    let region = "Misconfigured: no AWS region for DynamoDB: say dynamodb://TABLE?region=REGION, or set AWS_REGION\n";
    assert!(printed.contains(region), "{printed}");
    let printed = run(&[("AWS_REGION", "eu-west-1")]);
    assert!(printed.contains("Misconfigured: no AWS credentials for DynamoDB at https://"), "{printed}");

    let credentials = [("TEST_REGION", "eu-west-1"), ("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "hidden")];
    let [nowhere, wrong] = [("TEST_ENDPOINT", "http://nowhere.invalid:8000"), ("TEST_ENDPOINT", "localhost:8000")];
    let printed = run(&[&credentials[..], &[nowhere]].concat());
    let expected = "NotApplied: cannot reach DynamoDB at http://nowhere.invalid:8000: its name has no address";
    assert!(printed.contains(expected), "{printed}");
    assert!(!printed.contains("hidden"), "{printed}");
    let printed = run(&[&credentials[..], &[wrong]].concat());
    assert!(printed.contains("Misconfigured: the endpoint of DynamoDB is not a URL"), "{printed}");
}

fn user_at(url: &str) -> User<'_> {
    User { url, environment: ENVIRONMENT }
}

fn url_through(proxy: &Proxy, table: &str) -> String {
    format!("dynamodb://{table}?region={}&endpoint={}", crate::support::dynamo::REGION, proxy.endpoint())
}

#[tokio::test]
async fn an_operator_who_may_only_look_is_denied_what_would_change_something() {
    let (server, table, proxy, _store) = behind_a_proxy().await;
    proxy.rule(|request| match request.action.as_str() {
        "GetItem" | "Query" | "Scan" | "DescribeTable" => Fate::Pass,
        _ => denial(),
    });
    let (owner, looker) = (server.url(&table), url_through(&proxy, &table));
    denied::assert_may_only_look(user_at(&owner), user_at(&looker), &format!("Item on table {table}: User x"));
}

#[tokio::test]
async fn a_candidate_that_may_not_read_orders_is_denied_before_it_starts_command() {
    let (server, table, proxy, _store) = behind_a_proxy().await;
    proxy.rule(|request| if request.body.contains("ORDERS") { denial() } else { Fate::Pass });
    let (owner, user) = (server.url(&table), url_through(&proxy, &table));
    let sign = format!("denied dynamodb:GetItem on table {table}: User x");
    denied::assert_leads_nothing_without_orders(user_at(&owner), user_at(&user), &sign);
}

#[tokio::test]
async fn a_candidate_that_may_not_scan_hands_over_without_counting_and_says_what_is_missing() {
    let (server, table, proxy, _store) = behind_a_proxy().await;
    proxy.deny(|action| action == "Scan");
    let (owner, user) = (server.url(&table), url_through(&proxy, &table));
    let sign = format!("denied dynamodb:Scan on table {table}: User x");
    denied::assert_hands_over_uncounted(user_at(&owner), user_at(&user), &sign);
}

#[tokio::test]
async fn an_operator_learns_what_was_ordered_before_the_store_went_away() {
    let (server, table, proxy, _store) = behind_a_proxy().await;
    let url = url_through(&proxy, &table);
    let ctl = |url: &str, words: &[&str]| {
        let mut command = leaderctl();
        command.args(["--request-timeout", "10s", "--store", url]).args(words).envs(ENVIRONMENT.iter().copied());
        command.output().unwrap()
    };
    for words in [&["pause", "db/main"][..], &["resume", "--json", "db/main"]] {
        let mut written = false;
        proxy.rule(move |request| {
            if written {
                return Fate::LoseRequest;
            }
            written = request.action == "PutItem" || request.action == "DeleteItem";
            Fate::Pass
        });
        let output = ctl(&url, words);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(69) && output.stdout.is_empty(), "{words:?}: {said}");
        let told =
            if words[0] == "pause" { "paused until it is resumed, but then: " } else { "resumed; it was paused by " };
        assert!(said.contains(told) && said.contains(", but then: ") && said.lines().count() == 1, "{said}");
        let output = ctl(&server.url(&table), &["status", "--json", "db/main"]);
        let status: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(status["paused"], words[0] == "pause", "{status}");
    }
}
