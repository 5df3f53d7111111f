//! `leaderctl wait`: returns when a shard is led, or when nobody leads it.
//!
//! The hazard: the answer is old when it arrives, and a shard that is led for a moment between two checks seems free.
//! So this is for scripts that go on when something has begun; what must not overlap needs the lease. A notification
//! may be lost, so this also checks every few seconds, as `watch` does. And a mistyped name is always free, so `--free`
//! refuses a shard that the store has never seen.

use super::operator::look_until;
use super::prelude::*;
use super::watch::until_it_may_have_changed;
use tokio::time::timeout;

/// `--timeout 0s` asks how it is now, which takes an answer.
const SHORTEST_LOOK: Duration = Duration::from_secs(1);

#[derive(Debug, Args)]
pub struct WaitFlags {
    /// The name of the shard
    shard: Shard,

    /// Return when it or a slot of it is led [default]
    #[arg(long, conflicts_with = "free")]
    led: bool,

    /// Return when nobody leads it or a slot of it
    #[arg(long)]
    free: bool,

    /// Exit with 75 after this long [default: wait without end]
    #[arg(long = "timeout", value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    most: Option<Duration>,

    /// Print the shard's state afterwards as one JSON object
    #[arg(long)]
    json: bool,
}

impl WaitFlags {
    /// How long one request may take. The first look must end when `--timeout` does.
    pub fn patience(&self, request_timeout: Duration) -> Duration {
        self.most.map_or(request_timeout, |most| request_timeout.min(most.max(SHORTEST_LOOK)))
    }

    pub async fn wait(&self, client: Client<'_>) -> Result<ExitCode, Failure> {
        let operator = Operator { client, shard: &self.shard, json: self.json };
        // One whose tree may only be still alive is no leader, but keeps the shard from being free.
        let counts = |holder: &Holder| self.free || holder.doubt.is_none();
        // Where each request costs money, only the slots are checked that the first check found.
        let mut slots_to_check: Option<Vec<Shard>> = None;
        // Who leads, and whether nobody ever led.
        let mut look = async || {
            let report = client.inspect(&self.shard).await?;
            if let Some(holder) = report.holder.clone().filter(counts) {
                return Ok((Some((self.shard.clone(), holder)), false));
            }
            for slot in slots_to_check.iter().flatten() {
                if let Some(holder) = client.inspect(slot).await?.holder.filter(counts) {
                    return Ok((Some((slot.clone(), holder)), false));
                }
            }
            if slots_to_check.is_some() {
                return Ok((None, false));
            }
            let slots = Slots::of(client, &self.shard).await?;
            if client.store.is_metered() {
                slots_to_check = Some(slots.names().cloned().collect());
            }
            let led = slots.led().find(|(_, holder)| counts(holder));
            let led = led.map(|(slot, holder)| (slot.clone(), holder.clone()));
            let never_led = never_led(&report, &slots);
            match slots.hidden {
                // It may be led.
                Some(hidden) if self.free && led.is_none() => Err(hidden),
                _ => Ok::<_, StoreError>((led, never_led)),
            }
        };
        let (mut seen, never_led) = look().await?;
        if never_led && self.free {
            operator.refuse_never_led().await?;
        } else if never_led {
            Unknown::warn(client, &self.shard).await;
        }
        let waiting = async {
            while seen.is_none() != self.free {
                let led = seen.as_ref().map(|(shard, _)| shard.clone());
                until_it_may_have_changed(client.store, led.as_slice()).await;
                let looked = look_until(Duration::MAX, async || look().await.map(|(seen, _)| Some(seen)));
                seen = looked.await?.expect("it waits without end");
            }
            Ok::<_, StoreError>(())
        };
        let in_time = timeout(self.most.unwrap_or(Duration::MAX), waiting).await.ok().transpose()?.is_some();
        let now = match seen {
            None => "nobody leads".to_owned(),
            Some((shard, holder)) if shard == self.shard => format!("led by {holder}"),
            Some((slot, holder)) => format!("led by {holder} of {slot}"),
        };
        if in_time {
            return operator.done(&now).await;
        }
        let still = format!("still {now} after {}", self.most.map(show).unwrap_or_default());
        Err(operator.refusal(&still))
    }
}
