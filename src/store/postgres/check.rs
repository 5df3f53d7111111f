//! `leaderctl store check`: whether an election can rely on the tables.
//!
//! The hazard: a table may look right and not be. Without its rule a user can delete a lease that is held, and then two
//! candidates lead. An unlogged table is empty after a crash. A server that does not wait for its disk may forget a
//! lease that it granted. Permissions are looked up and then tried, in a transaction that is rolled back.

use super::Postgres;
use super::address::Place;
use super::advisory::Advisory;
use super::connection::Connection;
use super::failure::Site;
use super::grants::{self, Relation};
use super::server::Server;
use super::statement::{number, seconds, text};
use super::table::{ask, ask_about, look, run};
use super::watch::POLL;
use crate::lease::{self, show};
use crate::store::error::in_short;
use crate::store::rows::{encryption, finding, is_remote, page_name, scratch_name};
use crate::store::session_lock::Taken;
use crate::store::{ErrorKind, Finding, Page, StoreError, round_trip};

/// The first version with `AS MATERIALIZED`.
const OLDEST: i32 = 120_000;

/// Checks everything that an election relies on.
pub async fn check(store: &Postgres) -> Result<Vec<Finding>, StoreError> {
    let server = &store.server;
    let mut findings = Vec::new();
    let (connection, _) = server.connect(server.deadline()).await?;
    check_server(server, &connection, &mut findings).await?;
    let found = look(server, &connection, &server.site.table).await?;
    let table = &server.statements.table;
    let Some((_, persistence)) = found.table else {
        findings.push(Finding::bad(format!(
            "no table {table} in database {} of {}: make it with leaderctl store init",
            server.site.database, server.site.server
        )));
        return Ok(findings);
    };
    if persistence != 'p' {
        findings.push(Finding::bad(format!(
            "table {table} is not logged, so a crash of the server empties it: drop it, and make it with leaderctl \
             store init"
        )));
    }
    let missing = grants::missing(&connection, &server.site.table)
        .await
        .map_err(|error| connection.unanswered(&server.site, &error))?;
    let tried = if missing.is_empty() { Some(try_everything(server).await) } else { None };
    let works = matches!(tried, Some(Ok(())));
    match tried {
        None => {
            findings.extend(missing.into_iter().map(|grant| Finding::bad(format!("permission missing: {grant}"))));
        }
        Some(Ok(())) => findings.push(Finding::good("may do all that an election needs: SELECT, INSERT, UPDATE")),
        Some(Err(error)) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
            findings.push(Finding::bad(error.message));
        }
        Some(Err(error)) => return Err(error),
    }
    findings.push(if found.rule {
        Finding::good("a DELETE of a lease that is held does nothing")
    } else {
        Finding::doubtful(
            "a lease that is held can be deleted by hand, and then two lead until the first has noticed: leaderctl \
             store init as the table's owner prevents it",
        )
    });
    if works {
        check_memory(server, &connection, &mut findings).await?;
        check_delivery(server, &mut findings).await?;
    }
    if let Some(advisory) = &store.advisory {
        findings.push(check_advisory(server, advisory).await?);
    }
    check_notes(server, &connection, &mut findings).await?;
    Ok(findings)
}

/// Checks the table of notes. A candidate that cannot read orders starts nothing.
async fn check_notes(server: &Server, connection: &Connection, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let Site { server: name, database, table, .. } = &server.notes;
    if look(server, connection, table).await?.table.is_none() {
        findings.push(Finding::bad(format!(
            "no table {table} in database {database} of {name}: make it with leaderctl store init"
        )));
        return Ok(());
    }
    let missing = grants::missing(connection, table).await;
    let missing = missing.map_err(|error| connection.unanswered(&server.notes, &error))?;
    if !missing.is_empty() {
        findings.extend(missing.into_iter().map(|grant| Finding::bad(format!("permission missing: {grant}"))));
        return Ok(());
    }
    findings.push(finding(try_notes(server).await, &format!("may read and write notes in table {table}"))?);
    Ok(())
}

/// Writes, changes, reads and removes a note, in a transaction that is rolled back.
async fn try_notes(server: &Server) -> Result<(), StoreError> {
    let (connection, _) = server.connect(server.deadline()).await?;
    let (shard, page, statements) = (scratch_name()?, page_name(&Page::Orders), &server.statements);
    let (one, two, lasts) = ("one", "two", Some(1000_i64));
    let steps = [
        (statements.add_note(), vec![text(&one), number(&lasts)]),
        (statements.change_note(), vec![text(&one), text(&two), number(&lasts)]),
        (statements.remove_note(), vec![text(&two)]),
    ];
    run(server, &connection, "BEGIN", "").await?;
    let mut kept = true;
    for (statement, mut parameters) in steps {
        parameters.splice(0..0, [text(&shard), text(&page)]);
        let rows = ask_about(server, &server.notes, &connection, &statement, &parameters).await?;
        kept &= rows.first().and_then(|row| row.try_get::<_, bool>(0).ok()) == Some(true);
    }
    // Closing the connection rolls back too.
    run(server, &connection, "ROLLBACK", "").await?;
    if kept { Ok(()) } else { Err(not_kept(&server.notes.table)) }
}

fn not_kept(table: &Relation) -> StoreError {
    StoreError::misconfigured(format!(
        "table {table} takes what is written to it and does not keep it: a trigger, a rule or a policy of row security \
         stands in the way"
    ))
}

/// Checks version, speed, and the settings that decide how reliable the server's answers are.
async fn check_server(server: &Server, connection: &Connection, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let (_, time) = round_trip::measure(|| ask(server, connection, "SELECT 1", &[])).await?;
    let question = "SELECT current_setting('server_version'), current_setting('server_version_num')::int, \
                    current_setting('fsync'), current_setting('full_page_writes'), \
                    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
                    (SELECT count(*) FROM pg_stat_replication), \
                    (SELECT s.ssl FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid())";
    let rows = ask(server, connection, question, &[]).await?;
    let row = rows.first().ok_or_else(|| StoreError::unknown("the server told none of its settings"))?;
    let setting = |column| row.try_get::<_, String>(column).unwrap_or_default();
    let version = in_short(&setting(0));
    let number = row.try_get::<_, i32>(1).unwrap_or(0);
    let Site { server: name, user, .. } = &server.site;
    findings.push(if number < OLDEST {
        Finding::bad(format!("{name} is version {version}: leaderrun needs PostgreSQL 12 or newer"))
    } else {
        Finding::good(format!(
            "{name} is version {version}, lets in user {user} and accepts writes; a round trip takes {time:.1?}"
        ))
    });
    if setting(2) != "on" {
        findings.push(Finding::bad(
            "fsync is off, so a crash of the server's machine may forget or break leases: turn it on",
        ));
    }
    if setting(3) != "on" {
        findings
            .push(Finding::doubtful("full_page_writes is off, so a crash of the server's machine may break the table"));
    }
    if setting(4) == "off" {
        findings.push(Finding::good("synchronous_commit is off: leaderrun sets it to local for what it writes"));
    }
    let replicas = row.try_get::<_, i64>(6).unwrap_or(0);
    if replicas > 0 && setting(5).is_empty() {
        findings.push(Finding::doubtful(
            "the replicas are asynchronous, so a failover may forget leases: after one, a new leader waits for one \
             lease duration; that is enough unless the old primary still serves clients",
        ));
    }
    let encrypted: bool = row.try_get(7).unwrap_or(false);
    let remote = server.address.places.iter().any(|place| match place {
        Place::Tcp { name, .. } => is_remote(name),
        Place::Unix { .. } => false,
    });
    if remote && connection.direct {
        let (mode, has_ca) = (server.address.tls_mode, server.address.tls_files.ca.is_some());
        findings.push(encryption(encrypted, mode, has_ca, "sslmode=verify-full", "sslrootcert"));
    }
    Ok(())
}

/// Does everything that an election does, with a shard that does not exist, in a transaction that is rolled back.
async fn try_everything(server: &Server) -> Result<(), StoreError> {
    let (connection, _) = server.connect(server.deadline()).await?;
    let (shard, me, owner, host) = (scratch_name()?, scratch_name()?, "leaderctl store check", "");
    let (one, two, lease, none) = (1_i64, 2_i64, 1000_i64, 0_i64);
    run(server, &connection, "BEGIN", "").await?;
    let statements = &server.statements;
    let claim = [text(&shard), text(&me), text(&owner), text(&host), number(&one), number(&one), number(&lease)];
    let rows = ask(server, &connection, &statements.claim(connection.has_timeline), &claim).await?;
    let term = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
    let granted = term.unwrap_or(0);
    let renew = [text(&shard), text(&me), number(&granted), number(&one), number(&lease), number(&none), number(&none)];
    let rows = ask(server, &connection, &statements.renew(0), &renew).await?;
    let renewed = rows.first().and_then(|row| row.try_get::<_, bool>(0).ok());
    let release = [text(&shard), text(&me), number(&none), number(&two), text(&server.channel)];
    let rows = ask(server, &connection, &statements.release(), &release).await?;
    let released = rows.first().and_then(|row| row.try_get::<_, bool>(0).ok());
    // Closing the connection rolls back too.
    run(server, &connection, "ROLLBACK", "").await?;
    if term.is_some() && renewed == Some(true) && released == Some(true) {
        Ok(())
    } else {
        Err(not_kept(&server.site.table))
    }
}

async fn check_memory(server: &Server, connection: &Connection, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    // Records since when the table remembers, if that is not known, as the next claim would.
    let rows = ask(server, connection, &server.statements.remember(connection.has_timeline), &[]).await?;
    findings.push(match rows.first().and_then(|row| row.try_get::<_, Option<f64>>(0).ok().flatten()) {
        Some(since) => Finding::good(format!(
            "the table remembers since {}",
            humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + seconds(since))
        )),
        None => Finding::doubtful(
            "the table was restored, or the server failed over: a leader that is granted a lease within one lease \
             duration from now waits",
        ),
    });
    if !connection.has_timeline {
        findings.push(Finding::doubtful(
            "the server does not tell its timeline, so a failover that forgets leases goes unnoticed",
        ));
    }
    Ok(())
}

async fn check_delivery(server: &Server, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let subscription = server.subscribe().await?;
    findings.push(if subscription.pushes {
        Finding::good("notifications arrive: standbys hear of a release at once")
    } else {
        Finding::doubtful(format!(
            "notifications do not arrive, as through a pooler in transaction mode: standbys look every {}",
            show(POLL)
        ))
    });
    Ok(())
}

async fn check_advisory(server: &Server, advisory: &Advisory) -> Result<Finding, StoreError> {
    let key = advisory.key;
    match advisory.take(server, lease::DEFAULT_LEASE).await {
        Ok(Taken::Ours) => {
            advisory.let_go(server).await;
            Ok(Finding::good(format!("advisory lock {key} is free and can be taken")))
        }
        Ok(Taken::Theirs(holder)) => Ok(Finding::good(format!("advisory lock {key} is held: {}", holder.owner))),
        Err(error) => finding(Err(error), ""),
    }
}
