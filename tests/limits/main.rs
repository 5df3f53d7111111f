//! What a start comes to where the system gives little: few descriptors, processes and memory, closed standard streams,
//! blocked signals, a standard error that takes nothing, and servers that say too much.

#[cfg(feature = "default")]
mod hostile;
#[macro_use]
#[path = "../support/mod.rs"]
mod support;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::unistd::{chown, pipe2};
use std::borrow::BorrowMut;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Output};
use std::sync::atomic::{AtomicU32, Ordering};
use support::fleet::{copy_program, example_program, wait_until_it_sleeps};
use support::prelude::*;
use support::squatting::by_user;

const STRANGER: u32 = 64_917;

/// A pipe that takes nothing more: its reader, and its writer.
fn full_pipe() -> (File, OwnedFd) {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
    let size = fcntl(&writer, FcntlArg::F_SETPIPE_SZ(4096)).unwrap();
    let filling = vec![b'x'; usize::try_from(size).unwrap() - 1];
    nix::unistd::write(&writer, &filling).unwrap();
    nix::unistd::write(&writer, b"\n").unwrap();
    (File::from(reader), writer)
}

/// With room for some letters. The kernel passes on what it took a moment later, and then there is room once more.
fn filled_terminal() -> (File, OwnedFd) {
    let pty = nix::pty::openpty(None, None).unwrap();
    let flags = OFlag::from_bits_retain(fcntl(&pty.slave, FcntlArg::F_GETFL).unwrap());
    fcntl(&pty.slave, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK)).unwrap();
    for _ in 0..10 {
        while nix::unistd::write(&pty.slave, &[b'x'; 1000]).is_ok() {}
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    fcntl(&pty.slave, FcntlArg::F_SETFL(flags)).unwrap();
    let mut master = File::from(pty.master);
    master.read_exact(&mut [0; 300]).unwrap();
    (master, pty.slave)
}

fn takes_turns(writer: &OwnedFd) -> bool {
    let flags = OFlag::from_bits_retain(fcntl(writer, FcntlArg::F_GETFL).unwrap());
    !flags.contains(OFlag::O_NONBLOCK)
}

fn start(mut command: impl BorrowMut<Command>) -> Process {
    Process::start(command.borrow_mut().stdin(Stdio::null()))
}

impl Process {
    /// For signals: it has a handler for SIGTERM.
    fn wait_until_it_listens(&self) {
        let status = || fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        wait_until("it listens for signals", || bits_of(&status(), "SigCgt") & bits(&[Signal::SIGTERM]) != 0);
    }
}

/// As a shell tells it.
fn code(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
}

/// A directory for everybody, for a candidate of another user.
fn open_to_all() -> TempDir {
    let scratch = TempDir::new().unwrap();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o777)).unwrap();
    scratch
}

/// `program` as the stranger, who can reach a copy of it only.
fn by_a_stranger(program: &str, scratch: &TempDir) -> Command {
    let copy = scratch.path().join("program");
    copy_program(program, &copy);
    let mut command = by_user(STRANGER);
    command.arg(copy).env_clear().env("PATH", "/usr/bin:/bin").env("LEADERRUN_CONFIG", "/dev/null");
    command
}

fn store(scratch: &TempDir) -> String {
    format!("file:{}", scratch.path().join("store").display())
}

/// A candidate whose standard error takes nothing leads, obeys, and ends with COMMAND's status.
fn leads_and_obeys(mut command: Command, scratch: &TempDir, stderr: OwnedFd) {
    let up = scratch.path().join("up");
    let script = "exec 2>/dev/null; trap 'exit 7' TERM; echo up > \"$0\"; while :; do sleep 0.05; done";
    command.args(["-v", "--store", &store(scratch), "s", "--", "sh", "-c", script]).arg(&up);
    let ours = stderr.try_clone().unwrap();
    let mut candidate = start({
        command.stderr(stderr);
        command
    });
    wait_until("it leads", || up.exists());
    assert!(takes_turns(&ours), "COMMAND would see EAGAIN");
    candidate.signal(Signal::SIGTERM);
    assert_eq!(code(candidate.ends()), 7);
}

/// A full pipe; one of another user, which cannot be opened again; and the terminal of another user with little room.
#[test]
fn a_standard_error_that_takes_nothing_holds_up_no_election_and_no_signal() {
    let by_a_stranger = |scratch: &TempDir| by_a_stranger(env!("CARGO_BIN_EXE_leaderrun"), scratch);
    let (pipe, pipe_of_another) = (full_pipe(), full_pipe());
    let terminal = filled_terminal();
    let scratch = open_to_all();
    leads_and_obeys(leaderrun(), &scratch, pipe.1);
    let scratch = open_to_all();
    leads_and_obeys(by_a_stranger(&scratch), &scratch, pipe_of_another.1);
    let scratch = open_to_all();
    leads_and_obeys(by_a_stranger(&scratch), &scratch, terminal.1);
}

/// A standby that begins as `standby` does, beside a leader, ends at SIGTERM.
fn ends_at_sigterm(mut standby: Command) {
    let scratch = TempDir::new().unwrap();
    let up = scratch.path().join("up");
    let mut leader = leaderrun();
    leader.args(["-q", "--store", &store(&scratch), "s", "--", "sh", "-c", "echo > \"$0\"; exec sleep 1000"]).arg(&up);
    let _leader = start(leader);
    wait_until("the other one leads", || up.exists());
    standby.args(["-vv", "--store", &store(&scratch), "s", "--", "true"]);
    let mut standby = start(standby);
    standby.wait_until_it_listens();
    standby.signal(Signal::SIGTERM);
    assert_eq!(code(standby.ends()), 143);
}

#[test]
fn a_standby_whose_standard_error_takes_nothing_ends_at_sigterm() {
    let (_reader, writer) = full_pipe();
    let mut standby = leaderrun();
    standby.stderr(writer);
    ends_at_sigterm(standby);
}

/// Whoever reads it stands still, or has gone away.
#[test]
fn a_fatal_line_that_nobody_reads_does_not_keep_the_status_back() {
    let (scratch, away) = (TempDir::new().unwrap(), "redis://127.0.0.1:1");
    let at = &store(&scratch);
    for (mut command, words, status) in [
        (leaderrun(), &["--store", at, "s", "/nonexistent"][..], 127),
        (leaderrun(), &["--no-such-flag", "s", "true"], 64),
        (leaderrun(), &["-n", "--store", away, "s", "true"], 69),
        (leaderrun(), &["--store", at, "--explain", "s", "true"], 0),
        (leaderrun(), &["-v", "--store", at, "s", "true"], 0),
        (leaderctl(), &["--store", at, "no-such-verb"], 64),
        (leaderctl(), &["--store", away, "status", "s"], 69),
    ] {
        let (_reader, writer) = full_pipe();
        command.args(words).stderr(writer);
        assert_eq!(code(start(&mut command).ends()), status, "{words:?}");
        let (_, writer) = pipe2(OFlag::O_CLOEXEC).unwrap();
        let (_, other) = pipe2(OFlag::O_CLOEXEC).unwrap();
        command.stdout(writer).stderr(other);
        assert_eq!(code(start(&mut command).ends()), status, "{words:?}");
    }
}

/// Runs `leaderrun ... s echo ran` after `limit` in a shell. A start that hangs is killed, with 137.
fn under(limit: &str, place: &Place, prefix: &[&str], program: &Path) -> Output {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).args(prefix);
    command.args(["bash", "-c", &format!("{limit} && exec \"$@\""), "bash"]).arg(program);
    command.args(["-q", "-n", "--store", &place.url, "s", "--", "/bin/echo", "ran"]);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("LEADERRUN_CONFIG", "/dev/null");
    command.stdin(Stdio::null()).output().unwrap()
}

/// It works, or says in one line of ours why not; or it is the system's loader that says so, before there is a program.
#[track_caller]
fn assert_is_clear(limit: &str, output: &Output) -> bool {
    let said = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => assert!(output.stdout == b"ran\n" && said.is_empty(), "{limit}: {output:?}"),
        // The store cannot be used, or the system as such refuses.
        Some(69 | 71) => {
            assert!(output.stdout.is_empty(), "{limit}: {output:?}");
            assert!(said.contains("leaderrun: ") && said.lines().count() == 1, "{limit}: {said}");
        }
        Some(127) => {
            assert!(said.contains("error while loading shared libraries"), "{limit}: {output:?}");
        }
        _ => panic!("{limit}: {output:?}"),
    }
    output.status.success()
}

/// They travel to the guard in a file in memory.
#[test]
fn a_largest_file_that_has_room_for_the_words_of_command_suffices() {
    let scratch = TempDir::new().unwrap();
    let start = |length: usize| {
        let mut shell = Command::new("bash");
        shell.args(["-c", "ulimit -f 64 && exec \"$@\"", "bash", env!("CARGO_BIN_EXE_leaderrun"), "-q", "--store"]);
        shell
            .args([&store(&scratch), "s", "--", "true", &"x".repeat(length)])
            .env("LEADERRUN_CONFIG", "/dev/null")
            .said()
    };
    start(30_000).good();
    start(60_000).refused(71, "raise the limit to 75 KiB (ulimit -f");
}

#[cfg(feature = "redis")]
#[test]
fn a_candidate_whose_files_may_not_grow_any_more_says_what_follows() {
    let place = Place::remote(Box::new(support::redis::Server::start()));
    let mut command = leaderrun();
    command.args(["-v", "--store", &place.url, "--lease", "6s", "--renew", "1s", "s", "--", "sleep", "1000"]);
    let mut candidate = start(command.stderr(Stdio::piped()));
    let mut lines = BufReader::new(candidate.stderr.take().unwrap()).lines().map(Result::unwrap);
    // The start needs a file too.
    assert!(lines.any(|line| line.contains("started the command")));
    let pid = candidate.pid().to_string();
    Command::new("prlimit").args(["--fsize=0:0", "--pid", &pid]).said().good();
    assert!(lines.any(|line| line.contains("cannot tell the backstop of the renewal: File too large")));
}

/// Nobody holds the shard: a candidate that does not wait gets it.
#[track_caller]
fn assert_free(place: &Place) {
    let output = under("true", place, &[], env!("CARGO_BIN_EXE_leaderrun").as_ref());
    assert!(output.status.success(), "{output:?}");
}

fn few_descriptors_are_refused_in_one_line_or_suffice(place: &Place) {
    let mut worked = 0;
    for count in (3..=20).chain((22..=40).step_by(3)).chain([64, 128]) {
        let limit = format!("ulimit -n {count}");
        let output = under(&limit, place, &[], env!("CARGO_BIN_EXE_leaderrun").as_ref());
        worked += u32::from(assert_is_clear(&limit, &output));
    }
    assert!(worked >= 2);
    assert_free(place);
}

fn few_processes_are_refused_in_one_line_or_suffice(place: &Place) {
    // A user of whom nothing else runs: the limit counts all processes of one.
    static NEXT: AtomicU32 = AtomicU32::new(STRANGER + 1);
    let user = NEXT.fetch_add(1, Ordering::Relaxed);
    let scratch = open_to_all();
    let program = scratch.path().join("program");
    copy_program(env!("CARGO_BIN_EXE_leaderrun"), &program);
    if place.server.is_none() {
        let directory = place.path("store");
        fs::create_dir_all(&directory).unwrap();
        fs::set_permissions(place.fleet.scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
        chown(&directory, Some(user.into()), Some(user.into())).unwrap();
    }
    let (user, group) = (format!("--reuid={user}"), format!("--regid={user}"));
    let prefix = ["setpriv", &user, &group, "--clear-groups"];
    let mut worked = 0;
    for count in 1..=9 {
        let limit = format!("ulimit -u {count}");
        let output = under(&limit, place, &prefix, &program);
        worked += u32::from(assert_is_clear(&limit, &output));
    }
    assert!(worked >= 1);
    let again = under("true", place, &prefix, &program);
    assert!(again.status.success(), "{again:?}");
}

/// For files, the limit counts for those in memory, too, such as the one that tells a guard what to do.
fn no_file_may_grow_and_no_timer_is_free_which_is_said_before_the_lease_is_taken(place: &Place) {
    for limit in ["ulimit -f", "ulimit -i"] {
        let output = under(&format!("{limit} 0"), place, &[], env!("CARGO_BIN_EXE_leaderrun").as_ref());
        assert_is_clear(limit, &output);
        assert_eq!(code(output.status), 71, "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(said.contains(limit), "{said}");
        assert_free(place);
    }
}

/// No socket of a store and no lock file may get the number of a standard stream: COMMAND would write into it.
fn closed_standard_streams_are_empty_ones_for_command(place: &Place) {
    let seen = place.path("seen");
    let mut shell = Command::new("sh");
    shell.args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh", env!("CARGO_BIN_EXE_leaderrun"), "--store", &place.url, "s"]);
    shell.args(["--", "sh", "-c", "for n in 0 1 2; do readlink /proc/$$/fd/$n; done | cat > \"$0\""]);
    shell.arg(&seen).env("LEADERRUN_CONFIG", "/dev/null");
    assert_eq!(code(shell.status().unwrap()), 0);
    assert_eq!(fs::read_to_string(&seen).unwrap(), "/dev/null\n/dev/null\n/dev/null\n");
}

on_two_stores!(
    &few_descriptors_are_refused_in_one_line_or_suffice,
    &few_processes_are_refused_in_one_line_or_suffice,
    &no_file_may_grow_and_no_timer_is_free_which_is_said_before_the_lease_is_taken,
    &closed_standard_streams_are_empty_ones_for_command,
);

/// It has become another user's. One that waits in the kernel for ever is no different.
#[test]
fn a_process_that_cannot_be_killed_is_told_and_is_looked_at_seldom() {
    let scratch = open_to_all();
    let [other_user, named] = ["setpriv", "pid"].map(|name| scratch.path().join(name));
    copy_program("/usr/bin/setpriv", &other_user);
    fs::set_permissions(&other_user, fs::Permissions::from_mode(0o4755)).unwrap();
    let mut command = by_a_stranger(env!("CARGO_BIN_EXE_leaderrun"), &scratch);
    command.args(["--store", &store(&scratch), "--stop-timeout", "100ms", "s", "--"]).arg(&other_user);
    command.args(["--reuid=0", "--regid=0", "--clear-groups", "sh", "-c", "echo $$ >\"$0\"; exec sleep 1000"]);
    let mut candidate = start(command.arg(&named).stderr(Stdio::piped()));
    let mut undying = None;
    wait_until("COMMAND runs as root", || {
        undying = fs::read_to_string(&named).ok().and_then(|pid| pid.trim().parse().ok());
        undying.is_some()
    });
    let [_, guard] = helpers_of(candidate.pid());
    candidate.signal(Signal::SIGTERM);
    let mut lines = BufReader::new(candidate.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("was killed 10s ago, and it or what it started is not dead")));
    wait_until_it_sleeps(guard, 50);
    kill(Pid::from_raw(undying.expect("it runs")), Signal::SIGKILL).unwrap();
    assert!(lines.any(|line| line.contains("released")));
    candidate.ends();
}

/// A name of a host is looked up by a thread of its own, which may not be had.
#[cfg(feature = "redis")]
#[test]
fn a_host_that_cannot_be_looked_up_for_want_of_a_thread_is_refused_in_one_line() {
    let mut place = Place::remote(Box::new(support::redis::Server::start()));
    place.url = place.url.replace("127.0.0.1", "localhost");
    few_processes_are_refused_in_one_line_or_suffice(&place);
}

/// It comes after all else, when nothing can be taken and given back beforehand.
#[cfg(feature = "redis")]
#[test]
fn a_release_that_gets_no_thread_to_look_up_its_host_says_so_in_one_line() {
    let place = Place::remote(Box::new(support::redis::Server::start()));
    let url = place.url.replace("127.0.0.1", "localhost");
    let scratch = open_to_all();
    let [up, told] = ["up", "told"].map(|name| scratch.path().join(name));
    let mut command = by_a_stranger(env!("CARGO_BIN_EXE_leaderrun"), &scratch);
    command.args(["-q", "--store", &url, "s", "--", "sh", "-c", "echo up > \"$0\"; exec sleep 1000"]).arg(&up);
    let mut candidate = start(command.stderr(File::create(&told).unwrap()));
    wait_until("it leads", || up.exists());
    let [backstop, _] = helpers_of(candidate.pid());
    by_user(STRANGER).args(["prlimit", "--nproc=1:1", "--pid", &backstop.to_string()]).said().good();
    candidate.signal(Signal::SIGKILL);
    candidate.ends();
    let told = || fs::read_to_string(&told).unwrap();
    wait_until("it says why", || told().ends_with('\n'));
    assert!(told().contains("not released after it was killed: a thread is needed: "), "{}", told());
    assert_eq!(told().lines().count(), 1, "{}", told());
}

/// They are read again with each connection, by the thread that elects.
#[cfg(feature = "nats")]
#[test]
fn a_fifo_in_the_place_of_credentials_holds_nobody_up() {
    let scratch = TempDir::new().unwrap();
    let fifo = scratch.path().join("creds");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for login in ["creds", "nkey"] {
        let url = format!("nats://127.0.0.1:1/locks?{login}={}", fifo.display());
        leaderrun().args(["--store", &url, "s", "true"]).said().refused(78, "not a regular file");
    }
}

/// Denies the system calls with these numbers to a program: `ERRNO NUMBER,NUMBER PROGRAM ARGUMENT...`. Each instruction of
/// the filter is a struct sock_filter (seccomp(2)): load the number, compare it, return.
const FILTER: &str = r#"
    my ($errno, $numbers, @program) = @ARGV;
    my @filter = (pack("SCCL", 0x20, 0, 0, 0));
    push @filter, pack("SCCL", 0x15, 0, 1, $_), pack("SCCL", 0x06, 0, 0, 0x50000 | $errno) for split /,/, $numbers;
    push @filter, pack("SCCL", 0x06, 0, 0, 0x7fff0000);
    my $filter = join "", @filter;
    my $program = pack("Sx6P", scalar @filter, $filter);
    syscall(SYS_PRCTL, 38, 1, 0, 0, 0) == 0 or die "PR_SET_NO_NEW_PRIVS: $!";
    syscall(SYS_PRCTL, 22, 2, $program, 0, 0) == 0 or die "PR_SET_SECCOMP: $!";
    exec @program or die "exec: $!";
"#;

fn without(calls: &[i64], words: &[&str]) -> Said {
    let scratch = TempDir::new().unwrap();
    let numbers: Vec<String> = calls.iter().map(ToString::to_string).collect();
    let filter = FILTER.replace("SYS_PRCTL", &libc::SYS_prctl.to_string());
    let mut command = Command::new("timeout");
    command.args(["60", "perl", "-e", &filter, &libc::EPERM.to_string(), &numbers.join(",")]);
    command.arg(env!("CARGO_BIN_EXE_leaderrun")).args(["-q", "--store", &store(&scratch)]).args(words);
    command.env("LEADERRUN_CONFIG", "/dev/null").said()
}

const LEADS: [&str; 4] = ["s", "--", "echo", "led"];

#[test]
fn a_system_call_that_is_denied_is_named_once_before_anything_is_acquired() {
    for (name, number) in [
        ("signalfd4", libc::SYS_signalfd4),
        ("rt_sigprocmask", libc::SYS_rt_sigprocmask),
        ("clone", libc::SYS_clone),
        ("getppid", libc::SYS_getppid),
        ("timerfd_create", libc::SYS_timerfd_create),
        ("timerfd_settime", libc::SYS_timerfd_settime),
        ("timer_create", libc::SYS_timer_create),
        ("timer_settime", libc::SYS_timer_settime),
        ("memfd_create", libc::SYS_memfd_create),
        ("socketpair", libc::SYS_socketpair),
        ("pipe2", libc::SYS_pipe2),
        ("epoll_create1", libc::SYS_epoll_create1),
        ("epoll_ctl", libc::SYS_epoll_ctl),
        ("eventfd2", libc::SYS_eventfd2),
        ("lseek", libc::SYS_lseek),
        ("sendto", libc::SYS_sendto),
        ("recvfrom", libc::SYS_recvfrom),
        ("kill", libc::SYS_kill),
        ("setpgid", libc::SYS_setpgid),
        ("getdents64", libc::SYS_getdents64),
        ("uname", libc::SYS_uname),
        ("waitid", libc::SYS_waitid),
        ("prctl", libc::SYS_prctl),
        ("prlimit64", libc::SYS_prlimit64),
    ] {
        without(&[number], &LEADS).refused(71, &format!("leaderrun: the system call {name} is denied ("));
    }
}

#[test]
fn what_else_a_filter_may_deny_does_not_matter() {
    let calls = [
        libc::SYS_pidfd_open,
        libc::SYS_pidfd_send_signal,
        libc::SYS_clone3,
        libc::SYS_close_range,
        libc::SYS_statx,
        libc::SYS_faccessat2,
        libc::SYS_openat2,
        libc::SYS_sched_setscheduler,
        libc::SYS_setpriority,
        libc::SYS_mlockall,
        libc::SYS_fgetxattr,
        libc::SYS_pwritev2,
        libc::SYS_madvise,
        libc::SYS_rseq,
    ];
    for each in calls.iter().map(std::slice::from_ref).chain([&calls[..]]) {
        assert_eq!(without(each, &LEADS).good(), "led\n", "{each:?}");
    }
}

/// The stop signal, in a session of its own below a COMMAND that waits for it.
#[test]
fn a_process_that_a_filter_keeps_us_from_pinning_or_signalling_by_its_pin_gets_its_signals() {
    let script =
        r#"trap : TERM; setsid sh -c 'trap "echo asked; exit" TERM; while :; do sleep 0.02; done' & wait; wait"#;
    let command = ["--contain", "walk", "--max-run", "2s", "--kill-after", "3s", "s", "-c", script];
    for denied in [libc::SYS_pidfd_send_signal, libc::SYS_pidfd_open] {
        assert_eq!(without(&[denied], &command).ended(124).out, "asked\n");
    }
}

#[test]
fn a_process_with_a_deadline_can_start_no_other_and_is_told_so() {
    let scratch = TempDir::new().unwrap();
    let mut command = Command::new("chrt");
    command.args([
        "--deadline",
        "--sched-runtime=1000000",
        "--sched-deadline=10000000",
        "--sched-period=10000000",
        "0",
    ]);
    command.arg(env!("CARGO_BIN_EXE_leaderrun")).args(["-q", "--store", &store(&scratch)]).args(LEADS);
    command.env("LEADERRUN_CONFIG", "/dev/null").said().refused(78, "no process with SCHED_DEADLINE");
}

fn leaderrun_by(words: &[&str]) -> Command {
    let mut command = Command::new("env");
    command.args(words).arg(env!("CARGO_BIN_EXE_leaderrun")).env("LEADERRUN_CONFIG", "/dev/null");
    command
}

const BLOCKED: &str = "--block-signal=TERM,INT,CHLD,HUP,USR1";

/// The line of proc_pid_status(5) that a COMMAND which is nothing but a reader of it sees.
fn seen_by_command(how: &str, field: &str) -> u64 {
    let scratch = TempDir::new().unwrap();
    let mut command = leaderrun_by(&[how]);
    command.args(["-q", "--store", &store(&scratch), "s", "--", "cat", "/proc/self/status"]);
    bits_of(&command.said().good(), field)
}

fn bits_of(status: &str, field: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(":\t")).unwrap();
    u64::from_str_radix(line, 16).unwrap()
}

fn bits(signals: &[Signal]) -> u64 {
    signals.iter().map(|&signal| 1 << (signal as i32 - 1)).sum()
}

#[test]
fn sigterm_that_was_blocked_at_the_start_ends_a_standby_all_the_same() {
    ends_at_sigterm(leaderrun_by(&[BLOCKED]));
}

#[test]
fn a_leader_that_was_started_with_its_signals_blocked_notices_the_end_of_command_and_obeys() {
    let scratch = TempDir::new().unwrap();
    let up = scratch.path().join("up");
    let mut leader = leaderrun_by(&[BLOCKED]);
    // dash has the mask that it was given, and obeys nothing in it.
    leader.args(["-q", "--stop-timeout", "100ms", "--store", &store(&scratch), "s", "--"]);
    leader.args(["sh", "-c", "echo > \"$0\"; exec sleep 1000"]).arg(&up);
    let mut leader = start(leader);
    wait_until("it leads", || up.exists());
    leader.signal(Signal::SIGTERM);
    assert_eq!(code(leader.ends()), 137);
}

#[test]
fn command_gets_the_signal_mask_that_leaderrun_was_given() {
    use Signal::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
    assert_eq!(seen_by_command(BLOCKED, "SigBlk"), bits(&[SIGTERM, SIGINT, SIGCHLD, SIGHUP, SIGUSR1]));
    assert_eq!(seen_by_command("--", "SigBlk"), 0);
}

#[test]
fn sigchld_that_was_ignored_at_the_start_does_not_hide_the_end_of_command() {
    use Signal::{SIGCHLD, SIGPIPE};
    let ignored = seen_by_command("--ignore-signal=CHLD,PIPE,HUP", "SigIgn");
    assert_eq!(ignored & bits(&[SIGCHLD, SIGPIPE, Signal::SIGHUP]), bits(&[Signal::SIGHUP]));
}

/// By the guard's hand, for the candidate is gone. On `file:`, where no deadline would do it.
#[test]
fn a_panic_of_any_thread_ends_the_candidate_with_one_line_and_command_with_it() {
    let scratch = TempDir::new().unwrap();
    let (up, told) = (scratch.path().join("up"), scratch.path().join("told"));
    let mut command = Command::new(example_program("panics"));
    command.args(["-q", "--store", &store(&scratch), "s", "--", "sh", "-c", "echo $$ > \"$0\"; exec sleep 1000"]);
    command.arg(&up).env("PANICS_WITH", &up).env("LEADERRUN_CONFIG", "/dev/null").env_remove("RUST_BACKTRACE");
    let status = start(command.stderr(File::create(&told).unwrap())).ends();
    assert_eq!(code(status), 134);
    let pid: i32 = fs::read_to_string(&up).unwrap().trim().parse().unwrap();
    wait_until("COMMAND is gone", || kill(Pid::from_raw(pid), None).is_err());
    let told = fs::read_to_string(&told).unwrap();
    assert!(told.contains(" leaderrun: this is a bug: as ordered at ") && told.lines().count() == 1, "{told}");
}
