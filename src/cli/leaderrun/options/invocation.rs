//! What the options of `leaderrun` ask for together: one shard, one store, one COMMAND.
//!
//! The hazard: two options that do not fit each other would be obeyed in part. Each such pair is refused here.

use super::{AfterEnd, FORM, Flags, HealthFlags, meant_verb};
use crate::cli::flags::NamedStore;
use crate::lease::{Shard, Timing, TimingOptions, TimingRequest, show};
use crate::notes::jobs::period::Period;
use crate::notes::jobs::{Frequency, Job};
use crate::slots;
use crate::store::{Delivery, Location};
use crate::time::wall_clock_millis;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::ffi::{OsStr, OsString};

pub struct Invocation {
    pub shard: Shard,
    pub timing: Timing,
    pub store: NamedStore,
    pub words: Vec<OsString>,
    pub job: Option<Job>,
}

impl Flags {
    /// Refuses an option of the command line that has no effect without another one.
    pub(in super::super) fn refuse_useless(&self, matches: &ArgMatches) -> Result<(), String> {
        let given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let is_job = self.jobs.every.is_some() || self.jobs.once.is_some();
        let restarts = self.restarts.restart != AfterEnd::Never;
        for (name, option, needed, is_there) in [
            ("retry_failed", "--retry-failed", "--every or --once", is_job),
            ("done_exit_code", "--done-exit-code", "--every or --once", is_job),
            ("restart_limit", "--restart-limit", "--restart on-failure or --restart always", restarts),
            ("restart_delay", "--restart-delay", "--restart on-failure or --restart always", restarts),
            ("health_interval", "--health-interval", "--health", self.health.health.is_some()),
            ("health_timeout", "--health-timeout", "--health", self.health.health.is_some()),
            ("health_failures", "--health-failures", "--health", self.health.health.is_some()),
        ] {
            if given(name) && !is_there {
                return Err(format!("{option} needs {needed}"));
            }
        }
        Ok(())
    }

    pub(in super::super) fn invocation(&self, matches: &ArgMatches) -> Result<Invocation, String> {
        // First, because this hides a URL on the command line.
        let store = self.store.named(matches);
        let mut operands = self.operands.iter().cloned();
        let shard = operands.next().ok_or_else(|| format!("no SHARD: write {FORM}"))?;
        let shard = shard.to_str().ok_or("the shard is not UTF-8: use letters, digits and . _ - / :")?;
        let shard = Shard::whole(shard)?;
        let mut words: Vec<OsString> = operands.collect();
        let separated = words.first().is_some_and(|word| word == "--");
        if separated {
            words.remove(0);
        }
        let on_line = matches.value_source("command") == Some(ValueSource::CommandLine);
        if on_line && !words.is_empty() {
            return Err("-c STRING and COMMAND exclude each other: use one of them".to_owned());
        }
        // As flock(1) is used: SHARD -c STRING.
        let trailing = !separated && words.len() == 2 && words[0] == "-c";
        // What the command line names overrules a variable.
        let string = if trailing { words.pop() } else { self.command.clone().filter(|_| words.is_empty()) };
        match string {
            Some(string) if is_blank(&string) => {
                let named = if on_line || trailing { "-c" } else { "LEADERRUN_COMMAND, or command in the file," };
                return Err(format!("{named} is empty: write what to run"));
            }
            Some(string) => words = through_shell(string),
            None if self.timing.explain && words.is_empty() => words = through_shell(OsString::new()),
            None if words.is_empty() => {
                let advice = meant_verb(&shard).unwrap_or_else(|| format!("write {FORM}"));
                return Err(format!("no COMMAND after SHARD \"{shard}\": {advice}"));
            }
            None if words[0].is_empty() => return Err("COMMAND is empty: write what to run".to_owned()),
            None => {}
        }
        if self.stopping.max_run.is_some_and(|most| most.is_zero()) {
            return Err("--max-run 0s leaves COMMAND no time to run: use a longer one".to_owned());
        }
        if let Some(slots) = self.advanced.slots {
            slots::name(&shard, slots)?;
            if let Ok(store) = &store {
                slots::check(&store.location, slots)?;
            }
        }
        if self.hooks.hook_timeout.is_some_and(|most| most.is_zero()) {
            return Err("--hook-timeout 0s leaves a hook no time to run: use a longer one".to_owned());
        }
        self.health.refuse_zeros()?;
        let frugal = store.as_ref().is_ok_and(|store| store.location.is_frugal());
        let chosen = TimingOptions {
            lease: self.timing.lease,
            renew: self.timing.renew,
            retry: self.timing.retry,
            kill_after: self.stopping.kill_after,
        }
        .request(frugal);
        let timing = Timing::new(TimingRequest { hooks: self.hooks().times(), ..chosen })?;
        Ok(Invocation { shard, timing, store: store?, words, job: self.job()? })
    }

    /// A doubt about options with which a short outage of the store ends a leadership.
    pub(in super::super) fn timing_doubt(timing: &Timing, location: &Location) -> Option<String> {
        if location.delivery() == Delivery::Kernel || timing.outage() >= timing.lease / 10 {
            return None;
        }
        let (outage, lease) = (show(timing.outage()), show(timing.lease));
        Some(format!(
            "with a lease of {lease}, a store outage of {outage} already stops COMMAND: raise --lease, or lower --renew \
             or --kill-after"
        ))
    }

    /// A candidate that waits long for the lease stays in the period in which it was started.
    fn job(&self) -> Result<Option<Job>, String> {
        let frequency = match (self.jobs.every, &self.jobs.once) {
            (Some(every), _) => Frequency::Every(Period::new(wall_clock_millis(), every)?),
            (None, Some(job)) => Frequency::Once(job.clone()),
            (None, None) => return Ok(None),
        };
        let (retry_failed, done_exit_code) = (self.jobs.retry_failed, self.jobs.done_exit_code.unwrap_or(0));
        Ok(Some(Job { frequency, retry_failed, done_exit_code }))
    }
}

impl HealthFlags {
    fn refuse_zeros(&self) -> Result<(), String> {
        if self.health_interval.is_some_and(|interval| interval.is_zero()) {
            return Err("--health-interval 0s leaves no time between two checks: use a longer one".to_owned());
        }
        if self.health_timeout.is_some_and(|most| most.is_zero()) {
            return Err("--health-timeout 0s leaves a check no time to run: use a longer one".to_owned());
        }
        if self.health_failures == Some(0) {
            return Err("--health-failures 0 would give the lease up before a check fails: use 1 or more".to_owned());
        }
        Ok(())
    }
}

/// Whether a shell would do nothing, and succeed.
fn is_blank(string: &OsStr) -> bool {
    string.to_string_lossy().trim().is_empty()
}

fn through_shell(string: OsString) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), string]
}
