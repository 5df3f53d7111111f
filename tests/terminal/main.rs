//! Job control in a real shell on a real terminal (tmux): as if COMMAND ran alone.

#[path = "../support/mod.rs"]
mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::thread::sleep;
use std::time::Duration;
use support::fleet::{leaderctl, wait_until, wait_until_or};
use support::shell::Shell;

/// One process, which Ctrl-C ends at any time. dash loses it in the millisecond in which it starts a child: of its group
/// only dash itself gets the signal then, and it waits for the child before it heeds it.
const SLEEPER: &str = r#"perl -e '$| = 1; print "up\n"; sleep 1000'"#;

#[test]
fn ctrl_c_interrupts_command_and_gives_the_terminal_back() {
    let shell = Shell::start();
    shell.shows(
        "leaderrun -q s -- sh -c 'trap \"echo caught; exit 3\" INT; echo up; while :; do sleep 0.05; done'",
        "\nup",
    );
    shell.press("C-c", "caught");
    shell.status(3);
}

#[test]
fn ctrl_c_ends_what_would_be_started_again_whether_it_runs_or_waits_for_that() {
    let shell = Shell::start();
    shell.shows(&format!("leaderrun -q --restart always s -- {SLEEPER}"), "\nup");
    shell.keys(&["C-c"]);
    shell.status(130);
    shell.shows("leaderrun --restart always --restart-delay 1h s -- sh -c 'exit 7'", "restarting in ");
    shell.keys(&["C-c"]);
    shell.shows("echo then $?", "then 130");
}

#[test]
fn a_start_by_hand_of_a_job_says_that_it_counts_as_the_run_of_its_period_also_with_q() {
    let shell = Shell::start();
    shell.shows("leaderrun -q --every 1d s -- true; echo over $?", "counts as the run of ");
    shell.wait_for("; leave --every out to run besides");
    shell.wait_for("over 0");
    // No person starts it there.
    shell.shows("clear; leaderrun -q --every 1d t -- true < /dev/null > /dev/null 2> \"$FILE\"; echo then $?; wc -c < \"$FILE\"", "then 0\n0");
}

#[test]
fn ctrl_z_stops_it_and_fg_goes_on() {
    let shell = Shell::start();
    shell.shows("leaderrun -q s -- sh -c 'echo up; while read x; do echo got $x; done'", "\nup");
    for round in ["one", "two", "three"] {
        shell.keys(&["C-z"]);
        wait_until("the shell has the terminal", || shell.screen().matches("Stopped").count() > 0);
        shell.shows(&format!("echo prompt-{round}"), &format!("\nprompt-{round}"));
        shell.line("clear; fg");
        // bash has left its line editor by the time that it names the job.
        wait_until("it goes on", || {
            let screen = shell.screen();
            !screen.contains("prompt-") && screen.contains("leaderrun -q s")
        });
        shell.shows(round, &format!("got {round}"));
    }
    shell.keys(&["C-d"]);
    shell.status(0);
}

/// As bash does where it is typed: `suspend`.
#[test]
fn a_command_that_stops_itself_gives_the_terminal_back_and_fg_goes_on() {
    let shell = Shell::start();
    shell.shows("leaderrun -q s -- sh -c 'echo up; kill -STOP $$; read x; echo got $x'", "Stopped");
    shell.shows("echo prompt-one", "\nprompt-one");
    shell.line("clear; fg");
    wait_until("it goes on", || !shell.screen().contains("prompt-one") && shell.screen().contains("leaderrun -q s"));
    shell.shows("one", "got one");
    shell.status(0);
}

/// Only a shell could continue the candidate.
#[test]
fn where_nobody_controls_jobs_a_command_that_was_stopped_leaves_ctrl_c_to_the_candidate() {
    let shell = Shell::start();
    // It is alone in a session.
    shell.shows(r#"script -qec "leaderrun s -- sh -c 'echo up; kill -STOP \$\$'" /dev/null"#, "\nup");
    wait_until("it can be interrupted", || {
        shell.keys(&["C-c"]);
        shell.screen().contains("released")
    });
}

#[test]
fn bg_goes_on_without_the_terminal() {
    let shell = Shell::start();
    // One process without children: dash starts its own by vfork(2), and when such a child is stopped before it has
    // become what it is to be, dash waits for it and cannot be stopped itself.
    let script = shell.path().join("script");
    let ticks = r#"$| = 1; print "up\n";
        for (;;) { open F, ">>$ENV{FILE}"; print F "tick\n"; close F; select undef, undef, undef, 0.05 }"#;
    fs::write(&script, ticks).unwrap();
    shell.shows(&format!("leaderrun -q s -- perl {}", script.display()), "\nup");
    shell.press("C-z", "Stopped");
    let stopped = shell.file().len();
    shell.line("bg");
    wait_until("it goes on", || shell.file().len() > stopped + 20);
    shell.shows("kill %1; wait %1; echo status $?", "status 143");
}

#[test]
fn a_background_job_that_the_terminal_has_stopped_still_ends_after_its_longest_run() {
    let shell = Shell::start();
    // The terminal stops `cat`, and with it the job.
    shell.line("leaderrun -q --max-run 2s s -- cat &");
    // `wait -f` of bash 5.2 does not always wait for a job that is stopped.
    wait_until("it ends", || {
        shell.line("jobs");
        shell.screen().contains("Exit 124")
    });
}

#[test]
fn a_terminal_that_takes_nothing_from_the_background_does_not_stop_the_candidate() {
    let shell = Shell::start();
    shell.line("stty tostop");
    shell.shows("leaderrun -v s -- sh -c 'read answer; echo answer $answer; read answer'", "started the command");
    shell.shows("yes", "answer yes");
    shell.line("");
    shell.status(0);
    assert!(!shell.screen().contains("Stopped"), "{}", shell.screen());
}

#[test]
fn a_reader_at_the_end_of_a_pipeline_keeps_the_terminal() {
    let shell = Shell::start();
    let reader = "bash -c 'cat; echo end; read answer < /dev/tty; echo answer $answer'";
    shell.shows(&format!("leaderrun -q s -- echo from command | {reader}"), "\nend");
    shell.shows("yes", "answer yes");
    assert!(shell.screen().contains("\nfrom command"));
}

#[test]
fn a_script_that_runs_it_is_interrupted_as_well() {
    let shell = Shell::start();
    let script = shell.path().join("script");
    fs::write(&script, format!("leaderrun -q s -- {SLEEPER}\necho not interrupted\n")).unwrap();
    shell.shows(&format!("bash {}", script.display()), "\nup");
    shell.keys(&["C-c"]);
    shell.status(130);
    assert!(!shell.screen().contains("not interrupted"));
}

#[test]
fn at_a_terminal_a_first_try_needs_no_store_and_warns_also_when_quiet() {
    let shell = Shell::start();
    let home = shell.path().display();
    shell.shows(
        &format!("env -u LEADERRUN_STORE XDG_STATE_HOME={home} leaderrun -q test/default-store echo it ran"),
        "\nit ran",
    );
    assert!(shell.screen().contains("leaderrun: warning: no store named: using file:/"), "{}", shell.screen());
}

#[test]
fn at_a_terminal_verbs_that_read_show_local_files_with_a_warning_and_not_inside_command() {
    let shell = Shell::start();
    let home = shell.path().display();
    let without = format!("env -u LEADERRUN_STORE XDG_STATE_HOME={home}");
    shell.shows(&format!("clear; {without} leaderctl status test/default-store; echo ended-$?"), "ended-0");
    let screen = shell.screen();
    assert!(screen.contains("leaderctl: warning: no store named: using file:/"), "{screen}");
    assert!(screen.contains("test/default-store: "), "{screen}");
    shell.shows(&format!("clear; {without} leaderctl pause test/default-store; echo ended-$?"), "ended-64");
    shell.shows(
        &format!("clear; leaderrun -q s {without} leaderctl status test/default-store; echo within-$?"),
        "within-64",
    );
    let screen = shell.screen();
    assert!(screen.contains("no store named; this runs inside a leadership"), "{screen}");
}

#[test]
fn a_pager_at_the_end_of_a_pipeline_has_the_terminal() {
    let shell = Shell::start();
    shell.shows("seq 1000 | leaderrun -q s -- less", "\n48\n49\n:");
    shell.keys(&["G"]);
    shell.wait_for("\n1000\n(END)");
    shell.press("C-z", "Stopped");
    shell.shows("clear; fg", "\n1000\n(END)");
    shell.keys(&["q"]);
    shell.status(0);
}

#[test]
fn a_prompt_reads_from_the_terminal_wherever_the_standard_streams_lead() {
    let shell = Shell::start();
    let prompt =
        |name: &str| format!("sh -c 'echo {name}-$((1 + 1)) >&2; read x < /dev/tty; echo got $x; read y; echo and $y'");
    shell.line(&format!("echo input | leaderrun -q s -- {} | cat", prompt("first")));
    // What is typed before, while the shell still edits its line, may be lost.
    shell.wait_for("first-2");
    shell.shows("answer", "got answer\nand input");
    // Between the shell and us there may be a script, which starts its pipelines in its own group.
    let script = shell.path().join("script");
    let pipeline = format!("echo input | leaderrun -q s -- {} | cat", prompt("second"));
    fs::write(&script, format!("clear; {pipeline}\nread z; echo then $z\n")).unwrap();
    shell.shows(&format!("bash {}", script.display()), "second-2");
    shell.shows("another", "got another\nand input");
    shell.shows("last", "then last");
}

#[test]
fn of_two_commands_in_a_pipeline_the_first_keeps_the_terminal_and_the_second_waits_for_it() {
    let shell = Shell::start();
    // The first one's group lives a second longer than its COMMAND, and has the terminal meanwhile.
    let prompt = "sh -c '(trap \"\" TERM; exec sleep 9) & echo up $0 >&2; read x < /dev/tty; echo $0 got $x >&2'";
    let [left, right] = ["a", "b"].map(|shard| format!("leaderrun -q --stop-timeout 1s {shard} -- {prompt}"));
    shell.line(&format!("{left} left | {right} right; echo status $?"));
    // What is typed before, while the shell still edits its line, may be lost.
    shell.wait_for("up left");
    shell.wait_for("up right");
    shell.shows("one", " got one");
    shell.shows("two", " got two");
    shell.wait_for("status 0");
    let screen = shell.screen();
    assert!(screen.contains("left got ") && screen.contains("right got "), "{screen}");
}

#[test]
fn a_neighbour_in_a_pipeline_waits_for_the_terminal_that_command_has() {
    let shell = Shell::start();
    let prompt = "sh -c 'echo begun >&2; read x < /dev/tty; echo up >&2; read x < /dev/tty; echo command got $x'";
    let neighbour = "bash -c 'cat; read x < /dev/tty; echo neighbour got $x'";
    shell.shows(&format!("leaderrun -q s -- {prompt} | {neighbour}"), "\nbegun");
    shell.shows("", "\nup");
    shell.shows("one", "command got one");
    shell.shows("two", "neighbour got two");
    assert!(!shell.screen().contains("Stopped"), "{}", shell.screen());
}

#[test]
fn a_background_job_that_wants_the_terminal_is_stopped_until_fg() {
    let shell = Shell::start();
    shell.line("echo a | leaderrun -q s -- sh -c 'read x < /dev/tty; echo got $x' &");
    wait_until("it is stopped", || {
        shell.line("jobs");
        shell.screen().contains("Stopped")
    });
    shell.line("clear; echo fore-$((1 + 1)); fg");
    // What is typed before, while the shell still edits its line, may be lost.
    shell.wait_for("fore-2");
    shell.shows("answer", "got answer");
}

#[test]
fn one_ctrl_c_ends_a_loop_of_candidates_whether_they_wait_or_lead() {
    let shell = Shell::start();
    shell.line("leaderrun -q s sleep 1000 & until leaderctl status s | grep -q ': led'; do sleep 0.1; done");
    shell.shows("clear; for i in 1 2 3; do echo wait-$((i + 1)); leaderrun -v s -- true; done", "waiting: ");
    shell.keys(&["C-c"]);
    shell.shows("kill %1; wait; clear; echo status $?", "status 0\n");
    shell.shows(&format!("clear; for i in 1 2 3; do echo turn-$i; leaderrun -q s -- {SLEEPER}; done"), "\nup");
    shell.keys(&["C-c"]);
    shell.shows("echo end-$((1 + 1))", "end-2");
    assert!(!shell.screen().contains("turn-2"), "{}", shell.screen());
}

#[test]
fn ctrl_c_that_command_catches_is_no_reason_to_start_it_again() {
    for (when, status) in [("always", 0), ("always", 130), ("on-failure", 1)] {
        let shell = Shell::start();
        let command = format!("sh -c 'trap \"exit {status}\" INT; echo up; while :; do sleep 0.05; done'");
        shell.shows(&format!("leaderrun -q --restart {when} s -- {command}; echo status $?"), "\nup");
        shell.press("C-c", &format!("status {status}"));
    }
}

#[test]
fn ctrl_c_counts_for_nothing_once_command_has_gone_on() {
    let shell = Shell::start();
    let command = "sh -c 'trap \"echo caught\" INT; echo up $(wc -l < $FILE); echo run >> $FILE; while :; do read x && exit 1; done'";
    shell.shows(
        &format!("touch $FILE; clear; leaderrun -q -k 300ms --restart always --restart-delay 1ms s -- {command}"),
        "up 0",
    );
    shell.press("C-c", "caught");
    // The guard may hear of it later than the command, on a busy machine.
    sleep(Duration::from_millis(1500));
    shell.shows("", "\nup 1");
    shell.keys(&["C-\\"]);
    shell.wait_for("\nready>");
}

#[test]
fn a_signal_that_somebody_sends_to_command_is_not_the_keyboards() {
    let shell = Shell::start();
    let script = shell.path().join("script");
    let interrupted = "-- sh -c 'echo run >> $FILE; kill -INT $$'";
    fs::write(
        &script,
        format!(
            "leaderrun -q s {interrupted}; echo status-$?
            leaderrun -q -n --restart always --restart-limit 1 --restart-delay 1ms s {interrupted}; echo then-$?\n"
        ),
    )
    .unwrap();
    shell.shows(&format!("bash {}", script.display()), "status-130\nthen-130");
    assert_eq!(shell.file(), "run\nrun\nrun\n");
}

#[test]
fn a_candidate_whose_terminal_is_closed_stops_in_order_and_dies_from_sighup() {
    // Its parent outlives the terminal and says from which signal it died.
    let parent = r#"perl -e '$SIG{HUP} = sub {}; $s = system @ARGV; open F, ">", "$ENV{FILE}.s"; print F $s & 127'"#;
    for command in [
        "--restart-delay 1h s -- sh -c 'echo up >> $FILE; exit 7'",
        "s -- sh -c 'trap \"\" HUP; trap \"echo stopped >> $FILE; exit 1\" TERM; echo up >> $FILE; while :; do sleep 0.1; done'",
        "s -- sh -c 'echo up >> $FILE; exec sleep 1000' < /dev/null > /dev/null",
    ] {
        let shell = Shell::start();
        shell.line(&format!("{parent} leaderrun -q --restart always {command}"));
        wait_until("it runs", || shell.file().contains("up"));
        shell.close();
        let died_of = shell.path().join("file.s");
        wait_until_or(command, || shell.file(), || died_of.exists() && !fs::read(&died_of).unwrap().is_empty());
        assert_eq!(fs::read_to_string(&died_of).unwrap(), "1", "{command}");
        assert_eq!(shell.file().contains("stopped"), command.contains("stopped"), "{}", shell.file());
    }
}

#[test]
fn sighup_while_the_terminal_is_there_is_passed_on_and_ends_nothing() {
    let shell = Shell::start();
    let command = "sh -c 'trap \"echo told-$((1 + 1))\" HUP; echo up; while :; do sleep 0.05; done'";
    shell.shows(&format!("leaderrun -q s -- {command} & sleep 1000"), "\nup");
    shell.keys(&["C-c"]);
    for times in 1..=2 {
        shell.line("kill -HUP %1");
        shell.wait_until("it is told", || shell.screen().matches("told-2").count() == times);
    }
    shell.shows("jobs", "Running");
    shell.line("kill %1; wait");
}

#[test]
fn the_modes_that_a_killed_command_had_set_are_put_back() {
    let shell = Shell::start();
    shell.line("leaderrun s -- sh -c 'stty raw -echo; echo up > $FILE; exec sleep 1000'");
    wait_until("it runs", || shell.file().contains("up"));
    assert!(leaderctl().args(["pause", "s", "--store", &shell.files()]).status().unwrap().success());
    // The candidate is in the foreground again, and waits.
    shell.wait_for("waiting: paused");
    shell.keys(&["C-c"]);
    shell.status(130);
}

#[test]
fn the_modes_that_a_command_leaves_behind_stay() {
    let shell = Shell::start();
    shell
        .shows("leaderrun -q s -- stty tostop; stty -a | grep -c ' tostop'; echo counted-$((1 + 1))", "\n1\ncounted-2");
}

#[test]
fn the_terminal_comes_back_from_a_command_whose_guard_was_killed() {
    let shell = Shell::start();
    let script = shell.path().join("script");
    let command = r#"perl -e 'open F, ">", $ENV{FILE}; print F getppid, "\n"; close F; sleep 1000'"#;
    fs::write(&script, format!("leaderrun -q --after-loss exit s -- {command}\necho status $?; read x; echo got $x\n"))
        .unwrap();
    shell.line(&format!("bash {}", script.display()));
    wait_until("it runs", || shell.file().ends_with('\n'));
    kill(Pid::from_raw(shell.file().trim().parse().unwrap()), Signal::SIGKILL).unwrap();
    shell.wait_for("status 79");
    shell.shows("answer", "got answer");
}

#[test]
fn a_candidate_that_was_left_behind_on_purpose_leads_on() {
    let shell = Shell::start();
    let command = "leaderrun -q s -- sh -c 'echo up >> $FILE; exec sleep 1000' < /dev/null";
    shell.line(&format!("{command} & echo $! > $FILE.pid"));
    wait_until("it runs", || shell.file().contains("up"));
    let mut pid = String::new();
    wait_until("the shell has written it down", || {
        pid = fs::read_to_string(shell.path().join("file.pid")).unwrap_or_default();
        pid.ends_with('\n')
    });
    let pid = Pid::from_raw(pid.trim().parse().unwrap());
    shell.line("exit");
    wait_until("the terminal is gone", || !shell.is_open());
    sleep(Duration::from_millis(1500));
    kill(pid, Signal::SIGTERM).expect("it runs on");
    wait_until("it ends", || kill(pid, None).is_err());
}
