//! Lists the shards, and their leaders.
//!
//! The hazard: the table may have many rows, and one request has limited time. So rows are read in pages, in the order
//! of their names.

use super::Postgres;
use super::connection::Connection;
use super::statement::{seen, text};
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::rows::LIST_PAGE;
use crate::store::{EachPage, StoreError};

/// Lists the shards from their rows. An advisory lock of another program belongs to one shard, and no row says to
/// which.
pub async fn list(store: &Postgres, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    let (mut listed, mut after) = (0, String::new());
    loop {
        let mut list = Vec::new();
        let parameters = [text(&prefix), text(&after)];
        let statement = |_: &Connection| store.server.statements.list();
        let answer = store.server.ask(statement, &parameters, store.server.deadline()).await?;
        for row in &answer.rows {
            // Another program wrote a name that no shard has.
            let Ok(Ok(shard)) = row.try_get::<_, &str>(0).map(str::parse::<Shard>) else { continue };
            list.push((shard, seen(row).report()));
        }
        listed += list.len();
        if listed > MOST_LISTED {
            return Err(allowance::too_long(&store.server.site.server));
        }
        each(list);
        let Some(end) = answer.rows.last().filter(|_| answer.rows.len() >= LIST_PAGE) else { return Ok(()) };
        after = end.try_get(0).map_err(|_| store.not_understood())?;
    }
}
