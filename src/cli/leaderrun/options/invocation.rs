//! What the options of `leaderrun` ask for together: one shard, one store, one COMMAND.
//!
//! The hazard: two options that do not fit each other would be obeyed in part. Each such pair is refused here.

use super::{AfterEnd, FORM, Flags, HealthFlags};
use crate::cli::exclusions::{self, Overruled};
use crate::cli::flags::NamedStore;
use crate::cli::slots;
use crate::lease::{Shard, Timing, TimingOptions, TimingRequest};
use crate::notes::jobs::{Job, Occasion, Period};
use crate::time::wall_clock_millis;
use clap::ArgMatches;
use clap::parser::ValueSource;
use std::ffi::{OsStr, OsString};
use std::str::FromStr;

/// All that the options say, checked without the store.
pub struct Invocation {
    pub shard: Shard,
    pub timing: Timing,
    pub store: NamedStore,
    pub words: Vec<OsString>,
    pub job: Option<Job>,
}

impl Flags {
    /// Unsets the options that others overrule.
    ///
    /// # Errors
    /// One line that names options which cannot be used together, or one that needs another.
    pub(in super::super) fn unset_overruled(&mut self, matches: &ArgMatches) -> Result<(), String> {
        let overruled = Overruled::find(matches)?;
        if overruled.has("every") {
            self.jobs.every = None;
        }
        if overruled.has("once") {
            self.jobs.once = None;
        }
        let given = |name| matches.value_source(name) == Some(ValueSource::CommandLine);
        let is_job = self.jobs.every.is_some() || self.jobs.once.is_some();
        let restarts = self.restarts.restart != AfterEnd::Never;
        for (name, option, needed, is_there) in [
            ("retry_failed", "--retry-failed", "--every or --once", is_job),
            ("restart_limit", "--restart-limit", "--restart on-failure or --restart always", restarts),
            ("restart_delay", "--restart-delay", "--restart on-failure or --restart always", restarts),
            ("restart_healthy", "--restart-healthy", "--restart on-failure or --restart always", restarts),
            ("health_interval", "--health-interval", "--health", self.health.health.is_some()),
            ("health_timeout", "--health-timeout", "--health", self.health.health.is_some()),
            ("health_failures", "--health-failures", "--health", self.health.health.is_some()),
        ] {
            if given(name) && !is_there {
                return Err(format!("{option} needs {needed}"));
            }
        }
        if overruled.has("restart") {
            self.restarts.restart = AfterEnd::Never;
        }
        if overruled.has("relinquish") {
            self.advanced.relinquish = None;
        }
        self.waiting.no_wait &= !overruled.has("no-wait");
        self.observability.quiet &= !overruled.has("quiet");
        Ok(())
    }

    pub(in super::super) fn invocation(&self, matches: &ArgMatches) -> Result<Invocation, String> {
        // First, because this hides a URL on the command line.
        let store = self.store.named(matches);
        let mut operands = self.operands.iter().cloned();
        let shard = operands.next().ok_or_else(|| format!("no SHARD: write {FORM}"))?;
        let shard = shard.to_str().ok_or("the shard is not UTF-8: use letters, digits and . _ - / :")?;
        let shard = Shard::from_str(shard)?;
        let mut words: Vec<OsString> = operands.collect();
        let separated = words.first().is_some_and(|word| word == "--");
        if separated {
            words.remove(0);
        }
        let source = matches.value_source("command").unwrap_or(ValueSource::CommandLine);
        let on_line = self.command.is_some() && source == ValueSource::CommandLine;
        if on_line && !words.is_empty() {
            return Err("-c STRING and COMMAND exclude each other: use one of them".to_owned());
        }
        // As flock(1) is used: SHARD -c STRING.
        let trailing = !separated && words.len() == 2 && words[0] == "-c";
        // What the command line names overrules a variable and the file.
        let string = if trailing { words.pop() } else { self.command.clone().filter(|_| words.is_empty()) };
        match string {
            Some(string) if is_blank(&string) => {
                let named = if on_line || trailing { "-c".to_owned() } else { exclusions::as_given("command", source) };
                return Err(format!("{named} is empty: write what to run"));
            }
            Some(string) => words = through_shell(string),
            None if self.timing.explain && words.is_empty() => words = through_shell(OsString::new()),
            None if words.is_empty() => return Err(format!("no COMMAND after SHARD \"{shard}\": write {FORM}")),
            None if words[0].is_empty() => return Err("COMMAND is empty: write what to run".to_owned()),
            None => {}
        }
        if self.stopping.max_run.is_some_and(|most| most.is_zero()) {
            return Err("--max-run 0s leaves COMMAND no time to run: use a longer one".to_owned());
        }
        if let Some(slots) = self.advanced.slots {
            slots::check(slots, &shard, store.as_ref().ok().map(|store| &store.location))?;
        }
        let empty = |string: &Option<OsString>| string.as_deref().is_some_and(is_blank);
        if empty(&self.hooks.standby) {
            return Err("--standby is empty: write a command for the shell, or leave the option out".to_owned());
        }
        if empty(&self.hooks.on_leader_change) {
            return Err(
                "--on-leader-change is empty: write a command for the shell, or leave the option out".to_owned()
            );
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
            request_timeout: self.advanced.request_timeout,
            margin: self.advanced.margin,
        };
        let timing = Timing::new(TimingRequest { hooks: self.hooks().times(), ..chosen.request(frugal) })?;
        Ok(Invocation { shard, timing, store: store?, words, job: self.job()? })
    }

    /// A candidate that waits long for the lease stays in the period in which it was started.
    fn job(&self) -> Result<Option<Job>, String> {
        let occasion = match (self.jobs.every, &self.jobs.once) {
            (Some(every), _) => Occasion::Period(Period::at(wall_clock_millis(), every)?),
            (None, Some(job)) => Occasion::Once(job.clone()),
            (None, None) => return Ok(None),
        };
        Ok(Some(Job { occasion, retry_failed: self.jobs.retry_failed.unwrap_or(0) }))
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
