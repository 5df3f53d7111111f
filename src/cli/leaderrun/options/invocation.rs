//! What the options of `leaderrun` ask for together: one shard, one store, one COMMAND.
//!
//! Two options that contradict each other would be obeyed in part, so each such pair is refused.

use super::{AfterEnd, Announce, FORM, Flags, Jobs, meant_verb};
use crate::cli::flags::NamedStore;
use crate::cli::settings::Settings;
use crate::lease::{Shard, Timing, TimingOptions, TimingRequest, show};
use crate::notes::jobs::period::Period;
use crate::notes::jobs::{Frequency, Job};
use crate::slots;
use crate::store::{Delivery, Location};
use crate::time::wall_clock_millis;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory as _};
use std::ffi::OsString;
use std::time::Duration;

pub struct Invocation {
    pub shard: Shard,
    pub timing: Timing,
    pub store: NamedStore,
    pub words: Vec<OsString>,
    pub job: Option<Job>,
}

impl Flags {
    /// Refuses options of the command line that have no effect without another one.
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
        // First, because it hides a URL on the command line from ps(1).
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
        let trailing = !separated && words.first().is_some_and(|word| word == "-c");
        if trailing && words.len() != 2 {
            return Err("-c takes one STRING, a line of the shell: put it in quotes, as in -c 'echo hello'".to_owned());
        }
        // What the command line names overrules a variable.
        let string = if trailing { words.pop() } else { self.command.clone().filter(|_| words.is_empty()) };
        match string {
            // A shell would do nothing, and succeed.
            Some(string) if string.to_string_lossy().trim().is_empty() => {
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
        self.refuse_zeros()?;
        if let Some(slots) = self.advanced.slots {
            slots::name(&shard, slots)?;
            if let Ok(store) = &store {
                slots::check(&store.location, slots)?;
            }
        }
        if let Ok(store) = &store {
            self.refuse_useless_announcement(&store.location, matches)?;
        }
        let frugal = store.as_ref().is_ok_and(|store| store.location.is_frugal());
        let chosen = self.chosen_timing().request(frugal);
        let timing = Timing::new(TimingRequest { hooks: self.hooks().times(), ..chosen })?;
        Ok(Invocation { shard, timing, store: store?, words, job: self.job()? })
    }

    fn refuse_zeros(&self) -> Result<(), String> {
        for (time, why) in [
            (self.stopping.max_run, "--max-run 0s leaves COMMAND no time to run"),
            (self.hooks.hook_timeout, "--hook-timeout 0s leaves a hook no time to run"),
            (self.health.health_interval, "--health-interval 0s leaves no time between two checks"),
            (self.health.health_timeout, "--health-timeout 0s leaves a check no time to run"),
        ] {
            if time == Some(Duration::ZERO) {
                return Err(format!("{why}: use a longer one"));
            }
        }
        if self.health.health_failures == Some(0) {
            return Err("--health-failures 0 would give the lease up before a check fails: use 1 or more".to_owned());
        }
        Ok(())
    }

    fn chosen_timing(&self) -> TimingOptions {
        TimingOptions {
            lease: self.timing.lease,
            renew: self.timing.renew,
            retry: self.timing.retry,
            kill_after: self.stopping.kill_after,
        }
    }

    /// A warning if a short outage of the store ends a leadership.
    pub(in super::super) fn timing_doubt(&self, timing: &Timing, location: &Location) -> Option<String> {
        let Timing { lease, hooks, .. } = *timing;
        if location.delivery() == Delivery::Kernel || timing.outage() >= lease / 10 {
            return None;
        }
        let better = self.chosen_timing().lease_that_leaves_a_quarter(location.is_frugal(), hooks);
        let better =
            better.map(|better| format!("raise --lease to {}, which allows a quarter of it, or ", show(better)));
        let (outage, lease, better) = (show(timing.outage()), show(lease), better.unwrap_or_default());
        Some(format!(
            "with a lease of {lease}, a store outage of {outage} already stops COMMAND: {better}lower --renew or \
             --kill-after"
        ))
    }

    /// Refuses `--announce` on the command line where it changes nothing.
    fn refuse_useless_announcement(&self, store: &Location, matches: &ArgMatches) -> Result<(), String> {
        let announce = self.advanced.announce;
        let is_given = matches.value_source("announce") == Some(ValueSource::CommandLine);
        if !is_given || announce == Announce::Auto || announce.on(store) != Announce::Auto.on(store) {
            return Ok(());
        }
        if Settings::is_overruled("announce", matches, &Self::command())? {
            return Ok(());
        }
        Err(if announce == Announce::Always {
            "--announce always changes nothing here: on this store standbys always announce themselves; leave it out"
        } else {
            "--announce never changes nothing here: on this store a standby announces itself only with --announce always; \
             leave it out"
        }
        .to_owned())
    }

    /// A candidate that waits long for the lease stays in the period in which it was started.
    fn job(&self) -> Result<Option<Job>, String> {
        let frequency = match (self.jobs.every, &self.jobs.once) {
            (Some(every), _) => Frequency::Every(Period::new(wall_clock_millis(), every)?),
            (None, Some(job)) => Frequency::Once(job.clone()),
            (None, None) => return Ok(None),
        };
        let Jobs { retry_failed, done_exit_code, .. } = self.jobs;
        Ok(Some(Job { frequency, retry_failed, done_exit_code }))
    }
}

fn through_shell(string: OsString) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), string]
}
