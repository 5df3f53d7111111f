//! Golden files: text in tests/golden that must not change unnoticed.
//!
//! The hazard: a test that writes the text it is compared with cannot fail. So with `TEST_GOLDEN=write` a test
//! writes its file and says so, and the run fails. A person must then read the change to the file.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Lines around a difference that are shown with it.
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

/// For people.
pub fn difference(name: &str, before: &str, now: &str) -> String {
    let (before, now): (Vec<&str>, Vec<&str>) = (before.lines().collect(), now.lines().collect());
    let lines = compare(&before, &now);
    let mut text = format!("tests/golden/{name}.txt differs (- expected, + found):\n");
    let mut shown_to = 0;
    for (index, (sign, _)) in lines.iter().enumerate() {
        if *sign == ' ' {
            continue;
        }
        let from = index.saturating_sub(CONTEXT).max(shown_to);
        if from > shown_to {
            text += "  ...\n";
        }
        let to = (index + CONTEXT + 1).min(lines.len());
        for (sign, line) in lines.get(from..to).unwrap_or_default() {
            let _ = writeln!(text, "{sign} {line}");
        }
        shown_to = shown_to.max(to);
    }
    text + "TEST_GOLDEN=write writes the file again, where the change is wanted"
}

/// Every line of both, with a sign before it: `-` where only the first has it, `+` where only the second.
fn compare<'a>(before: &[&'a str], now: &[&'a str]) -> Vec<(char, &'a str)> {
    // The length of the longest common subsequence of what is left, from each pair of lines on.
    let width = now.len() + 1;
    let mut common = vec![0_usize; (before.len() + 1) * width];
    for row in (0..before.len()).rev() {
        for column in (0..now.len()).rev() {
            let at = row * width + column;
            common[at] = if before[row] == now[column] {
                common[at + width + 1] + 1
            } else {
                common[at + width].max(common[at + 1])
            };
        }
    }
    let (mut row, mut column, mut lines) = (0, 0, Vec::new());
    while row < before.len() || column < now.len() {
        let at = row * width + column;
        if row < before.len() && column < now.len() && before[row] == now[column] {
            lines.push((' ', before[row]));
            (row, column) = (row + 1, column + 1);
        } else if column == now.len() || (row < before.len() && common[at + width] >= common[at + 1]) {
            lines.push(('-', before[row]));
            row += 1;
        } else {
            lines.push(('+', now[column]));
            column += 1;
        }
    }
    lines
}
