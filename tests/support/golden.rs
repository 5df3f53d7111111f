//! Golden files: text in tests/golden that must not change unnoticed.
//!
//! The hazard: a test that writes the text it is compared with cannot fail. So with `TEST_GOLDEN=write` a test
//! writes its file and says so, and the run fails. A person must then read the change to the file.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// How many lines before and after a difference are shown with it.
const CONTEXT: usize = 2;

/// Panics where `text` is not what tests/golden/NAME.txt holds.
#[track_caller]
pub fn golden(name: &str, text: &str) {
    let text = format!("{}\n", text.trim_end_matches('\n'));
    if writes() {
        write(name, &text);
        panic!("tests/golden/{name}.txt was written, not compared");
    }
    let before = read(name);
    assert!(before == text, "{}", difference(name, &before, &text));
}

/// The same for one line of a file that several tests share. `key` finds it. A test that takes long may pin several: so
/// where they are written it goes on, and [`golden_files_are_compared_and_not_written`] fails in its place.
#[track_caller]
pub fn golden_line(name: &str, key: &str, value: &str) {
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    if writes() {
        let _held = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let before = read(name);
        let mut lines: BTreeMap<&str, &str> = before.lines().filter_map(|line| line.split_once(": ")).collect();
        lines.insert(key, value);
        write(name, &lines.iter().fold(String::new(), |text, (key, value)| text + key + ": " + value + "\n"));
        return;
    }
    let file = read(name);
    let found = file.lines().filter_map(|line| line.split_once(": ")).find(|(known, _)| *known == key);
    let before = found.map_or(String::new(), |(_, value)| format!("{key}: {value}\n"));
    let text = format!("{key}: {value}\n");
    assert!(before == text, "{}", difference(name, &before, &text));
}

#[test]
fn golden_files_are_compared_and_not_written() {
    assert!(!writes(), "TEST_GOLDEN is set");
}

fn writes() -> bool {
    std::env::var_os("TEST_GOLDEN").is_some_and(|wish| wish == "write")
}

fn path(name: &str) -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "tests", "golden", &format!("{name}.txt")].iter().collect()
}

/// Nothing where there is no such file.
fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_default()
}

fn write(name: &str, text: &str) {
    let path = path(name);
    fs::create_dir_all(path.parent().expect("it is in a directory")).expect("tests/golden can be made");
    fs::write(&path, text).expect("a golden file can be written");
    eprintln!("wrote {}: read the change, and run this again without TEST_GOLDEN", path.display());
}

/// For people: all from the first line that differs to the last one.
fn difference(name: &str, before: &str, now: &str) -> String {
    let (before, now): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
    let same = |(one, other): &(&&str, &&str)| one == other;
    let head = before.iter().zip(&now).take_while(same).count();
    let tails = before[head..].iter().rev().zip(now[head..].iter().rev());
    let tail = tails.take_while(same).count();
    let from = head.saturating_sub(CONTEXT);
    let to = before.len() - tail.saturating_sub(CONTEXT);
    [
        format!("tests/golden/{name}.txt differs (- expected, + found):\n"),
        if from > 0 { "  ...\n".to_owned() } else { String::new() },
        signed("  ", &before[from..head]),
        signed("- ", &before[head..before.len() - tail]),
        signed("+ ", &now[head..now.len() - tail]),
        signed("  ", &before[before.len() - tail..to]),
        "TEST_GOLDEN=write writes the file again, where the change is wanted".to_owned(),
    ]
    .concat()
}

fn signed(sign: &str, lines: &[&str]) -> String {
    lines.iter().flat_map(|line| [sign, line, "\n"]).collect()
}
