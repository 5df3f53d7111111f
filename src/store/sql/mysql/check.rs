//! `leaderctl store check`: what can be wrong with a server and a table, beyond the trial of documents.
//!
//! The hazard: a table may look right and not be. Without its trigger a user can delete a lease that is held. A server
//! that does not wait for its disk may forget a lease that it granted.

use super::connection::Connection;
use super::failure;
use super::server::Server;
use super::setup::is_kept;
use crate::store::sql::client::Cell;
use crate::store::sql::site::{deletion, encryption};
use crate::store::{Finding, StoreError, round_trip};
use tokio::sync::Mutex;

/// The oldest versions: with this much the tests are run, or the documentation promises it.
const OLDEST_MYSQL: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 6);

/// What kind of server and table it is.
pub async fn identify(server: &Server) -> Result<Vec<Finding>, StoreError> {
    let connection = Mutex::new(server.connect(server.deadline()).await?);
    let ask = async || row(server, &mut *connection.lock().await, "SELECT VERSION()").await;
    let (row, time) = round_trip::measure(ask).await?;
    let version = row.first().and_then(Cell::text).unwrap_or_default();
    let needs = is_too_old(version).then_some("MySQL 8.0 or MariaDB 10.6");
    let mut findings = vec![server.site.version(version, needs, time)];
    if !connection.into_inner().has_table {
        findings.push(Finding::bad(format!(
            "{}; or GRANT {} on it",
            server.site.no_table().message,
            failure::PRIVILEGES
        )));
    }
    Ok(findings)
}

/// How reliable the server's answers are.
pub async fn findings(server: &Server) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let mut connection = server.connect(server.deadline()).await?;
    let question = "SELECT @@innodb_flush_log_at_trx_commit, @@log_bin + 0, @@sync_binlog, \
                    (SELECT COUNT(*) FROM information_schema.processlist AS p WHERE p.command LIKE 'Binlog Dump%')";
    let settings = row(server, &mut connection, question).await?;
    let [flush, log, sync, replicas] = settings.as_slice() else { return Err(server.site.not_understood()) };
    if *flush != Cell::Number(1) {
        findings.push(Finding::bad(
            "innodb_flush_log_at_trx_commit is not 1, so a crash of the server's machine may forget leases: set it to 1",
        ));
    }
    if *log == Cell::Number(1) && *sync != Cell::Number(1) {
        findings.push(Finding::doubtful(
            "sync_binlog is not 1, so after a crash of the server's machine its replicas may know more than it does",
        ));
    }
    if connection.is_galera {
        findings.push(Finding::doubtful(
            "the server is a node of a Galera cluster: nobody is granted a lease by another node than the last one for \
             one lease duration, because the nodes' clocks may differ; so let all candidates name the same node first",
        ));
    } else if *replicas != Cell::Number(0) {
        findings.push(Finding::doubtful(
            "the server has replicas, so a failover may forget leases: after one, nobody is granted a lease for one lease \
             duration; that is enough unless the old server still serves clients",
        ));
    }
    let mode = (server.address.tls_mode, server.address.tls_files.ca.is_some());
    let options = ["ssl-mode=VERIFY_IDENTITY", "ssl-ca"];
    findings.extend(encryption(connection.encrypted, &server.address.places, mode, options));
    findings.push(deletion(is_kept(server, connection).await?, "a user with TRIGGER"));
    Ok(findings)
}

async fn row(server: &Server, connection: &mut Connection, question: &str) -> Result<Vec<Cell>, StoreError> {
    let rows = server.tell(connection, question).await;
    let rows = rows.map_err(|trouble| failure::unanswered(&server.site, &trouble))?;
    rows.into_iter().next().ok_or_else(|| server.site.not_understood())
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    let read = numbers.next().zip(numbers.next());
    let oldest = if version.contains("MariaDB") { OLDEST_MARIADB } else { OLDEST_MYSQL };
    read.is_none_or(|read| read < oldest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_versions_are_distinguished_from_new_ones() {
        for version in ["8.0.36", "8.4.0", "9.1.0-commercial", "10.6.1-MariaDB", "11.4.2-MariaDB-log"] {
            assert!(!is_too_old(version), "{version}");
        }
        for version in ["5.7.44-log", "10.5.23-MariaDB-1:10.5.23", "5.5.5-MariaDB", "", "x"] {
            assert!(is_too_old(version), "{version}");
        }
    }
}
