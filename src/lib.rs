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

// Each module imports only from those above it; tests/layers.rs holds them to that. ARCHITECTURE.md draws them.
mod exit;
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

mod cli;
mod member;

#[cfg(test)]
#[path = "../tests/support/fuzz.rs"]
mod fuzz;

pub use member::{Builder, Ending, Error, Leader, Leadership, Member, Overrun, Role, Roles};

/// For the two programs and the tests. It may change in any release.
#[doc(hidden)]
pub mod internals {
    pub mod cli {
        pub use crate::cli::*;
    }
    pub mod election {
        pub use crate::election::*;
    }
    pub mod exit {
        pub use crate::exit::*;
    }
    pub mod guard {
        pub use crate::guard::*;
    }
    pub mod lease {
        pub use crate::lease::*;
    }
    pub mod notes {
        pub use crate::notes::*;
    }
    pub mod observe {
        pub use crate::observe::*;
    }
    pub mod runner {
        pub use crate::runner::*;
    }
    pub mod slots {
        pub use crate::slots::*;
    }
    pub mod store {
        pub use crate::store::*;
    }
    pub mod sys {
        pub use crate::sys::*;
    }
    pub mod time {
        pub use crate::time::*;
    }
}
