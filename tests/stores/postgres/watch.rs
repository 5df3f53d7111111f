//! How standbys hear of a release.

use super::*;
use crate::support::gate::{Fate, Gate};

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

#[tokio::test]
async fn a_standby_whose_connection_breaks_while_it_finds_out_whether_it_hears_tries_again() {
    let table = Table::new().await;
    let leader = table.store();
    let (one, term) = one_leads_for(&leader, Duration::from_mins(5)).await;
    let server = table.server.address();
    let gate = Gate::to(server);
    let name = format!("standby_{}", table.name);
    let url = table.url_with(&format!("application_name={name}"));
    let standby = open(&url.replace(&server.to_string(), &gate.address.to_string()));
    gate.once("pg_notify", Fate::Hold);
    let waiting = tokio::spawn(async move { (standby.changed(&shard()).await, standby) });
    let sessions = format!("FROM pg_stat_activity WHERE application_name = '{name}'");
    let count = format!("SELECT count(*) {sessions} AND query LIKE '%pg_backend_pid%'");
    eventually("it has asked both sessions who they are", async || table.server.sql(&count) == "2").await;
    let first = format!("SELECT pid {sessions} ORDER BY backend_start LIMIT 1");
    assert_eq!(table.server.sql(&format!("SELECT pg_terminate_backend(({first}))")), "t");
    tokio::time::sleep(Duration::from_millis(300)).await;
    gate.let_go();
    let (news, standby) = timeout(Duration::from_secs(10), waiting).await.expect("it is told").unwrap();
    assert!(news.is_err(), "nothing has changed");
    let waiting = tokio::spawn(async move { standby.changed(&shard()).await });
    tokio::time::sleep(Duration::from_secs(1)).await;
    leader.release(&one, term).await.unwrap();
    // It would look every two seconds.
    timeout(Duration::from_secs(1), waiting).await.expect("it hears at once").unwrap().unwrap();
}
