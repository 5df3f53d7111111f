//! `--explain`: what the timing flags mean for COMMAND.

use crate::lease::{Shard, Timing, show};
use crate::store::{Delivery, Location};
use std::fmt::Write;
use std::time::Duration;

/// The timing budget, a line each.
#[must_use]
pub fn budget(shard: &Shard, location: &Location, timing: &Timing, drain: Option<Duration>) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String, meaning: &str| {
        let line = format!("{name:<20} {value:<14} {meaning}");
        let _ = writeln!(text, "{}", line.trim_end());
    };
    line("shard", shard.to_string(), "");
    line("lease", show(timing.lease), "the store keeps a lease that is not renewed for so long");
    line("renew", show(timing.renew_interval), "from one renewal to the next");
    line("request timeout", show(timing.request_timeout), "one request may take so long");
    line("grace", show(timing.stop_grace), "from the stop signal to SIGKILL when the lease slips away");
    line("margin", show(timing.margin), "from SIGKILL to the end of the lease");
    let used = timing.renew_interval + timing.request_timeout + timing.stop_grace + timing.margin;
    line("sum", show(used), &format!("renew + request timeout + grace + margin, less than {}", show(timing.lease)));
    if location.delivery() == Delivery::Kernel {
        line("stop signal", "never".into(), "a kernel lock does not expire: trouble with the store stops nothing");
        line("crash takeover", "at once".into(), "when the last process of a crashed leader's tree is gone");
        let at_most = show(timing.stop_grace);
        line("", at_most, "the most that a guard without leaderrun gives COMMAND to end");
    } else {
        let after = |what: &str| format!("{what} after the last granted renewal was sent");
        line("stop signal", show(timing.term_after()), &after("COMMAND is asked to end so long"));
        line("SIGKILL", show(timing.kill_after()), &after("what is left of COMMAND is killed so long"));
        let outage = timing.term_after() - timing.renew_interval;
        line("outage", show(outage), "an outage of the store this long disturbs nothing");
        let takeover = match location.delivery() {
            // One second for whole seconds of ttl, one for the clock interval, and a look that comes late.
            Delivery::Poll => timing.lease + Duration::from_secs(2) + timing.retry_interval.mul_f64(1.25),
            // A lease that the server counts in whole seconds, or lets go of a little late.
            Delivery::Push | Delivery::Kernel => timing.lease + Duration::from_secs(1),
        };
        line("crash takeover", show(takeover), "the most from the last renewal of a crashed leader to the next");
    }
    line("drain", drain.map_or_else(|| "for ever".into(), show), "from the stop signal to SIGKILL in an orderly stop");
    text
}
