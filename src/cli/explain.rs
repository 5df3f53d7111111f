//! `--explain`: what the timing options mean for COMMAND.

use crate::guard::cgroup::WEIGHT;
use crate::guard::contain::Containment;
use crate::guard::priority::{self, Priority};
use crate::guard::quota::Quota;
use crate::lease::{Late, Shard, Timing, kept, parts_of_a_stop, show};
use crate::store::{Delivery, Location};
use std::fmt::Write;
use std::time::Duration;

pub fn budget(
    shard: &Shard,
    location: &Location,
    timing: &Timing,
    stop_timeout: Option<Duration>,
    containment: &Containment,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: String, meaning: &str| {
        let line = format!("{name:<20} {value:<14} {meaning}");
        let _ = writeln!(text, "{}", line.trim_end());
    };
    line("shard", shard.to_string(), "");
    line("lease", show(timing.lease), "how long a lease lasts if it is not renewed");
    line("renew", show(timing.renew_interval), "how often the leader renews the lease");
    line("request timeout", show(timing.request_timeout), "the longest that one request may take");
    line("kill-after", show(timing.stop_grace), "from the stop signal to SIGKILL when the lease is being lost");
    let meaning = "from SIGKILL to the end of the lease: a twelfth of it, and the time of a kill";
    line("margin", show(timing.margin), meaning);
    let parts = [
        ("pre-stop", timing.hooks.pre_stop, "the longest that this hook may take, before the stop signal"),
        ("post-stop", timing.hooks.post_stop, "the longest that this hook may take, after the tree is dead"),
    ];
    for (name, most, meaning) in parts.iter().filter(|(_, most, _)| !most.is_zero()) {
        line(name, show(*most), meaning);
    }
    let used = timing.renew_interval + timing.request_timeout + timing.stop_time() + timing.margin;
    let stop = parts_of_a_stop(timing.stop_grace, timing.hooks, |name, _| format!(" + {name}"));
    let sum = format!("renew + request timeout{stop} + margin, less than {}", show(timing.lease));
    line("sum", show(used), &sum);
    if location.delivery() == Delivery::Kernel {
        line("stop signal", "never".into(), "a kernel lock does not expire: store trouble stops nothing");
        line("crash takeover", "at once".into(), "when the last process of a crashed leader's tree is dead");
        let at_most = show(timing.stop_time());
        line("", at_most, "the longest that the guard lets COMMAND run if leaderrun is killed");
    } else {
        let after = |what: &str| format!("{what}, counted from when the last granted renewal was sent");
        if !timing.hooks.pre_stop.is_zero() {
            line("stop", show(timing.term_after()), &after("the pre-stop hook starts"));
        }
        let signal = timing.term_after() + timing.hooks.pre_stop;
        line("stop signal", show(signal), &after("COMMAND is asked to stop"));
        let kill = timing.kill_after() - timing.hooks.post_stop;
        line("SIGKILL", show(kill), &after("what is left of the tree is killed"));
        if !timing.hooks.post_stop.is_zero() {
            line("end", show(timing.kill_after()), &after("the post-stop hook is killed"));
        }
        line("outage", show(timing.outage()), "a store outage this long does not disturb COMMAND");
        if let Some(quota) = Quota::find() {
            let late = Late::new(quota.presumed_lateness(), timing.most_extra(), true);
            line("CPU quota", show(late.extra), &format!("COMMAND is stopped this much earlier at first: {quota}"));
        }
        let kept = location.keeps(kept(timing.lease));
        let meaning = "how long the store keeps a lease: longer, because a clock may be slewed by a twelfth";
        line("kept", show(kept), meaning);
        let takeover = match location.delivery() {
            // One second for whole seconds of ttl, one for the clock interval, and a late check.
            Delivery::Poll => kept + Duration::from_secs(2) + timing.retry_interval.mul_f64(1.25),
            // The server may end a lease a little late.
            Delivery::Push | Delivery::Kernel => kept + Duration::from_secs(1),
        };
        let meaning = "the longest from the last renewal of a crashed leader to the next leader";
        line("crash takeover", show(takeover), meaning);
    }
    let limit = stop_timeout.map_or_else(|| "no limit".into(), show);
    line("stop timeout", limit, "from the stop signal to SIGKILL in an orderly stop");
    line("contain", containment.method().into(), &format!("a tree is killed by {containment}"));
    let priority =
        if containment.means.raises { priority::raise(containment.means.scheduling) } else { Priority::Kept };
    line("priority", priority.to_string(), "the priority of the helpers, which kill it");
    if containment.has_weight() && !matches!(priority, Priority::RealTime(_)) {
        let meaning = "the share of the processors that the helpers ask for, where COMMAND has 100";
        line("CPU weight", WEIGHT.to_owned(), meaning);
    }
    text
}
