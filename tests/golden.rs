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
#[path = "golden/metrics.rs"]
mod metrics;
#[path = "golden/plain.rs"]
mod plain;
#[path = "golden/records.rs"]
mod records;

#[test]
fn a_difference_is_shown_with_the_lines_around_it() {
    let before = ["a", "b", "c", "d", "e", "f"].join("\n");
    let now = ["a", "b", "c", "x", "e", "f"].join("\n");
    let shown = golden::difference("name", &before, &now);
    assert!(shown.contains("\n  ...\n  b\n  c\n- d\n+ x\n  e\n  f\n"), "{shown}");
    let shown = golden::difference("name", "", "new\n");
    assert!(shown.contains("\n+ new\n"), "{shown}");
}

#[test]
fn what_is_another_one_each_time_is_made_plain() {
    let plain = plain::Plain::new().with("/tmp/x", "SCRATCH");
    let text = "at 2026-11-22T03:36:26.737Z, 2026-11-22 03:36:26.7+00:00: 1795318603306 of \
                d2675483-ab1a-4e40-8acf-4699e5d8ad9e in /tmp/x, 1795318603s";
    assert_eq!(plain.text(text), "at TIME, TIME: MILLIS of UUID in SCRATCH, SECONDSs");
}
