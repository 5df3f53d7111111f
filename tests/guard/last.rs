//! The last process that can kill a tree goes on until the tree is dead.

use crate::support::fleet::{children_of, processes_naming, wait_until};
use crate::{GRACE, Script, slay};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::time::Duration;

/// A shell script that starts 300 processes that ignore SIGTERM, each in a session of its own, and then what `more`
/// says. All of them hold a lock on `FILE`.
fn crowd(more: &str) -> String {
    let idle = r#"setsid perl -e 'sleep 100' "$FILE" &"#;
    format!("trap '' TERM; exec 9>$FILE; flock -s 9; for i in $(seq 300); do {idle} done; {more} wait")
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
    let candidate = Pid::from_raw(leader.child.id().cast_signed());
    let backstop = Pid::from_raw(children_of(candidate.as_raw())[0]);
    let guard = Pid::from_raw(children_of(backstop.as_raw())[0]);
    let has_ended =
        |pid: &Pid| fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "));
    hurry(true);
    let left = harm(candidate, backstop, guard);
    while !left.iter().any(has_ended) {
        std::thread::sleep(Duration::from_micros(50));
    }
    slay(candidate);
    let free = fs::File::open(&mark).unwrap().try_lock().is_ok();
    hurry(false);
    leader.child.wait().unwrap();
    wait_until("nothing is left", || processes_naming(&mark).is_empty());
    assert!(free, "a helper was killed before the tree was dead");
}

#[test]
fn a_candidate_killed_while_it_stands_in_for_the_backstop_leaves_nobody() {
    // Each generation ends once the next is there, so these outlive a kill of all that can be seen.
    let chain = "$u = time + 100; while (time < $u) { fork and exit }";
    let chains = format!("for i in 1 2 3; do setsid -f perl -e '{chain}' \"$FILE\"; done;");
    for more in ["", "", &chains, &chains] {
        a_candidate_is_killed_while_it_kills(more, |_, backstop, guard| {
            slay(backstop);
            vec![guard]
        });
    }
}

#[test]
fn a_candidate_killed_while_it_stands_in_for_a_frozen_guard_leaves_nobody() {
    for _ in 0..3 {
        a_candidate_is_killed_while_it_kills("", |candidate, backstop, guard| {
            kill(guard, Signal::SIGSTOP).unwrap();
            // The candidate waits for the drain and a second, and kills the tree then.
            kill(candidate, Signal::SIGTERM).unwrap();
            vec![backstop, guard]
        });
    }
}

#[test]
fn a_guard_whose_backstop_is_frozen_is_missed() {
    let mut leader = Script::start(&["--after-loss", "exit"], "setsid -f sleep 1000; echo up > $FILE; exec sleep 1000");
    leader.wait_for("up");
    let backstop = Pid::from_raw(children_of(leader.child.id().cast_signed())[0]);
    let guard = Pid::from_raw(children_of(backstop.as_raw())[0]);
    kill(backstop, Signal::SIGSTOP).unwrap();
    slay(guard);
    // Nobody reports the end of COMMAND.
    assert_eq!(leader.status(), Some(79));
}

/// With this margin, the guard has less than a millisecond until the others would no longer trust it.
#[cfg(feature = "redis")]
#[test]
fn a_guard_that_is_left_alone_kills_a_crowd_however_long_it_takes() {
    use crate::support::server::Server as _;
    let mut server = crate::support::redis::Server::forgetful();
    crate::support::server::prepare(&server);
    server.grow_old();
    let store = format!("redis://{}", server.address());
    let timing = ["--lease", "4s", "--renew", "500ms", "--margin", "41ms"];
    let mut leader = Script::start_on(Some(&store), &[GRACE, &timing].concat(), &crowd(""));
    let mark = leader.scratch.path().join("file");
    wait_until("the crowd is there", || processes_naming(&mark).len() >= 300);
    let backstop = Pid::from_raw(children_of(leader.child.id().cast_signed())[0]);
    leader.signal(Signal::SIGSTOP);
    slay(backstop);
    wait_until("nothing is left", || processes_naming(&mark).is_empty());
    leader.child.kill().unwrap();
    leader.child.wait().unwrap();
}
