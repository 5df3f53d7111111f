//! The options of `leaderrun`, and what they ask for.
//!
//! The hazard: a mistake that is found only after the lease was taken keeps other hosts from leading. So all that can
//! be checked without the store is checked here.

mod invocation;

pub(super) use invocation::Invocation;

use super::super::completions::Program;
use super::super::flags::{self, FirstPage};
use super::PROGRAM;
use crate::cli::config::VERBOSITY;
use crate::cli::relinquish::Relinquish;
use crate::election::{OnLoss, Patience, Restart, RestartWhen};
use crate::exit;
use crate::guard::contain::{Contain, Containment};
use crate::guard::policy::checks::CheckTimes;
use crate::guard::{health, health::Health, hooks, hooks::Hooks};
use crate::lease::{JobId, MOST_SLOTS, Shard, show};
use crate::notes::jobs::period::Period;
use crate::observe::listen;
use crate::observe::log::{self, Format};
use crate::observe::systemd::Readiness;
use crate::runner::standby_tasks::Duties;
use crate::store::Location;
use clap::builder::FalseyValueParser;
use clap::{ArgAction, Args, Command, Parser, ValueEnum};
use nix::sys::signal::Signal;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// A run of at least this long resets the number of restarts.
const HEALTHY: Duration = Duration::from_mins(1);
pub(super) const FORM: &str = "leaderrun [OPTIONS] SHARD [--] COMMAND [ARGS...]";

const AFTER_HELP: &str = "\
Examples:
  leaderrun --store file: hello -- echo 'I lead'                    a first try, on one machine
  leaderrun -q -n -E 0 --every 5m report -- make-report             from cron, on every host
  leaderrun --once 2026-11-add-users db -- ./migrate                a migration
  leaderrun --restart on-failure worker -- /usr/local/bin/worker    a service
  leaderrun --explain --lease 30s worker                            what the timing means

Exit status: that of COMMAND, or
  64 wrong usage     69 store unreachable (-n, -w)    71 the system refused     75 not acquired
  77 not permitted   78 wrong configuration           79 leadership lost        124 --max-run
  126 cannot be executed    127 not found             128+N ended by signal N

Write durations as 15s, 1m30s or 500ms; a bare number means seconds.
Each option can also be set by a variable, such as LEADERRUN_AFTER_LOSS, or in the configuration
file.
See leaderctl, which shows and controls who leads, and leaderrun(1) and leaderrun(7).";

/// Run COMMAND on one of many hosts, and never on two at once
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version,
    override_usage = "leaderrun [OPTIONS] SHARD [--] COMMAND [ARGS...]\n       leaderrun [OPTIONS] -c STRING SHARD",
    after_help = AFTER_HELP
)]
pub struct Flags {
    /// Run STRING with /bin/sh -c instead of COMMAND
    #[arg(short, long, value_name = "STRING")]
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
    #[arg(short = 'n', long, visible_alias = "nonblock",
          value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    no_wait: bool,

    /// Wait at most this long, then exit with 75
    #[arg(short, long, visible_alias = "timeout", value_name = "DURATION", value_parser = flags::duration,
          allow_hyphen_values = true)]
    wait: Option<Duration>,

    /// Exit status if another leads or the shard is paused
    #[arg(short = 'E', long, value_name = "CODE",
          default_value_t = exit::NOT_ACQUIRED, value_parser = status, allow_hyphen_values = true)]
    pub(super) conflict_exit_code: u8,

    /// When leadership is lost: standby or exit
    #[arg(long, value_name = "WHAT", value_enum, hide_possible_values = true, default_value_t = OnLoss::Standby)]
    pub(super) after_loss: OnLoss,
}

#[derive(Debug, Args)]
struct Jobs {
    /// Run COMMAND once in each period of this length, over all hosts
    #[arg(long, value_name = "DURATION", value_parser = every, allow_hyphen_values = true)]
    every: Option<Duration>,

    /// Run COMMAND until it has succeeded once under this name
    #[arg(long, value_name = "ID", allow_hyphen_values = true)]
    once: Option<JobId>,

    /// Repeat a failed job without a new start, up to N times
    #[arg(long, value_name = "N", value_parser = times, allow_hyphen_values = true)]
    retry_failed: Option<u32>,

    /// Exit status if the job is done and did not run here
    #[arg(long, value_name = "CODE", default_value_t = 0, value_parser = status, allow_hyphen_values = true)]
    done_exit_code: u8,
}

#[derive(Debug, Args)]
pub(super) struct Stopping {
    /// The signal that asks COMMAND to stop
    #[arg(short, long, value_name = "SIGNAL", default_value = "TERM",
          value_parser = signal, allow_hyphen_values = true)]
    pub(super) signal: Signal,

    /// Time to SIGKILL as the lease is lost [default: 3s; lease/5 if less]
    #[arg(short = 'k', long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    kill_after: Option<Duration>,

    /// Time to SIGKILL in an orderly stop [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    pub(super) stop_timeout: Option<Duration>,

    /// Stop COMMAND after this long, and exit with 124
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    pub(super) max_run: Option<Duration>,
}

#[derive(Debug, Args)]
struct Restarts {
    /// Restart COMMAND: never, on-failure, always
    #[arg(long, value_name = "WHEN", value_enum, hide_possible_values = true, default_value_t = AfterEnd::Never)]
    restart: AfterEnd,

    /// Restarts in a row before the lease is released
    #[arg(long, value_name = "N", default_value = "5", value_parser = times, allow_hyphen_values = true)]
    restart_limit: u32,

    /// Pause before the first restart; doubles up to 1m
    #[arg(long, value_name = "DURATION", default_value = "1s",
          value_parser = flags::duration, allow_hyphen_values = true)]
    restart_delay: Duration,
}

#[derive(Debug, Args)]
struct HealthFlags {
    /// Release the lease if CMD keeps failing while COMMAND runs
    #[arg(long, value_name = "CMD", value_parser = hook)]
    health: Option<OsString>,

    /// Time before the first check and between two [default: 10s]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    health_interval: Option<Duration>,

    /// Kill a check that takes longer than this [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    health_timeout: Option<Duration>,

    /// Failures in a row before the lease is released [default: 3]
    #[arg(long, value_name = "N", value_parser = times, allow_hyphen_values = true)]
    health_failures: Option<u32>,
}

#[derive(Debug, Args)]
struct HookFlags {
    /// Run CMD once the lease is held, before COMMAND starts
    #[arg(long, value_name = "CMD", value_parser = hook)]
    pre_start: Option<OsString>,

    /// Run CMD before COMMAND gets the stop signal
    #[arg(long, value_name = "CMD", value_parser = hook)]
    pre_stop: Option<OsString>,

    /// Run CMD when COMMAND is dead, before the lease is released
    #[arg(long, value_name = "CMD", value_parser = hook)]
    post_stop: Option<OsString>,

    /// Kill a hook that takes longer than this [default: 2s]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    hook_timeout: Option<Duration>,

    /// Run CMD while this candidate does not lead
    #[arg(long, value_name = "CMD", value_parser = hook, allow_hyphen_values = true)]
    standby: Option<OsString>,

    /// Run CMD on a standby when it sees a new leader
    #[arg(long, value_name = "CMD", value_parser = hook, allow_hyphen_values = true)]
    on_leader_change: Option<OsString>,
}

#[derive(Debug, Args)]
pub(super) struct TimingFlags {
    /// How long a lease lasts unrenewed [default: 15s (object storage 1m)]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    lease: Option<Duration>,

    /// How often to renew [default: 5s (object storage 20s); lease/3 if less]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    renew: Option<Duration>,

    /// How often a standby checks the lease [default: 2s (object storage 10s)]
    #[arg(long, value_name = "DURATION", value_parser = flags::duration, allow_hyphen_values = true)]
    retry: Option<Duration>,

    /// Print the timing budget of these options and exit
    #[arg(long, value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    pub(super) explain: bool,
}

#[derive(Debug, Args)]
pub(super) struct Observability {
    /// Serve probes and Prometheus metrics on this address
    #[arg(long, value_name = "ADDR")]
    pub(super) listen: Option<listen::Address>,

    /// Write the result of each run to this file, for node_exporter
    #[arg(long, value_name = "FILE", value_parser = metrics_file)]
    pub(super) metrics_file: Option<PathBuf>,

    /// The name that others see [default: HOST-PID-HEX]
    #[arg(long, value_name = "NAME", value_parser = flags::line::<256>)]
    pub(super) owner: Option<String>,

    /// The name of this host that others see [default: the machine's]
    #[arg(long, value_name = "NAME", value_parser = flags::line::<256>)]
    pub(super) host: Option<String>,

    /// When to notify systemd: candidate, leader, command
    #[arg(long, value_name = "WHEN", value_enum, hide_possible_values = true, default_value_t = Readiness::Candidate)]
    pub(super) notify: Readiness,

    /// The format of log lines: text or json
    #[arg(long, value_name = "FORMAT", value_enum, hide_possible_values = true, default_value_t = Format::Text)]
    pub(super) log_format: Format,

    /// Log more; give it twice for still more
    #[arg(short, long, action = ArgAction::Count, value_parser = verbosity)]
    pub(super) verbose: u8,

    /// Log only errors: no warnings, and not who leads
    #[arg(short, long, value_parser = FalseyValueParser::new(), action = ArgAction::SetTrue)]
    pub(super) quiet: bool,
}

#[derive(Debug, Args)]
pub(super) struct Advanced {
    /// Let up to N candidates lead at once, each in its own slot
    #[arg(long, value_name = "N", value_parser = slots, allow_hyphen_values = true)]
    pub(super) slots: Option<u32>,

    /// Hand over after a time, or on a schedule such as '0 4 * * *'
    #[arg(long, value_name = "WHEN", value_parser = Relinquish::parse, allow_hyphen_values = true)]
    pub(super) relinquish: Option<Relinquish>,

    /// The kill method: auto, walk, cgroup, pidns
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true, default_value_t = Contain::Auto)]
    pub(super) contain: Contain,

    /// Announce standbys: auto, always, never
    #[arg(long, value_name = "WHEN", value_enum, hide_possible_values = true, default_value_t = Announce::Auto)]
    pub(super) announce: Announce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum AfterEnd {
    Never,
    /// With another status than 0, or by a signal
    OnFailure,
    Always,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Announce {
    /// Except on DynamoDB, Kubernetes and object storage
    Auto,
    Always,
    Never,
}

impl Announce {
    pub(super) fn on(self, store: &Location) -> bool {
        match self {
            Self::Auto => !store.is_metered(),
            Self::Always => true,
            Self::Never => false,
        }
    }
}

// The values. Each refusal says what to write.

fn signal(text: &str) -> Result<Signal, String> {
    let upper = text.to_ascii_uppercase();
    let by_number = text.parse().ok().and_then(|number: i32| Signal::try_from(number).ok());
    let read = by_number
        .or_else(|| Signal::from_str(&upper).ok())
        .or_else(|| Signal::from_str(&format!("SIG{upper}")).ok())
        .ok_or("write a signal such as TERM, SIGINT or 15")?;
    // A stopped COMMAND neither ends nor handles another signal.
    if let Signal::SIGSTOP | Signal::SIGTSTP | Signal::SIGTTIN | Signal::SIGTTOU | Signal::SIGCONT = read {
        return Err(format!("{read} does not end a program: write one that does, such as TERM, SIGINT or 15"));
    }
    Ok(read)
}

/// For the variable: on the command line the option is repeated.
fn verbosity(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| VERBOSITY.to_owned())
}

fn status(text: &str) -> Result<u8, String> {
    text.parse().map_err(|_| "write an exit status from 0 to 255".to_owned())
}

fn slots(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|slots| (1..=MOST_SLOTS).contains(slots));
    number.ok_or_else(|| format!("write how many may lead at once, 1 to {MOST_SLOTS}"))
}

fn times(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "write a whole number, such as 2".to_owned())
}

fn metrics_file(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension() {
        Some(extension) if extension == "prom" => Ok(path),
        _ => Err("node_exporter reads only files whose names end with .prom".to_owned()),
    }
}

fn every(text: &str) -> Result<Duration, String> {
    let every = flags::duration(text)?;
    Period::new(0, every).map(|_| every)
}

fn hook(text: &str) -> Result<OsString, String> {
    if text.trim().is_empty() {
        return Err("write a command for the shell, or leave the option out".to_owned());
    }
    Ok(text.into())
}

impl flags::Options for Flags {
    const FIRST_PAGE: FirstPage = FirstPage {
        options: "command store no_wait wait conflict_exit_code every once restart explain verbose quiet",
        verbs: "",
        more: "Write durations as 15s, 1m30s or 500ms; a bare number means seconds.\n\
               --help shows all options, by subject. See leaderctl, leaderrun(1) and leaderrun(7).",
    };

    fn prepare(command: &Command) {
        log::choose(log_format_in(command, std::env::args_os()));
    }
}

impl Flags {
    pub(super) fn restart(&self) -> Option<Restart> {
        let when = match self.restarts.restart {
            AfterEnd::Never => return None,
            AfterEnd::OnFailure => RestartWhen::OnFailure,
            AfterEnd::Always => RestartWhen::Always,
        };
        let (limit, delay) = (self.restarts.restart_limit, self.restarts.restart_delay);
        Some(Restart { when, limit, delay, healthy: HEALTHY })
    }

    pub(super) fn hooks(&self) -> Hooks {
        let bytes = |command: &Option<OsString>| command.as_ref().map(|command| command.as_bytes().to_vec());
        Hooks {
            pre_start: bytes(&self.hooks.pre_start),
            pre_stop: bytes(&self.hooks.pre_stop),
            post_stop: bytes(&self.hooks.post_stop),
            timeout: self.hooks.hook_timeout.unwrap_or(hooks::DEFAULT_TIMEOUT),
        }
    }

    pub(super) fn health(&self) -> Option<Health> {
        let HealthFlags { health, health_interval, health_timeout, health_failures } = &self.health;
        Some(Health {
            command: health.as_ref()?.as_bytes().to_vec(),
            times: CheckTimes {
                interval: health_interval.unwrap_or(health::DEFAULT_INTERVAL),
                timeout: health_timeout.unwrap_or(health::DEFAULT_TIMEOUT),
                failures: health_failures.unwrap_or(health::DEFAULT_FAILURES),
            },
        })
    }

    /// A warning about checks that never come.
    pub(super) fn health_doubt(&self) -> Option<String> {
        let interval = self.health()?.times.interval;
        let most = self.stopping.max_run?;
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

    /// Whether `--` stands before SHARD. Then SHARD was probably an empty variable, and the first word of COMMAND would
    /// be taken for it.
    pub(super) fn lacks_shard(&self, mut words: impl ExactSizeIterator<Item = OsString>) -> bool {
        let before = words.len() - self.operands.len() - 1;
        words.nth(before).is_some_and(|word| word == "--")
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

/// For a verb of `leaderctl` in place of SHARD.
pub(super) fn meant_verb(shard: &Shard) -> Option<String> {
    let leaderctl = Program::Leaderctl.options();
    leaderctl.find_subcommand(shard.as_str()).map(|verb| format!("did you mean leaderctl {}?", verb.get_name()))
}

/// The log format that `words` ask for, or else the environment. It is found even if `words` are not valid options, so
/// that the mistake is reported in this format.
fn log_format_in(command: &Command, words: impl IntoIterator<Item = OsString>) -> Format {
    let mut named = std::env::var("LEADERRUN_LOG_FORMAT").ok();
    let mut words = words.into_iter().skip(1).map(|word| word.to_string_lossy().into_owned());
    // Up to SHARD, or what ends the options.
    while let Some(word) = words.next().filter(|word| word.starts_with('-') && !["-", "--"].contains(&word.as_str())) {
        let next = if flags::takes_next(command, &word) { words.next() } else { None };
        let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
        if name == "--log-format" {
            named = value.map(str::to_owned).or(next);
        }
    }
    named.and_then(|name| Format::from_str(&name, false).ok()).unwrap_or(Format::Text)
}
