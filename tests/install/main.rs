//! install.sh: what it installs, that it can be run again, and what it says when it cannot.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;

use std::os::unix::fs::MetadataExt;
use support::fleet::copy_program;
use support::prelude::*;

const FILES: [&str; 13] = [
    "bin/leaderctl",
    "bin/leaderrun",
    "share/bash-completion/completions/leaderctl",
    "share/bash-completion/completions/leaderrun",
    "share/fish/vendor_completions.d/leaderctl.fish",
    "share/fish/vendor_completions.d/leaderrun.fish",
    "share/man/man1/leaderctl.1",
    "share/man/man1/leaderrun.1",
    "share/man/man5/leaderrun-formats.5",
    "share/man/man7/leaderrun-stores.7",
    "share/man/man7/leaderrun.7",
    "share/zsh/site-functions/_leaderctl",
    "share/zsh/site-functions/_leaderrun",
];

const PAGES: [&str; 5] = ["leaderctl.1", "leaderrun-formats.5", "leaderrun-stores.7", "leaderrun.1", "leaderrun.7"];

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("install.sh")
}

fn binaries() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_leaderrun")).parent().expect("a program lies in a directory")
}

fn install(arguments: &[&str]) -> Said {
    Command::new(script()).args(arguments).env_remove("DESTDIR").said()
}

fn install_below(prefix: &Path) -> Said {
    let binaries = binaries().to_str().expect("the target directory has a name in UTF-8");
    install(&["--prefix", name(prefix), "--binaries", binaries])
}

fn name(path: &Path) -> &str {
    path.to_str().expect("temporary directories have names in UTF-8")
}

fn succeeded(said: Said) -> String {
    assert_eq!(said.err, "", "{said:?}");
    said.good()
}

/// It ended with `status`, said one line that has `part` in it, and printed nothing else.
fn failed(said: Said, status: i32, part: &str) {
    let said = said.refused(status, part);
    assert!(said.err.starts_with("install.sh: "), "{said:?}");
}

fn files_below(directory: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(next) = directories.pop() {
        for entry in fs::read_dir(next).expect("it is a directory") {
            let path = entry.expect("it can be read").path();
            if path.is_dir() {
                directories.push(path);
            } else {
                found.push(name(path.strip_prefix(directory).expect("it is below")).to_owned());
            }
        }
    }
    found.sort();
    found
}

#[test]
fn it_installs_twice_under_a_leader_that_goes_on_and_leaves_nothing_when_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let prefix = scratch.path().join("a prefix");
    succeeded(install_below(&prefix));
    assert_eq!(files_below(&prefix), FILES);
    let program = prefix.join("bin/leaderrun");
    let run = |program: &str| {
        let mut command = Command::new(prefix.join("bin").join(program));
        command.args(["--store", &format!("file:{}", name(&scratch.path().join("store")))]);
        command
    };
    let mut leader = run("leaderrun").args(["-q", "hello", "sleep", "1"]).spawn().unwrap();
    let before = fs::metadata(&program).unwrap().ino();
    succeeded(install_below(&prefix));
    assert_ne!(fs::metadata(&program).unwrap().ino(), before);
    assert!(leader.wait().unwrap().success());
    assert_eq!(run("leaderrun").args(["-q", "hello", "--", "echo", "I lead"]).said().out, "I lead\n");
    let status = run("leaderctl").args(["status", "hello"]).said().out;
    assert!(status.starts_with("hello: free (last term "), "{status}");

    assert_eq!(files_below(&prefix), FILES);
    for file in FILES {
        let metadata = fs::metadata(prefix.join(file)).unwrap();
        let mode = if file.starts_with("bin/") { 0o755 } else { 0o644 };
        assert_eq!(metadata.permissions().mode() & 0o777, mode, "{file}");
        assert!(metadata.len() > 0, "{file} is empty");
    }
    for (shell, place) in [
        ("bash", "share/bash-completion/completions/PROGRAM"),
        ("zsh", "share/zsh/site-functions/_PROGRAM"),
        ("fish", "share/fish/vendor_completions.d/PROGRAM.fish"),
    ] {
        for program in ["leaderrun", "leaderctl"] {
            let printed = run("leaderctl").args(["completions", program, shell]).said().good();
            let installed = fs::read_to_string(prefix.join(place.replace("PROGRAM", program))).unwrap();
            assert!(installed == printed, "{program} in {shell}");
        }
    }
    for _ in 0..2 {
        succeeded(install(&["--prefix", name(&prefix), "--uninstall"]));
        assert_eq!(files_below(&prefix), Vec::<String>::new());
    }
}

/// As packaging/build lays it out: nothing to build from, and the programs.
#[test]
fn an_archive_needs_no_cargo_and_no_argument() {
    let scratch = tempfile::tempdir().unwrap();
    let (archive, prefix) = (scratch.path().join("leaderrun"), scratch.path().join("prefix"));
    let top = script().parent().unwrap().to_owned();
    for (directory, files) in [("bin", ["leaderrun", "leaderctl"].as_slice()), ("man", &PAGES), ("", &["install.sh"])] {
        fs::create_dir_all(archive.join(directory)).unwrap();
        let from = if directory == "bin" { binaries().to_owned() } else { top.join(directory) };
        for file in files {
            copy_program(from.join(file), &archive.join(directory).join(file));
        }
    }
    let mut command = Command::new("sh");
    command.arg(archive.join("install.sh")).args(["--prefix", name(&prefix)]).env_remove("DESTDIR");
    succeeded(command.said());
    assert_eq!(files_below(&prefix), FILES);
}

#[test]
fn bad_arguments_are_named_in_one_line() {
    for (arguments, part) in [
        (&["--prefix"][..], "--prefix needs a directory"),
        (&["--prefix="], "--prefix needs a directory"),
        (&["--prefix", ""], "--prefix needs a directory"),
        (&["--binaries"], "--binaries needs a directory"),
        (&["--no-such-option"], "unknown argument --no-such-option"),
        (&["operand"], "unknown argument operand"),
        (&["--uninstall", "now"], "unknown argument now"),
    ] {
        failed(install(arguments), 64, part);
    }
}

#[test]
fn a_directory_without_the_programs_is_refused_before_anything_is_installed() {
    let prefix = tempfile::tempdir().unwrap();
    let said = install(&["--prefix", name(prefix.path()), "--binaries", name(prefix.path())]);
    failed(said, 66, "no program leaderrun in ");
    assert_eq!(files_below(prefix.path()), Vec::<String>::new());
}

#[test]
fn a_prefix_that_cannot_be_written_is_named_in_one_line() {
    let scratch = tempfile::tempdir().unwrap();
    let file = scratch.path().join("file");
    fs::write(&file, "").unwrap();
    for prefix in [&file, &file.join("below")] {
        failed(install_below(prefix), 73, &format!("{} is not a directory", file.display()));
    }
    // Not even root can make directories there.
    failed(install_below(Path::new("/proc/leaderrun")), 73, "cannot ");
}
