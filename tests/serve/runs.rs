//! `--metrics-file`.

use crate::support::prelude::*;
use std::io::Write;

fn run(directory: &Path, words: &[&str]) -> Option<i32> {
    let store = format!("file:{}", directory.join("store").display());
    leaderrun().args(["-q", "--store", &store]).args(words).stderr(Stdio::null()).status().unwrap().code()
}

fn value(file: &Path, name: &str) -> Option<f64> {
    let text = fs::read_to_string(file).unwrap();
    let begin = format!("leaderrun_job_{name}{{shard=\"nightly\",once=\"\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&begin)?.parse().ok())
}

#[test]
fn each_run_replaces_the_file_and_a_failure_keeps_the_last_success() {
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("nightly.prom");
    let flags = ["--metrics-file", file.to_str().unwrap()];
    assert_eq!(run(scratch.path(), &[&flags[..], &["-c", "true", "nightly"]].concat()), Some(0));
    let success = value(&file, "last_success_timestamp_seconds").unwrap();
    let term = value(&file, "last_term").unwrap();
    assert_eq!(value(&file, "last_status"), Some(0.0));
    assert_eq!(run(scratch.path(), &[&flags[..], &["-c", "exit 7", "nightly"]].concat()), Some(7));
    assert_eq!(value(&file, "last_status"), Some(7.0));
    assert_eq!(value(&file, "last_success_timestamp_seconds"), Some(success));
    assert!(value(&file, "last_term").unwrap() > term);
    assert!(value(&file, "last_run_timestamp_seconds").unwrap() >= success);
    // Ends well when it is asked to, which was too late: the run has failed.
    let overrun = ["--max-run", "300ms", "-c", "trap 'exit 0' TERM; sleep 1000 & wait", "nightly"];
    assert_eq!(run(scratch.path(), &[&flags[..], &overrun].concat()), Some(124));
    assert_eq!(value(&file, "last_status"), Some(124.0));
    assert_eq!(value(&file, "last_success_timestamp_seconds"), Some(success));
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    let left: Vec<_> = fs::read_dir(scratch.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 2, "a draft was left: {left:?}");
    assert_is_good_to_promtool(&fs::read_to_string(&file).unwrap());
}

pub fn assert_is_good_to_promtool(metrics: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut promtool = promtool.spawn().expect("tests/run installs prometheus");
    promtool.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    assert_eq!(Said::from(promtool.wait_with_output().unwrap()).ended(0).err, "");
}

#[test]
fn a_file_that_cannot_be_written_is_refused_before_anything_is_led() {
    let scratch = TempDir::new().unwrap();
    let missing = scratch.path().join("none/nightly.prom");
    assert_eq!(run(scratch.path(), &["--metrics-file", missing.to_str().unwrap(), "nightly", "true"]), Some(71));
    assert_eq!(run(scratch.path(), &["--metrics-file", "/tmp/nightly.txt", "nightly", "true"]), Some(64));
    assert!(!scratch.path().join("store").exists());
}
