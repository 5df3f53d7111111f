//! The table, the grants that the role needs on it, and which of these are missing.

use super::address::Address;
use super::connection::Connection;
use super::{quoted, text};
use std::fmt;
use tokio_postgres::Error;

/// What the users of the table need.
const PRIVILEGES: [&str; 4] = ["SELECT", "INSERT", "UPDATE", "DELETE"];

/// A table. Shown as SQL and people read it: `public.leaderrun`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Relation {
    pub schema: String,
    pub name: String,
}

impl Relation {
    pub fn of(address: &Address) -> Self {
        Self { schema: address.schema.clone(), name: address.table.clone() }
    }

    /// The statement that grants everything that `user` needs.
    pub fn grant(&self, user: &str) -> String {
        format!("GRANT {} ON TABLE {self} TO {user}", PRIVILEGES.join(", "))
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", quoted(&self.schema), quoted(&self.name))
    }
}

/// The statements that grant what is missing; none if there is no such table.
pub async fn missing(connection: &Connection, table: &Relation) -> Result<Vec<String>, Error> {
    let privileges = PRIVILEGES.iter().map(|name| format!("has_table_privilege(c.oid, '{name}')"));
    // By number, because a name cannot be looked up in a schema without USAGE.
    let question = format!(
        "SELECT quote_ident(current_user), has_schema_privilege(n.oid, 'USAGE'), {} \
         FROM pg_namespace AS n JOIN pg_class AS c ON c.relnamespace = n.oid \
         WHERE n.nspname = $1 AND c.relname = $2",
        privileges.collect::<Vec<_>>().join(", ")
    );
    let rows = connection.ask(&question, &[text(&table.schema), text(&table.name)]).await?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let user: String = row.try_get(0)?;
    let mut missing = Vec::new();
    if !row.try_get::<_, bool>(1)? {
        missing.push(format!("GRANT USAGE ON SCHEMA {} TO {user}", quoted(&table.schema)));
    }
    let mut privileges = Vec::new();
    for (column, privilege) in (2..).zip(PRIVILEGES) {
        if !row.try_get::<_, bool>(column)? {
            privileges.push(privilege);
        }
    }
    if !privileges.is_empty() {
        missing.push(format!("GRANT {} ON TABLE {table} TO {user}", privileges.join(", ")));
    }
    Ok(missing)
}
