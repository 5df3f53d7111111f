//! `leaderctl`: the operator's tool.

// The verbs.
mod balance;
mod forget;
mod history;
mod jobs;
mod list;
mod man;
mod pause;
mod revoke;
pub mod selftest;
#[cfg(feature = "watch")]
mod serve;
mod status;
mod step_down;
#[cfg(feature = "watch")]
mod top;
mod verify;
mod wait;
mod watch;
mod whose;
mod why;

// What several of them use.
mod age;
#[cfg(feature = "watch")]
mod fleet;
mod object;
mod operator;
mod own_lease;
mod shard_notes;
mod shares;
mod slots;
mod timeline;
mod unknown;

/// What most verbs use.
mod prelude {
    pub(super) use super::age::{ago, coarse, dated, since};
    pub(super) use super::object::{as_json, object};
    pub(super) use super::operator::Operator;
    pub(super) use super::slots::{self, Slots};
    pub(super) use super::status::Shown;
    pub(super) use super::unknown::{Unknown, never_led};
    pub(super) use super::{Client, print_lines, say};
    pub(super) use crate::cli::flags;
    pub(super) use crate::cli::start::Failure;
    pub(super) use crate::exit;
    pub(super) use crate::lease::{Prefix, Shard, Term, show, show_seconds};
    pub(super) use crate::notes::orders::{self, PauseOrder};
    pub(super) use crate::store::{Answer, ErrorKind, Holder, Report, StoreError};
    pub(super) use crate::text::on_one_line;
    pub(super) use crate::time::{BootInstant, rfc3339, wall_clock_millis};
    pub(super) use clap::Args;
    pub(super) use serde::Serialize;
    pub(super) use std::collections::{BTreeMap, BTreeSet};
    pub(super) use std::process::ExitCode;
    pub(super) use std::time::Duration;
}

use super::completions::{self, Program};
use super::flags::{FirstPage, NamedStore};
use super::start::{self, printed};
use crate::observe::{log, terminal};
use crate::runner::signals::Signals;
use crate::runtime;
use crate::store::{Finding, Location, Store, Verdict, within};
use crate::sys;
use clap::{ArgMatches, Parser, Subcommand};
use clap_complete::Shell;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use prelude::*;
#[cfg(feature = "watch")]
use serve::ServeFlags;
use std::fmt::Display;
use std::future::Future;
use std::io::{IsTerminal, Write, stderr, stdout};
use std::os::fd::AsFd;
use std::pin::pin;
use tokio::runtime::Runtime;
use tokio::time::timeout;
#[cfg(feature = "watch")]
use top::TopFlags;

const PROGRAM: &str = "leaderctl";
const COMMON: &str = "Common options";

const LOOKS_FOR_READER: Duration = Duration::from_millis(500);
/// After this, a person wonders whether anything happens.
const LONG: Duration = Duration::from_secs(1);

const AFTER_HELP: &str = "\
Examples:
  leaderctl store init                            prepare a store, once
  leaderctl status report                         who leads, and since when
  leaderctl why report                            why this host does not lead
  leaderctl pause report --for 10m --wait         nobody leads, for a deploy
  leaderctl step-down --host web1                 empty a host before maintenance

Exit status: 0 done, or
  1 selftest, jobs: failed    64 wrong usage          66 unknown shard    69 store unreachable
  71 the system refused       75 refused, too late    77 not permitted
  78 wrong configuration      79 verify: it does not lead

See leaderctl(1).";

/// Show and control who leads, and prepare the stores of leaderrun
#[derive(Debug, Parser)]
#[command(
    name = PROGRAM,
    version,
    after_help = AFTER_HELP,
    subcommand_value_name = "VERB",
    subcommand_help_heading = "Verbs",
    arg_required_else_help = false
)]
pub struct Flags {
    #[command(flatten, next_help_heading = COMMON)]
    store: flags::StoreFlags,

    /// Limit for one request to the store
    #[arg(long, value_name = "DURATION", default_value = "5s",
          value_parser = flags::duration, allow_hyphen_values = true, global = true, help_heading = COMMON)]
    request_timeout: Duration,

    #[command(subcommand)]
    verb: Verb,
}

impl flags::Options for Flags {
    const FIRST_PAGE: FirstPage = FirstPage {
        options: "store",
        verbs: "status list watch wait step-down pause resume why history top",
        more: "--help shows all verbs and options, VERB --help those of one. See leaderctl(1).",
    };
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show who leads each SHARD
    Status(status::StatusFlags),
    /// Show who leads each shard of the store
    List(list::ListFlags),
    /// Print a line for each change of leader
    Watch(watch::WatchFlags),
    /// Return when SHARD is led, or free
    Wait(wait::WaitFlags),
    /// Check that a term still leads, before a dangerous step
    Verify(verify::VerifyFlags),
    /// Make the leader stop its command, and let another candidate lead
    StepDown(step_down::StepDownFlags),
    /// Spread the leaders evenly over the hosts
    Balance(balance::BalanceFlags),
    /// Stop the leader, and let nobody lead until the pause ends
    Pause(pause::PauseFlags),
    /// End a pause
    Resume(pause::ResumeFlags),
    /// Take the lease away from a leader that does not obey step-down
    Revoke(revoke::RevokeFlags),
    /// Delete all that the store keeps of SHARD
    Forget(forget::ForgetFlags),
    /// Explain why this host does not lead
    Why(why::WhyFlags),
    /// Say for which shard a process of this host runs
    Whose(whose::WhoseFlags),
    /// Show how the last leaderships of SHARD went
    History(history::HistoryFlags),
    /// Show what became of the jobs of SHARD, or let one run again
    Jobs(jobs::JobsFlags),
    /// Show all shards as a page, as JSON and as metrics over HTTP
    #[cfg(feature = "watch")]
    Serve(ServeFlags),
    /// Show all shards live on a terminal
    #[cfg(feature = "watch")]
    Top(TopFlags),
    /// Test failover on this store by injecting faults
    Selftest(selftest::SelftestFlags),
    /// Prepare or check a store
    #[command(
        subcommand,
        subcommand_value_name = "VERB",
        subcommand_help_heading = "Verbs",
        arg_required_else_help = false
    )]
    Store(StoreVerb),
    /// Show a page of the manual
    Man(man::ManFlags),
    /// Print shell completions
    Completions { program: Program, shell: Shell },
}

#[derive(Debug, Subcommand)]
enum StoreVerb {
    /// Create what the store needs, and change nothing that exists
    Init {
        /// No candidate has used this store: the first command need not wait
        #[arg(long)]
        new: bool,
    },
    /// Test what an election needs, and how fast the store is
    Check {
        /// Print each finding as one JSON object
        #[arg(long)]
        json: bool,
    },
}

pub fn main() -> ExitCode {
    log::end_on_panic(PROGRAM);
    selftest::run_if_respawned().unwrap_or_else(|| {
        // A file that may not grow (`ulimit -f`) is an error like others.
        sys::ignore(Signal::SIGXFSZ);
        start::main(PROGRAM, fail, begin)
    })
}

fn begin(flags: Flags, matches: &ArgMatches) -> Result<ExitCode, Failure> {
    let Flags { store, request_timeout, verb } = flags;
    let target = || Target::new(&store, request_timeout, matches);
    // For verbs that change something: the user must have named the store.
    let meant = |flags: Result<(), String>| {
        let target = target()?;
        target.named.refuse_default()?;
        flags.map_err(Failure::usage)?;
        if let Some(directory) = target.named.new_directory() {
            say(format_args!("there is no directory {}: no candidate has used it", directory.display()));
        }
        Ok::<_, Failure>(target)
    };
    match verb {
        // The first five need no store, or open it themselves.
        Verb::Man(man) => man.show(),
        Verb::Completions { program, shell } => printed(completions::print(program, shell, &mut stdout())),
        Verb::Selftest(selftest) => {
            let Target { named, patience } = target()?;
            named.confirm(PROGRAM)?;
            selftest.run(&named, patience)
        }
        Verb::Whose(whose) => {
            let runtime = runtime::of_one_thread().build()?;
            finish(runtime, whose.answer(request_timeout))
        }
        Verb::Verify(verify) => verify.answer(target()?),
        Verb::Status(status) => target()?.ask(async |client| status.show(client).await),
        Verb::List(list) => target()?.ask(async |client| while_read(list.show(client)).await),
        Verb::Watch(watch) => target()?.ask(async |client| while_read(watch.watch(client)).await),
        Verb::Wait(wait) => {
            let mut target = target()?;
            target.patience = wait.patience(target.patience);
            target.ask(async |client| wait.wait(client).await)
        }
        Verb::StepDown(step_down) => meant(step_down.check())?.ask(async |client| step_down.order(client).await),
        Verb::Balance(balance) => {
            let checked = balance.check();
            let target =
                if balance.dry_run { checked.map_err(Failure::usage).and_then(|()| target()) } else { meant(checked) };
            target?.ask(async |client| balance.order(client).await)
        }
        Verb::Pause(pause) => meant(pause.check())?.ask(async |client| pause.order(client).await),
        Verb::Resume(resume) => meant(resume.check())?.ask(async |client| resume.order(client).await),
        Verb::Revoke(revoke) => meant(Ok(()))?.ask(async |client| revoke.order(client).await),
        Verb::Forget(forget) => meant(forget.check())?.ask(async |client| forget.order(client).await),
        Verb::Why(why) => target()?.ask(async |client| why.answer(client).await),
        Verb::History(history) => target()?.ask(async |client| history.show(client).await),
        Verb::Jobs(jobs) => {
            let target = if jobs.clear.is_some() { meant(Ok(())) } else { target() };
            target?.ask(async |client| jobs.show(client).await)
        }
        #[cfg(feature = "watch")]
        Verb::Serve(serve) => target()?.ask(async |client| serve.serve(client).await),
        #[cfg(feature = "watch")]
        Verb::Top(top) => {
            TopFlags::check()?;
            let target = target()?;
            let named = target.named.refuse_default().is_ok();
            target.ask(async |client| top.show(client, named).await)
        }
        Verb::Store(StoreVerb::Init { new }) => {
            let target = target()?;
            target.named.refuse_default()?;
            target.ask(async |client| init(client, new).await)
        }
        Verb::Store(StoreVerb::Check { json }) => target()?.ask(async |client| check(client.store, json).await),
    }
}

struct Target {
    named: NamedStore,
    patience: Duration,
}

impl Target {
    fn new(store: &flags::StoreFlags, patience: Duration, matches: &ArgMatches) -> Result<Self, Failure> {
        let named = store.named(matches).map_err(Failure::usage)?;
        if patience.is_zero() {
            return Err(Failure::usage("--request-timeout 0s leaves no time for an answer".to_owned()));
        }
        Ok(Self { named, patience })
    }

    fn ask(self, work: impl AsyncFnOnce(Client<'_>) -> Result<ExitCode, Failure>) -> Result<ExitCode, Failure> {
        let Self { named, patience } = self;
        named.confirm(PROGRAM)?;
        let runtime = start::runtime(&named.location)?;
        finish(runtime, async {
            let store = named.location.open(patience).await?;
            work(Client { store: &*store, location: &named.location, patience }).await
        })
    }
}

#[derive(Clone, Copy)]
pub struct Client<'a> {
    store: &'a dyn Store,
    location: &'a Location,
    patience: Duration,
}

impl Client<'_> {
    async fn ask<T>(self, request: impl Future<Output = Answer<T>>) -> Answer<T> {
        within(self.patience, request).await
    }

    async fn several<T>(self, requests: impl Future<Output = Answer<T>>) -> Answer<T> {
        within(self.patience * 4, requests).await
    }

    async fn inspect(self, shard: &Shard) -> Answer<Report> {
        self.ask(self.store.inspect(shard)).await
    }
}

/// None if the store denied it.
fn allowed<T>(answer: Answer<T>) -> Answer<Option<T>> {
    match answer {
        Err(error) if error.kind == ErrorKind::Denied => Ok(None),
        answer => answer.map(Some),
    }
}

fn finish<T>(runtime: Runtime, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let answer = runtime.block_on(work);
    // A name lookup may hang for a long time.
    runtime.shutdown_background();
    answer
}

/// Tells a person at a terminal what takes so long.
async fn while_told<T>(what: &str, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    if let Ok(done) = timeout(LONG, &mut work).await {
        return done;
    }
    if stderr().is_terminal() {
        say(format_args!("{what} ..."));
    }
    work.await
}

async fn init(client: Client<'_>, new: bool) -> Result<ExitCode, Failure> {
    let store = client.store;
    let mut done = while_told("trying the store", store.prepare()).await?;
    if new {
        if let Some((shard, _)) = client.ask(store.list("")).await?.first() {
            let why = format!("the store is not new: it has a record of {shard}: leave --new out");
            return Err(StoreError::misconfigured(why).into());
        }
        store.vouch().await?;
        done.push("recorded that the store is new: the first command starts at once".to_owned());
    }
    print_lines(done)
}

async fn check(store: &dyn Store, json: bool) -> Result<ExitCode, Failure> {
    let findings = while_told("trying the store", store.check()).await?;
    let lines = findings.iter().map(|Finding { verdict, text }| {
        let verdict = verdict.into_str();
        if json { as_json(&object! { verdict, text }) } else { format!("{verdict:<9} {text}") }
    });
    print_lines(lines)?;
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ExitCode::from(exit::CONFIGURATION) } else { ExitCode::SUCCESS })
}

/// Ends `watching` when nobody reads standard output any more. A pipe reports that only to a writer, and a watch may
/// have nothing to write for days.
async fn while_read(watching: impl Future<Output = Result<ExitCode, Failure>>) -> Result<ExitCode, Failure> {
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
        () = reader_is_gone => Ok(ExitCode::SUCCESS),
    }
}

/// Returns when a signal asks to stop. One that was ignored at the start, as by nohup(1), stays ignored.
async fn asked_to_stop() {
    let Ok(mut signals) = Signals::listen() else { return std::future::pending().await };
    next_stop(&mut signals).await;
}

async fn next_stop(signals: &mut Signals) -> Signal {
    loop {
        let signal = signals.next().await;
        if matches!(signal, Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP | Signal::SIGQUIT) {
            return signal;
        }
    }
}

fn print_lines(lines: impl IntoIterator<Item = String>) -> Result<ExitCode, Failure> {
    let mut out = stdout().lock();
    printed(lines.into_iter().try_for_each(|line| writeln!(out, "{line}")))
}

fn say(line: impl Display) {
    terminal::say(format_args!("{PROGRAM}: {}", on_one_line(line.to_string())));
}

/// A verb that waits says this once in an outage.
fn say_retrying(error: &StoreError) {
    say(format_args!("{}; retrying", error.message));
}

fn fail(status: u8, message: &str) -> ExitCode {
    say(message);
    ExitCode::from(status)
}
