//! `leaderrun SHARD COMMAND`.

mod options;

pub use options::Flags;
use options::{AfterLoss, Job};

use super::{explain, flags};
use crate::election::{OnLoss, Outcome, Settings, Skipped, StartError};
use crate::exit;
use crate::guard;
use crate::guard::contain::Containment;
use crate::guard::orphan_release;
use crate::lease::{Candidate, Session};
use crate::notes::jobs::{Job as LedgerJob, Turn};
use crate::observe::http;
use crate::observe::log;
use crate::observe::metrics::Metrics;
use crate::observe::status_line::StatusLine;
use crate::observe::systemd::Notifier;
use crate::observe::terminal;
use crate::runner::driver::{self, Options};
use crate::runner::guard_handle::Command;
use crate::runner::limits;
use crate::runner::processes::Processes;
use crate::runner::rotation::Relinquish;
use crate::runner::standby_tasks::StandbyTasks;
use crate::slots::Campaign;
use crate::store::{Location, StoreError};
use crate::sys;
use crate::text;
use crate::time::wall_clock_millis;
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

/// A thread that has looked up the name of a host stays for the next one: by then COMMAND may have used up all threads of
/// our user, and tokio panics where it can start none and has none.
const FOR_EVER: Duration = Duration::from_hours(1_000_000);

#[must_use]
pub fn main() -> ExitCode {
    log::end_on_panic(PROGRAM);
    if let Some(status) = guard::run_if_respawned().or_else(orphan_release::run_if_respawned) {
        return status;
    }
    sys::keep_given_mask();
    // Where it is inherited as ignored, the kernel reaps children before we do.
    sys::default_action(Signal::SIGCHLD);
    // Before there is a handler for them they end us at once, and nothing was acquired: also where a file or a name that a
    // store needs does not let us go.
    sys::unblock([Signal::SIGTERM, Signal::SIGINT]);
    let status = match limits::check() {
        Ok(()) => begin(),
        Err(message) => fail(exit::OS_ERROR, &message),
    };
    terminal::close();
    status
}

fn begin() -> ExitCode {
    let (mut flags, matches): (Flags, ArgMatches) = match flags::parse(PROGRAM, std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };
    if let Err(message) = flags.settle(&matches) {
        return flags::usage(PROGRAM, &message);
    }
    let job = match flags.job(&matches) {
        Ok(job) => job,
        Err(message) => return flags::usage(PROGRAM, &message),
    };
    let mut containment = match Containment::find(flags.advanced.contain) {
        Ok(containment) => containment,
        Err(why) => return fail(exit::OS_ERROR, &why),
    };
    if flags.timing.explain {
        let budget = explain::budget(&job.shard, &job.store.location, &job.timing, flags.stopping.drain, &containment);
        // A reader that closed the pipe has read enough.
        let _ = std::io::stdout().write_all(budget.as_bytes());
        return ExitCode::SUCCESS;
    }
    if let Err(error) = find(&job.words[0]) {
        return not_started(&job.words[0], error);
    }
    log::begin(PROGRAM, flags.observability.log_format, flags.observability.verbose, flags.observability.quiet);
    if let (None, Location::File { directory }) = (&job.store.url, &job.store.location) {
        tracing::info!(
            "no store named: using file:{}, which excludes processes on this machine only \
             (name another with --store or LEADERRUN_STORE)",
            directory.display()
        );
    }
    if let Some(LedgerJob { turn: Turn::Slot(slot), .. }) = &job.ledger
        && let Some(doubt) = slot.doubt(wall_clock_millis())
    {
        tracing::warn!("{doubt}");
    }
    if flags.has_hooks() && !containment.kills_hooks() {
        return fail(
            exit::OS_ERROR,
            "nothing here can kill hooks, which run outside of the PID namespace: /proc hides processes",
        );
    }
    if let Err(why) = containment.settle(flags.advanced.contain) {
        return fail(exit::OS_ERROR, &why);
    }
    match run(&flags, job, &Arc::new(containment)) {
        Ok(status) => status,
        Err(error) => fail(exit::OS_ERROR, &format!("the operating system refused: {error:#}")),
    }
}

fn run(flags: &Flags, job: Job, containment: &Arc<Containment>) -> anyhow::Result<ExitCode> {
    let session = Session::random()?;
    let host = nix::unistd::gethostname()?.to_string_lossy().into_owned();
    let pid = std::process::id();
    let owner = flags.observability.owner.clone().unwrap_or_else(|| format!("{host}-{pid}-{}", session.as_str()));
    let candidate = Candidate { shard: job.shard, owner, session, host, pid, lease: job.timing.lease };
    let terminal_group = std::io::stdin().is_terminal().then(getpgrp);
    let command = Command {
        words: job.words,
        environment: Vec::new(),
        job: job.ledger.as_ref().map(|ledger| ledger.turn.variable()),
        stop_signal: flags.stopping.signal,
        grace: flags.stopping.grace,
        hooks: flags.hooks(),
        terminal_group,
        no_input: false,
        containment: Arc::clone(containment),
        store_url: None,
    };
    let program = command.words[0].clone();
    let duties = flags.duties(containment);
    let mut seed = [0; 8];
    getrandom::fill(&mut seed)?;

    if !matches!(job.store.location, Location::File { .. })
        && let Err(message) = limits::check_threads()
    {
        return Ok(fail(exit::OS_ERROR, &message));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().thread_keep_alive(FOR_EVER).build()?;
    let metrics = flags.observability.listen.as_ref().map(|_| Arc::new(Metrics::new(&candidate)));
    let listening = match flags.observability.listen.as_ref().zip(metrics.clone()) {
        // Before anything is asked of the store, so that a mistake is heard of at once.
        Some((address, metrics)) => match runtime.block_on(http::begin(address, metrics)) {
            Ok(listening) => Some(listening),
            Err(error) => {
                return Ok(fail(exit::OS_ERROR, &format!("cannot listen on {address}: {}", in_words(&error))));
            }
        },
        None => None,
    };
    let outcome = runtime.block_on(async {
        let campaign =
            match open_store(&job.store.location, &candidate, job.timing.request_timeout, flags.advanced.slots).await {
                Ok(campaign) => campaign,
                Err(error) => return Ok(Outcome::Refused(error)),
            };
        let settings = Settings {
            timing: job.timing,
            expires: campaign.store().expires(),
            delivery: campaign.store().delivery(),
            patience: flags.patience(),
            on_loss: match flags.waiting.on_loss {
                AfterLoss::Standby => OnLoss::Standby,
                AfterLoss::Exit => OnLoss::Exit,
            },
            drain: flags.stopping.drain,
            max_run: flags.stopping.max_run,
            job_gate: job.ledger.is_some(),
            restart: flags.restart(terminal_group.is_some()),
            relinquish_after: flags.advanced.relinquish.as_ref().and_then(Relinquish::after),
            standby_tasks: !duties.are_none(),
        };
        let standby_tasks = StandbyTasks::new(duties, &candidate);
        let command = Command { store_url: job.store.url.filter(|_| campaign.store().expires()), ..command };
        let notifier = Notifier::from_environment(
            flags.observability.notify,
            campaign.store().expires().then_some(job.timing.lease),
        );
        let line = log::is_live(flags.observability.log_format, flags.observability.quiet)
            .then(|| StatusLine::new(PROGRAM, &candidate));
        let host = Processes::new(command, &candidate, standby_tasks, notifier, metrics)?.with_line(line);
        tracing::debug!("a tree is killed by {containment}");
        let schedule = flags.advanced.relinquish.as_ref().and_then(Relinquish::schedule);
        let options = Options { announces: flags.announces(&**campaign.store()), job: job.ledger, schedule };
        driver::run(settings, candidate, campaign, host, options, u64::from_le_bytes(seed)).await
    });
    drop(listening);
    // A look-up of a name may hang for long, and nobody waits for it any more.
    runtime.shutdown_background();
    let outcome = outcome?;
    pass_on_interrupt(&outcome, terminal_group);
    let status = outcome.exit_status(flags.waiting.conflict_exit_code);
    Ok(match outcome {
        Outcome::Ended(_) | Outcome::Overran | Outcome::Interrupted(_) | Outcome::Lost(_) => ExitCode::from(status),
        Outcome::NotStarted(error) => not_started(&program, error),
        Outcome::NotAcquired(obstacle) => {
            let why = obstacle.map_or_else(|| "somebody else leads".to_owned(), |obstacle| obstacle.to_string());
            tracing::debug!("not acquired: {why}");
            ExitCode::from(status)
        }
        Outcome::Done(Skipped { said, status: 0 }) => {
            tracing::debug!("skipped: {said}");
            ExitCode::SUCCESS
        }
        Outcome::Done(Skipped { said, .. }) => {
            tracing::warn!("not run again: {said}");
            ExitCode::from(status)
        }
        Outcome::Unreachable(message) => fail(status, &message),
        Outcome::Refused(error) => fail(status, &error.message),
    })
}

fn in_words(error: &std::io::Error) -> String {
    let number = error.raw_os_error();
    number.map_or_else(|| error.to_string(), |number| nix::errno::Errno::from_raw(number).desc().to_owned())
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

/// Ctrl-C at the terminal went to its foreground group, which was COMMAND's alone. Had COMMAND run without us, those who
/// share our group (a script that runs us) would have got it as well, and would see by our end that it was obeyed.
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
    let message = message.replace(['\n', '\r'], " ");
    terminal::say(format_args!("{}{PROGRAM}: {message}", log::priority(tracing::Level::ERROR)));
    ExitCode::from(status)
}

fn not_started(program: &OsStr, error: StartError) -> ExitCode {
    let status = error.exit_status();
    let name = text::shown(&program.to_string_lossy());
    fail(
        status,
        &match status {
            // The file was there a moment ago, so what execve(2) misses is what its first line names.
            exit::NOT_FOUND if find(program).is_ok() => {
                format!("{name}: cannot be executed: its interpreter is missing")
            }
            // As it is where somebody writes an option after SHARD.
            exit::NOT_FOUND if name.starts_with('-') => {
                format!("{name}: command not found; options go before SHARD")
            }
            exit::NOT_FOUND => format!("{name}: command not found"),
            _ if error.0 == sys::NO_PROCESS => {
                format!("cannot start {name}: the operating system refused a process, its cgroup or its namespaces")
            }
            exit::NOT_EXECUTABLE => {
                format!("{name}: cannot be executed: {}", nix::errno::Errno::from_raw(error.0).desc())
            }
            _ if error.0 == libc::EAGAIN => {
                format!("cannot start {name}: too many processes: raise the limit (ulimit -u, pids.max)")
            }
            _ => format!("cannot start {name}: {}", nix::errno::Errno::from_raw(error.0).desc()),
        },
    )
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
    // What glibc searches where PATH is not set.
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
