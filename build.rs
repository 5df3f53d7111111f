//! Links the programs, renders the manual that `leaderctl man` shows, and tells a release build which commit it is made
//! from: `SOURCE_COMMIT`, if that is known.
//!
//! Other builds do not ask for the commit, or each one would compile everything again.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    link_without_relocations();
    if env::var_os("CARGO_FEATURE_CLI").is_some() {
        render_the_manual();
    }
    println!("cargo::rerun-if-env-changed=SOURCE_COMMIT");
    let released = env::var("PROFILE").is_ok_and(|profile| profile == "release");
    let commit = env::var("SOURCE_COMMIT").ok().or_else(|| released.then(of_the_sources).flatten());
    if let Some(commit) = commit {
        println!("cargo::rustc-env=SOURCE_COMMIT={commit}");
    }
}

/// Links the programs to a fixed address, where the C library is glibc.
///
/// A position-independent program has 70,000 pointers that each start must relocate. Their pages are then private to the
/// process: 1 MiB in each standby, and a quarter of the time in which COMMAND starts. What this gives up is the random address
/// of the program itself; the stack, the heap and the libraries keep theirs. See SECURITY.md.
fn link_without_relocations() {
    let is_static =
        env::var("CARGO_CFG_TARGET_FEATURE").is_ok_and(|features| features.split(',').any(|f| f == "crt-static"));
    if env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu") && !is_static {
        println!("cargo::rustc-link-arg-bins=-no-pie");
    }
}

/// Writes each page of the manual as text, for `leaderctl man` where there is no man(1). Without mandoc it is the source,
/// which can also be read. Packages are built with mandoc.
fn render_the_manual() {
    println!("cargo::rerun-if-changed=man");
    let to = env::var("OUT_DIR").expect("cargo says where");
    for entry in fs::read_dir("man").expect("the pages are there") {
        let page = entry.expect("an entry").path();
        let rendered = Command::new("mandoc").args(["-T", "utf8"]).arg(&page).output();
        let text = rendered.ok().filter(|output| output.status.success()).map(|output| plain(&output.stdout));
        let text = text.unwrap_or_else(|| fs::read(&page).expect("the page is there"));
        let name = page.file_name().expect("a file has a name").to_str().expect("our names are ASCII");
        fs::write(Path::new(&to).join(format!("{name}.txt")), text).expect("it can be written");
    }
}

/// Without what a printer would strike twice: a letter, a backspace, and the letter again or an underline.
fn plain(rendered: &[u8]) -> Vec<u8> {
    let mut letters: Vec<char> = Vec::new();
    for letter in String::from_utf8_lossy(rendered).chars() {
        if letter == '\u{8}' {
            letters.pop();
        } else {
            letters.push(letter);
        }
    }
    String::from_iter(letters).into_bytes()
}

/// The commit of a packed crate, which cargo notes in it, or of the repository that these sources are in.
fn of_the_sources() -> Option<String> {
    let packed = fs::read_to_string(".cargo_vcs_info.json").unwrap_or_default();
    let sha = packed.split_once("\"sha1\": \"").and_then(|(_, rest)| rest.split_once('"')).map(|(sha, _)| sha);
    if let Some(short) = sha.and_then(|sha| sha.get(..12)) {
        return Some(short.to_owned());
    }
    // Not that of a repository around the sources.
    fs::metadata(".git").ok()?;
    let head = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
    println!("cargo::rerun-if-changed={head}");
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| !changes.is_empty());
    Some(git(&["rev-parse", "--short=12", "HEAD"])? + if dirty { "-changed" } else { "" })
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}
