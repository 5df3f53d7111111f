//! What `leaderctl store init` makes: the table, and the trigger against deleting what has to stay.

use super::connection::Connection;
use super::failure::{self, Complaint, PRIVILEGES, Trouble};
use super::quoted;
use super::server::Server;
use crate::store::error::in_short;
use crate::store::sql::site::Site;
use crate::store::sql::statements::NAMES;
use crate::store::{ErrorKind, StoreError, steps};

const TABLE_IS_THERE: u16 = 1050;
const TRIGGER_IS_THERE: u16 = 1359;
/// With a binary log, MySQL lets only users with SUPER make a trigger, unless it trusts them by a setting.
const TRIGGER_NEEDS_SUPER: u16 = 1419;
/// What our trigger says.
const KEPT: u16 = 1644;

/// Makes the table if it is missing, and what it needs.
pub async fn prepare(server: &Server) -> Result<Vec<String>, StoreError> {
    let Site { server: name, database, user, table } = &server.site;
    let what = format!("table {table} in {name}");
    let [creation, trigger] = server.statements.creation();
    let mut connection = server.connect(server.deadline()).await?;
    let mut lines = Vec::new();
    let made = if connection.has_table { Ok(false) } else { make(server, &mut connection, &creation).await };
    lines.push(match made {
        Ok(true) => steps::made(what),
        Ok(false) => steps::is_there(what),
        Err(error) if error.kind == ErrorKind::Denied => {
            return Err(StoreError::denied(format!(
                "{name} denied user {user} what it needs: GRANT CREATE, TRIGGER, {PRIVILEGES} ON {}.*",
                quoted(database)
            )));
        }
        Err(error) => return Err(error),
    });
    let probe = server.tell(&mut connection, &format!("SELECT {NAMES} FROM {table} LIMIT 0")).await;
    probe.map_err(|trouble| failure::unanswered(&server.site, &trouble))?;
    lines.push(match make(server, &mut connection, &trigger).await {
        Ok(_) => "a DELETE of a lease that is held does nothing".to_owned(),
        Err(error) if error.kind == ErrorKind::Denied => {
            format!("left it possible to DELETE a lease that is held: no permission for a trigger ({})", error.message)
        }
        Err(error) => return Err(error),
    });
    lines.push(format!("each candidate needs: GRANT {PRIVILEGES} ON {table} TO ..."));
    Ok(lines)
}

/// Runs a statement that makes something. False if it is there.
async fn make(server: &Server, connection: &mut Connection, statement: &str) -> Result<bool, StoreError> {
    match server.tell(connection, statement).await {
        Ok(_) => Ok(true),
        Err(Trouble::Complaint(Complaint { code: TABLE_IS_THERE | TRIGGER_IS_THERE, .. })) => Ok(false),
        Err(Trouble::Complaint(Complaint { code: TRIGGER_NEEDS_SUPER, message })) => {
            Err(StoreError::denied(in_short(&message)))
        }
        Err(trouble) => Err(failure::unanswered(&server.site, &trouble)),
    }
}

/// Whether the trigger is there: it is tried, because only some users are shown it. The connection is of no use any more.
pub async fn is_kept(server: &Server, mut connection: Connection) -> Result<bool, StoreError> {
    let table = &server.site.table;
    // With the end of the connection, nothing of it was done.
    let trial = format!(
        "START TRANSACTION READ WRITE; INSERT INTO {table} ({NAMES}) VALUES ('', 'led', '', '', '', 0, 0, NULL); \
         DELETE FROM {table} WHERE shard = '' AND part = 'led'"
    );
    match server.tell(&mut connection, &trial).await {
        Ok(_) => Ok(false),
        Err(Trouble::Complaint(Complaint { code: KEPT, .. })) => Ok(true),
        Err(trouble) => Err(failure::unanswered(&server.site, &trouble)),
    }
}
