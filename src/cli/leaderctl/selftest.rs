//! `leaderctl selftest`: a short suite of faults against the user's own store, and a table of the results.
//!
//! The hazards: it runs against a store that matters. So it leads a scratch shard of a random name and touches no other
//! shard; it begins with a claim, to report a store that cannot be used before anything starts; and however it ends, it
//! ends everything that it started, releases the lease, and removes what it wrote if it can. And a check that was not
//! made must not look like one that passed: a fault that cannot be run here is reported, with the reason.

pub mod evidence;
mod faults;
mod fleet;
mod programs;
pub mod proxy;
mod route;

pub use programs::run_if_respawned;

use super::forget::TERMS_APART;
use super::operator::LOOK_EVERY;
use super::own_lease::{OwnLease, Taking};
use super::prelude::*;
use super::{PROGRAM, next_stop};
use crate::cli::flags::{self, NamedStore};
use crate::guard::contain::{Contain, Containment};
use crate::lease::{Session, Timing, TimingRequest};
use crate::runner::signals::Signals;
use crate::runtime;
use crate::store::Location;
use crate::store::url::Secret;
use crate::text::{self, in_words};
use crate::time::millis;
use clap::ValueEnum;
use evidence::{Evidence, TestError, Verdict};
use faults::Fault;
use fleet::{CANDIDATES, Fleet, Setting};
use nix::sys::signal::Signal;
use proxy::Proxy;
use route::Route;
use std::fs::{self, DirBuilder};
use std::io::{self, Write, stderr, stdout};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::str::FromStr;
use tokio::time::{sleep, timeout};

#[derive(Debug, Args)]
pub struct SelftestFlags {
    /// Run this fault only; may be repeated [default: all]
    #[arg(long, value_name = "FAULT", value_enum)]
    only: Vec<Fault>,

    /// The lease on the scratch shard
    #[arg(long, value_name = "DURATION", default_value = "6s", value_parser = flags::duration,
          allow_hyphen_values = true)]
    lease: Duration,

    /// How often the leader renews the lease
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = flags::duration,
          allow_hyphen_values = true)]
    renew: Duration,

    /// From the stop signal to SIGKILL when the lease is being lost
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = flags::duration,
          allow_hyphen_values = true)]
    kill_after: Duration,

    /// How often a standby checks the lease
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = flags::duration,
          allow_hyphen_values = true)]
    retry: Duration,

    /// The kill method: auto, walk, cgroup, pidns
    #[arg(long, value_name = "HOW", value_enum, hide_possible_values = true, default_value_t = Contain::Auto)]
    contain: Contain,

    /// Print one JSON object in a line for each fault
    #[arg(long)]
    json: bool,
}

impl SelftestFlags {
    pub fn run(&self, named: &NamedStore, request_timeout: Duration) -> Result<ExitCode, Failure> {
        let timing = Timing::new(TimingRequest {
            lease: self.lease,
            renew_interval: self.renew,
            retry_interval: self.retry,
            stop_grace: self.kill_after,
            ..TimingRequest::default()
        });
        let timing = timing.map_err(Failure::usage)?;
        if let Some(option) = named.location.foreign_lock() {
            return Err(Failure::usage(format!("{option}= in the store URL belongs to a real shard: leave it out")));
        }
        Containment::find(self.contain).map_err(Failure::of_os)?;
        // On one thread, because a candidate dies with the thread that started it.
        runtime::of_one_thread().build()?.block_on(self.test(named, timing, request_timeout))
    }

    async fn test(&self, named: &NamedStore, timing: Timing, request_timeout: Duration) -> Result<ExitCode, Failure> {
        let mut signals = Signals::listen()?;
        let scratch = Scratch::new().map_err(Failure::of_os)?;
        nix::sys::prctl::set_child_subreaper(true).map_err(io::Error::from)?;
        let name = format!("leaderrun-selftest/{}", Session::random()?.as_str());
        let shard = Shard::from_str(&name).expect("it is in the alphabet of shards");
        let lease = timing.lease;
        let store = named.location.open(request_timeout).await?;
        let client = Client { store: &*store, location: &named.location, patience: request_timeout };
        tokio::select! {
            tried = try_out(client, &shard, lease) => tried.map_err(|error| match error.kind {
                ErrorKind::Unknown => Failure::from(error).and(&kept(&shard)),
                _ => error.into(),
            })?,
            signal = next_stop(&mut signals) => {
                self.say(&kept(&shard))?;
                return Ok(ended_by(signal));
            }
        }
        let setting =
            Setting { timing, shard, contain: self.contain, expires: store.expires(), scratch: scratch.0.clone() };
        let mut bench = Bench { json: self.json, named, setting: &setting, request_timeout, fleet: None, floor: 0 };
        let chosen = |fault: &&Fault| self.only.is_empty() || self.only.contains(fault);
        let faults: Vec<Fault> = Fault::value_variants().iter().filter(chosen).copied().collect();
        let done = tokio::select! {
            done = bench.run(&faults) => done,
            signal = next_stop(&mut signals) => Ok(ended_by(signal)),
        };
        if let Some(mut fleet) = bench.fleet.take() {
            // A second signal means not to wait for the release of the lease.
            let again = tokio::select! {
                _ = fleet.end() => false,
                _ = next_stop(&mut signals) => true,
            };
            if again {
                fleet.kill().await;
            }
        }
        drop(scratch);
        let written = self.say(&left_behind(client, &setting.shard, lease).await);
        match done.and_then(|status| written.map(|()| status)) {
            // A reader that closed the pipe has read enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            done => Ok(done?),
        }
    }

    fn say(&self, text: &str) -> io::Result<()> {
        if self.json { writeln!(stderr(), "{PROGRAM}: {text}") } else { writeln!(stdout(), "{text}") }
    }
}

struct Bench<'a> {
    json: bool,
    named: &'a NamedStore,
    setting: &'a Setting,
    request_timeout: Duration,
    /// Some until all that a fault's candidates started has ended.
    fleet: Option<Fleet<'a>>,
    /// The highest term of the faults so far.
    floor: u64,
}

impl Bench<'_> {
    /// If this is dropped half-way, the caller must end `fleet`.
    async fn run(&mut self, faults: &[Fault]) -> io::Result<ExitCode> {
        let begun = BootInstant::now();
        let (mut held, mut failed, mut not_run) = (0, 0, 0);
        if !self.json {
            let names = ["FAULT", "OVERLAP", "ORPHANS", "TERMS", "HANDOVER", "VERDICT"];
            writeln!(stdout(), "{}", line(names))?;
        }
        for &fault in faults {
            let row = self.row(fault).await?;
            match row.verdict {
                Verdict::Held => held += 1,
                Verdict::Failed(_) => failed += 1,
                Verdict::NotRun(_) => not_run += 1,
            }
            let mut out = stdout().lock();
            writeln!(out, "{}", if self.json { row.as_json() } else { row.as_text() })?;
            out.flush()?;
        }
        if !self.json {
            let took = show(Duration::from_secs(BootInstant::now().since(begun).as_secs()));
            let timing = &self.setting.timing;
            let (lease, renew) = (show(timing.lease), show(timing.renew_interval));
            let grace = show(timing.stop_grace);
            writeln!(
                stdout(),
                "{held} held, {failed} failed, {not_run} not run, in {took}; \
                 lease {lease}, renewed every {renew}, kill-after {grace}"
            )?;
        }
        let passed = failed == 0 && held > 0;
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::from(exit::ctl::FAILED) })
    }

    async fn row(&mut self, fault: Fault) -> io::Result<Row> {
        let name = fault.name();
        let ways = match self.ways(fault).await {
            Ok(ways) => ways,
            Err(TestError::System(error)) => return Err(error),
            Err(TestError::Impossible(why) | TestError::Failed(why)) => {
                return Ok(Row { fault: name, verdict: Verdict::NotRun(why), evidence: None });
            }
        };
        let limit = self.setting.timing.lease * 15 + Duration::from_mins(1);
        let fleet = self.fleet.insert(Fleet::new(self.setting, &name, limit)?);
        fleet.crew(self.named.url.as_ref(), ways, fault.flags())?;
        let too_long = || TestError::Failed(format!("it was not over within {}", show(limit)));
        let told = timeout(limit, fault.happen(fleet)).await.unwrap_or_else(|_| Err(too_long()));
        let until = BootInstant::now().as_nanos();
        let orphans = fleet.end().await;
        let lives = fleet.stamps.lives()?;
        let evidence = Evidence::of(&lives, until, orphans, self.floor);
        self.floor = lives.iter().map(|life| life.term).fold(self.floor, u64::max);
        let verdict = evidence.judge(told)?;
        let fleet = self.fleet.take().expect("it was put there above");
        if matches!(verdict, Verdict::Failed(_)) {
            for line in fleet.log_ends() {
                say(line);
            }
        }
        Ok(Row { fault: name, verdict, evidence: Some(evidence) })
    }

    /// A way to the store for each candidate, if the fault needs one.
    async fn ways(&self, fault: Fault) -> Result<Vec<(Secret, Proxy)>, TestError> {
        if fault == Fault::Stubborn && !self.setting.expires {
            return Err(TestError::Impossible("a lease of this store is not lost while its holder lives".to_owned()));
        }
        if !matches!(fault, Fault::Slow | Fault::ShortPartition | Fault::Partition) {
            return Ok(Vec::new());
        }
        // The default store is files.
        let url = self.named.url.as_ref().map_or("file:", Secret::expose);
        let route = Route::of(url).map_err(|why| TestError::Impossible(why.to_owned()))?;
        let mut ways = Vec::new();
        for _ in 0..CANDIDATES {
            let proxy = Proxy::to(&route.host, route.port).await?;
            ways.push((route.through(proxy.address), proxy));
        }
        let looked = async {
            let location = Location::from_url(ways[0].0.expose()).map_err(StoreError::misconfigured)?;
            location.open(self.request_timeout).await?.observe(&self.setting.shard).await
        };
        looked.await.map_err(|error| {
            TestError::Impossible(format!("the store cannot be used through a proxy: {}", error.message))
        })?;
        Ok(ways)
    }
}

/// A row of the table, printed when the fault is over.
struct Row {
    fault: String,
    verdict: Verdict,
    /// None if it was not run.
    evidence: Option<Evidence>,
}

impl Row {
    fn words(&self) -> (&'static str, Option<&str>) {
        match &self.verdict {
            Verdict::Held => ("held", None),
            Verdict::Failed(why) => ("failed", Some(why)),
            Verdict::NotRun(why) => ("not run", Some(why)),
        }
    }

    fn as_json(&self) -> String {
        let (verdict, why) = self.words();
        let evidence = self.evidence.as_ref();
        as_json(&object! {
            fault: &self.fault,
            verdict,
            why,
            overlap_ms: evidence.map(|evidence| millis(evidence.overlap)),
            orphans: evidence.map(|evidence| evidence.orphans),
            terms: evidence.map(|evidence| evidence.terms),
            terms_rise: evidence.map(|evidence| evidence.terms_rise),
            handover_ms: evidence.and_then(Evidence::handover).map(millis),
        })
    }

    fn as_text(&self) -> String {
        let evidence = self.evidence.as_ref();
        let terms = evidence.map(|evidence| match evidence.terms {
            0 => "none",
            _ if !evidence.terms_rise => "fell",
            1 => "one",
            _ => "rose",
        });
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let verdict = match self.words() {
            (verdict, Some(why)) => format!("{verdict}: {}", on_one_line(why.to_owned())),
            (verdict, None) => verdict.to_owned(),
        };
        line([
            &self.fault,
            &cell(evidence.map(|evidence| format!("{}ms", millis(evidence.overlap)))),
            &cell(evidence.map(|evidence| evidence.orphans.to_string())),
            &cell(terms.map(str::to_owned)),
            &cell(evidence.and_then(Evidence::handover).map(|gap| format!("{}ms", millis(gap)))),
            &verdict,
        ])
    }
}

/// Rows are printed one by one, so the widths are fixed.
fn line([fault, overlap, orphans, terms, handover, verdict]: [&str; 6]) -> String {
    format!("{fault:<15}  {overlap:<7}  {orphans:<7}  {terms:<5}  {handover:<8}  {verdict}")
}

struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self, String> {
        let parent = std::env::temp_dir();
        let make = || {
            let name = format!("{PROGRAM}-selftest-{}", Session::random()?.as_str());
            let path = std::path::absolute(&parent)?.join(name);
            DirBuilder::new().mode(0o700).create(&path)?;
            Ok(Self(path))
        };
        make().map_err(|error: io::Error| {
            let (parent, why) = (text::quoted(&parent.to_string_lossy()), in_words(&error));
            format!("cannot make a directory in {parent}: {why}; set TMPDIR to one that may be written")
        })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Nobody led the scratch shard, so no leader of it was forgotten.
const YOUNG: &str = "the store is new, or was started a short time ago";

async fn try_out(client: Client<'_>, shard: &Shard, lease: Duration) -> Answer<()> {
    let give_up = BootInstant::now().plus(lease * 3);
    let mut told = false;
    loop {
        match OwnLease::take(client, shard, lease, "selftest").await? {
            Taking::Taken(own) => {
                own.give_back().await;
                return Ok(());
            }
            // The candidates will wait.
            Taking::Later(wait) => {
                say_wait(wait, YOUNG);
                return Ok(());
            }
            // A young store makes every candidate wait for a lease.
            Taking::Held(holder) if BootInstant::now() < give_up => {
                if !std::mem::replace(&mut told, true) {
                    let why = holder.doubt.map_or_else(|| format!("{holder} has the lease"), |_| YOUNG.to_owned());
                    say_wait(holder.expires_in.unwrap_or(lease), &why);
                }
                sleep(LOOK_EVERY).await;
            }
            Taking::Held(holder) => {
                return Err(StoreError::unknown(format!("the scratch shard {shard} is held: {holder}")));
            }
        }
    }
}

fn say_wait(wait: Duration, why: &str) {
    if wait >= Duration::from_secs(1) {
        say(format_args!("the first command starts in {}: {why}", show_seconds(wait)));
    }
}

fn ended_by(signal: Signal) -> ExitCode {
    ExitCode::from(exit::of_signal(signal as i32))
}

/// Forgets the scratch shard, and says what became of it.
async fn left_behind(client: Client<'_>, shard: &Shard, lease: Duration) -> String {
    let forgotten = async {
        Ok::<_, StoreError>(match OwnLease::take(client, shard, lease, "selftest").await? {
            Taking::Taken(own) => {
                sleep(TERMS_APART).await;
                client.several(client.store.forget(&own.candidate, own.term)).await?;
                format!("the scratch shard {shard} is forgotten")
            }
            Taking::Held(holder) => format!("{holder} holds its lease until that has ended; {}", kept(shard)),
            Taking::Later(_) => kept(shard),
        })
    };
    forgotten.await.unwrap_or_else(|error| format!("{}; {}", error.message, kept(shard)))
}

fn kept(shard: &Shard) -> String {
    format!("the store may keep the scratch shard {shard}: leaderctl forget {shard} removes it")
}
