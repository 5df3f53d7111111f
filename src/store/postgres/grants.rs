//! What the role has to be granted, and what of it is missing.

use super::address::Address;
use super::session::Session;
use super::statement::{quoted, text};
use tokio_postgres::Error;

const PRIVILEGES: [&str; 3] = ["SELECT", "INSERT", "UPDATE"];

/// The statements that grant what is missing; nothing where there is no such table.
pub async fn missing(session: &Session, address: &Address) -> Result<Vec<String>, Error> {
    // By number, for a name cannot be looked up in a schema without USAGE.
    let question = "SELECT has_schema_privilege(n.oid, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), \
                    has_table_privilege(c.oid, 'INSERT'), has_table_privilege(c.oid, 'UPDATE'), quote_ident(current_user) \
                    FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid \
                    WHERE n.nspname = $1 AND c.relname = $2";
    let rows = session.ask(question, &[text(&address.schema), text(&address.table)]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let user: String = row.try_get(4)?;
    let mut missing = Vec::new();
    if !row.try_get::<_, bool>(0)? {
        missing.push(format!("GRANT USAGE ON SCHEMA {} TO {user}", quoted(&address.schema)));
    }
    let mut privileges = Vec::new();
    for (column, privilege) in (1..).zip(PRIVILEGES) {
        if !row.try_get::<_, bool>(column)? {
            privileges.push(privilege);
        }
    }
    if !privileges.is_empty() {
        let table = super::statement::table(address);
        missing.push(format!("GRANT {} ON TABLE {table} TO {user}", privileges.join(", ")));
    }
    Ok(missing)
}
