//! Run something on exactly one of many hosts: the one that holds the lease.
//!
//! # What is not promised
//!
//! - Mutual exclusion holds while clock *rates* differ by less than 1 % and the kernel schedules the guard. A host
//!   that was suspended, or whose processes were all frozen, may run COMMAND after it resumes for the time it takes
//!   to schedule the guard. Only a fencing token closes that: COMMAND gets one, `LEADERRUN_TERM`.
//! - A store that is wiped, or that loses acknowledged writes, has forgotten who leads. Each store says in its own
//!   page what it does about that.
//! - What COMMAND hands to others (a job queue, another host, a container daemon) is not its descendant.
//!
//! # Time
//!
//! A holder counts its lease from *before* it sent the request that was granted, on `CLOCK_BOOTTIME`
//! ([`time::BootInstant`]). [`lease::Timing`] proves that the tree is dead before the store can give the lease away.
//! No two hosts' clocks are ever compared.
//!
//! # Map
//!
//! | module | what is inside |
//! | --- | --- |
//! | [`lease`] | the words: shard, owner, session, term; timing and deadlines |
//! | [`election`] | the pure machine that decides everything |
//! | [`driver`] | the event loop that carries its actions out |
//! | [`processes`] | the machine it runs on: signals, timer, and a tree of processes |
//! | [`store`] | the trait, and a file for each store |
//! | [`orders`], [`history`], [`presence`] | what operators want, what was, and who waits: notes beside the leases |
//! | [`relinquish`] | when a leader hands over of itself |
//! | [`ledger`] | which runs of a job there were, so that there is one a slot, or one at all |
//! | [`attendants`] | what runs beside a standby |
//! | [`custody`] | the candidate's side of a tree |
//! | [`guard`] | the processes that own the tree and enforce the deadline |
//! | [`witness`] | what a candidate tells its tree that asks whether the lease is held |
//! | [`notify`] | what a service manager is told, and its watchdog |
//! | [`listen`], [`metrics`] | what it tells probes and Prometheus over HTTP |
//! | [`will`] | what gives the lease back when the candidate is gone |
//! | [`time`], [`signals`], [`sys`] | clocks, signals, and the only unsafe code |
//! | [`cli`], [`log`], [`exit`] | the two programs |

pub mod attendants;
pub mod cli;
pub mod custody;
pub mod driver;
pub mod election;
pub mod exit;
#[cfg(test)]
mod fuzz;
pub mod guard;
pub mod history;
pub mod lease;
pub mod ledger;
pub mod listen;
pub mod log;
pub mod metrics;
pub mod notify;
pub mod orders;
pub mod presence;
pub mod processes;
pub mod relinquish;
pub mod signals;
pub mod store;
pub mod sys;
pub mod time;
pub mod will;
pub mod witness;
