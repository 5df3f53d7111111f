//! Job control in a real shell on a real terminal (tmux): as if COMMAND ran alone.

mod support;

use std::fs;
use support::fleet::wait_until;
use support::shell::Shell;

/// One process, which Ctrl-C ends at any time. dash loses it in the millisecond in which it starts a child: of its group
/// only dash itself gets the signal then, and it waits for the child before it heeds it.
const SLEEPER: &str = r#"perl -e '$| = 1; print "up\n"; sleep 1000'"#;

#[test]
fn ctrl_c_interrupts_command_and_gives_the_terminal_back() {
    let shell = Shell::start();
    shell.line("leaderrun -q s -- sh -c 'trap \"echo caught; exit 3\" INT; echo up; while :; do sleep 0.05; done'");
    shell.wait_for("\nup");
    shell.keys(&["C-c"]);
    shell.wait_for("caught");
    shell.line("echo status $?");
    shell.wait_for("status 3");
}

#[test]
fn ctrl_c_ends_a_command_that_does_not_catch_it_with_130() {
    let shell = Shell::start();
    shell.line(&format!("leaderrun -q s -- {SLEEPER}"));
    shell.wait_for("\nup");
    shell.keys(&["C-c"]);
    shell.line("echo status $?");
    shell.wait_for("status 130");
}

#[test]
fn ctrl_c_ends_what_would_be_started_again_whether_it_runs_or_waits_for_that() {
    let shell = Shell::start();
    shell.line(&format!("leaderrun -q --restart always s -- {SLEEPER}"));
    shell.wait_for("\nup");
    shell.keys(&["C-c"]);
    shell.line("echo status $?");
    shell.wait_for("status 130");
    shell.line("leaderrun --restart always --restart-delay 1h s -- sh -c 'exit 7'");
    shell.wait_for("restarting in ");
    shell.keys(&["C-c"]);
    shell.line("echo status $?");
    shell.wait_for("status 7");
}

#[test]
fn command_reads_from_the_terminal() {
    let shell = Shell::start();
    shell.line("leaderrun -q s -- sh -c 'echo name?; read name; echo hello $name'");
    shell.wait_for("\nname?");
    shell.line("world");
    shell.wait_for("hello world");
}

#[test]
fn ctrl_z_stops_it_and_fg_goes_on() {
    let shell = Shell::start();
    shell.line("leaderrun -q s -- sh -c 'echo up; while read x; do echo got $x; done'");
    shell.wait_for("\nup");
    for round in ["one", "two", "three"] {
        shell.keys(&["C-z"]);
        wait_until("the shell has the terminal", || shell.screen().matches("Stopped").count() > 0);
        shell.line(&format!("echo prompt-{round}"));
        shell.wait_for(&format!("\nprompt-{round}"));
        shell.line("clear; fg");
        // bash has left its line editor by the time that it names the job.
        wait_until("it goes on", || {
            let screen = shell.screen();
            !screen.contains("prompt-") && screen.contains("leaderrun -q s")
        });
        shell.line(round);
        shell.wait_for(&format!("got {round}"));
    }
    shell.keys(&["C-d"]);
    shell.line("echo status $?");
    shell.wait_for("status 0");
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
    shell.line(&format!("leaderrun -q s -- perl {}", script.display()));
    shell.wait_for("\nup");
    shell.keys(&["C-z"]);
    shell.wait_for("Stopped");
    let stopped = shell.file().len();
    shell.line("bg");
    wait_until("it goes on", || shell.file().len() > stopped + 20);
    shell.line("kill %1; wait %1; echo status $?");
    shell.wait_for("status 143");
}

#[test]
fn a_terminal_that_takes_nothing_from_the_background_does_not_stop_the_candidate() {
    let shell = Shell::start();
    shell.line("stty tostop");
    shell.line("leaderrun -v s -- sh -c 'read answer; echo answer $answer; read answer'");
    shell.wait_for("started the command");
    shell.line("yes");
    shell.wait_for("answer yes");
    shell.line("");
    shell.line("echo status $?");
    shell.wait_for("status 0");
    assert!(!shell.screen().contains("Stopped"), "{}", shell.screen());
}

#[test]
fn a_reader_at_the_end_of_a_pipeline_keeps_the_terminal() {
    let shell = Shell::start();
    let reader = "bash -c 'cat; echo end; read answer < /dev/tty; echo answer $answer'";
    shell.line(&format!("leaderrun -q s -- echo from command | {reader}"));
    shell.wait_for("\nend");
    shell.line("yes");
    shell.wait_for("answer yes");
    assert!(shell.screen().contains("\nfrom command"));
}

#[test]
fn a_script_that_runs_it_is_interrupted_as_well() {
    let shell = Shell::start();
    let script = shell.path().join("script");
    fs::write(&script, format!("leaderrun -q s -- {SLEEPER}\necho not interrupted\n")).unwrap();
    shell.line(&format!("bash {}", script.display()));
    shell.wait_for("\nup");
    shell.keys(&["C-c"]);
    shell.line("echo status $?");
    shell.wait_for("status 130");
    assert!(!shell.screen().contains("not interrupted"));
}

#[test]
fn ctrl_c_ends_a_standby() {
    let shell = Shell::start();
    shell.line("leaderrun -q s -- sh -c 'echo up; while :; do sleep 0.05; done' < /dev/null > $FILE &");
    wait_until("it leads", || shell.file().contains("up"));
    shell.line("leaderrun -v s -- echo never");
    shell.wait_for("waiting: ");
    shell.keys(&["C-c"]);
    shell.line("echo status $?");
    shell.wait_for("status 130");
    shell.line("kill %1; wait");
}

#[test]
fn at_a_terminal_a_first_try_needs_no_store_and_warns_also_when_quiet() {
    let shell = Shell::start();
    let home = shell.path().display();
    shell.line(&format!("env -u LEADERRUN_STORE XDG_STATE_HOME={home} leaderrun -q test/default-store echo it ran"));
    shell.wait_for("\nit ran");
    assert!(shell.screen().contains("leaderrun: warning: no store named: using file:/"), "{}", shell.screen());
}

#[test]
fn list_fits_the_terminal_and_shows_both_ends_of_a_long_name() {
    let shell = Shell::start();
    shell.resize(100);
    let owner = format!("first-{}-last", "x".repeat(80));
    shell.line(&format!("leaderrun -q --owner {owner} s sleep 1000 &"));
    shell.line("until leaderctl status s | grep -q ': led'; do sleep 0.1; done; echo led-$((1 + 1))");
    shell.wait_for("led-2");
    shell.line(
        "clear; leaderctl pause s --keep --reason 'two words' >/dev/null; leaderctl list; echo listed-$((1 + 1))",
    );
    shell.wait_for("listed-2");
    let screen = shell.screen();
    let lines: Vec<&str> = screen.lines().collect();
    let header = lines.iter().position(|line| line.starts_with("SHARD ")).expect("a header");
    let row: Vec<&str> = lines[header + 1].split_whitespace().collect();
    assert!(row.len() == 9 && row[1].starts_with("first-xx") && row[1].ends_with("xx-last"), "{screen}");
    assert!(row[1].contains("xx...xx") && lines[header + 2].starts_with("  paused by "), "{screen}");
    assert!(lines[header + 2].ends_with(", the leader goes on: two words"), "{screen}");
    // The same in a pipe has names as they are.
    shell.line(&format!("leaderctl list | grep -c {owner}; echo counted-$((1 + 1))"));
    shell.wait_for("\n1\ncounted-2");
    shell.line("kill %1; wait");
}
