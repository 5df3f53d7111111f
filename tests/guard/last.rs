//! The last process that can kill a tree goes on until the tree is dead.

use crate::support::prelude::*;
use crate::support::process::told_of;
use crate::{GRACE, Script, slay};
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};

/// A shell script that starts 300 processes that ignore SIGTERM, each in a session of its own, and then what `more`
/// says. All of them hold a lock on `FILE`.
fn crowd(more: &str) -> String {
    let idle = r#"setsid perl -e 'sleep 100' "$FILE" &"#;
    format!("trap '' TERM; exec 9>$FILE; flock -s 9; for i in $(seq 300); do {idle} done; {more} wait")
}

fn has_ended(pid: Pid) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// Starts a leader of a crowd. `harm` to (candidate, backstop, guard) makes the candidate kill the tree, and returns
/// the helpers that are left. As soon as one of these ends, the candidate is killed. Nothing else of the tree may live
/// then.
fn a_candidate_is_killed_while_it_kills(more: &str, harm: impl Fn(Pid, Pid, Pid) -> Vec<Pid>) {
    // With a usual priority, this thread would wait while the crowd is killed.
    let hurry = |hurry: bool| {
        let (policy, priority) = if hurry { ("--fifo", "9") } else { ("--other", "0") };
        let thread = nix::unistd::gettid().to_string();
        let _ = std::process::Command::new("chrt").args([policy, "-p", priority, &thread]).status();
    };
    let mut leader = Script::start(GRACE, &crowd(more));
    let mark = leader.scratch.path().join("file");
    wait_until("the crowd is there", || processes_naming(&mark).len() >= 300);
    let candidate = leader.child.pid();
    let [backstop, guard] = helpers_of(candidate);
    hurry(true);
    let left = harm(candidate, backstop, guard);
    let begun = Instant::now();
    while !left.iter().any(|&pid| has_ended(pid)) && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_micros(50));
    }
    slay(candidate);
    let free = fs::File::open(&mark).unwrap().try_lock().is_ok();
    hurry(false);
    leader.child.wait().unwrap();
    wait_until("nothing is left", || processes_naming(&mark).is_empty());
    assert!(begun.elapsed() < PATIENCE, "no helper ends");
    assert!(free, "a helper was killed before the tree was dead");
}

#[test]
fn a_candidate_killed_while_it_stands_in_for_the_backstop_leaves_nobody() {
    // Each generation ends once the next is there, so these outlive a kill of all that can be seen.
    let chain = "$u = time + 100; while (time < $u) { fork and exit }";
    let chains = format!("for i in 1 2 3; do setsid -f perl -e '{chain}' \"$FILE\"; done;");
    for more in ["", &chains] {
        a_candidate_is_killed_while_it_kills(more, |_, backstop, guard| {
            slay(backstop);
            vec![guard]
        });
    }
}

#[test]
fn a_candidate_killed_while_it_stands_in_for_a_frozen_guard_leaves_nobody() {
    a_candidate_is_killed_while_it_kills("", |candidate, backstop, guard| {
        kill(guard, Signal::SIGSTOP).unwrap();
        // The candidate waits for the stop timeout and a second, and kills the tree then.
        kill(candidate, Signal::SIGTERM).unwrap();
        vec![backstop, guard]
    });
}

#[test]
fn a_guard_whose_backstop_is_frozen_is_missed() {
    let script = "setsid -f sleep 1000; env > $FILE; echo up >> $FILE; exec sleep 1000";
    let mut leader = Script::start(&["--after-loss", "exit"], script);
    leader.wait_for("\nup\n");
    let environment = leader.file();
    let told =
        environment.lines().filter_map(|line| line.split_once('=')).filter(|(name, _)| name.starts_with("LEADERRUN_"));
    let verify = || leaderctl().arg("verify").envs(told.clone()).said().code;
    assert_eq!(verify(), 0);
    let [backstop, guard] = helpers_of(leader.child.pid());
    kill(backstop, Signal::SIGSTOP).unwrap();
    slay(guard);
    wait_until("the guard is dead", || has_ended(guard));
    // What is left of the tree learns at once that it does not lead any more, and not only once the candidate kills it.
    assert!((0..3).any(|_| verify() == 79));
    // Nobody reports the end of COMMAND.
    assert_eq!(leader.status(), Some(79));
}

/// A leader whose backstop (of generation 1) or guard (of generation 2) a tracer holds before its first instruction.
fn held_at_birth(generation: u32) -> (Script, Pid) {
    let flags = ["--contain", "walk", "--stop-timeout", "300ms", "--after-loss", "exit"];
    let all = Some(WaitPidFlag::__WALL);
    // Where there is a filter of system calls, the candidate first forks a child that tries some.
    let mut others = u32::from(told_of("self", "Seccomp") != Some(0));
    loop {
        let leader = Script::start(&flags, "echo up > $FILE; exec sleep 1000");
        let mut held = leader.child.pid();
        ptrace::seize(held, ptrace::Options::PTRACE_O_TRACEFORK).unwrap();
        if !children_of(held.as_raw()).is_empty() {
            // The tracer was late.
            continue;
        }
        let mut left = generation;
        loop {
            match waitpid(held, all).unwrap() {
                WaitStatus::PtraceEvent(_, _, libc::PTRACE_EVENT_FORK) => {
                    let child = Pid::from_raw(ptrace::getevent(held).unwrap().try_into().unwrap());
                    waitpid(child, all).unwrap();
                    if others > 0 {
                        others -= 1;
                        ptrace::detach(child, None).unwrap();
                        ptrace::cont(held, None).unwrap();
                        continue;
                    }
                    ptrace::detach(held, None).unwrap();
                    held = child;
                    left -= 1;
                    if left == 0 {
                        return (leader, held);
                    }
                    ptrace::cont(held, None).unwrap();
                }
                WaitStatus::Stopped(_, signal) => ptrace::cont(held, signal).unwrap(),
                status => panic!("{status:?}"),
            }
        }
    }
}

/// Its tracer hears first of its end.
fn wait_until_it_is_killed(held: Pid) {
    let end = || waitpid(held, Some(WaitPidFlag::__WALL | WaitPidFlag::WNOHANG)).unwrap();
    wait_until("it is killed", || end() == WaitStatus::Signaled(held, Signal::SIGKILL, false));
}

fn what_is_held_at_birth_is_missed(generation: u32) {
    let (mut leader, held) = held_at_birth(generation);
    wait_until_it_is_killed(held);
    assert_eq!(leader.status(), Some(79));
    assert_eq!(leader.file(), "");
}

#[test]
fn a_backstop_that_the_kernel_does_not_execute_is_missed() {
    what_is_held_at_birth_is_missed(1);
}

#[test]
fn a_guard_that_is_frozen_before_it_sets_its_kill_timer_is_missed() {
    what_is_held_at_birth_is_missed(2);
}

#[test]
fn a_candidate_obeys_while_the_kernel_executes_its_backstop() {
    let (mut leader, backstop) = held_at_birth(1);
    leader.signal(Signal::SIGTERM);
    wait_until_it_is_killed(backstop);
    assert_eq!(leader.status(), Some(143));
}

#[cfg(feature = "redis")]
#[test]
fn a_guard_that_is_left_alone_goes_on_however_long_the_tree_takes_to_die() {
    use crate::support::server::Server as _;
    let mut server = crate::support::redis::Server::forgetful();
    crate::support::server::prepare(&server);
    server.grow_old();
    let store = format!("redis://{}", server.address());
    let flags = [GRACE, &["--lease", "6s", "--renew", "500ms"]].concat();
    let leader = Script::start_on(Some(&store), &flags, r#"setsid sleep 1000 & echo "$! " > $FILE; wait"#);
    leader.wait_for(" ");
    let member = Pid::from_raw(leader.file().trim().parse().unwrap());
    // Its parent cannot reap a dead process before the one that traces it has.
    ptrace::seize(member, ptrace::Options::empty()).unwrap();
    let [backstop, guard] = helpers_of(leader.child.pid());
    leader.signal(Signal::SIGSTOP);
    slay(backstop);
    let next = Script::start_on(Some(&store), &flags, "echo up > $FILE; exec sleep 1000");
    next.wait_for("up");
    assert!(!has_ended(guard), "its kill timer has killed the guard while it was killing");
    // ptrace(2): a tracer gets the end of what it traces, as a parent does.
    assert_eq!(waitpid(member, None), Ok(WaitStatus::Signaled(member, Signal::SIGKILL, false)));
    wait_until("the guard ends", || has_ended(guard));
}

/// `killall leaderrun` asks all three to end, and only the candidate obeys.
#[cfg(feature = "redis")]
#[test]
fn a_backstop_that_was_asked_to_end_gives_the_lease_of_a_killed_candidate_back_all_the_same() {
    let place = crate::support::place::Place::remote(Box::new(crate::support::redis::Server::start()));
    let leader = Script::start_on(Some(&place.url), &["--lease", "10m"], "echo up > $FILE; exec sleep 1000");
    leader.wait_for("up");
    let [backstop, _] = helpers_of(leader.child.pid());
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        kill(backstop, signal).unwrap();
    }
    slay(leader.child.pid());
    leaderrun().args(["-w", "1m", "--store", &place.url, "shard", "true"]).said().good();
}

/// poll(2) refuses to look at more files than a process may have open.
#[test]
fn helpers_whose_descriptors_are_taken_away_kill_the_tree_of_a_killed_candidate() {
    let script = "trap '' TERM; setsid perl -e 'sleep 1000' \"$FILE\" & echo up > $FILE; wait";
    let leader = Script::start(GRACE, script);
    leader.wait_for("up");
    for helper in helpers_of(leader.child.pid()) {
        let helper = helper.to_string();
        std::process::Command::new("prlimit").args(["--nofile=0:0", "--pid", &helper]).said().good();
    }
    slay(leader.child.pid());
    let mark = leader.scratch.path().join("file");
    wait_until("nothing is left", || processes_naming(&mark).is_empty());
}
