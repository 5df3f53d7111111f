//! Leaves of an earlier crash in a delegated cgroup are gone before the next COMMAND starts; and what COMMAND inherits.

use crate::host::{Host, LEADERRUN, SHELL};
use crate::support::prelude::*;

/// Runs `script` by a shell on a host of its own, in a cgroup that is delegated to it; `$L` is leaderrun. Returns what
/// it wrote on standard error.
fn on_a_host(name: &str, script: &str) -> String {
    let scratch = TempDir::new().expect("a scratch directory");
    let place = scratch.path().display().to_string();
    let store = format!("file:{place}/store");
    let environment = [("L", LEADERRUN[0].to_owned()), ("LEADERRUN_STORE", store), ("SCRATCH", place)];
    let words = ["-c", script].map(str::to_owned);
    let group = format!("cgroup=leaderrun-attack-{}-{name}", std::process::id());
    let host = Host::start(scratch.path(), "host", SHELL, &[group], &words, &environment);
    wait_until_or("the script ends", || host.log(), || host.ended().is_some());
    host.log()
}

#[test]
fn what_a_crash_left_in_a_leaf_is_killed_at_the_next_start_and_what_lives_is_not() {
    let said = on_a_host(
        "crash",
        r#"
        lives() { kill -0 "$1" && ! grep -q '^State:.Z' "/proc/$1/status"; }
        $L -q one -- sh -c 'trap "" TERM; setsid sleep 1000 & echo $! >"$SCRATCH/crashed"; wait' &
        until [ -s "$SCRATCH/crashed" ]; do sleep 0.05; done
        kill -9 $(pgrep -x leaderrun) $(pgrep -x lr-guard) $(pgrep -x lr-backstop)
        $L -q two -- sh -c 'echo $$ >"$SCRATCH/lives"; exec sleep 1000' &
        until [ -s "$SCRATCH/lives" ]; do sleep 0.05; done
        lives $(cat "$SCRATCH/crashed") && echo the crashed one lives >&2
        $L -q three -- true
        lives $(cat "$SCRATCH/lives") && echo the other one lives >&2
        kill $(pgrep -x leaderrun)
        wait
        where=$($L --explain x | sed -n 's/.*a cgroup below \([^,]*\),.*/\1/p')
        ls -d "$where"/payload-* >&2
        echo end >&2
        "#,
    );
    assert!(!said.contains("the crashed one lives"), "{said}");
    assert!(said.contains("the other one lives") && said.contains("No such file"), "{said}");
    assert!(said.ends_with("end\n"), "{said}");
}

#[test]
fn command_has_the_priority_that_leaderrun_was_started_with() {
    let said = on_a_host(
        "priority",
        r#"
        for method in walk cgroup pidns; do
            nice -n 7 $L -q --contain $method x -- sh -c 'nice >&2; chrt -p $$ | grep policy >&2'
            chrt -b 0 $L -q --contain $method x -- sh -c 'nice >&2; chrt -p $$ | grep policy >&2'
        done
        $L -q x -- sh -c 'chrt -p $(pgrep -x lr-guard) | grep policy >&2'
        # The candidate has its own a moment after COMMAND was started.
        $L -q x -- sh -c '
            for attempt in $(seq 100); do
                said=$(chrt -p $(pgrep -ox leaderrun) | grep priority)
                case $said in *": 97") break ;; esac
                sleep 0.1
            done
            echo $said >&2'
        "#,
    );
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 14, "{said}");
    for of_method in lines[..12].chunks(4) {
        assert_eq!(of_method[0], "7", "{said}");
        assert!(of_method[1].ends_with("SCHED_OTHER"), "{said}");
        assert_eq!(of_method[2], "0", "{said}");
        assert!(of_method[3].ends_with("SCHED_BATCH"), "{said}");
    }
    // Where this test may have it, guard and candidate have it; else nothing is shown of it.
    assert!(lines[12].contains("SCHED_FIFO") || !may_be_real_time(), "{said}");
    assert!(lines[13].ends_with(": 97") || !may_be_real_time(), "{said}");
}

fn may_be_real_time() -> bool {
    Command::new("chrt").args(["-f", "1", "true"]).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

#[test]
fn what_cannot_be_had_is_refused_before_anything_is_acquired() {
    // The cgroup of this test was delegated to nobody here.
    let said = leaderrun().args(["--contain", "cgroup", "--store", "file:/nonexistent/x", "a", "true"]).said();
    said.refused(71, "leaderrun: --contain cgroup does not work here: ");
}
