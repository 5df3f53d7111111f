//! `leaderctl`: the operator's tool.

mod forget;
mod history;
mod job;
mod list;
mod live;
mod operator;
mod pause;
mod release;
mod selftest;
mod slots;
mod status;
mod step_down;
mod verify;
mod watch;
mod why;

use super::completions::{self, Program};
use super::flags;
use crate::exit;
use crate::lease::Shard;
use crate::observe::log;
use crate::observe::terminal;
use crate::runner::limits;
use crate::store::{Finding, Location, Report, Store, StoreError, Verdict, within};
use crate::time::rfc3339;
use clap::{Parser, Subcommand};
use clap_complete::Shell;
use forget::ForgetFlags;
use history::HistoryFlags;
use list::ListFlags;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use pause::{PauseFlags, ResumeFlags};
use release::ReleaseFlags;
use selftest::SelftestFlags;
use status::StatusFlags;
use std::future::Future;
use std::io::{Write, stdout};
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use step_down::StepDownFlags;
use verify::VerifyFlags;
use watch::WatchFlags;
use why::WhyFlags;

const PROGRAM: &str = "leaderctl";
/// In help, of the options that every verb has.
const COMMON: &str = "Common options";

/// From one look whether somebody reads to the next.
const LOOKS_FOR_READER: Duration = Duration::from_millis(500);

/// Show and control who leads, and prepare the stores of leaderrun
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version,
    after_help = "See leaderctl(1).",
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs"
)]
pub struct Flags {
    #[command(flatten, next_help_heading = COMMON)]
    store: flags::StoreFlags,

    /// Limit for one request to the store
    #[arg(long, value_name = "DURATION", env = "LEADERRUN_REQUEST_TIMEOUT", default_value = "5s",
          value_parser = flags::duration, global = true, help_heading = COMMON)]
    request_timeout: Duration,

    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show who leads SHARD
    Status(StatusFlags),
    /// Show who leads each shard
    List(ListFlags),
    /// Print a line for each change of leader
    Watch(WatchFlags),
    /// Check that a term still leads, before a dangerous step
    Verify(VerifyFlags),
    /// Make the leader stop in order, and let another candidate lead
    StepDown(StepDownFlags),
    /// Let nobody lead until the pause ends
    Pause(PauseFlags),
    /// End a pause
    Resume(ResumeFlags),
    /// Take the lease away from a leader that does nothing else any more
    Release(ReleaseFlags),
    /// Delete all that the store keeps of SHARD
    Forget(ForgetFlags),
    /// Explain why this host does not lead
    Why(WhyFlags),
    /// Show how the last leaderships of SHARD went
    History(HistoryFlags),
    /// Test failover on this store by injecting faults
    Selftest(SelftestFlags),
    /// Prepare or check a store
    #[command(subcommand, subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
    Store(StoreVerb),
    /// Print shell completions
    Completions {
        #[arg(value_enum)]
        program: Program,
        #[arg(value_enum)]
        shell: Shell,
    },
}

#[derive(Debug, Subcommand)]
enum StoreVerb {
    /// Create what the store needs, and change nothing that exists
    Init,
    /// Test what an election needs, and how fast the store is
    Check,
}

#[must_use]
pub fn main() -> ExitCode {
    log::end_on_panic(PROGRAM);
    if let Some(status) = selftest::run_if_respawned() {
        return status;
    }
    let status = match limits::check() {
        Ok(()) => begin(),
        Err(message) => fail(exit::OS_ERROR, &message),
    };
    terminal::close();
    status
}

fn begin() -> ExitCode {
    let (flags, matches): (Flags, _) = match flags::parse(PROGRAM, std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(status) => return status,
    };
    if let Verb::Completions { program, shell } = flags.verb {
        return printed(completions::print(program, shell, &mut stdout()));
    }
    let named = match flags.store.named(&matches) {
        Ok(named) => named,
        Err(message) => return flags::usage(PROGRAM, &message),
    };
    let patience = flags.request_timeout;
    if patience.is_zero() {
        return flags::usage(PROGRAM, "--request-timeout 0s leaves no time for an answer");
    }
    if let Verb::Selftest(selftest) = &flags.verb {
        return selftest.run(&named, patience);
    }
    let checked = match &flags.verb {
        Verb::Verify(verify) => verify.question().map(Some),
        Verb::Pause(pause) => pause.check().map(|()| None),
        Verb::StepDown(step_down) => step_down.check().map(|()| None),
        Verb::Forget(forget) => forget.check().map(|()| None),
        _ => Ok(None),
    };
    let question = match checked {
        Ok(question) => question,
        Err(message) => return flags::usage(PROGRAM, &message),
    };
    if !matches!(named.location, Location::File { .. })
        && let Err(message) = limits::check_threads()
    {
        return fail(exit::OS_ERROR, &message);
    }
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(exit::OS_ERROR, &format!("the operating system refused: {error}")),
    };
    let answer = runtime.block_on(async {
        if let Some(question) = question {
            return question.answer(named, patience).await;
        }
        let store = named.location.open(patience).await?;
        match &flags.verb {
            Verb::Watch(watch) => while_read(watch::watch(store, watch, patience)).await.map(|()| ExitCode::SUCCESS),
            Verb::Status(status) => status.show(&*store, patience).await,
            Verb::List(list) => while_read(list.show(&*store, patience)).await,
            Verb::StepDown(step_down) => step_down.order(&*store, patience).await,
            Verb::Pause(pause) => pause.order(&*store, patience).await,
            Verb::Resume(resume) => resume.order(&*store, patience).await,
            Verb::Release(release) => release.order(&*store, patience).await,
            Verb::Forget(forget) => forget.order(&*store, patience).await,
            Verb::Why(why) => Ok(why.answer(&*store, patience).await),
            Verb::History(history) => history.show(&*store, patience).await,
            Verb::Store(StoreVerb::Init) => init(store).await,
            Verb::Store(StoreVerb::Check) => check(store).await,
            Verb::Verify(_) | Verb::Selftest(_) | Verb::Completions { .. } => {
                unreachable!("they need no store, or not always")
            }
        }
    });
    // A look-up of a name may hang for longer than anybody waits.
    runtime.shutdown_background();
    answer.unwrap_or_else(|error| fail(error.exit_status(), &error.message))
}

async fn inspect(store: &dyn Store, shard: &Shard, timeout: Duration) -> Result<Report, StoreError> {
    within(timeout, store.inspect(shard)).await
}

async fn init(store: Arc<dyn Store>) -> Result<ExitCode, StoreError> {
    let mut out = stdout();
    let done = store.prepare().await?;
    Ok(printed(done.iter().try_for_each(|line| writeln!(out, "{line}"))))
}

async fn check(store: Arc<dyn Store>) -> Result<ExitCode, StoreError> {
    let findings = store.check().await?;
    let mut out = stdout();
    let written = findings.iter().try_for_each(|Finding { verdict, text }| {
        let verdict = match verdict {
            Verdict::Good => "good",
            Verdict::Doubtful => "doubtful",
            Verdict::Bad => "bad",
        };
        writeln!(out, "{verdict:<9} {text}")
    });
    let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if bad { ExitCode::from(exit::CONFIGURATION) } else { printed(written) })
}

/// Goes on with `watching` until nobody reads standard output any more. A pipe says that to who writes, and a watch may
/// have nothing to write for days.
async fn while_read<T: Default>(watching: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    let reader_is_gone = async {
        let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
        let is_gone = || {
            let out = stdout();
            let mut out = [PollFd::new(out.as_fd(), PollFlags::empty())];
            poll(&mut out, PollTimeout::ZERO).is_ok() && out[0].revents().is_some_and(|seen| seen.intersects(gone))
        };
        while !is_gone() {
            tokio::time::sleep(LOOKS_FOR_READER).await;
        }
    };
    tokio::select! {
        biased;
        done = watching => done,
        () = reader_is_gone => Ok(T::default()),
    }
}

fn printed(written: std::io::Result<()>) -> ExitCode {
    match written {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that closed the pipe has read enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => fail(exit::OS_ERROR, &format!("cannot write: {error}")),
    }
}

fn fail(status: u8, message: &str) -> ExitCode {
    terminal::say(format_args!("{PROGRAM}: {}", message.replace(['\n', '\r'], " ")));
    ExitCode::from(status)
}
