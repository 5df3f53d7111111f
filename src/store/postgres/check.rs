//! `leaderctl store init` and `leaderctl store check`: the tables, and whether an election can rely on them.
//!
//! The hazard: a table that looks right and is not. Without its rule a held lease can be deleted by hand, and two lead;
//! unlogged, it is empty after a crash; on a server that does not wait for its disk, a lease that was granted may be
//! forgotten. Permissions are looked up and then tried, in a transaction that is rolled back. Of the notes no election
//! depends: what is wrong with their table is told, and is no reason to call the store unfit.

use super::address::{Place, TlsMode};
use super::advisory::{Advisory, Taken};
use super::failure::Site;
use super::grants::{self, Relation};
use super::notes::{self, page_name};
use super::server::Server;
use super::session::{Parameters, Session};
use super::statement::{MARKER, number, quoted, seconds, text};
use super::watch::POLL;
use crate::lease::{self, show};
use crate::store::cause::in_short;
use crate::store::{ErrorKind, Finding, Page, StoreError, round_trip};
use tokio::time::timeout_at;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

/// The first with `AS MATERIALIZED`.
const OLDEST: i32 = 120_000;
/// Has a DELETE of a lease that is held, or of the marker, do nothing.
const RULE: &str = "leaderrun_keep";
const NAMES: &str = "shard, term, session, owner, host, pid, beat, sent, lease_ms, since, expires, released";

/// What there is where a table should be.
struct Found {
    schema: bool,
    /// pg_class.relkind and relpersistence.
    table: Option<(char, char)>,
    rule: bool,
}

async fn look(server: &Server, session: &Session, table: &Relation) -> Result<Found, StoreError> {
    let question = "SELECT n.oid IS NOT NULL, c.relkind::text, c.relpersistence::text, EXISTS (SELECT FROM pg_rewrite AS r \
                    WHERE r.ev_class = c.oid AND r.rulename = $3 AND r.ev_type = '4' AND r.ev_enabled IN ('O', 'A')) \
                    FROM (SELECT) AS one LEFT JOIN pg_namespace AS n ON n.nspname = $1 \
                    LEFT JOIN pg_class AS c ON c.relnamespace = n.oid AND c.relname = $2";
    let names = [text(&table.schema), text(&table.name), text(&RULE)];
    let rows = ask(server, session, question, &names).await?;
    let letter = |row: &Row, column| row.try_get::<_, String>(column).ok()?.chars().next();
    rows.first()
        .and_then(|row| {
            let table = letter(row, 1).zip(letter(row, 2));
            Some(Found { schema: row.try_get(0).ok()?, table, rule: row.try_get(3).ok()? })
        })
        .ok_or_else(|| StoreError::unknown(format!("cannot understand the answer of {}", server.site.server)))
}

async fn ask(
    server: &Server,
    session: &Session,
    statement: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    ask_about(server, &server.site, session, statement, parameters).await
}

async fn ask_about(
    server: &Server,
    site: &Site,
    session: &Session,
    statement: &str,
    parameters: &Parameters<'_>,
) -> Result<Vec<Row>, StoreError> {
    match timeout_at(server.deadline(), session.ask(statement, parameters)).await {
        Ok(Ok(rows)) => Ok(rows),
        Ok(Err(error)) => {
            Err(server.explained(session, site, session.unanswered(site, &error), server.deadline()).await)
        }
        Err(_) => Err(server.silent()),
    }
}

/// Answers false when somebody else has just made it.
async fn run(server: &Server, session: &Session, statements: &str, needs: &str) -> Result<bool, StoreError> {
    const MADE_MEANWHILE: [SqlState; 4] =
        [SqlState::DUPLICATE_TABLE, SqlState::DUPLICATE_SCHEMA, SqlState::DUPLICATE_OBJECT, SqlState::UNIQUE_VIOLATION];
    match timeout_at(server.deadline(), session.run(statements)).await {
        Ok(Ok(())) => Ok(true),
        Ok(Err(error)) if error.code().is_some_and(|code| MADE_MEANWHILE.contains(code)) => Ok(false),
        Ok(Err(error)) => {
            let failure = session.unanswered(&server.site, &error);
            Err(match failure.kind {
                ErrorKind::Denied => StoreError::denied(format!("{}: {needs}", failure.message)),
                _ => failure,
            })
        }
        Err(_) => Err(server.silent()),
    }
}

fn creation(server: &Server, schema_exists: bool) -> String {
    let table = &server.statements.table;
    let schema = quoted(&server.address.schema);
    let schema = if schema_exists { String::new() } else { format!("CREATE SCHEMA {schema}; ") };
    // Half of each page stays empty, so that a renewal finds room for the row's next version beside it.
    format!(
        "{schema}CREATE TABLE {table} (shard text COLLATE \"C\" PRIMARY KEY, term bigint NOT NULL, session text NOT NULL, \
         owner text NOT NULL, host text NOT NULL, pid bigint NOT NULL, beat bigint NOT NULL, sent bigint NOT NULL, \
         lease_ms bigint NOT NULL, since timestamptz NOT NULL, expires timestamptz NOT NULL, released boolean NOT NULL) \
         WITH (fillfactor = 50); {}; {}",
        rule(server),
        notes::creation(&server.notes.table)
    )
}

fn rule(server: &Server) -> String {
    let table = &server.statements.table;
    format!(
        "CREATE OR REPLACE RULE {RULE} AS ON DELETE TO {table} \
         WHERE old.shard = '{MARKER}' OR NOT (old.released OR old.expires < clock_timestamp() - interval '1 day') \
         DO INSTEAD NOTHING; ALTER TABLE {table} ENABLE RULE {RULE}"
    )
}

/// Makes the tables where there are none, and what they need in them.
pub async fn prepare(server: &Server) -> Result<Vec<String>, StoreError> {
    let Site { server: name, database, user, .. } = &server.site;
    let table = &server.statements.table;
    let mut lines = Vec::new();
    let (session, _) = server.connect(server.deadline()).await?;
    loop {
        let found = look(server, &session, &server.site.table).await?;
        match found.table {
            None => {
                let needs = if found.schema {
                    format!("GRANT CREATE ON SCHEMA {} TO {user}", quoted(&server.address.schema))
                } else {
                    format!("GRANT CREATE ON DATABASE {} TO {user}", quoted(database))
                };
                if !run(server, &session, &creation(server, found.schema), &needs).await? {
                    continue;
                }
                lines.push(format!("made table {table} in database {database} of {name}"));
                lines.push("a DELETE of a lease that is held does nothing".to_owned());
            }
            Some((kind, _)) if !"rp".contains(kind) => {
                return Err(StoreError::misconfigured(format!(
                    "{table} in database {database} of {name} is not a table: use another with table=NAME"
                )));
            }
            Some(_) => {
                lines.push(format!("table {table} in database {database} of {name} is there"));
                ask(server, &session, &format!("SELECT {NAMES} FROM {table} LIMIT 0"), &[]).await?;
                if found.rule {
                    lines.push("a DELETE of a lease that is held does nothing".to_owned());
                } else {
                    lines.push(match run(server, &session, &rule(server), "its owner may").await {
                        Ok(_) => "from now on, a DELETE of a lease that is held does nothing".to_owned(),
                        Err(error) if error.kind == ErrorKind::Denied => {
                            format!("left it possible to DELETE a lease that is held: {error}")
                        }
                        Err(error) => return Err(error),
                    });
                }
            }
        }
        break;
    }
    let rows = ask(server, &session, &server.statements.remember(session.has_timeline), &[]).await?;
    lines.push(match rows.first().and_then(|row| row.try_get::<_, Option<f64>>(0).ok().flatten()) {
        Some(_) => "the table says since when it remembers".to_owned(),
        None => "wrote down that the table remembers from now on".to_owned(),
    });
    prepare_notes(server, &session, &mut lines).await?;
    for table in [&server.site.table, &server.notes.table] {
        lines.push(format!("whoever is to use it needs: {}", table.grant("...")));
    }
    Ok(lines)
}

/// The table of leases is there already; that of the notes is not where an earlier release has made that one.
async fn prepare_notes(server: &Server, session: &Session, lines: &mut Vec<String>) -> Result<(), StoreError> {
    let Site { server: name, database, user, table } = &server.notes;
    loop {
        match look(server, session, table).await?.table {
            None => {
                let needs = format!("GRANT CREATE ON SCHEMA {} TO {user}", quoted(&table.schema));
                if run(server, session, &notes::creation(table), &needs).await? {
                    lines.push(format!("made table {table} for notes"));
                    return Ok(());
                }
            }
            Some((kind, _)) if !"rp".contains(kind) => {
                return Err(StoreError::misconfigured(format!(
                    "{table} in database {database} of {name} is not a table, and is to be that of the notes: use \
                     another with table=NAME"
                )));
            }
            Some(_) => {
                let columns = format!("SELECT {} FROM {table} LIMIT 0", notes::COLUMNS);
                ask_about(server, &server.notes, session, &columns, &[]).await?;
                lines.push(format!("table {table} for notes is there"));
                return Ok(());
            }
        }
    }
}

/// Looks at everything that an election relies on.
pub async fn check(server: &Server, advisory: Option<&Advisory>) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    let (session, _) = server.connect(server.deadline()).await?;
    check_server(server, &session, &mut findings).await?;
    let found = look(server, &session, &server.site.table).await?;
    let table = &server.statements.table;
    let Some((_, persistence)) = found.table else {
        findings.push(Finding::bad(format!(
            "no table {table} in database {} of {}: make it with leaderctl store init",
            server.site.database, server.site.server
        )));
        return Ok(findings);
    };
    if persistence != 'p' {
        findings.push(Finding::bad(format!("table {table} is not logged, so a crash of the server empties it: drop it, and make it with leaderctl store init")));
    }
    let missing = grants::missing(&session, &server.site.table)
        .await
        .map_err(|error| session.unanswered(&server.site, &error))?;
    let tried = if missing.is_empty() { Some(try_everything(server).await) } else { None };
    let works = matches!(tried, Some(Ok(())));
    match tried {
        None => findings.extend(missing.into_iter().map(|grant| Finding::bad(format!("permission missing: {grant}")))),
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
            "a lease that is held can be deleted by hand, and then two lead until the first has noticed: leaderctl store \
             init as the table's owner prevents it",
        )
    });
    if works {
        check_memory(server, &session, &mut findings).await?;
        check_delivery(server, &mut findings).await?;
    }
    if let Some(advisory) = advisory {
        findings.push(check_advisory(server, advisory).await?);
    }
    check_notes(server, &session, &mut findings).await?;
    Ok(findings)
}

/// A candidate that cannot read orders starts nothing.
async fn check_notes(server: &Server, session: &Session, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let Site { server: name, database, table, .. } = &server.notes;
    if look(server, session, table).await?.table.is_none() {
        findings.push(Finding::bad(format!(
            "no table {table} in database {database} of {name}: make it with leaderctl store init"
        )));
        return Ok(());
    }
    let missing = grants::missing(session, table).await;
    let missing = missing.map_err(|error| session.unanswered(&server.notes, &error))?;
    if !missing.is_empty() {
        findings.extend(missing.into_iter().map(|grant| Finding::bad(format!("permission missing: {grant}"))));
        return Ok(());
    }
    findings.push(match try_notes(server).await {
        Ok(()) => Finding::good(format!("may read and write notes in table {table}")),
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => Finding::bad(error.message),
        Err(error) => return Err(error),
    });
    Ok(())
}

/// A note is written, changed, read and removed, in a transaction that is rolled back.
async fn try_notes(server: &Server) -> Result<(), StoreError> {
    let (session, _) = server.connect(server.deadline()).await?;
    let (shard, page, statements) = (scratch_name()?, page_name(&Page::Orders), &server.statements);
    let (one, two, lasts) = ("one", "two", Some(1000_i64));
    let steps = [
        (statements.add_note(), vec![text(&one), number(&lasts)]),
        (statements.change_note(), vec![text(&one), text(&two), number(&lasts)]),
        (statements.remove_note(), vec![text(&two)]),
    ];
    run(server, &session, "BEGIN", "").await?;
    let mut kept = true;
    for (statement, mut parameters) in steps {
        parameters.splice(0..0, [text(&shard), text(&page)]);
        let rows = ask_about(server, &server.notes, &session, &statement, &parameters).await?;
        kept &= rows.first().and_then(|row| row.try_get::<_, bool>(0).ok()) == Some(true);
    }
    // Closing the connection rolls back as well.
    run(server, &session, "ROLLBACK", "").await?;
    if kept { Ok(()) } else { Err(not_kept(&server.notes.table)) }
}

fn scratch_name() -> Result<String, StoreError> {
    let random = lease::Session::random();
    let random = random.map_err(|error| StoreError::not_applied(format!("no random bytes for a name: {error}")))?;
    Ok(format!("leaderctl-check-{}", random.as_str()))
}

fn not_kept(table: &Relation) -> StoreError {
    StoreError::misconfigured(format!(
        "table {table} takes what is written to it and does not keep it: a trigger, a rule or a policy of row security \
         stands in the way"
    ))
}

/// Version, speed, and settings that say how much the server's word is worth.
async fn check_server(server: &Server, session: &Session, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    let (_, time) = round_trip::measure(|| ask(server, session, "SELECT 1", &[])).await?;
    let question = "SELECT current_setting('server_version'), current_setting('server_version_num')::int, \
                    current_setting('fsync'), current_setting('full_page_writes'), \
                    current_setting('synchronous_commit'), current_setting('synchronous_standby_names'), \
                    (SELECT count(*) FROM pg_stat_replication), \
                    (SELECT s.ssl FROM pg_stat_ssl AS s WHERE s.pid = pg_backend_pid())";
    let rows = ask(server, session, question, &[]).await?;
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
            "the replicas are asynchronous, so a failover may forget leases: after one, whoever is granted a lease waits \
             for as long as it lasts; that covers it, unless the old primary still serves somebody",
        ));
    }
    let encrypted: bool = row.try_get(7).unwrap_or(false);
    let remote = server.address.places.iter().any(|place| match place {
        Place::Tcp { name, .. } => {
            name != "localhost" && !name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
        }
        Place::Unix { .. } => false,
    });
    if remote && session.direct {
        let checked = match server.address.tls_mode {
            TlsMode::VerifyFull | TlsMode::VerifyCa => true,
            TlsMode::Prefer | TlsMode::Require => server.address.tls_files.ca.is_some(),
            TlsMode::Disable => false,
        };
        findings.push(match (encrypted, checked) {
            (true, true) => Finding::good("the connection is encrypted, and the server shows whose it is"),
            (true, false) => Finding::doubtful(
                "the connection is encrypted, but anybody may stand between: sslmode=verify-full and sslrootcert=FILE \
                 would prevent that",
            ),
            (false, _) => Finding::doubtful("the connection is not encrypted: sslmode=verify-full would have it so"),
        });
    }
    Ok(())
}

/// All that an election does, with a shard that nobody has, in a transaction that is rolled back.
async fn try_everything(server: &Server) -> Result<(), StoreError> {
    let (session, _) = server.connect(server.deadline()).await?;
    let (shard, me, owner, host) = (scratch_name()?, scratch_name()?, "leaderctl store check", "");
    let (one, two, lease, none) = (1_i64, 2_i64, 1000_i64, 0_i64);
    run(server, &session, "BEGIN", "").await?;
    let statements = &server.statements;
    let claim = [text(&shard), text(&me), text(&owner), text(&host), number(&one), number(&one), number(&lease)];
    let rows = ask(server, &session, &statements.claim(session.has_timeline), &claim).await?;
    let term = rows.first().and_then(|row| row.try_get::<_, i64>(0).ok());
    let granted = term.unwrap_or(0);
    let renew = [text(&shard), text(&me), number(&granted), number(&one), number(&lease), number(&none), number(&none)];
    let rows = ask(server, &session, &statements.renew(), &renew).await?;
    let renewed = rows.first().and_then(|row| row.try_get::<_, bool>(0).ok());
    let release = [text(&shard), text(&me), number(&none), number(&two), text(&server.channel)];
    let rows = ask(server, &session, &statements.release(), &release).await?;
    let released = rows.first().and_then(|row| row.try_get::<_, bool>(0).ok());
    // Closing the connection rolls back as well.
    run(server, &session, "ROLLBACK", "").await?;
    if term.is_some() && renewed == Some(true) && released == Some(true) {
        Ok(())
    } else {
        Err(not_kept(&server.site.table))
    }
}

async fn check_memory(server: &Server, session: &Session, findings: &mut Vec<Finding>) -> Result<(), StoreError> {
    // This writes it down where it is not known, as the next claim would.
    let rows = ask(server, session, &server.statements.remember(session.has_timeline), &[]).await?;
    findings.push(match rows.first().and_then(|row| row.try_get::<_, Option<f64>>(0).ok().flatten()) {
        Some(since) => Finding::good(format!(
            "the table remembers since {}",
            humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + seconds(since))
        )),
        None => Finding::doubtful(
            "the table was restored, or the server failed over: who is granted a lease within a lease from now waits",
        ),
    });
    if !session.has_timeline {
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
        Err(error) if matches!(error.kind, ErrorKind::Denied | ErrorKind::Misconfigured) => {
            Ok(Finding::bad(error.message))
        }
        Err(error) => Err(error),
    }
}
