//! Lists the shards, and their leaders.

use super::Postgres;
use super::statement::{seen, text};
use crate::store::rows::{self, Seen};
use crate::store::{EachPage, StoreError};

pub async fn list(store: &Postgres, prefix: &str, each: &mut EachPage<'_>) -> Result<(), StoreError> {
    rows::list(&store.server.site.server, each, |last| page(store, prefix, last)).await
}

/// The rows behind the shard `last`.
async fn page(store: &Postgres, prefix: &str, last: String) -> Result<Vec<(Option<String>, Seen)>, StoreError> {
    let (server, parameters) = (&store.server, [text(&prefix), text(&last)]);
    let answer = server.ask(|_| server.statements.list(), &parameters, server.deadline()).await?;
    Ok(answer.rows.iter().map(|row| (row.try_get(0).ok(), seen(row))).collect())
}
