//! Writes a line for the table of evidence, which `tests/evidence` prints: words with tabs in between, in the file that
//! `TEST_EVIDENCE` names.

use std::fs::File;
use std::io::Write as _;

pub fn note(line: &str) {
    let Some(path) = std::env::var_os("TEST_EVIDENCE").filter(|path| !path.is_empty()) else { return };
    let mut file = File::options().append(true).create(true).open(path).expect("the evidence can be written");
    // One write, so that lines of tests that end together do not mix.
    let line = format!("{line}\n");
    assert_eq!(file.write(line.as_bytes()).expect("the evidence can be written"), line.len());
}
