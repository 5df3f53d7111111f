//! Answers that are lost, late, or not what one hopes for.

use super::*;
use crate::support::dynamo::error_answer;

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
    assert_eq!(granted_in_time(&standby, &two).await.start_after, None);
    delete(&server.client(), &table, "SHARD#db/main", "LOCK").await;
    assert_eq!(standby.renew(&two, term, 1).await.unwrap(), Renewal::Lost(None));
}

#[tokio::test]
async fn a_request_whose_connection_broke_is_sent_once_more() {
    let (_server, _table, proxy, store) = behind_a_proxy().await;
    for (action, lost) in
        [("UpdateItem", Fate::LoseRequest), ("UpdateItem", Fate::LoseAnswer), ("GetItem", Fate::LoseAnswer)]
    {
        let one = candidate("one");
        proxy.once(action, lost);
        let term = granted(store.claim(&one).await.unwrap()).term;
        assert_eq!(store.release(&one, term).await, Ok(Release::Released));
    }
    // The first may have been applied, whatever the second says.
    let mut fates = vec![error_answer(400, "ThrottlingException", "slow down"), Fate::LoseAnswer];
    proxy.rule(
        move |request| if request.action == "UpdateItem" { fates.pop().unwrap_or(Fate::Pass) } else { Fate::Pass },
    );
    unknown(store.claim(&candidate("one")).await, "slow down");
}

#[tokio::test]
async fn a_silent_server_is_named_with_the_time_that_it_had() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = address(&format!("http://{}", silent.local_addr().unwrap()), "locks");
    let store = LeaseStore::new(Table::open(&address, Duration::from_secs(1)).await.unwrap());
    unknown(store.claim(&candidate("one")).await, "did not answer within 950ms");
}

#[tokio::test]
async fn what_may_have_been_applied_is_unknown_and_what_was_never_sent_was_not_applied() {
    let (server, table, proxy, store) = behind_a_proxy().await;
    let one = candidate("one");
    let page = || Fate::Rewrite(Box::new(|response| response.body = "<html>\nno</html>".to_owned()));
    for fate in
        [page(), error_answer(500, "InternalServerError", "oops"), error_answer(503, "ServiceUnavailable", "later")]
    {
        proxy.once("UpdateItem", fate);
        unknown(store.claim(&one).await, "");
    }
    // The server does not speak TLS.
    let endpoint = server.endpoint().replace("http:", "https:");
    let said = format!("cannot reach DynamoDB at {endpoint}: ");
    not_applied(super::store(&endpoint, &table).await.claim(&one).await, &said);
}

#[test]
fn what_the_environment_lacks_is_said_in_one_line() {
    let run = |options: &str, environment: &[(&str, &str)]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_leaderctl"));
        command.args(["--store", &format!("dynamodb://locks?{options}"), "status", "shard"]).env_clear();
        command.envs([
            ("LEADERRUN_CONFIG", "/dev/null"),
            ("HOME", "/nonexistent"),
            ("AWS_EC2_METADATA_DISABLED", "true"),
        ]);
        command.envs(environment.iter().copied()).said()
    };
    // An address of this machine that does not look like one, so that nothing is made easy for it.
    let here = "endpoint=https://[::ffff:127.0.0.1]:1";
    let region = "no AWS region: write region=REGION in the store URL, or set AWS_REGION\n";
    run(here, &[]).refused(78, region);
    run(here, &[("AWS_REGION", "eu-west-1")]).refused(78, "no AWS credentials for DynamoDB at https://");
    let key = [("AWS_ACCESS_KEY_ID", "x"), ("AWS_SECRET_ACCESS_KEY", "hunter2")];
    let nowhere = "region=eu-west-1&endpoint=http://nowhere.invalid:8000";
    run(nowhere, &key).refused(69, "cannot reach DynamoDB at http://nowhere.invalid:8000: its name cannot be resolved");
    run("endpoint=localhost:8000", &key).refused(64, "the endpoint of dynamodb:// is not a URL");
}
