//! How standbys hear of a release.

use super::*;

#[tokio::test]
async fn a_standby_whose_connection_was_ended_listens_again() {
    let mut server = Server::start();
    let leader = open(&server.own_url());
    let standby = open(&server.url_with("application_name=standby"));
    leader.prepare().await.unwrap();
    server.grow_old();
    // Nobody hears of its end here.
    let (one, term) = one_leads_for(&leader, Duration::from_mins(5)).await;
    let waiting = tokio::spawn(async move { (standby.changed(&shard()).await, standby) });
    let standbys = "FROM pg_stat_activity WHERE application_name = 'standby'";
    let back = format!("SELECT count(*) {standbys} AND query LIKE '%statement_timestamp%'");
    eventually("it listens, and has looked", async || server.sql(&back) == "1").await;
    server.sql(&format!("SELECT pg_terminate_backend(pid) {standbys}"));
    eventually("it is back, and has looked", async || server.sql(&back) == "1").await;
    leader.release(&one, term).await.unwrap();
    let (news, standby) = timeout(PATIENCE, waiting).await.expect("the standby is told").unwrap();
    assert_eq!(news, Ok(()));
    // A restart takes longer than an attempt: then it says that it cannot listen, once.
    lead(&leader, &one).await;
    server.kill();
    assert!(timeout(PATIENCE, standby.changed(&shard())).await.expect("it tells").is_err());
    server.start_again();
    assert!(timeout(Duration::from_millis(500), standby.changed(&shard())).await.is_err(), "it listens again");
}
