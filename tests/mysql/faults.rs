//! Servers that are gone, silent, slow, or not the right one.

use super::*;
use crate::support::process::Process;

#[tokio::test]
async fn a_row_that_is_locked_is_waited_for_and_no_longer_than_we_do() {
    let table = Table::new().await;
    let store = open_for(&table.url(), Duration::from_secs(3));
    let one = candidate("one");
    let term = lead(&store, &one).await;
    let lock =
        format!("START TRANSACTION; SELECT 1 FROM {} WHERE part = 'lease' FOR UPDATE; SELECT SLEEP(600)", table.name);
    let client = Process::start(table.server.client().args(["-e", &lock]).stdout(std::process::Stdio::null()));
    let waits =
        "SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%SLEEP(600)' AND state = 'User sleep'";
    eventually("the row is locked", async || table.server.sql(waits) != "0").await;
    not_applied(store.renew(&one, term, 1).await, "an open transaction holds a lock");
    drop(client);
    eventually("it is so", async || store.renew(&one, term, 2).await == Ok(Renewal::Renewed)).await;
}
