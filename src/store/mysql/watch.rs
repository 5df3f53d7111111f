//! How a standby hears of a release: it looks.

use super::Mysql;
use crate::lease::Shard;
use crate::store::StoreError;
use std::time::Duration;
use tokio::time::sleep;

/// From one look to the next.
const POLL: Duration = Duration::from_millis(500);
/// How many shards one request looks at.
const LOOKS: usize = 40;

impl Mysql {
    /// Returns once one of `shards` is free, with its index.
    pub(super) async fn wait_for_any_change(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        let server = &self.server;
        loop {
            for (number, some) in shards.chunks(LOOKS).enumerate() {
                let looks: Vec<_> = some.iter().map(|shard| server.statements.look(shard)).collect();
                let answer = server.ask(&server.site, &looks.join("; ")).await?;
                for (index, shard) in some.iter().enumerate() {
                    if self.look_in(shard, &answer, index)?.holder().is_none() {
                        return Ok(number * LOOKS + index);
                    }
                }
            }
            sleep(POLL).await;
        }
    }
}
