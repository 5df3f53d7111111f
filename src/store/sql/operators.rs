//! What `leaderctl store init` makes, and what `leaderctl store check` finds beyond the trial of documents.

use super::client::{Connection, is_true, value};
use super::dialect::Dialect;
use super::failure::{Failure, Meaning, Site};
use super::server::Server;
use super::statements::{NAMES, Statements};
use crate::lease;
use crate::store::error::in_short;
use crate::store::{ErrorKind, Finding, StoreError};

const KEPT: &str = "a lease that is held cannot be deleted by hand";

/// Read from a table, because some builds of MariaDB do not know the variable.
const IS_GALERA: &str = "(0 /*M!100000 + EXISTS (SELECT 1 FROM information_schema.global_variables \
    WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */)";

pub async fn prepare<C: Connection>(server: &Server<C>) -> Result<Vec<String>, StoreError> {
    let Site { server: name, database, table, .. } = &server.site;
    let what = format!("table {table} in database {database} of {name}");
    let connection = server.connect(server.deadline()).await?;
    // MySQL does not tell a user without rights whether the table exists.
    let hides = server.statements.dialect == Dialect::MySql;
    let is_new = match server.tell(&connection, &format!("SELECT {NAMES} FROM {table} LIMIT 0")).await {
        Ok(_) => false,
        Err(Failure { meaning, .. }) if meaning == Meaning::NoTable || hides && meaning == Meaning::Denied => {
            make_table(server, &connection).await?
        }
        Err(failure) => return Err(failure.into()),
    };
    let made = if is_new { format!("created {what}") } else { format!("{what} exists") };
    let is_guarded = is_guarded(server, &connection).await;
    let guarded = match is_guarded {
        Ok(true) => Ok(Vec::new()),
        Ok(false) | Err(_) => server.tell(&connection, &server.statements.guard()).await,
    };
    let guarded = match guarded {
        Ok(_) | Err(Failure { meaning: Meaning::IsThere, .. }) => KEPT.to_owned(),
        Err(failure) if failure.error.kind == ErrorKind::Denied => {
            // Who may not delete cannot see it, and the owner may have prevented it.
            let can = if is_guarded.is_ok() { "can still" } else { "can perhaps" };
            format!("a lease that is held {can} be deleted by hand: {}", failure.error)
        }
        Err(failure) => return Err(failure.into()),
    };
    Ok(vec![made, guarded, format!("each candidate needs: {}", server.site.grant("..."))])
}

/// False if another process was faster.
async fn make_table<C: Connection>(server: &Server<C>, connection: &C) -> Result<bool, StoreError> {
    let Site { server: name, user, .. } = &server.site;
    for (statements, needs) in server.statements.creations() {
        match server.tell(connection, &statements).await {
            Ok(_) => return Ok(true),
            Err(Failure { meaning: Meaning::IsThere, .. }) => return Ok(false),
            // The schema is missing.
            Err(Failure { meaning: Meaning::NoTable, .. }) => {}
            Err(Failure { error, .. }) if error.kind == ErrorKind::Denied => {
                return Err(StoreError::denied(format!(
                    "{name} denied user {user} what it needs: GRANT {needs} TO {user}"
                )));
            }
            Err(failure) => return Err(failure.into()),
        }
    }
    Err(server.site.explained(Meaning::NoTable, ""))
}

async fn is_guarded<C: Connection>(server: &Server<C>, connection: &C) -> Result<bool, StoreError> {
    match server.tell(connection, &server.statements.is_guarded()).await {
        Ok(rows) => Ok(is_true(&rows, 0)),
        Err(Failure { meaning: Meaning::Kept, .. }) => Ok(true),
        Err(failure) => Err(failure.into()),
    }
}

pub async fn identify<C: Connection>(server: &Server<C>) -> Result<Vec<Finding>, StoreError> {
    let Site { server: name, user, .. } = &server.site;
    let dialect = server.statements.dialect;
    let connection = server.connect(server.deadline()).await?;
    let version = dialect.either("SHOW server_version", "SELECT VERSION()");
    let version = in_short(value(&server.tell(&connection, version).await?, 0));
    Ok(vec![match dialect.needs_newer(&version) {
        Some(needs) => Finding::bad(format!("{name} is version {version}: leaderrun needs {needs}, or newer")),
        None => {
            Finding::good(format!("{name} is version {version}, accepts the login of user {user} and accepts writes"))
        }
    }])
}

pub async fn findings<C: Connection>(server: &Server<C>) -> Result<Vec<Finding>, StoreError> {
    let connection = server.connect(server.deadline()).await?;
    let conditions = conditions(&server.statements);
    let questions: Vec<&str> = conditions.iter().map(|(condition, _)| condition.as_str()).collect();
    let rows = server.tell(&connection, &format!("SELECT {}", questions.join(", "))).await?;
    let unmet = conditions.into_iter().enumerate().filter(|(column, _)| !is_true(&rows, *column));
    let mut findings: Vec<Finding> = unmet.map(|(_, (_, finding))| finding).collect();
    if server.statements.dialect == Dialect::Postgres {
        findings.push(match C::subscribe(server).await? {
            Some(_) => Finding::good("notifications arrive: standbys hear of a release at once"),
            None => Finding::doubtful(format!(
                "notifications do not arrive, as through a pooler in transaction mode: standbys look every {}",
                lease::show(C::POLL)
            )),
        });
    }
    match is_guarded(server, &connection).await {
        Ok(true) => findings.push(Finding::good(KEPT)),
        Ok(false) => findings.push(Finding::doubtful(
            "a lease that is held can be deleted by hand, and then two lead until the first has noticed: run leaderctl \
             store init as an administrator",
        )),
        // The trial of documents has reported that this user may not delete.
        Err(error) if error.kind == ErrorKind::Denied => {}
        Err(error) => return Err(error),
    }
    Ok(findings)
}

/// SQL conditions that a server should meet, each with the finding if it does not.
fn conditions(statements: &Statements) -> Vec<(String, Finding)> {
    let Statements { table, is_table, .. } = statements;
    let bad = |condition: &str, finding: String| (condition.to_owned(), Finding::bad(finding));
    let doubtful = |condition: &str, finding: &str| (condition.to_owned(), Finding::doubtful(finding));
    match statements.dialect {
        Dialect::Postgres => vec![
            bad(
                "current_setting('fsync') = 'on'",
                "fsync is off, so a crash of the server's machine may forget or break leases: turn it on".to_owned(),
            ),
            doubtful(
                "current_setting('full_page_writes') = 'on'",
                "full_page_writes is off, so a crash of the server's machine may break the table",
            ),
            doubtful(
                "current_setting('synchronous_standby_names') <> '' OR NOT EXISTS (SELECT FROM pg_stat_replication)",
                "the replicas are asynchronous, so a failover may forget leases: after one, a new leader waits for one \
                 lease; that is enough unless the old primary still serves clients",
            ),
            doubtful(
                "current_setting('leaderrun.timeline') <> '-'",
                "the server does not report its timeline, so a failover that forgets leases goes unnoticed",
            ),
            bad(
                &format!("(SELECT relpersistence = 'p' FROM pg_class WHERE {is_table})"),
                format!(
                    "table {table} is not logged, so a crash of the server empties it: drop it, and create it with \
                     leaderctl store init"
                ),
            ),
        ],
        Dialect::MySql => vec![
            bad(
                "@@innodb_flush_log_at_trx_commit = 1",
                "innodb_flush_log_at_trx_commit is not 1, so a crash of the server's machine may forget leases: set it \
                 to 1"
                .to_owned(),
            ),
            doubtful(
                "@@log_bin = 0 OR @@sync_binlog = 1",
                "sync_binlog is not 1, so after a crash of the server's machine its replicas may know more than it does",
            ),
            doubtful(
                "@@max_connect_errors > 100 OR @@skip_name_resolve",
                "max_connect_errors is 100 or less, so a server that is frozen for minutes may refuse a host from then on: \
                 raise it, or set skip_name_resolve",
            ),
            doubtful(
                &format!("NOT {IS_GALERA}"),
                "the server is a node of a Galera cluster: nobody is granted a lease by another node than the last one \
                 for one lease, because the nodes' clocks may differ; so let all candidates name the same node first",
            ),
            doubtful(
                &format!(
                    "{IS_GALERA} OR NOT EXISTS (SELECT 1 FROM information_schema.processlist AS p \
                     WHERE p.command LIKE 'Binlog Dump%')"
                ),
                "the server has replicas, so a failover may forget leases: after one, nobody is granted a lease for one \
                 lease; that is enough unless the old server still serves clients",
            ),
        ],
    }
}
