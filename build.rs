//! Links the programs, and tells a release build which commit it is made from: `SOURCE_COMMIT`, if that is known.
//!
//! Other builds do not ask for the commit, or each one would compile everything again.

use std::env;
use std::fs;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    link_without_relocations();
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
