//! `leaderrun SHARD COMMAND`: prepares a candidate, and reports how it ended.
//!
//! The hazard: a leader that cannot start COMMAND keeps other hosts from leading. So what can fail on this host
//! (COMMAND's name, the kill method, the address of `--listen`, a file) is tried before the first request to the store.

mod options;

pub use options::Flags;
use options::{Invocation, Observability};

use super::explain;
use super::flags::{self, NamedStore};
use super::start::{self, Failure};
use crate::election::{Obstacle, Outcome, Settings, Skipped, StartError};
use crate::exit;
use crate::guard;
use crate::guard::contain::Containment;
use crate::guard::orphan_release;
use crate::lease::{Candidate, Timing, show_seconds};
use crate::notes::history;
use crate::notes::jobs::{Job, Occasion};
use crate::observe::http::{self, Listening};
use crate::observe::log;
use crate::observe::metrics::Metrics;
use crate::observe::metrics_file::MetricsFile;
use crate::observe::status_line::StatusLine;
use crate::observe::systemd::Notifier;
use crate::observe::terminal;
use crate::runner::driver::{self, Options};
use crate::runner::guard_handle::Command;
use crate::runner::limits;
use crate::runner::processes::Processes;
use crate::runner::rotation::Relinquish;
use crate::runner::standby_tasks::{Duties, StandbyTasks};
use crate::slots::Campaign;
use crate::store::{Location, StoreError};
use crate::sys;
use crate::text;
use crate::time::{rfc3339_seconds, wall_clock_millis};
use clap::ArgMatches;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::{AccessFlags, Pid, access, getpgrp};
use std::ffi::OsStr;
use std::io::{IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const PROGRAM: &str = "leaderrun";

#[must_use]
pub fn main() -> ExitCode {
    log::end_on_panic(PROGRAM);
    if let Some(status) = guard::run_if_respawned().or_else(orphan_release::run_if_respawned) {
        return status;
    }
    sys::keep_given_mask();
    // If it is inherited as ignored, the kernel reaps children before we do.
    sys::default_action(Signal::SIGCHLD);
    // Until we handle these signals, they end us at once, even while a file or a name server does not answer. That does
    // no harm, because nothing is acquired yet.
    sys::unblock([Signal::SIGTERM, Signal::SIGINT]);
    // To read the options takes more stack than a small limit leaves. Then the line about that limit is text.
    if limits::check().is_ok() {
        log::choose(options::log_format_in(std::env::args_os()));
    }
    start::main(PROGRAM, fail, begin)
}

fn begin(mut flags: Flags, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    log::choose(flags.observability.log_format);
    if options::lacks_shard(std::env::args_os()) {
        return Err(Failure::Usage(format!("no SHARD before '--': write {}", options::FORM)));
    }
    flags.unset_overruled(matches).map_err(Failure::Usage)?;
    let invocation = flags.invocation(matches).map_err(Failure::Usage)?;
    let containment = Containment::find(flags.advanced.contain).map_err(Failure::of_os)?;
    if flags.timing.explain {
        let stop_timeout = flags.stopping.stop_timeout;
        let Invocation { shard, store, timing, .. } = &invocation;
        let budget = explain::budget(shard, &store.location, timing, stop_timeout, &containment);
        return Ok(start::printed(std::io::stdout().write_all(budget.as_bytes()), fail));
    }
    confirm(&invocation.store)?;
    find(&invocation.words[0]).map_err(|error| not_started(&invocation.words[0], error))?;
    let Observability { log_format, verbose, quiet, .. } = flags.observability;
    log::begin(PROGRAM, log_format, verbose, quiet);
    point_out_doubts(&flags, &invocation);
    let containment = make_room(containment, &flags)?;
    run(&flags, invocation, containment)
}

/// Warns about the default store, even with `--quiet`, because it excludes no other host. Refuses it where no person
/// would read the warning, and inside another leaderrun, whose store was probably meant.
fn confirm(store: &NamedStore) -> Result<(), Failure> {
    if flags::is_inside() || !std::io::stderr().is_terminal() {
        store.refuse_default()?;
    }
    store.tell_doubt(PROGRAM);
    Ok(())
}

/// Logs what is allowed but may not be intended.
fn point_out_doubts(flags: &Flags, invocation: &Invocation) {
    flags.health_doubt().into_iter().for_each(|doubt| tracing::warn!("{doubt}"));
    if let Some(Job { occasion: Occasion::Period(period), .. }) = &invocation.job
        && let Some(doubt) = period.doubt(wall_clock_millis())
    {
        tracing::warn!("{doubt}");
    }
}

fn make_room(mut containment: Containment, flags: &Flags) -> Result<Arc<Containment>, Failure> {
    if (flags.has_hooks() || flags.health().is_some()) && !containment.kills_hooks() {
        return Err(Failure::of_os(
            "hooks and health checks run outside of the PID namespace, and nothing here can kill them there: /proc hides processes",
        ));
    }
    containment.make_room(flags.advanced.contain).map_err(Failure::of_os)?;
    Ok(Arc::new(containment))
}

/// Prepares a candidate, opens what it needs, lets it take part, and reports how it ended.
fn run(flags: &Flags, invocation: Invocation, containment: Arc<Containment>) -> Result<ExitCode, Failure> {
    let prepared = Prepared::new(flags, invocation, containment)?;
    let runtime = start::runtime(&prepared.store.location)?;
    let metrics = flags.observability.listen.as_ref().map(|_| Arc::new(Metrics::new(&prepared.candidate)));
    // The address and the file are opened before the first request to the store, so that a mistake is reported at once.
    let listening = runtime.block_on(listen(flags, metrics.clone()))?;
    let metrics_file = flags.observability.metrics_file.as_deref();
    let once = prepared.job.as_ref().and_then(Job::once);
    let metrics_file = metrics_file.map(|path| MetricsFile::open(path, &prepared.candidate, once)).transpose();
    let metrics_file = metrics_file.map_err(Failure::of_os)?;
    let (program, terminal_group) = (prepared.command.words[0].clone(), prepared.command.terminal_group);
    let (shard, owner) = (prepared.candidate.shard.clone(), prepared.candidate.owner.clone());
    let outcome = runtime.block_on(prepared.take_part(flags, metrics, metrics_file));
    drop(listening);
    // A name lookup may hang for a long time, and nobody needs its result.
    runtime.shutdown_background();
    let outcome = outcome?;
    pass_on_interrupt(&outcome, terminal_group);
    tell_what_did_not_run(&outcome, shard.as_str(), &owner);
    report(outcome, &program, flags.waiting.conflict_exit_code)
}

/// Everything that a candidate needs. Its store is named, but not open yet.
struct Prepared {
    candidate: Candidate,
    command: Command,
    store: NamedStore,
    timing: Timing,
    job: Option<Job>,
    duties: Duties,
    seed: u64,
}

impl Prepared {
    fn new(flags: &Flags, invocation: Invocation, containment: Arc<Containment>) -> anyhow::Result<Self> {
        let candidate = Candidate::here(invocation.shard, flags.observability.owner.clone(), invocation.timing.lease)?;
        let mut seed = [0; 8];
        getrandom::fill(&mut seed)?;
        let duties = flags.duties(invocation.timing.stop_grace, &containment);
        let command = Command {
            words: invocation.words,
            environment: Vec::new(),
            job: invocation.job.as_ref().map(|job| job.occasion.variable()),
            stop_signal: flags.stopping.signal,
            grace: invocation.timing.stop_grace,
            hooks: flags.hooks(),
            health: flags.health(),
            terminal_group: std::io::stdin().is_terminal().then(getpgrp),
            no_input: false,
            containment,
            store_url: None,
        };
        let (store, timing, job) = (invocation.store, invocation.timing, invocation.job);
        Ok(Self { candidate, command, store, timing, job, duties, seed: u64::from_le_bytes(seed) })
    }

    /// Opens the store, and takes part in the election until the candidate leaves it.
    async fn take_part(
        self,
        flags: &Flags,
        metrics: Option<Arc<Metrics>>,
        metrics_file: Option<MetricsFile>,
    ) -> anyhow::Result<Outcome> {
        let Self { candidate, mut command, store, timing, job, duties, seed } = self;
        let opened = open_store(&store.location, &candidate, timing.request_timeout, flags.advanced.slots).await;
        let campaign = match opened {
            Ok(campaign) => campaign,
            Err(error) => return Ok(Outcome::Refused(error)),
        };
        let (expires, delivery) = (campaign.store().expires(), campaign.store().delivery());
        let relinquish = flags.advanced.relinquish.as_ref();
        let settings = Settings {
            timing,
            expires,
            delivery,
            patience: flags.patience(),
            on_loss: flags.on_loss(),
            stop_timeout: flags.stopping.stop_timeout,
            max_run: flags.stopping.max_run,
            job_gate: job.is_some(),
            restart: flags.restart(command.terminal_group.is_some()),
            relinquish_after: relinquish.and_then(Relinquish::after),
            standby_tasks: !duties.are_none(),
        };
        command.store_url = store.url.filter(|_| expires);
        let Observability { notify, log_format, quiet, .. } = flags.observability;
        let notifier = Notifier::from_environment(notify, expires.then_some(timing.lease));
        let line =
            Some(StatusLine::new(PROGRAM, &candidate, store.location.to_string(), log::is_live(log_format, quiet)));
        tracing::debug!("a tree is killed by {}", command.containment);
        let standby_tasks = StandbyTasks::new(duties, &candidate);
        let host = Processes::new(command, &candidate, standby_tasks, notifier, metrics)?
            .with_line(line)
            .with_metrics_file(metrics_file);
        let announces = flags.announces(&**campaign.store());
        let options = Options {
            announces,
            job,
            schedule: relinquish.and_then(Relinquish::schedule),
            keep_history: flags.observability.keep_history.unwrap_or(history::USUAL),
        };
        Ok(driver::run(settings, candidate, campaign, host, options, seed).await?)
    }
}

/// Starts the server of `--listen`. None without that option.
async fn listen(flags: &Flags, metrics: Option<Arc<Metrics>>) -> Result<Option<Listening>, Failure> {
    let Some((address, metrics)) = flags.observability.listen.as_ref().zip(metrics) else { return Ok(None) };
    let refused = |error| Failure::of_os(format!("cannot listen on {address}: {}", text::in_words(&error)));
    http::begin(address, metrics).await.map(Some).map_err(refused)
}

/// Says why COMMAND was not needed, or could not be started without waiting.
fn tell_what_did_not_run(outcome: &Outcome, shard: &str, owner: &str) {
    match outcome {
        Outcome::NotAcquired(obstacle) => {
            let why = obstacle.as_ref().map_or_else(|| "another candidate leads".to_owned(), refused_by);
            tracing::info!(shard, owner, "not started: {why}");
        }
        Outcome::Done(Skipped { said, failed: false, .. }) => tracing::info!(shard, owner, "skipped: {said}"),
        Outcome::Done(Skipped { said, status: 0, .. }) => {
            tracing::warn!(shard, owner, "skipped: {said}; --retry-failed allows another run in this period");
        }
        Outcome::Done(Skipped { said, .. }) => tracing::warn!(shard, owner, "not run again: {said}"),
        Outcome::Ended(_)
        | Outcome::Overran
        | Outcome::Interrupted(_)
        | Outcome::Lost(_)
        | Outcome::NotStarted(_)
        | Outcome::Unreachable(_)
        | Outcome::Refused(_) => {}
    }
}

/// Who leads, since when and for how long, or what else keeps a candidate from leading.
fn refused_by(obstacle: &Obstacle) -> String {
    let Obstacle::Holder(holder) = obstacle else { return obstacle.to_string() };
    let since = holder.since_millis.map(|since| format!(" since {}", rfc3339_seconds(since))).unwrap_or_default();
    let left = holder
        .expires_in
        .map(|left| format!("; the lease lasts for another {} unless it is renewed", show_seconds(left)));
    format!("{holder} leads{since}{}", left.unwrap_or_default())
}

fn report(outcome: Outcome, program: &OsStr, conflict_exit_code: u8) -> Result<ExitCode, Failure> {
    let status = outcome.exit_status(conflict_exit_code);
    match outcome {
        Outcome::Ended(_)
        | Outcome::Overran
        | Outcome::Interrupted(_)
        | Outcome::Lost(_)
        | Outcome::NotAcquired(_)
        | Outcome::Done(_) => {}
        Outcome::NotStarted(error) => return Err(not_started(program, error)),
        Outcome::Unreachable(message) => return Err(Failure::Other { status, message }),
        Outcome::Refused(error) => return Err(Failure::Other { status, message: error.message }),
    }
    Ok(ExitCode::from(status))
}

async fn open_store(
    location: &Location,
    candidate: &Candidate,
    request_timeout: Duration,
    slots: Option<u32>,
) -> Result<Campaign, StoreError> {
    let store = location.open(request_timeout).await?;
    match slots {
        None => Ok(Campaign::new(store)),
        Some(slots) => {
            Campaign::with_slots(store, candidate, slots, request_timeout).map_err(StoreError::misconfigured)
        }
    }
}

/// Passes Ctrl-C on to our process group. The terminal sent it to its foreground group, which was COMMAND's alone. If a
/// script had run COMMAND itself, it would have been in that group and would have been interrupted, too.
fn pass_on_interrupt(outcome: &Outcome, terminal_group: Option<Pid>) {
    use crate::election::CommandEnd::Signalled;
    let (Outcome::Ended(Signalled(signal)), Some(group)) = (outcome, terminal_group) else { return };
    if let Ok(signal @ (Signal::SIGINT | Signal::SIGQUIT)) = Signal::try_from(*signal) {
        terminal::close();
        sys::default_action(signal);
        let _ = killpg(group, signal);
    }
}

fn fail(status: u8, message: &str) -> ExitCode {
    log::fail(PROGRAM, status, message);
    ExitCode::from(status)
}

fn not_started(program: &OsStr, error: StartError) -> Failure {
    let status = error.exit_status();
    let name = text::shown(&program.to_string_lossy());
    let message = match status {
        // The file was there a moment ago, so what execve(2) misses is what its first line names.
        exit::NOT_FOUND if find(program).is_ok() => format!("{name}: cannot be executed: its interpreter is missing"),
        // Perhaps an option after SHARD.
        exit::NOT_FOUND if name.starts_with('-') => format!("{name}: command not found; options go before SHARD"),
        exit::NOT_FOUND => format!("{name}: command not found"),
        _ if error.0 == sys::NO_PROCESS => {
            format!("cannot start {name}: the operating system refused a process, its cgroup or its namespaces")
        }
        exit::NOT_EXECUTABLE => format!("{name}: cannot be executed: {error}"),
        _ if error.0 == libc::EAGAIN => {
            format!("cannot start {name}: too many processes: raise the limit (ulimit -u, pids.max)")
        }
        _ => format!("cannot start {name}: {error}"),
    };
    Failure::Other { status, message }
}

/// Looks COMMAND up as execvp(3) will, so that a name that is not there is refused before anything is acquired.
fn find(program: &OsStr) -> Result<(), StartError> {
    let runnable = |path: &Path| {
        if !path.is_file() {
            return Err(StartError(match std::fs::metadata(path) {
                Ok(file) if file.is_dir() => libc::EISDIR,
                Ok(_) => libc::EACCES,
                Err(error) => error.raw_os_error().unwrap_or(libc::EACCES),
            }));
        }
        access(path, AccessFlags::X_OK).map_err(|error| StartError(error as i32))
    };
    if program.as_bytes().contains(&b'/') {
        return runnable(Path::new(program));
    }
    // What glibc searches if PATH is not set.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut error = StartError(libc::ENOENT);
    for directory in std::env::split_paths(&path) {
        match runnable(&directory.join(program)) {
            Ok(()) => return Ok(()),
            Err(StartError(libc::EACCES)) => error = StartError(libc::EACCES),
            Err(_) => {}
        }
    }
    Err(error)
}
