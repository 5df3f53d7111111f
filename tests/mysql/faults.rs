//! Servers that are gone, silent, slow, or not the right one.

use super::*;

#[tokio::test]
async fn a_row_that_is_locked_is_waited_for_and_no_longer_than_we_do() {
    let table = Table::new().await;
    let store = open_for(&table.url(), Duration::from_secs(3));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let lock =
        format!("START TRANSACTION; SELECT 1 FROM {} WHERE part = 'lease' FOR UPDATE; SELECT SLEEP(600)", table.name);
    let mut client = table.server.client().args(["-e", &lock]).stdout(std::process::Stdio::null()).spawn().unwrap();
    let waits =
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(600)' AND state = 'User sleep'";
    eventually("the row is locked", async || table.server.sql(waits) != "0").await;
    let error = store.renew(&one, term, 1).await.unwrap_err();
    client.kill().unwrap();
    client.wait().unwrap();
    assert_eq!(error.kind, ErrorKind::NotApplied, "{error}");
    assert!(error.message.contains("an open transaction holds a lock"), "{error}");
    eventually("it is so", async || store.renew(&one, term, 2).await == Ok(Renewal::Renewed)).await;
}
