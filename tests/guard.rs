//! The tree is dead before the lease is free, no matter what is killed, frozen or disobedient. On the file store, where
//! "free" is exact: the next candidate is in as soon as the last of candidate, backstop and guard is gone.

#[path = "guard/last.rs"]
mod last;
#[cfg(feature = "redis")]
#[path = "guard/late.rs"]
mod late;
mod support;

use nix::errno::Errno;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use support::prelude::*;

const GRACE: &[&str] = &["--kill-after", "300ms", "--stop-timeout", "300ms"];

/// On local files.
fn fleet(owners: &[&str], stamp_flags: &[&str]) -> Place {
    let mut place = Place::local();
    for owner in owners {
        let flags = [GRACE, &["--store", &place.url]].concat();
        place.fleet.start(owner, &flags, stamp_flags, &[]);
    }
    place
}

/// Tells a story about a leader and its successor; `harm` is done to candidate, backstop and guard.
fn story<T>(stamp_flags: &[&str], harm: impl Fn([Pid; 3]) -> T) {
    let Place { fleet, .. } = fleet(&["one", "two"], stamp_flags);
    let leader = fleet.leader();
    let begun = BootInstant::now().as_nanos();
    let candidate = fleet.pid(&leader.owner);
    let [backstop, guard] = helpers_of(candidate);
    harm([candidate, backstop, guard]);
    let next = fleet.leader_where(|life| life.term > leader.term);
    assert!(next.first > begun);
    conclude_after_harm(fleet, candidate);
}

/// A killed candidate cannot be stopped in order any more.
fn conclude_after_harm(mut fleet: Fleet, candidate: Pid) {
    let state = fs::read_to_string(format!("/proc/{candidate}/stat")).unwrap_or_default();
    if state.rsplit_once(')').is_none_or(|(_, after)| after.trim_start().starts_with('Z')) {
        let owner = ["one", "two"].into_iter().find(|owner| fleet.pid(owner) == candidate).expect("one of ours");
        fleet.kill(owner);
    }
    fleet.conclude();
}

fn slay(pid: Pid) {
    // The other ones may have been quicker.
    assert!(matches!(kill(pid, Signal::SIGKILL), Ok(()) | Err(Errno::ESRCH)));
}

/// A test of each name, in which these of the three are killed one after the other.
macro_rules! killed {
    ($($name:ident: [$($who:expr),*],)*) => {
        $(
            #[test]
            fn $name() {
                story(&["ignore-term", "daemon"], |three| [$($who),*].map(|who: usize| slay(three[who])));
            }
        )*
    };
}

const CANDIDATE: usize = 0;
const BACKSTOP: usize = 1;
const GUARD: usize = 2;

killed! {
    a_killed_candidate_takes_a_daemon_that_ignores_sigterm_along: [CANDIDATE],
    a_killed_guard_takes_a_daemon_that_ignores_sigterm_along: [GUARD],
    a_killed_backstop_ends_the_leadership: [BACKSTOP],
    candidate_and_guard_killed_together_leave_nobody: [CANDIDATE, GUARD],
    candidate_and_backstop_killed_together_leave_nobody: [CANDIDATE, BACKSTOP],
    backstop_and_guard_killed_together_leave_nobody: [BACKSTOP, GUARD],
}

#[test]
fn a_candidate_killed_while_its_guard_is_frozen_leaves_nobody() {
    story(&["ignore-term", "daemon"], |three| {
        kill(three[GUARD], Signal::SIGSTOP).unwrap();
        slay(three[CANDIDATE]);
    });
}

#[test]
fn a_frozen_candidate_keeps_the_lock_and_nobody_else_leads() {
    let Place { mut fleet, url, .. } = fleet(&["one"], &[]);
    let leader = fleet.leader();
    fleet.signal(&leader.owner, Signal::SIGSTOP);
    leaderrun().args(["-n", "--store", &url, "shard", "true"]).said().ended(75);
    fleet.signal(&leader.owner, Signal::SIGCONT);
    assert_eq!(fleet.stop("one").code(), Some(143));
    fleet.conclude();
}

#[test]
fn an_orderly_stop_hands_over() {
    let mut fleet = fleet(&["one", "two"], &["daemon"]).fleet;
    let leader = fleet.leader();
    fleet.stop(&leader.owner);
    fleet.leader_where(|life| life.term > leader.term);
    let lives = fleet.conclude();
    assert_eq!(lives.len(), 2, "{lives:?}");
}

#[test]
fn thirty_leaders_killed_among_twenty_candidates_never_overlap() {
    let names: Vec<String> = (0..20).map(|number| format!("c{number}")).collect();
    let Place { mut fleet, url, .. } = fleet(&names.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let mut last = 0;
    for _ in 0..30 {
        let leader = fleet.leader_where(|life| life.term > last);
        last = leader.term;
        fleet.kill(&leader.owner);
        fleet.start(&leader.owner, &[GRACE, &["--store", &url]].concat(), &[], &[]);
    }
    fleet.leader_where(|life| life.term > last);
    let lives = fleet.conclude();
    assert!(lives.len() > 30, "{}", lives.len());
}

/// A leader that runs a shell script with `FILE` naming a file in a scratch directory.
struct Script {
    scratch: TempDir,
    child: Process,
}

impl Script {
    fn start(flags: &[&str], script: &str) -> Self {
        Self::start_on(None, flags, script)
    }

    /// On the file store, if no other is given.
    fn start_on(store: Option<&str>, flags: &[&str], script: &str) -> Self {
        let scratch = TempDir::new().unwrap();
        let file = format!("file:{}", scratch.path().join("store").display());
        let mut command = leaderrun();
        command.args(["--store", store.unwrap_or(&file)]).args(flags).args(["shard", "-c", script]);
        command.env("FILE", scratch.path().join("file")).stderr(Stdio::null()).stdout(Stdio::piped());
        Self { scratch, child: Process::start(&mut command) }
    }

    fn file(&self) -> String {
        fs::read_to_string(self.scratch.path().join("file")).unwrap_or_default()
    }

    fn wait_for(&self, text: &str) {
        wait_until(text, || self.file().contains(text));
    }

    fn signal(&self, signal: Signal) {
        self.child.signal(signal);
    }

    fn status(&mut self) -> Option<i32> {
        self.child.ends().code()
    }

    fn output(&mut self) -> String {
        let mut text = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

#[test]
fn an_orderly_stop_sends_the_stop_signal_once_and_waits_for_the_drain() {
    for (flags, signal) in [(&[][..], "TERM"), (&["-s", "usr2"], "USR2")] {
        let script = format!(
            "trap 'echo got >> $FILE; sleep 0.4; echo drained >> $FILE; exit 5' {signal}; echo up > $FILE; \
             while :; do sleep 0.02; done"
        );
        let mut run = Script::start(flags, &script);
        run.wait_for("up");
        run.signal(Signal::SIGTERM);
        assert_eq!((run.status(), run.file()), (Some(5), "up\ngot\ndrained\n".to_owned()));
    }
}

/// As timeout(1) sends them: to its child, and then to the group that both are in.
#[test]
fn two_signals_in_a_row_are_one_request_to_stop() {
    let script = "trap 'sleep 0.2; echo drained >> $FILE; exit 5' TERM; echo up > $FILE; while :; do sleep 0.02; done";
    // Where a busy machine lets half a second pass between them, they are two requests, and the second one kills.
    let ends = std::iter::repeat_with(|| {
        let mut run = Script::start(&[], script);
        run.wait_for("up");
        run.signal(Signal::SIGTERM);
        run.signal(Signal::SIGTERM);
        (run.status(), run.file())
    });
    let end = ends.take(3).find(|(status, _)| *status != Some(137));
    assert_eq!(end, Some((Some(5), "up\ndrained\n".to_owned())));
}

#[test]
fn each_process_of_the_tree_is_asked_once_wherever_it_is() {
    // It stays for a moment after the first signal, for a second one to arrive.
    let member = r#"$SIG{TERM} = sub { say("asked"); $asked = 1 }; say("up");
                    select undef, undef, undef, 0.05 until $asked;
                    select undef, undef, undef, 0.1 for 1 .. 5;
                    sub say { open F, ">>", $ENV{FILE}; syswrite F, "$_[0] $ARGV[0]\n"; close F }"#;
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("member");
    fs::write(&file, member).unwrap();
    let member = format!("perl {}", file.display());
    // A child, an orphan in COMMAND's group, daemons, and one below a daemon.
    let script = format!(
        "{member} child & ({member} orphan &) ; setsid -f {member} daemon; \
         setsid -f sh -c '{member} grandchild & exec {member} session'; exec {member} command"
    );
    let members = ["child", "orphan", "daemon", "grandchild", "session", "command"];
    for contain in ["walk", "auto"] {
        let mut run = Script::start(&["--contain", contain, "--kill-after", "8s"], &script);
        for name in members {
            run.wait_for(&format!("up {name}\n"));
        }
        run.signal(Signal::SIGTERM);
        run.status();
        let file = run.file();
        for name in members {
            assert_eq!(file.matches(&format!("asked {name}\n")).count(), 1, "{contain}, {name}: {file}");
        }
    }
}

#[test]
fn a_command_whose_candidate_was_killed_is_asked_before_it_is_killed() {
    let script = "trap 'echo asked >> $FILE; exit' TERM; echo up > $FILE; while :; do sleep 0.02; done";
    let mut run = Script::start(&["--kill-after", "8s"], script);
    run.wait_for("up");
    run.child.kill().unwrap();
    run.wait_for("asked");
    run.status();
}

#[test]
fn a_command_that_runs_for_too_long_ends_with_124_whether_it_obeys_or_not() {
    let script = "trap 'echo got >> $FILE; exit 3' TERM; echo up > $FILE; while :; do sleep 0.02; done";
    // A busy machine may take longer to start a shell.
    let is_asked = |seconds| {
        let begun = std::time::Instant::now();
        let mut run = Script::start(&["--max-run", &format!("{seconds}s")], script);
        assert_eq!(run.status(), Some(124));
        assert!(begun.elapsed() >= std::time::Duration::from_secs(seconds));
        run.file() == "up\ngot\n"
    };
    assert!([1, 3, 30].into_iter().any(is_asked));
    let stubborn =
        "trap '' TERM; (trap '' TERM; exec setsid sleep 1000) & echo up > $FILE; while :; do sleep 0.02; done";
    let mut run = Script::start(&["--max-run", "500ms"], stubborn);
    assert_eq!(run.status(), Some(124));
    let mut run = Script::start(&["--max-run", "1h"], "echo up > $FILE; exit 7");
    assert_eq!(run.status(), Some(7));
}

/// A script that the kernel does not execute for so many seconds, unless what holds it is dropped.
fn busy_program(scratch: &TempDir, script: &str, seconds: u32) -> (PathBuf, Process) {
    let program = scratch.path().join("program");
    fs::write(&program, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    // A lease on the file (F_SETLEASE, fcntl(2)), which nobody else has open then.
    let hold = r#"open my $file, "<", $ARGV[0]; $SIG{IO} = "IGNORE"; $| = 1;
                  select undef, undef, undef, 0.01 until fcntl $file, 1024, 1;
                  print "held\n"; select undef, undef, undef, $ARGV[1]"#;
    let mut holder = Command::new("perl");
    holder.args(["-e", hold]).arg(&program).arg(seconds.to_string()).stdout(Stdio::piped());
    let mut holder = Process::start(&mut holder);
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    (program, holder)
}

fn leader_of(scratch: &TempDir, flags: &[&str], program: &Path) -> Command {
    let mut command = leaderrun();
    command.args(["-n", "--store", &format!("file:{}", scratch.path().join("store").display())]);
    command.args(flags).args(["shard", "--"]).arg(program);
    command
}

#[test]
fn the_run_of_a_command_begins_when_the_kernel_has_executed_it() {
    let scratch = TempDir::new().unwrap();
    let (program, _holder) = busy_program(&scratch, "sleep 3; exit 7", 4);
    leader_of(&scratch, &["--max-run", "6s"], &program).said().ended(7);
}

/// It would ignore the signal that asks it to stop, and begin afterwards. It has not run, so its job may run again.
#[test]
fn what_is_asked_to_stop_before_the_kernel_has_executed_it_never_begins() {
    for contain in ["walk", "pidns"] {
        let scratch = TempDir::new().unwrap();
        let (program, holder) = busy_program(&scratch, "touch $0.began", 40);
        let hook = format!("touch {}.hook", program.display());
        let flags = ["--contain", contain, "--signal", "WINCH", "--once", "x", "--pre-stop", &hook];
        let mut leader = Process::start(&mut leader_of(&scratch, &flags, &program));
        wait_until("the guard executes it", || {
            let below = |pids: Vec<i32>| pids.into_iter().flat_map(children_of).collect::<Vec<_>>();
            let guard = below(children_of(leader.pid().as_raw()));
            !below(if contain == "pidns" { below(guard) } else { guard }).is_empty()
        });
        leader.signal(Signal::SIGTERM);
        assert_eq!(leader.ends().code(), Some(143));
        drop(holder);
        let exists = |name| scratch.path().join(name).exists();
        assert!(!exists("program.began") && !exists("program.hook"), "{contain}");
        leader_of(&scratch, &["--once", "x"], &program).said().good();
        assert!(exists("program.began"), "{contain}");
    }
}

#[test]
fn a_stopped_init_does_not_keep_the_stop_signal_from_command() {
    let flags = ["--contain", "pidns"];
    let mut leader = Script::start(&flags, "trap 'exit 3' TERM; echo up > $FILE; while :; do sleep 0.1; done");
    leader.wait_for("up");
    let [_, guard] = helpers_of(leader.child.pid());
    let init = children_of(guard.as_raw()).into_iter().next().expect("the init");
    kill(Pid::from_raw(init), Signal::SIGSTOP).unwrap();
    leader.signal(Signal::SIGTERM);
    assert_eq!(leader.status(), Some(3));
}

/// It is not COMMAND's program that the kernel refuses.
#[test]
fn a_backstop_that_the_kernel_refuses_to_execute_gives_the_lease_back() {
    let leader = Script::start(&[], "echo up > $FILE; exec sleep 1000");
    leader.wait_for("up");
    let store = format!("file:{}", leader.scratch.path().join("store").display());
    let program = leader.scratch.path().join("program");
    support::fleet::copy_program(env!("CARGO_BIN_EXE_leaderrun"), &program);
    let mut next = unconfigured(program.to_str().unwrap());
    let mut next = Process::start(next.args(["--store", &store, "shard", "true"]).stderr(Stdio::piped()));
    let mut said = BufReader::new(next.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(said.any(|line| line.contains("waiting: ")));
    fs::set_permissions(&program, fs::Permissions::from_mode(0o644)).unwrap();
    leader.signal(Signal::SIGTERM);
    assert!(said.any(|line| line.contains("the operating system refused a process")));
    assert_eq!(next.ends().code(), Some(71));
    leaderrun().args(["-n", "--store", &store, "shard", "true"]).said().good();
}

/// COMMAND itself is killed, or the init of its namespace; or a guard that hears and passes on while the kernel executes.
#[test]
fn what_was_killed_before_the_kernel_had_executed_it_was_not_started() {
    for (contain, kills, status) in
        [("walk", true, 137), ("pidns", true, 71), ("walk", false, 143), ("pidns", false, 143)]
    {
        let scratch = TempDir::new().unwrap();
        let (program, _holder) = busy_program(&scratch, "", 40);
        let mut leader = leader_of(&scratch, &["-v", "--contain", contain], &program);
        let mut leader = Process::start(leader.stderr(Stdio::piped()));
        let first = |pid: i32| children_of(pid).first().copied();
        let mut started = None;
        wait_until("the guard has a child", || {
            started = first(leader.pid().as_raw()).and_then(first).and_then(first);
            started.is_some()
        });
        if kills {
            slay(Pid::from_raw(started.unwrap()));
        } else {
            leader.signal(Signal::SIGTERM);
        }
        assert_eq!(leader.ends().code(), Some(status));
        let mut said = String::new();
        leader.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!said.contains("started the command"), "{said}");
    }
}

#[test]
fn a_stopped_command_can_obey() {
    let mut run = Script::start(&[], "trap 'exit 6' TERM; echo $$ > $FILE; while :; do sleep 0.02; done");
    wait_until("its number", || run.file().ends_with('\n'));
    let command = Pid::from_raw(run.file().trim().parse().unwrap());
    kill(command, Signal::SIGSTOP).unwrap();
    run.signal(Signal::SIGTERM);
    assert_eq!(run.status(), Some(6));
}

#[test]
fn what_command_leaves_behind_is_stopped_before_the_release() {
    let script = "(trap 'echo asked >> $FILE; exit' TERM; echo up > $FILE; while :; do sleep 0.02; done) & \
                  while ! test -s $FILE; do sleep 0.01; done; exit 3";
    let mut run = Script::start(&[], script);
    assert_eq!(run.status(), Some(3));
    assert_eq!(run.file(), "up\nasked\n");
}

#[test]
fn signals_for_command_reach_it() {
    let script = "for s in HUP USR1 USR2 QUIT WINCH; do trap \"echo $s >> $FILE\" $s; done; echo up > $FILE; \
                  while :; do sleep 0.02; done";
    let mut run = Script::start(&[], script);
    run.wait_for("up");
    for (signal, name) in [
        (Signal::SIGHUP, "HUP"),
        (Signal::SIGUSR1, "USR1"),
        (Signal::SIGUSR2, "USR2"),
        (Signal::SIGQUIT, "QUIT"),
        (Signal::SIGWINCH, "WINCH"),
    ] {
        run.signal(signal);
        run.wait_for(&format!("\n{name}\n"));
    }
    run.signal(Signal::SIGTERM);
    assert_eq!(run.status(), Some(143));
}

#[test]
fn the_statuses_of_command_pass_through() {
    for status in [0, 1, 2, 64, 69, 75, 79, 124, 126, 127, 128, 255] {
        assert_eq!(Script::start(&[], &format!("exit {status}")).status(), Some(status));
    }
    // With two real-time ones.
    for signal in [1, 2, 3, 6, 9, 11, 15, 34, 64] {
        assert_eq!(Script::start(&[], &format!("kill -{signal} $$")).status(), Some(128 + signal));
        // That of an orphan is nobody's, but it is reaped.
        let orphan = format!("(sh -c 'sleep 0.1; kill -{signal} $$' &) ; sleep 0.3; exit 7");
        assert_eq!(Script::start(&[], &orphan).status(), Some(7));
    }
}

#[test]
fn command_has_our_input_and_output_untouched_and_no_descriptors_of_ours() {
    let count = "ls /proc/self/fd | wc -l";
    let without = Command::new("/bin/sh").args(["-c", count]).said().out;
    let mut run = Script::start(&[], &format!("{count}; head -c 100000 /dev/zero | tr '\\0' x; echo; echo end"));
    let output = run.output();
    assert_eq!(output, format!("{without}{}\nend\n", "x".repeat(100_000)));
    run.status();
}

#[test]
fn as_the_first_process_of_a_container_it_reaps_strangers_and_passes_signals() {
    let scratch = TempDir::new().unwrap();
    let marker = scratch.path().join("up");
    let script = format!(
        // The stranger is orphaned by a process that is not below COMMAND: it has been put into the namespace.
        "trap 'exit 4' TERM; echo up > {}; while :; do sleep 0.02; done",
        marker.display()
    );
    let mut child = Process::start(as_process_1(&scratch).args(["shard", "-c", &script]).stderr(Stdio::null()));
    wait_until("the command runs", || marker.exists());
    let first = Pid::from_raw(children_of(child.pid().as_raw())[0]);
    // A stranger: double-forked inside the namespace by a process that came from outside.
    let entered = Command::new("nsenter")
        .args(["--user", "--pid", "--mount", "--preserve-credentials", "-t", &first.to_string()])
        .args(["sh", "-c", "sh -c 'sleep 0.1' & exit 0"])
        .status()
        .expect("nsenter runs");
    assert!(entered.success());
    wait_until("strangers are reaped", || children_of(first.as_raw()).len() == 1);
    kill(first, Signal::SIGTERM).unwrap();
    assert_eq!(child.ends().code(), Some(4));
}

/// A leaderrun that is the first process of a container, on local files.
fn as_process_1(scratch: &TempDir) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "--pid", "--fork", "--mount-proc", "--kill-child"]);
    command.arg(env!("CARGO_BIN_EXE_leaderrun")).args(["--store", &format!("file:{}", scratch.path().display())]);
    command
}

#[test]
fn a_candidate_that_is_asked_to_stop_while_it_waits_ends_at_once() {
    let Place { mut fleet, url, .. } = fleet(&["one"], &[]);
    fleet.leader();
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut standby = leaderrun()
            .args(["-v", "--store", &url, "shard", "--", "sh", "-c", "echo ran"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // What it says before that, it says before it heeds signals.
        let mut lines = BufReader::new(standby.stderr.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("waiting: ")));
        kill(Pid::from_raw(standby.id().cast_signed()), signal).unwrap();
        let output = standby.wait_with_output().unwrap();
        // From SIGINT it dies, so that a script that waits for it ends as well.
        let (status, died_of) = (output.status.code(), output.status.signal());
        assert!(status == Some(143) || (signal, died_of) == (Signal::SIGINT, Some(2)), "{output:?}");
        assert!(output.stdout.is_empty());
    }
    fleet.stop("one");
    fleet.conclude();
}

#[test]
fn from_sigint_a_leader_dies_once_the_lease_is_free_and_without_a_core_file() {
    let scratch = TempDir::new().unwrap();
    let store = format!("file:{}", scratch.path().join("store").display());
    let up = scratch.path().join("up");
    let script = format!("trap 'exit 3' TERM; : > {}; while :; do sleep 0.02; done", up.display());
    for (signal, died_of, status) in [(Signal::SIGINT, Some(2), None), (Signal::SIGTERM, None, Some(3))] {
        let _ = fs::remove_file(&up);
        // With leave to write a core file where it works.
        let mut leader = Command::new("sh");
        leader.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_leaderrun")]);
        leader.args(["-q", "--store", &store, "shard", "-c", &script]).current_dir(scratch.path());
        let mut leader = Process::start(&mut leader);
        wait_until("the command runs", || up.exists());
        leader.signal(signal);
        let ended = leader.ends();
        assert_eq!((ended.signal(), ended.code(), ended.core_dumped()), (died_of, status, false));
        // The lease was given back.
        leaderrun().args(["-n", "--store", &store, "shard", "true"]).said().good();
    }
}

#[test]
fn as_process_1_it_cannot_die_from_a_signal_and_exits_with_130() {
    let scratch = TempDir::new().unwrap();
    let script = "trap 'exit 3' TERM; kill -INT 1; while :; do sleep 0.02; done";
    as_process_1(&scratch).args(["-q", "shard", "-c", script]).said().ended(130);
}

#[test]
fn a_guard_started_by_hand_does_nothing() {
    let script = r#"exec -a lr-guard "$0" 99"#;
    let program = env!("CARGO_BIN_EXE_leaderrun");
    let said = Command::new("bash").args(["-c", script, program]).said();
    said.ended(64).tells("only leaderrun starts this program");
}

fn a_frozen_process_is_passed_over(backstop: bool) {
    let mut fleet = fleet(&["one"], &["daemon"]).fleet;
    let leader = fleet.leader();
    let [first, second] = helpers_of(fleet.pid(&leader.owner));
    kill(if backstop { first } else { second }, Signal::SIGSTOP).unwrap();
    // The stop timeout is 300 ms, so one request is enough.
    fleet.stop("one");
    fleet.conclude();
}

#[test]
fn a_frozen_guard_does_not_keep_a_leader_from_leaving() {
    a_frozen_process_is_passed_over(false);
}

#[test]
fn a_frozen_backstop_does_not_keep_a_leader_from_leaving() {
    a_frozen_process_is_passed_over(true);
}
