//! A candidate that panics while its COMMAND runs: `panics main|task|pool|thread STORE FILE`.
//!
//! COMMAND writes its process id into FILE and sleeps. Once FILE has it, the candidate panics.

use leaderrun::internals::election::{OnLoss, Patience, Settings};
use leaderrun::internals::guard::contain::{Contain, Containment};
use leaderrun::internals::guard::{self, Plan, hooks::Hooks};
use leaderrun::internals::lease::{Candidate, Session, Timing, TimingRequest};
use leaderrun::internals::runner::command::Command;
use leaderrun::internals::runner::driver::{self, Options};
use leaderrun::internals::runner::processes::{Observers, Processes};
use leaderrun::internals::runner::standby_tasks::{Duties, StandbyTasks};
use leaderrun::internals::slots::Campaign;
use leaderrun::internals::store::Location;
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

const MOMENT: Duration = Duration::from_millis(10);

fn main() -> ExitCode {
    leaderrun::internals::observe::log::end_on_panic("panics");
    if let Some(status) = guard::run_if_respawned() {
        return status;
    }
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [place, store, file] = &words[..] else { panic!("panics main|task|pool|thread STORE FILE") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        tokio::select! {
            () = lead(store, file) => {}
            () = disturb(place, file.into()) => {}
        }
    });
    ExitCode::SUCCESS
}

async fn disturb(place: &str, file: PathBuf) {
    while !std::fs::read_to_string(&file).is_ok_and(|text| text.ends_with('\n')) {
        tokio::time::sleep(MOMENT).await;
    }
    match place {
        "main" => panic!("as ordered"),
        "task" => drop(tokio::spawn(async { panic!("as ordered") })),
        "pool" => drop(tokio::task::spawn_blocking(|| panic!("as ordered"))),
        "thread" => drop(std::thread::spawn(|| panic!("as ordered"))),
        _ => panic!("{place} is no place"),
    }
    std::future::pending::<()>().await;
}

async fn lead(store: &str, file: &str) {
    let timing = Timing::new(TimingRequest::default()).expect("the default is in order");
    let store = Location::from_url(store).expect("a store").open(timing.request_timeout).await.expect("it opens");
    let candidate = Candidate {
        shard: "s".parse().expect("a name"),
        owner: "panics".to_owned(),
        session: Session::random().expect("random bytes"),
        host: "here".to_owned(),
        pid: std::process::id(),
        lease: timing.lease,
    };
    let grace = Duration::from_secs(1);
    let containment = Arc::new(Containment::find(Contain::Walk).expect("/proc is there"));
    let plan = Plan {
        words: ["sh", "-c", "echo $$ > \"$0\"; exec sleep 1000", file].map(Into::into).to_vec(),
        stop_signal: Signal::SIGTERM as i32,
        grace,
        hooks: Hooks::default(),
        health: None,
        measure: None,
        terminal_group: None,
        max_run: None,
    };
    let command = Command {
        plan,
        environment: Vec::new(),
        job: Vec::new(),
        no_input: true,
        containment: Arc::clone(&containment),
        store_url: None,
    };
    let settings = Settings {
        patience: Patience::Once,
        on_loss: OnLoss::Exit,
        ..Settings::new(timing, store.expires(), store.delivery())
    };
    let duties = Duties {
        standby: None,
        on_leader_change: None,
        hook_timeout: grace,
        stop_signal: Signal::SIGTERM,
        grace,
        containment,
    };
    let standby_tasks = StandbyTasks::new(duties, &candidate);
    let mut host = Processes::new(command, standby_tasks, Observers::default()).expect("signals and a timer");
    let options = Options { announces: false, counts: false, job: None, schedule: None };
    let run = driver::run(settings, candidate, Campaign::new(store), &mut host, options, 1);
    Box::pin(run).await.expect("the kernel refuses nothing");
}
