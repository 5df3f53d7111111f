//! What people and programs depend on and a change of the code's order must leave alone: the stores' records, JSON,
//! metrics, environments, exit statuses. Each stands as text in tests/golden, and is compared with what is there now.
//!
//! Where it is meant to change, `TEST_GOLDEN=write cargo test --test golden` writes the files again.

#[macro_use]
mod support;

#[path = "golden/environment.rs"]
mod environment;
#[path = "golden/exit.rs"]
mod exit;
#[path = "golden/former.rs"]
mod former;
#[path = "support/golden.rs"]
#[allow(dead_code, reason = "what is pinned here are whole files")]
mod golden;
#[path = "golden/json.rs"]
mod json;
#[path = "golden/manual.rs"]
mod manual;
#[path = "golden/metrics.rs"]
mod metrics;
#[path = "golden/plain.rs"]
mod plain;
#[path = "golden/records.rs"]
mod records;
