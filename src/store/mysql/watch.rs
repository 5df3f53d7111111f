//! How a standby hears of a release: it waits in GET_LOCK for the leader lock of the shard.
//!
//! The session in which a leader claims and renews takes this lock in the same requests, and frees it with the release.
//! So a leader needs neither another request for it nor another connection. The lock also becomes free when that
//! session ends.
//!
//! The hazards:
//!
//! - The lock says nothing about the lease: an earlier version of leaderrun does not take it, a leader whose session
//!   was lost takes it again only when it renews, and the nodes of a cluster do not know of each other's locks. So a
//!   standby that could have the lock looks, and polls if the lease is held all the same.
//! - The host of the leader may be gone, and the server keeps its session and the lock for a while (`connection`). A
//!   standby also looks when the lease that it saw would end. Until the next leader has the lock, that is how it hears
//!   of a release. A wait has an end, too.
//! - A proxy, or an administrator's script, may end what takes long. So a wait that fails is followed by a look.

use super::Mysql;
use crate::lease::Shard;
use crate::store::StoreError;
use crate::store::rows::Look;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The longest wait for a leader lock.
const LONGEST: Duration = Duration::from_mins(1);
/// The first pause between looks at a lease that is held without its leader lock. Later pauses are longer.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The longest pause between them.
const POLL: Duration = Duration::from_secs(2);
/// How many shards one request looks at.
const LOOKS: usize = 40;

impl Mysql {
    pub(super) async fn wait_for_change(&self, shard: &Shard) -> Result<(), StoreError> {
        let (mut pause, mut at_most) = (FIRST_PAUSE, LONGEST);
        loop {
            let begun = Instant::now();
            let (freed, look) = match self.wait_for_leader_lock(shard, at_most).await {
                Ok(waited) => waited,
                Err(_) => (true, self.look(shard).await?),
            };
            let Some(holder) = look.holder() else { return Ok(()) };
            // The lock of `get_lock=` may be held without the leader lock, by another program or by a session of which
            // the row has ended, and nobody waits for it.
            at_most = match (&self.get_lock, holder.expires_in) {
                (None, _) => LONGEST,
                (Some(_), Some(left)) => LONGEST.min(left + POLL / 4),
                (Some(_), None) => POLL,
            };
            if begun.elapsed() > POLL {
                pause = FIRST_PAUSE;
            }
            if freed {
                sleep(pause).await;
                pause = POLL.min(pause * 2);
            }
        }
    }

    /// A session waits for one lock, so several shards are polled. With `get_lock=` there is only one.
    pub(super) async fn wait_for_any_change(&self, shards: &[Shard]) -> Result<usize, StoreError> {
        if let [shard] = shards {
            return self.wait_for_change(shard).await.map(|()| 0);
        }
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

    /// Waits until the leader lock is free, and then looks at the shard. Returns whether it was free in time, which
    /// MySQL counts in whole seconds.
    async fn wait_for_leader_lock(&self, shard: &Shard, at_most: Duration) -> Result<(bool, Look), StoreError> {
        let (server, seconds) = (&self.server, at_most.as_secs().max(1));
        let wait = server.statements.wait_for_leader_lock(shard, seconds);
        let statements = wait + "; " + &self.statements_of_look(shard);
        let answer = server.ask_patiently(Duration::from_secs(seconds), &server.site, &statements).await?;
        let freed = answer.outcomes.first().and_then(|outcome| outcome.rows.first()?.flag(0));
        Ok((freed != Some(false), self.look_in(shard, &answer, 2)?))
    }
}
