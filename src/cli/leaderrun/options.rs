//! The options of `leaderrun`, and the job that they describe.
//!
//! The hazard: a mistake that is found only after the lease was taken keeps another host from leading. So all that can
//! be checked without the store is checked here.

mod values;

use super::super::exclusions::{self, Overruled};
use super::super::flags::{self, NamedStore};
use super::super::slots;
use super::PROGRAM;
use crate::election::{OnLoss, Patience, Restart, RestartWhen};
use crate::exit;
use crate::guard::contain::{Contain, Containment};
use crate::guard::{health, health::Health, hooks, hooks::Hooks};
use crate::lease::{JobId, Shard, Timing, TimingOptions, TimingRequest, show};
use crate::notes::jobs::{Job as LedgerJob, Occasion, Period};
use crate::observe::http;
use crate::observe::log::Format;
use crate::observe::systemd::Readiness;
use crate::runner::rotation::Relinquish;
use crate::runner::standby_tasks::Duties;
use crate::store::Store;
use crate::time::wall_clock_millis;
use clap::builder::FalseyValueParser;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory, Parser, ValueEnum};
use nix::sys::signal::Signal;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use values::{every, hook, kept, metrics_file, owner, relinquish, signal, status, times, verbosity};

/// The words of a command line, for messages.
pub(super) const FORM: &str = "leaderrun [OPTIONS] SHARD [--] COMMAND [ARGS...]";

/// Run COMMAND on exactly one of many hosts: the one that holds the lease on SHARD
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version,
    override_usage = "leaderrun [OPTIONS] SHARD [--] COMMAND [ARGS...]\n       leaderrun [OPTIONS] -c STRING SHARD",
    after_help = "Write durations as 15s, 1m30s or 500ms; a bare number means seconds.\n\
                  Each option can also be set by a variable, such as LEADERRUN_AFTER_LOSS, or in the configuration file.\n\
                  See leaderrun(1) and leaderrun(7)."
)]
pub struct Flags {
    /// Run STRING with /bin/sh -c instead of COMMAND
    #[arg(short, long, value_name = "STRING", env = "LEADERRUN_COMMAND")]
    command: Option<OsString>,

    #[command(flatten, next_help_heading = "Store")]
    store: flags::StoreFlags,

    #[command(flatten, next_help_heading = "Waiting")]
    pub(super) waiting: Waiting,

    #[command(flatten, next_help_heading = "Jobs")]
    jobs: Jobs,

    #[command(flatten, next_help_heading = "Stopping")]
    pub(super) stopping: Stopping,

    #[command(flatten, next_help_heading = "Restarts")]
    restarts: Restarts,

    #[command(flatten, next_help_heading = "Health")]
    health: HealthFlags,

    #[command(flatten, next_help_heading = "Hooks")]
    hooks: HookFlags,

    #[command(flatten, next_help_heading = "Timing")]
    pub(super) timing: TimingFlags,

    #[command(flatten, next_help_heading = "Observability")]
    pub(super) observability: Observability,

    #[command(flatten, next_help_heading = "Advanced")]
    pub(super) advanced: Advanced,

    /// SHARD, then COMMAND and its arguments
    #[arg(value_name = "SHARD COMMAND", trailing_var_arg = true, hide = true)]
    operands: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct Waiting {
    /// Do not wait: exit with 75 if another leads
    #[arg(short = 'n', long, visible_alias = "nonblock", env = "LEADERRUN_NO_WAIT",
          value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    no_wait: bool,

    /// Wait at most this long, then exit with 75
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION", env = "LEADERRUN_WAIT", value_parser = flags::duration,
          allow_hyphen_values = true)]
    wait: Option<Duration>,

    /// Exit with this status if the lease was not acquired
    #[arg(short = 'E', long, value_name = "CODE", env = "LEADERRUN_CONFLICT_EXIT_CODE",
          default_value_t = exit::NOT_ACQUIRED, value_parser = status, allow_hyphen_values = true)]
    pub(super) conflict_exit_code: u8,

    /// When leadership is lost: standby or exit [default: standby]
    #[arg(long, value_name = "WHAT", env = "LEADERRUN_AFTER_LOSS", value_enum, hide_possible_values = true)]
    after_loss: Option<AfterLoss>,

    /// The name of --after-loss in version 0.1
    #[arg(long, hide = true, value_name = "WHAT", env = "LEADERRUN_ON_LOSS", value_enum)]
    on_loss: Option<AfterLoss>,
}

#[derive(Debug, Args)]
struct Jobs {
    /// Run COMMAND at most once in each period of this length, over all hosts
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_EVERY", value_parser = every, allow_hyphen_values = true)]
    every: Option<Duration>,

    /// Run COMMAND at most once ever under this name, over all hosts
    #[arg(long, value_name = "ID", env = "LEADERRUN_ONCE", allow_hyphen_values = true)]
    once: Option<JobId>,

    /// Repeat a failed job up to N times [default: 0]
    #[arg(long, value_name = "N", env = "LEADERRUN_RETRY_FAILED", value_parser = times,
          allow_hyphen_values = true)]
    retry_failed: Option<u32>,
}

#[derive(Debug, Args)]
pub(super) struct Stopping {
    /// The signal that asks COMMAND to stop
    #[arg(short, long, value_name = "SIGNAL", env = "LEADERRUN_SIGNAL", default_value = "TERM",
          value_parser = signal, allow_hyphen_values = true)]
    pub(super) signal: Signal,

    /// Time until SIGKILL [default: 3s, up to lease/5]
    #[arg(short = 'k', long, visible_alias = "kill-after", value_name = "DURATION", env = "LEADERRUN_GRACE",
          value_parser = flags::duration, allow_hyphen_values = true)]
    grace: Option<Duration>,

    /// Time to SIGKILL in an orderly stop [default: no limit]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_DRAIN", value_parser = flags::duration,
          allow_hyphen_values = true)]
    pub(super) drain: Option<Duration>,

    /// Stop COMMAND after this long, and exit with 124
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_MAX_RUN", value_parser = flags::duration,
          allow_hyphen_values = true)]
    pub(super) max_run: Option<Duration>,
}

#[derive(Debug, Args)]
struct Restarts {
    /// Restart COMMAND: never, on-failure, always
    #[arg(long, value_name = "WHEN", env = "LEADERRUN_RESTART", value_enum, hide_possible_values = true, default_value_t = AfterEnd::Never)]
    restart: AfterEnd,

    /// Restarts in a row before giving up the lease
    #[arg(long, value_name = "N", env = "LEADERRUN_RESTART_LIMIT", default_value = "5", value_parser = times,
          allow_hyphen_values = true)]
    restart_limit: u32,

    /// Pause before the first restart; doubles up to 1m
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_RESTART_DELAY", default_value = "1s",
          value_parser = flags::duration, allow_hyphen_values = true)]
    restart_delay: Duration,

    /// A run of at least this long resets the count
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_RESTART_HEALTHY", default_value = "1m",
          value_parser = flags::duration, allow_hyphen_values = true)]
    restart_healthy: Duration,
}

#[derive(Debug, Args)]
struct HealthFlags {
    /// Release the lease if CMD keeps failing while COMMAND runs
    #[arg(long, value_name = "CMD", env = "LEADERRUN_HEALTH", value_parser = hook)]
    health: Option<OsString>,

    /// Time before the first check and between two [default: 10s]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_HEALTH_INTERVAL", value_parser = flags::duration,
          allow_hyphen_values = true)]
    health_interval: Option<Duration>,

    /// A check that takes longer has failed [default: 5s]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_HEALTH_TIMEOUT", value_parser = flags::duration,
          allow_hyphen_values = true)]
    health_timeout: Option<Duration>,

    /// Failures in a row before giving up the lease [default: 3]
    #[arg(long, value_name = "N", env = "LEADERRUN_HEALTH_FAILURES", value_parser = times,
          allow_hyphen_values = true)]
    health_failures: Option<u32>,
}

#[derive(Debug, Args)]
struct HookFlags {
    /// Run CMD once the lease is held, before COMMAND starts
    #[arg(long, value_name = "CMD", env = "LEADERRUN_ON_LEAD", value_parser = hook)]
    on_lead: Option<OsString>,

    /// Run CMD before COMMAND gets the stop signal
    #[arg(long, value_name = "CMD", env = "LEADERRUN_ON_LOSING", value_parser = hook)]
    on_losing: Option<OsString>,

    /// Run CMD when COMMAND is dead, before the lease is released
    #[arg(long, value_name = "CMD", env = "LEADERRUN_ON_LOST", value_parser = hook)]
    on_lost: Option<OsString>,

    /// Kill a hook that takes longer than this [default: 2s]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_HOOK_TIMEOUT", value_parser = flags::duration,
          allow_hyphen_values = true)]
    hook_timeout: Option<Duration>,

    /// Run CMD while this candidate does not lead
    #[arg(long, value_name = "CMD", env = "LEADERRUN_STANDBY", allow_hyphen_values = true)]
    standby: Option<OsString>,

    /// Run CMD on a standby when it sees a new leader
    #[arg(long, value_name = "CMD", env = "LEADERRUN_ON_LEADER_CHANGE", allow_hyphen_values = true)]
    on_leader_change: Option<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct TimingFlags {
    /// How long a lease lasts if it is not renewed [default: 15s, in a bucket 1m]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_LEASE", value_parser = flags::duration,
          allow_hyphen_values = true)]
    lease: Option<Duration>,

    /// How often to renew the lease [default: 5s, in a bucket 20s; up to lease/3]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_RENEW", value_parser = flags::duration,
          allow_hyphen_values = true)]
    renew: Option<Duration>,

    /// How often a standby checks the lease [default: 2s, in a bucket 10s]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_RETRY", value_parser = flags::duration,
          allow_hyphen_values = true)]
    retry: Option<Duration>,

    /// Print the timing budget of these options and exit
    #[arg(long, env = "LEADERRUN_EXPLAIN", value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    pub(super) explain: bool,
}

#[derive(Debug, Args)]
pub(super) struct Observability {
    /// Serve probes and Prometheus metrics on this address
    #[arg(long, value_name = "ADDR", env = "LEADERRUN_LISTEN")]
    pub(super) listen: Option<http::Address>,

    /// Write the result of each run to this file, for node_exporter
    #[arg(long, value_name = "FILE", env = "LEADERRUN_METRICS_FILE", value_parser = metrics_file)]
    pub(super) metrics_file: Option<PathBuf>,

    /// How many leaderships the history keeps [default: 16]
    #[arg(long, value_name = "N", env = "LEADERRUN_KEEP_HISTORY", value_parser = kept, allow_hyphen_values = true)]
    pub(super) keep_history: Option<usize>,

    /// The name that others see [default: HOST-PID-HEX]
    #[arg(long, value_name = "NAME", env = "LEADERRUN_OWNER", value_parser = owner)]
    pub(super) owner: Option<String>,

    /// When to notify systemd: candidate, leader, command
    #[arg(long, value_name = "WHEN", env = "LEADERRUN_NOTIFY", value_enum, hide_possible_values = true, default_value_t = Readiness::Candidate)]
    pub(super) notify: Readiness,

    /// The format of log lines: text or json
    #[arg(long, value_name = "FORMAT", env = "LEADERRUN_LOG_FORMAT", value_enum, hide_possible_values = true, default_value_t = Format::Text)]
    pub(super) log_format: Format,

    /// Log more; give it twice for still more
    #[arg(short, long, env = "LEADERRUN_VERBOSE", action = ArgAction::Count, value_parser = verbosity)]
    pub(super) verbose: u8,

    /// Log only errors
    #[arg(short, long, env = "LEADERRUN_QUIET", value_parser = FalseyValueParser::new(),
          action = ArgAction::SetTrue)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct Advanced {
    /// Let up to N candidates lead at once, each in its own slot
    #[arg(long, value_name = "N", env = "LEADERRUN_SLOTS", value_parser = slots::number, allow_hyphen_values = true)]
    pub(super) slots: Option<u32>,

    /// Hand over after a time, or on a schedule such as '0 4 * * *'
    #[arg(long, value_name = "WHEN", env = "LEADERRUN_RELINQUISH", value_parser = relinquish, allow_hyphen_values = true)]
    pub(super) relinquish: Option<Relinquish>,

    /// The kill method: auto, tree, cgroup, pidns
    #[arg(long, value_name = "HOW", env = "LEADERRUN_CONTAIN", value_enum, hide_possible_values = true, default_value_t = Contain::Auto)]
    pub(super) contain: Contain,

    /// Announce standbys: auto, always, never
    #[arg(long, value_name = "WHEN", env = "LEADERRUN_ANNOUNCE", value_enum, hide_possible_values = true, default_value_t = Announce::Auto)]
    announce: Announce,

    /// Limit for one request [default: what is left, at most 10s]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_REQUEST_TIMEOUT", value_parser = flags::duration,
          allow_hyphen_values = true)]
    request_timeout: Option<Duration>,

    /// From SIGKILL to the end of the lease [default: 600ms + 1 %]
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_MARGIN", value_parser = flags::duration,
          allow_hyphen_values = true)]
    margin: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AfterLoss {
    /// Wait to lead again
    Standby,
    /// Exit with status 79
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AfterEnd {
    Never,
    /// With another status than 0, or by a signal
    OnFailure,
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Announce {
    /// Unless requests to the store cost money
    Auto,
    Always,
    Never,
}

/// All that the options say, checked without the store.
pub(super) struct Job {
    pub(super) shard: Shard,
    pub(super) timing: Timing,
    pub(super) store: NamedStore,
    pub(super) words: Vec<OsString>,
    pub(super) ledger: Option<LedgerJob>,
}

impl Flags {
    /// Unsets the options that others overrule.
    ///
    /// # Errors
    /// One line that names options which cannot be used together, or one that needs another.
    pub(super) fn settle(&mut self, matches: &ArgMatches) -> Result<(), String> {
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

    pub(super) fn job(&self, matches: &ArgMatches) -> Result<Job, String> {
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
            grace: self.stopping.grace,
            request_timeout: self.advanced.request_timeout,
            margin: self.advanced.margin,
        };
        let timing = Timing::new(TimingRequest { hooks: self.hooks().times(), ..chosen.request(frugal) })?;
        Ok(Job { shard, timing, store: store?, words, ledger: self.ledger()? })
    }

    /// A candidate that waits long for the lease stays in the period in which it was started.
    fn ledger(&self) -> Result<Option<LedgerJob>, String> {
        let occasion = match (self.jobs.every, &self.jobs.once) {
            (Some(every), _) => Occasion::Period(Period::at(wall_clock_millis(), every)?),
            (None, Some(job)) => Occasion::Once(job.clone()),
            (None, None) => return Ok(None),
        };
        Ok(Some(LedgerJob { occasion, retry_failed: self.jobs.retry_failed.unwrap_or(0) }))
    }

    pub(super) fn restart(&self, at_terminal: bool) -> Option<Restart> {
        let when = match self.restarts.restart {
            AfterEnd::Never => return None,
            AfterEnd::OnFailure => RestartWhen::OnFailure,
            AfterEnd::Always => RestartWhen::Always,
        };
        let (limit, delay, healthy) =
            (self.restarts.restart_limit, self.restarts.restart_delay, self.restarts.restart_healthy);
        Some(Restart { when, limit, delay, healthy, at_terminal })
    }

    pub(super) fn has_hooks(&self) -> bool {
        self.hooks.on_lead.is_some() || self.hooks.on_losing.is_some() || self.hooks.on_lost.is_some()
    }

    pub(super) fn hooks(&self) -> Hooks {
        let bytes = |command: &Option<OsString>| command.as_ref().map(|command| command.as_bytes().to_vec());
        Hooks {
            lead: bytes(&self.hooks.on_lead),
            losing: bytes(&self.hooks.on_losing),
            lost: bytes(&self.hooks.on_lost),
            timeout: self.hooks.hook_timeout.unwrap_or(hooks::DEFAULT_TIMEOUT),
        }
    }

    pub(super) fn health(&self) -> Option<Health> {
        let HealthFlags { health, health_interval, health_timeout, health_failures } = &self.health;
        Some(Health {
            command: health.as_ref()?.as_bytes().to_vec(),
            interval: health_interval.unwrap_or(health::DEFAULT_INTERVAL),
            timeout: health_timeout.unwrap_or(health::DEFAULT_TIMEOUT),
            failures: health_failures.unwrap_or(health::DEFAULT_FAILURES),
        })
    }

    /// A line about checks that never come.
    pub(super) fn health_doubt(&self) -> Option<String> {
        let (interval, most) = (self.health()?.interval, self.stopping.max_run?);
        (interval >= most).then(|| {
            let [interval, most] = [interval, most].map(show);
            format!("the first --health check comes after {interval}, and --max-run stops COMMAND after {most}")
        })
    }

    pub(super) fn duties(&self, grace: Duration, containment: &Arc<Containment>) -> Duties {
        Duties {
            containment: Arc::clone(containment),
            standby: self.hooks.standby.clone(),
            on_leader_change: self.hooks.on_leader_change.clone(),
            hook_timeout: self.hooks.hook_timeout.unwrap_or(hooks::DEFAULT_TIMEOUT),
            stop_signal: self.stopping.signal,
            grace,
        }
    }

    pub(super) fn announces(&self, store: &dyn Store) -> bool {
        match self.advanced.announce {
            Announce::Auto => !store.is_metered(),
            Announce::Always => true,
            Announce::Never => false,
        }
    }

    pub(super) fn on_loss(&self) -> OnLoss {
        match self.waiting.after_loss.or(self.waiting.on_loss) {
            Some(AfterLoss::Standby) | None => OnLoss::Standby,
            Some(AfterLoss::Exit) => OnLoss::Exit,
        }
    }

    /// A line about each option that has another name now.
    pub(super) fn renamed(&self) -> Option<&'static str> {
        self.waiting.on_loss.map(|_| "--on-loss (LEADERRUN_ON_LOSS) is called --after-loss now, and will go")
    }

    pub(super) fn patience(&self) -> Patience {
        match self.waiting.wait {
            _ if self.waiting.no_wait => Patience::Once,
            None => Patience::Forever,
            Some(Duration::ZERO) => Patience::Once,
            Some(wait) => Patience::AtMost(wait),
        }
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

/// The log format that `words` ask for, or else the environment. It is found even if `words` are not valid options: the
/// mistake is then reported in this format.
pub(super) fn log_format_in(words: impl IntoIterator<Item = OsString>) -> Format {
    let command = Flags::command();
    let mut named = std::env::var("LEADERRUN_LOG_FORMAT").ok();
    let mut words = words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    // Up to SHARD, or what ends the options.
    while let Some(word) = words.next().filter(|word| word.starts_with('-') && !["-", "--"].contains(&word.as_str())) {
        let next = if flags::takes_next(&command, &word) { words.next() } else { None };
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if name == "--log-format" {
            named = value.map(str::to_owned).or(next);
        }
    }
    named.and_then(|name| Format::from_str(&name, false).ok()).unwrap_or(Format::Text)
}

/// Whether `--` stands before SHARD. Then SHARD was probably an empty variable, and the first word of COMMAND would be
/// taken for it. `words` are valid options.
pub(super) fn lacks_shard(words: impl IntoIterator<Item = OsString>) -> bool {
    let command = Flags::command();
    let mut words = words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    while let Some(word) = words.next().filter(|word| word.starts_with('-') && word != "-") {
        if word == "--" {
            return true;
        }
        if flags::takes_next(&command, &word) {
            words.next();
        }
    }
    false
}

/// Whether a shell would do nothing, and succeed.
fn is_blank(string: &OsStr) -> bool {
    string.to_string_lossy().trim().is_empty()
}

fn through_shell(string: OsString) -> Vec<OsString> {
    vec!["/bin/sh".into(), "-c".into(), string]
}
