//! Answers that are lost, late, or not what one hopes for.

use super::*;
use crate::support::dynamo::error_answer;

/// A server, a table in it, and a store that reaches it through a proxy.
async fn behind_a_proxy() -> (Server, String, Proxy, LeaseStore) {
    let server = Server::start();
    let table = server.table("locks").await;
    let proxy = Proxy::before(&server);
    let store = store(&proxy.endpoint(), &table).await;
    (server, table, proxy, store)
}

#[tokio::test]
async fn a_server_that_returns_no_item_with_a_failed_condition_is_asked_for_it() {
    let (server, table, proxy, standby) = behind_a_proxy().await;
    let leader = store(&server.endpoint(), &table).await;
    proxy.rule(|request| {
        assert!(request.action != "UpdateItem" || request.body.contains("ReturnValuesOnConditionCheckFailure"));
        Fate::Rewrite(Box::new(|response| {
            if response.status == 400 && response.body.contains("ConditionalCheckFailedException") {
                response.body = r#"{"__type":"com.amazonaws.dynamodb.v20120810#ConditionalCheckFailedException",
                    "message":"The conditional request failed"}"#
                    .to_owned();
            }
        }))
    });
    // Its end is waited for, and by then it has refused another one.
    let (one, two) = (with_lease("one", Duration::from_secs(4)), candidate("two"));
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
async fn what_may_have_been_applied_is_unknown_and_what_was_never_sent_was_not_applied() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let page = || Fate::Rewrite(Box::new(|response| response.body = "<html>\nno</html>".to_owned()));
    for fate in [
        Fate::LoseRequest,
        Fate::LoseAnswer,
        page(),
        error_answer(500, "InternalServerError", "oops"),
        error_answer(503, "ServiceUnavailable", "later"),
    ] {
        proxy.once("UpdateItem", fate);
        unknown(store.claim(&one).await, "");
    }
    // The server does not speak TLS.
    let endpoint = server.endpoint().replace("http:", "https:");
    let said = format!("cannot reach DynamoDB at {endpoint}: ");
    not_applied(super::store(&endpoint, &table).await.claim(&one).await, &said);
}

/// Run by the test below in an environment of its own.
#[tokio::test]
#[ignore = "run by what_the_environment_lacks_is_said_in_one_line"]
async fn prints_what_goes_wrong() {
    let (region, endpoint) = (std::env::var("TEST_REGION").ok(), std::env::var("TEST_ENDPOINT").unwrap());
    let mut address = address(&endpoint, "locks");
    address.account.region = region;
    let error = match Table::open(&address, REQUEST_TIMEOUT).await {
        Ok(table) => LeaseStore::new(table).observe(&shard()).await.unwrap_err(),
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
    let nowhere = ("TEST_ENDPOINT", "http://nowhere.invalid:8000");
    let printed = run(&[&credentials[..], &[nowhere]].concat());
    let expected = "NotApplied: cannot reach DynamoDB at http://nowhere.invalid:8000: its name has no address";
    assert!(printed.contains(expected), "{printed}");
    assert!(!printed.contains("hidden"), "{printed}");
    let error = Address::read("//locks?endpoint=localhost:8000").unwrap_err();
    assert!(error.contains("the endpoint of dynamodb:// is not a URL"), "{error}");
}
