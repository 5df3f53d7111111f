//! Golden files: text in tests/golden that must not change unnoticed.
//!
//! The hazard: a test that writes the text it is compared with cannot fail. So with `TEST_GOLDEN=write` a test
//! writes its file and says so, and the run fails. A person must then read the change to the file.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use tempfile::NamedTempFile;

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

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_default()
}

fn write(name: &str, text: &str) {
    let path = path(name);
    fs::create_dir_all(path.parent().expect("it is in a directory")).expect("tests/golden can be made");
    fs::write(&path, text).expect("a golden file can be written");
    eprintln!("wrote {}: read the change, and run this again without TEST_GOLDEN", path.display());
}

/// For people, by diff(1).
fn difference(name: &str, before: &str, now: &str) -> String {
    let written = [before, now].map(|text| {
        let mut file = NamedTempFile::new().expect("a scratch file");
        file.write_all(text.as_bytes()).expect("a scratch file can be written");
        file
    });
    let said = Command::new("diff")
        .args(["-U2", "--label=expected", "--label=found"])
        .args(written.iter().map(NamedTempFile::path))
        .output();
    let said = said.expect("diff starts: it is in diffutils");
    format!(
        "tests/golden/{name}.txt differs:\n{}TEST_GOLDEN=write writes the file again, where the change is wanted",
        String::from_utf8_lossy(&said.stdout)
    )
}
