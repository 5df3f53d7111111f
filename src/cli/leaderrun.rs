//! `leaderrun SHARD COMMAND`: prepares a candidate, and reports how it ended.
//!
//! The hazard: a leader that cannot start COMMAND keeps other hosts from leading. So what can fail on this host
//! (COMMAND's name, the kill method, the address of `--listen`, a file) is tried before the first request to the store.

mod options;

pub use options::Flags;
use options::{Invocation, Observability};

use super::explain;
use super::mistakes::beginning;
use super::start::{self, Failure};
use crate::cli::relinquish::Relinquish;
use crate::election::{LogEvent, Obstacle, Outcome, Patience, Settings, Skipped, StartError};
use crate::exit;
use crate::guard::contain::Containment;
use crate::guard::lateness::Measure;
use crate::guard::{self, Plan, foreground};
use crate::lease::{Candidate, Shard, TimeForHooks, host_name, show_seconds};
use crate::notes::jobs::Job;
#[cfg(feature = "watch")]
use crate::observe::http::{self, Listening};
use crate::observe::log;
use crate::observe::metrics::Metrics;
use crate::observe::metrics_file::MetricsFile;
use crate::observe::query_socket::QuerySocket;
use crate::observe::systemd::Notifier;
use crate::observe::terminal;
use crate::observe::waiting::WaitingLog;
use crate::runner::command::Command;
use crate::runner::driver::{self, Options};
use crate::runner::limits;
use crate::runner::processes::{Observers, Processes};
use crate::runner::standby_tasks::StandbyTasks;
use crate::slots::Campaign;
use crate::store::StoreError;
use crate::sys;
use crate::text;
use crate::time::rfc3339_seconds;
use clap::ArgMatches;
use nix::sys::signal::Signal;
use nix::unistd::{AccessFlags, Pid, access, getpgrp};
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

const PROGRAM: &str = "leaderrun";

pub fn main() -> ExitCode {
    log::end_on_panic(PROGRAM);
    if let Some(status) = guard::run_if_respawned() {
        return status;
    }
    sys::keep_given_mask();
    // If it is inherited as ignored, the kernel reaps children before we do.
    sys::default_action(Signal::SIGCHLD);
    // Until we handle these signals, they end us at once, even while a file or a name server does not answer. Nothing
    // is acquired yet.
    sys::unblock([Signal::SIGTERM, Signal::SIGINT]);
    start::main(PROGRAM, fail, |flags, matches| begin(&flags, matches))
}

fn begin(flags: &Flags, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    log::choose(flags.observability.log_format);
    if flags.lacks_shard(std::env::args_os()) {
        return Err(Failure::usage(format!("no SHARD before '--': write {}", options::FORM)));
    }
    flags.refuse_useless(matches).map_err(Failure::usage)?;
    limits::check_scheduling().map_err(|why| Failure::of(exit::CONFIGURATION, why))?;
    guard::calls::check().map_err(Failure::of_os)?;
    let invocation = flags.invocation(matches).map_err(Failure::usage)?;
    let mut containment = Containment::find(flags.advanced.contain).map_err(Failure::of_os)?;
    if flags.timing.explain {
        let stop_timeout = flags.stopping.stop_timeout;
        let Invocation { shard, store, timing, .. } = &invocation;
        let budget = explain::budget(shard, &store.location, timing, stop_timeout, &containment);
        return start::printed(std::io::stdout().write_all(budget.as_bytes()));
    }
    limits::check_files(&invocation.words).and_then(|()| limits::check_timers()).map_err(Failure::of_os)?;
    let (shard, program) = (&invocation.shard, &invocation.words[0]);
    find(program).map_err(|error| not_started(shard, program, error))?;
    invocation.store.confirm(PROGRAM)?;
    let Observability { log_format, verbose, quiet, .. } = flags.observability;
    log::begin(PROGRAM, log_format, verbose, quiet);
    flags.health_doubt().into_iter().for_each(|doubt| tracing::warn!("{doubt}"));
    if let Some(doubt) = flags.timing_doubt(&invocation.timing, &invocation.store.location) {
        tracing::warn!("{doubt}");
    }
    let has_hooks = flags.hooks().times() != TimeForHooks::default();
    if (has_hooks || flags.health().is_some()) && !containment.kills_hooks() {
        return Err(Failure::of_os(
            "hooks and health checks run outside of the PID namespace, and nothing here can kill them there: /proc hides processes",
        ));
    }
    containment.make_room().map_err(Failure::of_os)?;
    run(flags, invocation, Arc::new(containment))
}

fn run(flags: &Flags, invocation: Invocation, containment: Arc<Containment>) -> Result<ExitCode, Failure> {
    let host = flags.observability.host.clone().map_or_else(host_name, Ok)?;
    let owner = flags.observability.owner.clone();
    let candidate = Candidate::on(host, invocation.shard.clone(), owner, invocation.timing.lease)?;
    let runtime = start::runtime(&invocation.store.location)?;
    let metrics = flags.observability.listen.as_ref().map(|_| Arc::new(Metrics::new(&candidate, candidate.lease)));
    // The address and the file are opened before the first request to the store, so that a mistake is reported at once.
    #[cfg(feature = "watch")]
    let listening = runtime.block_on(listen(flags, metrics.clone()))?;
    #[cfg(not(feature = "watch"))]
    if metrics.is_some() {
        let lacks = "this leaderrun was built without --listen: build it with the feature watch";
        return Err(Failure::usage(lacks.to_owned()));
    }
    let metrics_file = flags.observability.metrics_file.as_deref();
    let once = invocation.job.as_ref().and_then(Job::once);
    let metrics_file = metrics_file
        .map(|path| MetricsFile::open(path, &candidate, once, flags.waiting.conflict_exit_code))
        .transpose();
    let observers = Observers { metrics, metrics_file: metrics_file.map_err(Failure::of_os)?, ..Observers::default() };
    let (program, terminal_group) = (invocation.words[0].clone(), foreground::has_terminal().then(getpgrp));
    let Candidate { shard, owner, .. } = candidate.clone();
    let outcome = runtime.block_on(take_part(flags, invocation, containment, candidate, terminal_group, observers));
    #[cfg(feature = "watch")]
    drop(listening);
    // A name lookup may hang for a long time.
    runtime.shutdown_background();
    let (outcome, asked) = outcome?;
    tell_what_did_not_run(&outcome, flags.patience(), shard.as_str(), &owner);
    let status = outcome.exit_status(flags.waiting.conflict_exit_code);
    let (why, death) = (outcome.why(), death(&outcome, asked, terminal_group));
    match outcome {
        Outcome::NotStarted(error) => return Err(not_started(&shard, &program, error)),
        Outcome::Unreachable(message) => return Err(Failure::of(status, message)),
        Outcome::Refused(error) => return Err(Failure::of(status, error.message)),
        _ => {}
    }
    // A shell makes the same of the death.
    let status = death.map_or(status, |(signal, _)| exit::of_signal(signal as i32));
    log::end(status, why, shard.as_str(), &owner);
    if let Some((signal, group)) = death {
        terminal::close();
        // Returns only in process 1.
        sys::end_by(signal, group);
    }
    Ok(ExitCode::from(status))
}

/// Takes part in the election. Returns how the candidate left it, and the last signal that asked for it.
async fn take_part(
    flags: &Flags,
    invocation: Invocation,
    containment: Arc<Containment>,
    candidate: Candidate,
    terminal_group: Option<Pid>,
    observers: Observers,
) -> io::Result<(Outcome, Option<Signal>)> {
    let Invocation { timing, store, words, job, .. } = invocation;
    let seed = getrandom::u64()?;
    let new_directory = store.new_directory();
    let opened = store.location.open(timing.request_timeout).await;
    let campaign = opened.and_then(|opened| match flags.advanced.slots {
        None => Ok(Campaign::new(opened)),
        Some(slots) => {
            Campaign::with_slots(opened, &candidate, slots, timing.request_timeout).map_err(StoreError::misconfigured)
        }
    });
    let campaign = match campaign {
        Ok(campaign) => campaign,
        Err(error) => return Ok((Outcome::Refused(error), None)),
    };
    if let Some(directory) = new_directory {
        tracing::info!("creating {}: no candidate has used this directory before", directory.display());
    }
    let (expires, delivery) = (campaign.store().expires(), campaign.store().delivery());
    let duties = flags.duties(timing.stop_grace, &containment);
    let (relinquish_after, schedule) = match &flags.advanced.relinquish {
        Some(Relinquish::After(after)) => (Some(*after), None),
        Some(Relinquish::At(schedule)) => (None, Some(schedule.clone())),
        None => (None, None),
    };
    let settings = Settings {
        timing,
        expires,
        delivery,
        shares_lock: campaign.store().shares_lock(),
        patience: flags.patience(),
        on_loss: flags.waiting.after_loss,
        stop_timeout: flags.stopping.stop_timeout,
        max_run: flags.stopping.max_run,
        job_gate: job.is_some(),
        restart: flags.restart(),
        relinquish_after,
        standby_tasks: !duties.are_none(),
    };
    let Observability { notify, .. } = flags.observability;
    tracing::debug!("a tree is killed by {containment}");
    let query_socket = QuerySocket::new(&candidate, &store.location, &containment.to_string())
        .inspect_err(|error| tracing::debug!("leaderctl why and verify cannot ask this candidate: {error}"));
    let observers = Observers {
        query_socket: query_socket.ok(),
        notifier: Notifier::from_environment(notify, expires.then_some(timing.lease)),
        waiting: Some(WaitingLog::new(&candidate, store.location.to_string())),
        ..observers
    };
    let plan = Plan {
        words: words.into_iter().map(OsString::into_vec).collect(),
        stop_signal: flags.stopping.signal as i32,
        grace: timing.stop_grace,
        hooks: flags.hooks(),
        health: flags.health(),
        measure: expires.then(|| Measure::of(&timing)),
        terminal_group: terminal_group.map(Pid::as_raw),
        max_run: flags.stopping.max_run,
    };
    let command = Command {
        plan,
        environment: Vec::new(),
        job: Vec::new(),
        no_input: false,
        containment,
        store_url: store.url.filter(|_| expires),
    };
    let announces = flags.advanced.announce.on(&store.location);
    let options = Options { announces, counts: announces && store.location.foreign_lock().is_none(), job, schedule };
    let mut host = Processes::new(command, StandbyTasks::new(duties, &candidate), observers)?;
    let run = driver::run(settings, candidate, campaign, &mut host, options, seed);
    let outcome = Box::pin(run).await?;
    Ok((outcome, host.asked()))
}

#[cfg(feature = "watch")]
async fn listen(flags: &Flags, metrics: Option<Arc<Metrics>>) -> Result<Option<Listening>, Failure> {
    let Some((address, metrics)) = flags.observability.listen.as_ref().zip(metrics) else { return Ok(None) };
    // COMMAND's next guard needs descriptors while clients have theirs.
    limits::check_descriptors(limits::DESCRIPTORS + http::MOST).map_err(Failure::of_os)?;
    let refused = |error| Failure::of_os(format!("cannot listen on {address}: {}", text::in_words(&error)));
    http::begin(address, http::routes(metrics), http::OF_A_PROBE).await.map(Some).map_err(refused)
}

fn tell_what_did_not_run(outcome: &Outcome, patience: Patience, shard: &str, owner: &str) {
    let event = LogEvent::Skipped.into_str();
    match outcome {
        Outcome::NotAcquired(obstacle) => {
            let why = obstacle.as_ref().map(|obstacle| refused_by(obstacle, patience));
            let why = why.unwrap_or_else(|| "another candidate leads".to_owned());
            let event = LogEvent::NotAcquired.into_str();
            tracing::info!(event, shard, owner, "not started: {why}");
        }
        Outcome::Done(Skipped { said, failed: false, .. }) => tracing::info!(event, shard, owner, "{said}"),
        Outcome::Done(Skipped { said, failed: true, .. }) => tracing::warn!(event, shard, owner, "{said}"),
        _ => {}
    }
}

/// Who leads, or what else keeps a candidate from leading. A candidate that has waited saw the lease some time ago, and
/// does not know its end.
fn refused_by(obstacle: &Obstacle, patience: Patience) -> String {
    let Obstacle::Holder(holder) = obstacle else { return obstacle.to_string() };
    let since = holder.since_millis.map(|since| format!(" since {}", rfc3339_seconds(since))).unwrap_or_default();
    let left = holder
        .expires_in
        .filter(|_| patience == Patience::Once)
        .map(|left| format!("; the lease lasts for another {} unless it is renewed", show_seconds(left)));
    format!("{holder} leads{since}{}", left.unwrap_or_default())
}

/// A signal that leaderrun dies from, so that a calling shell or script ends as well. All other signals become a
/// status. With it the terminal's group, if the keyboard has sent the signal to COMMAND alone: a script that had run
/// COMMAND itself would have been in the terminal's foreground, too.
fn death(outcome: &Outcome, asked: Option<Signal>, terminal_group: Option<Pid>) -> Option<(Signal, Option<Pid>)> {
    if let Outcome::EndedByKey(interrupt) = outcome {
        let signal = Signal::try_from(interrupt.signal).ok()?;
        return Some((signal, terminal_group.filter(|_| interrupt.command_alone)));
    }
    let signal = asked.filter(|asked| [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGHUP].contains(asked))?;
    Some((signal, None))
}

fn fail(status: u8, message: &str) -> ExitCode {
    log::fail(PROGRAM, status, message);
    ExitCode::from(status)
}

fn not_started(shard: &Shard, program: &OsStr, error: StartError) -> Failure {
    let status = error.exit_status();
    let name = beginning(&text::shown(&program.to_string_lossy()));
    let message = match status {
        // The file exists, so execve(2) misses what its first line names.
        exit::NOT_FOUND if find(program).is_ok() => format!("{name}: cannot be executed: its interpreter is missing"),
        exit::NOT_FOUND => format!("{name}: command not found{}", advice(shard, &name)),
        _ if error.0 == sys::NO_PROCESS => {
            format!(
                "cannot start {name}: the operating system refused a process, its timer, its cgroup or its namespaces"
            )
        }
        exit::NOT_EXECUTABLE => format!("{name}: cannot be executed: {error}"),
        _ if error.0 == libc::EAGAIN => {
            format!("cannot start {name}: too many processes: raise the limit (ulimit -u, pids.max)")
        }
        _ => format!("cannot start {name}: {error}"),
    };
    Failure::of(status, message)
}

/// About a COMMAND that was not found.
fn advice(shard: &Shard, name: &str) -> String {
    let advice = match options::meant_verb(shard) {
        Some(meant) => return format!("; {meant}"),
        // Perhaps an option after SHARD.
        None if name.starts_with('-') => "; options go before SHARD",
        None if name.contains(char::is_whitespace) => "; to run a line of the shell, write -c STRING",
        None if name.split_once('=').is_some_and(|(variable, _)| !variable.contains('/')) => {
            "; to set a variable, write env before it"
        }
        None if name.contains('/') => ": there is no such file",
        None => "; write its path, or add its directory to PATH",
    };
    advice.to_owned()
}

/// Looks COMMAND up as execvp(3) will.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Holder;
    use std::time::Duration;

    #[test]
    fn the_end_of_the_lease_is_named_only_where_it_was_just_seen() {
        let left = Some(Duration::from_secs(16));
        let leader = Obstacle::Holder(Holder { owner: "db1".to_owned(), expires_in: left, ..Holder::default() });
        assert_eq!(
            refused_by(&leader, Patience::Once),
            "db1 leads; the lease lasts for another 16s unless it is renewed"
        );
        assert_eq!(refused_by(&leader, Patience::AtMost(Duration::from_secs(10))), "db1 leads");
    }
}
