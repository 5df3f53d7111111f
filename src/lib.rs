//! Leader election over a lease: do something on one of many hosts, and never on two at once.
//!
//! The crate has the programs `leaderrun` and `leaderctl`, and the same election for use inside a program. A [`Member`]
//! takes part, and work that only one host may do holds a [`Leadership`].
//!
//! ```
//! # async fn example(directory: &str) -> Result<(), leaderrun::Error> {
//! let member = leaderrun::Member::builder(format!("file:{directory}"), "nightly/report").join().await?;
//! let sent = member
//!     .run(async |leadership| {
//!         // Only this host runs this. If the lease is lost, the work is dropped at its next await, and the next leader
//!         // starts it from the beginning.
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
//! `examples/` has a background job, a migration at start-up, a health endpoint and a scheduled job. Linux only.
//!
//! # Features
//!
//! `dynamodb`, `redis`, `postgres`, `mysql`, `nats`, `etcd` and `kubernetes` are the stores of these names, and
//! `bucket` is `s3://`, `gs://` and `azblob://`. `cli` is the two programs; `watch` adds `leaderctl top`, `leaderctl
//! serve` and `--listen` to them. All of them are on by default. `file:` is always there. A program that knows its
//! store needs only that one:
//!
//! ```sh
//! cargo add leaderrun --no-default-features --features redis
//! ```
//!
//! # What is promised
//!
//! - At most one [`Leadership`] of a shard is valid at any instant, over all processes and hosts that share the store,
//!   whatever their wall clocks say. That includes programs that run under `leaderrun`.
//! - The lease is given back after the last `Leadership` has been dropped, and not before.
//! - A process that still holds one when the lease is about to end is aborted ([`Overrun::Abort`]). A separate thread
//!   does that, even if the async runtime is blocked. If that thread cannot run, because the process was stopped or has
//!   no processor, the kernel kills the process shortly afterwards.
//! - A separate thread renews the lease: tasks that block your runtime do not lose it.
//! - Terms rise with every leadership, even across crashes.
//!
//! # What is not promised
//!
//! - Only the end of the process stops work. The crate cannot stop a task that continues after it was told to end, so
//!   it aborts the process. With [`Overrun::Warn`] it does not, and **two may then work at once**.
//! - The crate does not know of work that holds no `Leadership`: a spawned task or thread that got none, a request on
//!   its way to another service, a child process. `leaderrun COMMAND` kills whole process trees; this does not.
//! - The promises hold while no clock is slewed by more than a twelfth. After a suspend, or after a freeze of PID 1 (a
//!   container without an init: use `docker run --init`), work may run for the moment that the thread needs to end it.
//!   Only a fencing token closes that gap: [`Leadership::term`].
//! - exec(2) removes the thread and the timer that would have ended the process. fork(2) without exec(2) copies work
//!   that the crate does not know of. In the child, no `Leadership` is valid and each `Member` has left. But the lease
//!   of a `file:` store lasts until the child has ended, too, or has called exec(2).
//! - A store that is wiped, or that loses acknowledged writes, has forgotten who leads. leaderrun-stores(7) says for
//!   each store how leaderrun handles that.
//!
//! # Time
//!
//! A holder counts its lease from *before* it sent the request that was granted, on `CLOCK_BOOTTIME`. It tells the work
//! to end, and then ends it, early enough that none is left when the store can grant the lease to another candidate.
//! The clocks of two hosts are never compared.
//!
//! # Logging
//!
//! The crate reports events through [`tracing`](https://docs.rs/tracing), with targets that begin with `leaderrun`.

#![cfg_attr(not(feature = "cli"), allow(dead_code, unused_imports, reason = "the programs use it"))]

// Each module imports only from those above it; tests/layers.rs holds them to that. ARCHITECTURE.md draws them.
mod exit;
mod mounts;
mod runtime;
mod sys;
mod text;
mod time;

mod lease;

mod store;

mod election;

mod notes;
mod slots;

mod observe;

mod guard;

mod runner;

#[cfg(feature = "cli")]
mod cli;
mod member;

#[cfg(test)]
#[path = "../tests/support/fuzz.rs"]
mod fuzz;
/// The code that unit tests and integration tests share names this crate `leaderrun`.
#[cfg(test)]
extern crate self as leaderrun;

pub use member::{Builder, Detail, Ending, Error, Leader, Leadership, Member, Overrun, Role, Roles};

macro_rules! internals {
    ($($module:ident)*) => {
        /// Internals for the two programs and the tests. They may change in any release.
        #[doc(hidden)]
        pub mod internals {
            #[cfg(feature = "cli")]
            pub mod cli {
                pub use crate::cli::*;
            }
            $(pub mod $module {
                pub use crate::$module::*;
            })*
        }
    };
}
internals! { election exit guard lease notes observe runner slots store sys time }
