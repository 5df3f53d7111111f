//! Lists the shards, and their leaders.

use super::Mysql;
use super::statement::read;
use crate::store::rows::{self, Seen};
use crate::store::{EachPage, StoreError};

pub async fn list(store: &Mysql, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    rows::list(&store.server.site.server, each, |last| page(store, prefix, last)).await
}

/// The rows behind the shard `last`.
async fn page(store: &Mysql, prefix: &str, last: String) -> Result<Vec<(Option<String>, Seen)>, StoreError> {
    let server = &store.server;
    let answer = server.ask(&server.site, &server.statements.list(prefix, &last)).await?;
    let rows = answer.outcomes.first().map(|outcome| outcome.rows.as_slice()).unwrap_or_default();
    Ok(rows.iter().map(|row| (row.words(0), read(row, 1))).collect())
}
