//! `leaderctl store check`: what can be wrong with a server and a table, beyond the trial of documents.
//!
//! The hazard: a table may look right and not be. Without its rule a user can delete a lease that is held. An unlogged
//! table is empty after a crash. A server that does not wait for its disk may forget a lease that it granted.

use super::connection::Connection;
use super::grants;
use super::server::Server;
use super::setup::{ask, look};
use super::watch::POLL;
use crate::lease::show;
use crate::store::sql::site::{deletion, encryption};
use crate::store::{Finding, StoreError, round_trip};

/// The first version with `AS MATERIALIZED`.
const OLDEST: i32 = 120_000;

/// What kind of server and table it is.
pub async fn identify(server: &Server) -> Result<Vec<Finding>, StoreError> {
    let (connection, _) = server.connect(server.deadline()).await?;
    let (_, time) = round_trip::measure(|| ask(server, &connection, "SELECT 1", &[])).await?;
    let question = "SELECT current_setting('server_version'), current_setting('server_version_num')::int";
    let rows = ask(server, &connection, question, &[]).await?;
    let row = rows.first().ok_or_else(|| StoreError::unknown("the server does not tell its version"))?;
    let is_too_old = row.try_get::<_, i32>(1).unwrap_or(0) < OLDEST;
    let version: &str = row.try_get(0).unwrap_or_default();
    let mut findings = vec![server.site.version(version, is_too_old.then_some("PostgreSQL 12"), time)];
    if look(server, &connection, &server.table).await?.table.is_none() {
        findings.push(Finding::bad(server.site.no_table().message));
        return Ok(findings);
    }
    let missing = grants::missing(&connection, &server.table).await;
    let missing = missing.map_err(|error| connection.unanswered(&server.site, &error))?;
    findings.extend(missing.into_iter().map(|grant| Finding::bad(format!("permission missing: {grant}"))));
    Ok(findings)
}

/// How reliable the server's answers are, and whether standbys hear of a release.
pub async fn findings(server: &Server) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let (connection, _) = server.connect(server.deadline()).await?;
    check_settings(server, &connection, &mut findings).await?;
    let table = &server.table;
    let found = look(server, &connection, table).await?;
    if found.table.is_some_and(|(_, persistence)| persistence != 'p') {
        findings.push(Finding::bad(format!(
            "table {table} is not logged, so a crash of the server empties it: drop it, and make it with leaderctl \
             store init"
        )));
    }
    findings.push(deletion(found.rule, "the table's owner"));
    if !connection.has_timeline {
        findings.push(Finding::doubtful(
            "the server does not tell its timeline, so a failover that forgets leases goes unnoticed",
        ));
    }
    findings.push(if server.listen().await?.pushes {
        Finding::good("notifications arrive: standbys hear of a release at once")
    } else {
        Finding::doubtful(format!(
            "notifications do not arrive, as through a pooler in transaction mode: standbys look every {}",
            show(POLL)
        ))
    });
    Ok(findings)
}

/// Checks the settings that decide how reliable the server's answers are.
async fn check_settings(
    server: &Server,
    connection: &Connection,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    let question = "SELECT current_setting('fsync'), current_setting('full_page_writes'), \
                    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
                    (SELECT count(*) FROM pg_stat_replication), \
                    (SELECT s.ssl FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid())";
    let rows = ask(server, connection, question, &[]).await?;
    let row = rows.first().ok_or_else(|| StoreError::unknown("the server told none of its settings"))?;
    let setting = |column| row.try_get::<_, String>(column).unwrap_or_default();
    if setting(0) != "on" {
        findings.push(Finding::bad(
            "fsync is off, so a crash of the server's machine may forget or break leases: turn it on",
        ));
    }
    if setting(1) != "on" {
        findings
            .push(Finding::doubtful("full_page_writes is off, so a crash of the server's machine may break the table"));
    }
    if setting(2) == "off" {
        findings.push(Finding::good("synchronous_commit is off: leaderrun sets it to local for what it writes"));
    }
    let replicas = row.try_get::<_, i64>(4).unwrap_or(0);
    if replicas > 0 && setting(3).is_empty() {
        findings.push(Finding::doubtful(
            "the replicas are asynchronous, so a failover may forget leases: after one, a new leader waits for one \
             lease duration; that is enough unless the old primary still serves clients",
        ));
    }
    let encrypted: bool = row.try_get(5).unwrap_or(false);
    if connection.direct {
        let mode = (server.address.tls_mode, server.address.tls_files.ca.is_some());
        let options = ["sslmode=verify-full", "sslrootcert"];
        findings.extend(encryption(encrypted, &server.address.places, mode, options));
    }
    Ok(())
}
