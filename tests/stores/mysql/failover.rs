//! A failover to a replica that had not received everything.

use super::*;

/// Longer than the failover takes, on a machine that stalls.
const SHORT: Duration = Duration::from_secs(15);

#[tokio::test]
async fn after_a_failover_that_forgot_a_lease_its_leader_goes_on_and_nobody_else_leads_for_a_lease() {
    let start = |options: &[&str]| Server::start_with(&[&["--log-bin", "--binlog-format=ROW"], options].concat());
    let mut source = start(&["--server-id=1"]);
    let replica = start(&["--server-id=2", "--read-only=1"]);
    let (port, logs) = (source.port(), source.sql("SHOW BINARY LOGS"));
    let log = logs.split('\t').next().unwrap();
    replica.sql(&if is_mariadb() {
        format!(
            "CHANGE MASTER TO MASTER_HOST = '127.0.0.1', MASTER_PORT = {port}, MASTER_USER = '{ADMIN}', \
             MASTER_LOG_FILE = '{log}', MASTER_LOG_POS = 4, MASTER_USE_GTID = no"
        )
    } else {
        format!(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1', SOURCE_PORT = {port}, SOURCE_USER = '{ADMIN}', \
             SOURCE_LOG_FILE = '{log}', SOURCE_LOG_POS = 4, GET_SOURCE_PUBLIC_KEY = 1"
        )
    });
    replica.sql("START REPLICA");
    let both = format!("@127.0.0.1:{port},127.0.0.1:{}/", replica.port());
    let url = source.url_with("").replace(&format!("@127.0.0.1:{port}/"), &both);
    let (first, second) = (open(&url), open(&url));
    first.prepare().await.unwrap();
    source.age("leaderrun");
    let (one, two) = (with_lease("one", SHORT), with_lease("two", SHORT));
    let term = lead(&first, &one).await;
    assert_eq!(first.release(&one, term).await, Ok(Release::Released));
    // It knows what both servers have.
    let known = lead(&second, &two).await;
    assert_eq!(second.release(&two, known).await, Ok(Release::Released));
    let row = format!("SELECT session = '' FROM leaderrun WHERE part = 'lease' AND text LIKE '%\"term\":{known},%'");
    eventually("the replica has the row", async || replica.ask(&row).is_ok_and(|row| row == "1")).await;

    // It falls behind; the lease that is granted next, it does not have.
    replica.sql("STOP REPLICA");
    let term = lead(&first, &one).await;
    source.kill();
    let error = second.claim(&two).await.unwrap_err();
    assert!(error.kind != ErrorKind::Denied && error.message.contains("does not accept writes"), "{error}");
    replica.sql("SET GLOBAL read_only = 0");
    let holder = refused(second.claim(&two).await.unwrap());
    assert!(holder.doubt.is_some(), "{holder:?}");
    assert_eq!(first.renew(&one, term, 1).await, Ok(Renewal::Renewed));
    let grant = granted_in_time(&second, &two).await;
    assert!(grant.term > term && grant.start_after.is_none(), "{grant:?}");
    assert!(matches!(first.renew(&one, term, 2).await, Ok(Renewal::Lost(Some(holder))) if holder.owner == "two"));
}
