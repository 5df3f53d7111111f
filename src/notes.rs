//! Documents beside the lease: what operators ordered, how leaderships went, who waits, and which jobs ran.

pub mod history;
pub mod hosts;
pub mod jobs;
pub mod orders;
pub mod standbys;
mod update;
