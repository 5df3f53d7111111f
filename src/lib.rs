//! Do something on exactly one of many hosts: the one that holds the lease.
//!
//! The crate has the programs `leaderrun` and `leaderctl`, and the same election for use inside a program: a [`Member`]
//! takes part, and whatever is to be done by one alone holds a [`Leadership`] while it is done.
//!
//! ```
//! # async fn example(directory: &str) -> Result<(), leaderrun::Error> {
//! let member = leaderrun::Member::builder(format!("file:{directory}"), "nightly/report").join().await?;
//! let sent = member
//!     .run(async |leadership| {
//!         // Only here, on this host; if the lease is lost, this is dropped at an await and done anew by whoever leads.
//!         format!("report of term {}", leadership.term())
//!     })
//!     .await?;
//! assert!(sent.starts_with("report"));
//! member.stop().await?;
//! # Ok(())
//! # }
//! # let scratch = tempfile::TempDir::new().unwrap();
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(example(scratch.path().to_str().unwrap())).unwrap();
//! ```
//!
//! In `examples/` are a background job, a migration at start-up, a health endpoint and a scheduled job. Which stores there
//! are is chosen by the features `dynamodb`, `redis`, `postgres`, `nats` and `etcd`; `file:` is always there. Linux only.
//!
//! # What is promised
//!
//! - At most one [`Leadership`] of a shard is valid at any instant, over all processes and hosts that share the store,
//!   programs that run under `leaderrun` among them, and whatever their wall clocks say.
//! - The lease is given back after the last `Leadership` has been dropped, and not before.
//! - Whoever still holds one when the lease is about to end does not work on: the process is aborted ([`Overrun::Abort`]).
//!   A thread of its own does that, whatever the async runtime is blocked by; and should that thread not run, because the
//!   process was stopped or has no processor, the kernel kills the process shortly afterwards.
//! - The lease is renewed from a thread of its own: tasks that block your runtime do not lose it.
//! - Terms rise with every leadership, also across crashes.
//!
//! # What is not promised
//!
//! - Work is stopped only by the end of the process. The crate cannot stop a task that goes on after it was told to end,
//!   so it aborts. With [`Overrun::Warn`] it does not, and **two may then work at once**.
//! - Work that holds no `Leadership` is not known to anybody: a spawned task or thread that got none, a request on its way
//!   to another service, a child process. `leaderrun COMMAND` kills whole process trees; this does not.
//! - All that holds while clock *rates* differ by less than 1 %. A machine that was suspended, or a PID 1 that was frozen
//!   (a container without an init: use `docker run --init`), may work for the moment that it takes to run the thread
//!   which ends it. Only a fencing token closes that: [`Leadership::term`].
//! - exec(2) takes away what would have ended the process, and a fork(2) without one copies work that nobody knows of.
//! - A store that is wiped, or that loses acknowledged writes, has forgotten who leads. leaderrun(7) says of each store
//!   what is done about that.
//!
//! # Time
//!
//! A holder counts its lease from *before* it sent the request that was granted, on `CLOCK_BOOTTIME`. The work is told to
//! end, and ended, so early that nothing is left of it when the store can give the lease away. No two hosts' clocks are ever
//! compared.
//!
//! # Logging
//!
//! What happens is told as [`tracing`](https://docs.rs/tracing) events, whose targets begin with `leaderrun`.

// The rest is public for the two programs and for the tests, and may change in any release.
//
// | module | what is inside |
// | --- | --- |
// | `lease` | the words: shard, owner, session, term; timing and deadlines |
// | `election` | the pure machine that decides everything |
// | `driver` | the event loop that carries its actions out |
// | `processes` | the machine it runs on: signals, timer, and a tree of processes |
// | `member` | the other one: the work is code of the program around it |
// | `store` | the trait, and a file for each store |
// | `orders`, `history`, `presence` | what operators want, what was, and who waits: notes beside the leases |
// | `relinquish` | when a leader hands over of itself |
// | `ledger` | which runs of a job there were, so that there is one a slot, or one at all |
// | `attendants` | what runs beside a standby |
// | `custody` | the candidate's side of a tree |
// | `guard` | the processes that own the tree and enforce the deadline |
// | `witness` | what a candidate tells its tree that asks whether the lease is held |
// | `notify` | what a service manager is told, and its watchdog |
// | `listen`, `metrics` | what it tells probes and Prometheus over HTTP |
// | `outlet`, `screen`, `status_line` | standard error, which may take nothing; what is kept for it; what a standby shows |
// | `will` | what gives the lease back when the candidate is gone |
// | `time`, `signals`, `limits`, `sys` | clocks, signals, what a process may have, and the only unsafe code |
// | `cli`, `log`, `exit` | the two programs |

#[doc(hidden)]
pub mod attendants;
#[doc(hidden)]
pub mod cli;
#[doc(hidden)]
pub mod custody;
#[doc(hidden)]
pub mod driver;
#[doc(hidden)]
pub mod election;
#[doc(hidden)]
pub mod exit;
#[cfg(test)]
mod fuzz;
#[doc(hidden)]
pub mod guard;
#[doc(hidden)]
pub mod history;
#[doc(hidden)]
pub mod lease;
#[doc(hidden)]
pub mod ledger;
mod limits;
#[doc(hidden)]
pub mod listen;
#[doc(hidden)]
pub mod log;
mod member;
#[doc(hidden)]
pub mod metrics;
#[doc(hidden)]
pub mod notify;
#[doc(hidden)]
pub mod orders;
mod outlet;
#[doc(hidden)]
pub mod presence;
#[doc(hidden)]
pub mod processes;
#[doc(hidden)]
pub mod relinquish;
mod screen;
mod secret;
#[doc(hidden)]
pub mod signals;
mod status_line;
#[doc(hidden)]
pub mod store;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod time;
#[doc(hidden)]
pub mod will;
#[doc(hidden)]
pub mod witness;

pub use member::{Builder, Ending, Error, Leader, Leadership, Member, Overrun, Role, Roles};
