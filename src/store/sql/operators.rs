//! What `leaderctl store init` makes, and what `leaderctl store check` finds beyond the trial of documents.
//!
//! The hazard: a table may look right and not be. Without its guard a user can delete a lease that is held. A server that
//! does not wait for its disk may forget a lease that it granted.

use super::address::Address;
use super::client::Connection;
use super::failure::{Failure, Meaning, Site};
use super::server::Server;
use super::statements::NAMES;
use crate::store::tls_mode::TlsMode;
use crate::store::{ErrorKind, Finding, StoreError, round_trip, steps};
use tokio::time::timeout_at;

const KEPT: &str = "a DELETE of a lease that is held does nothing";

/// Makes the table if it is missing, and what it needs.
pub async fn prepare<C: Connection>(server: &Server<C>) -> Result<Vec<String>, StoreError> {
    let Site { server: name, database, table, .. } = &server.site;
    let what = format!("table {table} in database {database} of {name}");
    let connection = server.connect(server.deadline()).await?;
    let mut lines = Vec::new();
    let is_new = !within(server, connection.has_table()).await? && make_table(server, &connection).await?;
    lines.push(if is_new { steps::made(what) } else { steps::is_there(what) });
    server.tell(&connection, &format!("SELECT {NAMES} FROM {table} LIMIT 0")).await?;
    lines.push(if keeps(server).await.unwrap_or(false) {
        KEPT.to_owned()
    } else {
        match server.tell(&connection, &connection.transaction(&server.statements.guard())).await {
            Ok(_) | Err(Failure { meaning: Meaning::IsThere, .. }) => KEPT.to_owned(),
            Err(failure) if failure.error.kind == ErrorKind::Denied => {
                format!("left it possible to DELETE a lease that is held: {}", failure.error)
            }
            Err(failure) => return Err(failure.into()),
        }
    });
    lines.push(format!("each candidate needs: {}", server.site.grant("...")));
    Ok(lines)
}

/// False if another process has just made it.
async fn make_table<C: Connection>(server: &Server<C>, connection: &C) -> Result<bool, StoreError> {
    let Site { server: name, user, .. } = &server.site;
    for (statements, needs) in server.statements.creations() {
        match server.tell(connection, &connection.transaction(&statements)).await {
            Ok(_) => return Ok(true),
            Err(Failure { meaning: Meaning::IsThere, .. }) => return Ok(false),
            // There is no such schema.
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

async fn keeps<C: Connection>(server: &Server<C>) -> Result<bool, StoreError> {
    within(server, server.connect(server.deadline()).await?.keeps()).await
}

async fn within<C: Connection, T>(
    server: &Server<C>,
    question: impl Future<Output = Result<T, Failure>>,
) -> Result<T, StoreError> {
    match timeout_at(server.deadline(), question).await {
        Ok(answer) => answer.map_err(Into::into),
        Err(_) => Err(server.site.silent()),
    }
}

/// What kind of server and table it is.
pub async fn identify<C: Connection>(server: &Server<C>) -> Result<Vec<Finding>, StoreError> {
    let Site { server: name, user, .. } = &server.site;
    let connection = server.connect(server.deadline()).await?;
    let asked = round_trip::measure(|| within(server, connection.version())).await?;
    let ((version, needs), time) = asked;
    let mut findings = vec![match needs {
        Some(needs) => Finding::bad(format!("{name} is version {version}: leaderrun needs {needs}, or newer")),
        None => Finding::good(format!(
            "{name} is version {version}, lets in user {user} and accepts writes; a round trip takes {time:.1?}"
        )),
    }];
    if !within(server, connection.has_table()).await? {
        let missing = server.site.explained(Meaning::NoTable, "");
        findings.push(Finding::bad(format!("{missing}; or, if it is there: {}", server.site.grant(user))));
        return Ok(findings);
    }
    // The trial of documents makes one and deletes it, and says what else is wrong.
    let update = format!("UPDATE {} SET sequence = 0 WHERE shard = '' AND part = ''", server.site.table);
    let updated = server.tell(&connection, &connection.transaction(&update)).await;
    if let Err(Failure { meaning: Meaning::Denied, error }) = updated {
        findings.push(Finding::bad(format!("permission missing: {error}")));
    }
    Ok(findings)
}

/// How reliable the server's answers are.
pub async fn findings<C: Connection>(server: &Server<C>) -> Result<Vec<Finding>, StoreError> {
    let connection = server.connect(server.deadline()).await?;
    let mut findings = connection.findings(server).await?;
    drop(connection);
    findings.push(if keeps(server).await? {
        Finding::good(KEPT)
    } else {
        Finding::doubtful(
            "a lease that is held can be deleted by hand, and then two lead until the first has noticed: leaderctl store \
             init, by who may, prevents it",
        )
    });
    Ok(findings)
}

/// What is found of the connection. None if all servers are on this machine. `strictest` and `ca` are options as the store
/// has them.
pub fn encryption(encrypted: bool, address: &Address, [strictest, ca]: [&str; 2]) -> Option<Finding> {
    address.places.iter().find(|place| place.is_remote())?;
    let checked = match address.tls_mode {
        TlsMode::VerifyFull | TlsMode::VerifyCa => true,
        TlsMode::Prefer | TlsMode::Require => address.tls_files.ca.is_some(),
        TlsMode::Disable => false,
    };
    Some(match (encrypted, checked) {
        (true, true) => Finding::good("the connection is encrypted, and the server shows whose it is"),
        (true, false) => Finding::doubtful(format!(
            "the connection is encrypted, but the server is not verified: set {strictest} and {ca}=FILE"
        )),
        (false, _) => Finding::doubtful(format!("the connection is not encrypted: set {strictest}")),
    })
}
