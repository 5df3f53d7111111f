//! `leaderctl store init` and `leaderctl store check`.

use super::*;

#[tokio::test]
async fn init_can_be_run_again_and_check_is_content() {
    let server = Server::start_with(&["--innodb-flush-log-at-trx-commit=1"]);
    let run = |words: &[&str]| leaderctl().args(["--store", &server.url_with("")]).args(words).said().good();
    let first = run(&["store", "init"]);
    assert!(first.contains(&format!("created table `{DATABASE}`.`leaderrun` in database")), "{first}");
    assert!(first.contains("a lease that is held cannot be deleted by hand"), "{first}");
    let second = run(&["store", "init"]);
    assert!(second.contains("exists") && !second.contains("created"), "{second}");
    let checked = run(&["store", "check"]);
    let version = server.sql("SELECT VERSION()");
    for part in [
        version.as_str(),
        "a round trip takes",
        "may do all that an election needs",
        "has recorded since when it remembers leases",
    ] {
        assert!(checked.contains(part), "{checked}");
    }
    assert_eq!(server.sql("SELECT COUNT(*) FROM leaderrun"), "1", "the check leaves nothing but the marker");
}

#[tokio::test]
async fn what_is_missing_or_keeps_nothing_is_found() {
    let table = Table::new().await;
    let never = table.url().replace(&format!("table={}&", table.name), "table=never&");
    finds(&open(&never).check().await.unwrap(), Verdict::Bad, "create it with leaderctl store init");
    table.sql("CREATE TRIGGER forgetful_$T BEFORE UPDATE ON $T FOR EACH ROW SET NEW.version = OLD.version");
    finds(&table.store().check().await.unwrap(), Verdict::Bad, "does not honour conditional writes");
}
