//! `leaderctl store check`: whether an election can rely on the tables.
//!
//! The hazard: a table may look right and not be. Without its trigger a user can delete a lease that is held. A table
//! of another engine than InnoDB knows no transactions, and may be broken or empty after a crash. A server that does
//! not wait for its disk may forget a lease that it granted. Permissions are tried, in a transaction that is rolled
//! back.

use super::Mysql;
use super::address::Place;
use super::connection::{Connection, Row};
use super::failure::Site;
use super::notes::OneNote;
use super::server::Server;
use super::statement::{notes_name, read};
use super::table::{ask, engine, is_protected, refuse_engine};
use crate::lease::{self, Candidate, Shard, Term};
use crate::store::error::in_short;
use crate::store::rows::{Seen, encryption, finding, is_remote, page_name, scratch_name};
use crate::store::{Finding, Note, Page, StoreError, round_trip};
use std::time::Duration;

/// The oldest versions: with this much the tests are run, or the documentation promises it.
const OLDEST_MYSQL: (u32, u32) = (8, 0);
const OLDEST_MARIADB: (u32, u32) = (10, 6);

/// Checks everything that an election relies on.
pub async fn check(store: &Mysql) -> Result<Vec<Finding>, StoreError> {
    let server = &store.server;
    let mut findings = Vec::new();
    let mut connection = server.connect(server.deadline()).await?;
    let connection = &mut connection;
    check_server(server, connection, &mut findings).await?;
    let mut works = true;
    let of_notes = notes_name(&server.address.table);
    for (site, table) in [(&server.site, server.address.table.as_str()), (&server.notes, of_notes.as_str())] {
        let found = engine(server, connection, table).await?;
        let Some(engine) = found else {
            findings.push(Finding::bad(format!(
                "no table {} in {}, or no permission on it: make it with leaderctl store init, and GRANT {} on it",
                site.table, site.server, site.privileges
            )));
            works = false;
            continue;
        };
        if let Err(error) = refuse_engine(&site.table, &engine) {
            findings.push(Finding::bad(error.message));
            works = false;
        }
    }
    if !works {
        return Ok(findings);
    }
    let tried = try_everything(server).await;
    let works = tried.is_ok();
    findings.push(finding(tried, "may do all that an election needs: SELECT, INSERT, UPDATE")?);
    let note = format!("may read and write notes in table {}", server.notes.table);
    findings.push(finding(try_notes(server).await, &note)?);
    if works {
        check_memory(server, connection, &mut findings).await?;
    }
    Ok(findings)
}

/// Checks version, speed, and the settings that decide how reliable the server's answers are.
async fn check_server(
    server: &Server,
    connection: &mut Connection,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    let question = "SELECT VERSION(), @@innodb_flush_log_at_trx_commit, @@log_bin, @@sync_binlog, \
                    (SELECT COUNT(*) FROM information_schema.processlist AS p WHERE p.command LIKE 'Binlog Dump%')";
    let connection = tokio::sync::Mutex::new(connection);
    let ask = async || ask(server, &server.site, &mut **connection.lock().await, question).await;
    let (rows, time) = round_trip::measure(ask).await?;
    let row = rows.first().ok_or_else(|| StoreError::unknown("the server told none of its settings"))?;
    let version = in_short(&row.words(0).unwrap_or_default());
    let Site { server: name, user, .. } = &server.site;
    findings.push(if is_too_old(&version) {
        Finding::bad(format!("{name} is version {version}: leaderrun needs MySQL 8.0 or MariaDB 10.6, or newer"))
    } else {
        Finding::good(format!(
            "{name} is version {version}, lets in user {user} and accepts writes; a round trip takes {time:.1?}"
        ))
    });
    let (flush, log, sync) = (row.number(1), row.flag(2).unwrap_or(false), row.number(3));
    if flush != Some(1) {
        findings.push(Finding::bad(
            "innodb_flush_log_at_trx_commit is not 1, so a crash of the server's machine may forget leases: set it to 1",
        ));
    }
    if log && sync != Some(1) {
        findings.push(Finding::doubtful(
            "sync_binlog is not 1, so after a crash of the server's machine its replicas may know more than it does",
        ));
    }
    let connection = connection.into_inner();
    if connection.is_galera {
        findings.push(Finding::doubtful(
            "the server is a node of a Galera cluster: a leader that is granted its lease by another node than the last \
             one waits for one lease duration, because the nodes' clocks may differ; so let all candidates name the same \
             node first",
        ));
    } else if row.number(4).unwrap_or(0) > 0 {
        findings.push(Finding::doubtful(
            "the server has replicas, so a failover may forget leases: after one, a new leader waits for one lease \
             duration; that is enough unless the old server still serves clients",
        ));
    }
    let remote = server.address.places.iter().any(|place| match place {
        Place::Tcp { name, .. } => is_remote(name),
        Place::Unix(_) => false,
    });
    if remote {
        let (mode, has_ca) = (server.address.tls_mode, server.address.tls_files.ca.is_some());
        findings.push(encryption(connection.encrypted, mode, has_ca, "ssl-mode=VERIFY_IDENTITY", "ssl-ca"));
    }
    Ok(())
}

fn is_too_old(version: &str) -> bool {
    let mut numbers = version.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u32>().ok());
    let read = numbers.next().zip(numbers.next());
    let oldest = if version.contains("MariaDB") { OLDEST_MARIADB } else { OLDEST_MYSQL };
    read.is_none_or(|read| read < oldest)
}

/// Does everything that an election does, with a shard that does not exist, in a transaction that is rolled back.
async fn try_everything(server: &Server) -> Result<(), StoreError> {
    let mut connection = server.connect(server.deadline()).await?;
    let connection = &mut connection;
    let no_random = |error| StoreError::not_applied(format!("no random bytes for a name: {error}"));
    let shard = scratch_name()?.parse::<Shard>().map_err(StoreError::unknown)?;
    let me = Candidate {
        shard,
        owner: "leaderctl store check".to_owned(),
        session: lease::Session::random().map_err(no_random)?,
        host: String::new(),
        pid: 1,
        lease: Duration::from_secs(1),
    };
    let (site, statements) = (&server.site, &server.statements);
    let seen = |rows: &[Row]| match rows.first().map(|row| read(row, 0)) {
        Some(Seen::Record(record)) if record.is_of(&me) => Some(record),
        _ => None,
    };
    ask(server, site, connection, "START TRANSACTION").await?;
    let claim = statements.claim(&me, 1);
    let claimed = seen(&ask(server, site, connection, &claim).await?);
    let term = claimed.as_ref().map_or(Term(0), |record| record.term);
    let renewed = seen(&ask(server, site, connection, &statements.renew(&me, term, 1)).await?);
    let released = seen(&ask(server, site, connection, &statements.release(&me, term, 2)).await?);
    // Closing the connection rolls back too.
    ask(server, site, connection, "ROLLBACK").await?;
    let kept = claimed.is_some_and(|record| !record.free)
        && renewed.is_some_and(|record| record.beat == 1)
        && released.is_some_and(|record| record.released);
    if kept { Ok(()) } else { Err(not_kept(&site.table)) }
}

/// Writes, changes and removes a note, in a transaction that is rolled back.
async fn try_notes(server: &Server) -> Result<(), StoreError> {
    let mut connection = server.connect(server.deadline()).await?;
    let note = OneNote::of(&server.notes.table, &scratch_name()?, &page_name(&Page::Orders));
    let draft = |text: &str| Note::lasting(text.to_owned(), Some(Duration::from_secs(1)));
    let statements = [
        "START TRANSACTION".to_owned(),
        note.add(&draft("one")),
        note.change("one", &draft("two")),
        note.remove("two"),
        // How many the last one removed.
        "SELECT ROW_COUNT()".to_owned(),
        "ROLLBACK".to_owned(),
    ];
    let mut removed = None;
    for statement in statements {
        let rows = ask(server, &server.notes, &mut connection, &statement).await?;
        removed = rows.first().and_then(|row| row.number(0)).or(removed);
    }
    if removed == Some(1) { Ok(()) } else { Err(not_kept(&server.notes.table)) }
}

fn not_kept(table: &str) -> StoreError {
    StoreError::misconfigured(format!(
        "table {table} takes what is written to it and does not keep it: a trigger, or another engine than InnoDB, stands \
         in the way"
    ))
}

async fn check_memory(
    server: &Server,
    connection: &mut Connection,
    findings: &mut Vec<Finding>,
) -> Result<(), StoreError> {
    // Records since when the table remembers, if that is not known, as the next claim would.
    let since = server.remember_over(connection).await;
    findings.push(match since.map_err(|trouble| server.site.unanswered(&trouble, false))? {
        Some(since) => {
            let age = super::statement::micros(since);
            let since = std::time::SystemTime::now() - age;
            Finding::good(format!("the table remembers since {}", humantime::format_rfc3339_seconds(since)))
        }
        None => Finding::doubtful(
            "the table was restored, or the server failed over: a leader that is granted a lease within one lease \
             duration from now waits",
        ),
    });
    findings.push(if is_protected(server, connection).await? {
        Finding::good("a DELETE of a lease that is held is refused")
    } else {
        Finding::doubtful(
            "a lease that is held can be deleted by hand, so the first leader of each shard waits one lease duration: \
             leaderctl store init as a user with TRIGGER prevents it",
        )
    });
    Ok(())
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
