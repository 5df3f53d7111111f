//! Lists the shards, and their leaders.
//!
//! The hazard: the table may have many rows, and one request has limited time. So rows are read in pages, in the order
//! of their names.

use super::Mysql;
use super::statement::read;
use crate::lease::Shard;
use crate::store::allowance::{self, MOST_LISTED};
use crate::store::rows::LIST_PAGE;
use crate::store::{EachPage, StoreError};

/// Lists the shards from their rows. A lock of another program belongs to one shard, and no row says to which.
pub async fn list(store: &Mysql, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    let server = &store.server;
    let (mut listed, mut last) = (0, String::new());
    loop {
        let answer = server.ask(&server.site, &server.statements.list(prefix, &last)).await?;
        let rows = answer.outcomes.first().map(|outcome| outcome.rows.as_slice()).unwrap_or_default();
        let mut page = Vec::new();
        for row in rows {
            // Another program wrote a name that no shard has.
            let Some(Ok(shard)) = row.text(0).map(str::parse::<Shard>) else { continue };
            page.push((shard, read(row, 1).report()));
        }
        listed += page.len();
        if listed > MOST_LISTED {
            return Err(allowance::too_long(&server.site.server));
        }
        each(page);
        let Some(end) = rows.last().filter(|_| rows.len() >= LIST_PAGE) else { return Ok(()) };
        last = end.words(0).ok_or_else(|| store.not_understood())?;
    }
}
