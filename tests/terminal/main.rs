//! Job control in a real shell on a real terminal (tmux): as if COMMAND ran alone.

#[path = "../support/mod.rs"]
mod support;

use support::prelude::*;
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

/// A shell continues a stopped job that it sends SIGTERM, and COMMAND asks for the terminal, which the shell has.
#[test]
fn a_stopped_job_that_is_killed_ends_although_command_wants_the_terminal() {
    let shell = Shell::start();
    let reads = "sh -c 'trap \"\" TERM; echo up; while :; do read x; done'";
    shell.shows(&format!("leaderrun -q --stop-timeout 1s s -- {reads}"), "\nup");
    shell.press("C-z", "Stopped");
    shell.line("kill %1; leaderrun -q -w 1m s true");
    shell.status(0);
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
fn at_a_terminal_a_first_try_needs_no_store_and_warns_also_when_quiet() {
    let shell = Shell::start();
    let home = shell.path().display();
    shell.shows(
        &format!("env -u LEADERRUN_STORE XDG_STATE_HOME={home} leaderrun -q test/at-a-terminal echo it ran"),
        "\nit ran",
    );
    assert!(shell.screen().contains("leaderrun: warning: no store named: using file:/"), "{}", shell.screen());
    shell.status(0);
    support::verbs::forget_in_default_store("test/at-a-terminal");
}

#[test]
#[cfg(feature = "redis")]
fn a_trial_of_a_store_that_takes_long_is_told() {
    let slow = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", slow.local_addr().unwrap());
    let shell = Shell::start();
    shell.shows(
        &format!("leaderctl --store {url} --request-timeout 3s store check"),
        "\nleaderctl: trying the store ...",
    );
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
