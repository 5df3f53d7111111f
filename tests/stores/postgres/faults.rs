//! Servers that are gone, silent, slow, or not the right one.

use super::*;
use crate::support::ports::free_port;
use crate::support::postgres::Bouncer;
use crate::support::proxy::{NetworkFault, Proxy};

#[tokio::test]
async fn a_connection_that_hangs_for_ever_does_not_hold_up_the_next_renewal() {
    let table = Table::new().await;
    let store = std::sync::Arc::new(open(&table.url_with("application_name=frozen")));
    let (one, term) = one_leads(&*store).await;
    let pid = table.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'frozen'");
    let backend = Pid::from_raw(pid.parse().unwrap());
    kill(backend, Signal::SIGSTOP).unwrap();
    let hanging = renews(&store, &one, term, 1);
    // After this silence the connection is not chosen any more.
    tokio::time::sleep(Duration::from_millis(1200)).await;
    let begun = Instant::now();
    for sequence in 2..4 {
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
    }
    assert!(begun.elapsed() < REQUEST_TIMEOUT / 2 && !hanging.is_finished(), "{:?}", begun.elapsed());
    kill(backend, Signal::SIGCONT).unwrap();
    assert_eq!(hanging.await.unwrap(), Ok(Renewal::Overtaken));
    assert_eq!(store.renew(&one, term, 4).await, Ok(Renewal::Renewed));
}

/// A new connection takes longer there than a request may.
#[tokio::test]
async fn a_request_that_its_caller_gives_up_on_a_slow_network_costs_no_connection() {
    let table = Table::new().await;
    let proxy = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
    let url = format!("postgres://postgres@{}/postgres?table={}", proxy.address, table.name);
    let store = try_open(&url, REQUEST_TIMEOUT).unwrap();
    let (one, term) = one_leads(&store).await;
    proxy.set(NetworkFault::Slow(Duration::from_secs(1)));
    let given_up = tokio::time::timeout(Duration::from_millis(100), store.renew(&one, term, 1)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));
    assert_eq!(store.renew(&one, term, 3).await, Ok(Renewal::Renewed));
}

#[tokio::test]
async fn a_row_or_a_table_that_is_locked_is_given_up_by_the_server_as_well() {
    let table = Table::new().await;
    let bouncer = Bouncer::before(table.server, "transaction");
    for url in [table.url(), bouncer.url_with(&format!("table={}", table.name))] {
        let stranger = Stranger::at(table.server).await;
        let store = try_open(&url, Duration::from_secs(3)).unwrap();
        let (one, term) = one_leads(&store).await;
        let mut applied = 0;
        for lock in [format!("SELECT 1 FROM {} FOR UPDATE", table.name), format!("LOCK TABLE {}", table.name)] {
            stranger.ask(&format!("BEGIN; {lock}")).await;
            let begun = Instant::now();
            for more in 1..3 {
                let error = store.renew(&one, term, applied + more).await.unwrap_err();
                assert!(matches!(error.kind, ErrorKind::NotApplied | ErrorKind::Unknown), "{error}");
            }
            assert!(begun.elapsed() < REQUEST_TIMEOUT, "{:?}", begun.elapsed());
            let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%$T%'";
            eventually("nobody waits in the server any more", async || table.sql(waiting) == "0").await;
            stranger.ask("ROLLBACK").await;
            let sequence = table.sql("SELECT sequence FROM $T WHERE part = 'lease'").parse::<u64>().unwrap();
            assert_eq!(sequence, applied, "what was given up was not applied");
            applied += 10;
            // A machine that stalls may be slower than this store has patience.
            eventually("it renews", async || store.renew(&one, term, applied).await == Ok(Renewal::Renewed)).await;
        }
        store.release(&one, term).await.unwrap();
    }
}

#[tokio::test]
async fn of_several_hosts_the_one_that_accepts_writes_is_found() {
    let table = Table::new().await;
    let silent = Proxy::to(([127, 0, 0, 1], table.server.port()).into());
    silent.set(NetworkFault::Partition);
    let (dead, alive) = (free_port(), table.server.port());
    let url = format!(
        "postgres://postgres@127.0.0.1:{dead},127.0.0.1:{},127.0.0.1:{alive}/postgres?table={}",
        silent.address.port(),
        table.name
    );
    let store = try_open(&url, Duration::from_secs(10)).unwrap();
    let one = with_lease("one", Duration::from_mins(1));
    // The silent one is given half of the time.
    let term = lead(&store, &one).await;
    let mut quickest = Duration::MAX;
    for sequence in 1..4 {
        let begun = Instant::now();
        assert_eq!(store.renew(&one, term, sequence).await, Ok(Renewal::Renewed));
        quickest = quickest.min(begun.elapsed());
    }
    assert!(quickest < Duration::from_millis(4500), "it is asked first again and again: {quickest:?}");
}

fn alter(server: &Server, change: &str) {
    server.sql(&format!("ALTER SYSTEM {change}"));
    server.sql("SELECT pg_reload_conf()");
}

#[tokio::test]
async fn a_server_that_only_reads_is_passed_over_and_one_that_missed_its_standby_has_renewed_nothing() {
    let server = Server::start();
    let store = ready(&server).await;
    let (one, term) = one_leads(&store).await;
    alter(&server, "SET default_transaction_read_only = on");
    eventually("it only reads", async || server.sql("SHOW default_transaction_read_only") == "on").await;
    let fresh = open(&server.own_url());
    not_applied(fresh.claim(&candidate("two")).await, "does not accept writes");
    // A connection that was made before goes the same way.
    not_applied(store.renew(&one, term, 1).await, "");
    alter(&server, "RESET default_transaction_read_only");
    eventually("it writes", async || server.sql("SHOW default_transaction_read_only") == "off").await;
    assert_eq!(store.renew(&one, term, 2).await, Ok(Renewal::Renewed));

    alter(&server, "SET synchronous_standby_names = 'nobody'");
    let cancel = async || {
        loop {
            server.sql("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let mut sequence = 2;
    let mut renewed = Ok(Renewal::Renewed);
    eventually("the server waits for a standby", async || {
        sequence += 1;
        renewed =
            tokio::select! { renewed = store.renew(&one, term, sequence) => renewed, () = cancel() => unreachable!() };
        renewed.is_err()
    })
    .await;
    failed(renewed, ErrorKind::Unknown, "synchronous standby was cancelled");
    alter(&server, "RESET synchronous_standby_names");
    eventually("it waits for none", async || server.sql("SHOW synchronous_standby_names").is_empty()).await;
    assert_eq!(store.renew(&one, term, sequence + 1).await, Ok(Renewal::Renewed));
}
