//! The one line that a standby shows at a terminal while it waits, in a real shell on a real terminal (tmux).

use crate::support::fleet::{leaderctl, leaderrun, wait_until};
use crate::support::process::Process;
use crate::support::said::Runs as _;
use crate::support::shell::Shell;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::process::Stdio;
use std::thread::sleep;
use std::time::Duration;

/// Leads until it is dropped, and releases the lease then.
struct Leader(Process);

impl Leader {
    fn of(store: &str) -> Self {
        let mut command = leaderrun();
        command.args(["--owner", "the-other", "--renew", "1s", "--kill-after", "1s", "--store", store]);
        command.args(["s", "sleep", "1000"]);
        let child = Process::start(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()));
        wait_until("it leads", || status(store).contains("led by the-other"));
        Self(child)
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.0.signal(Signal::SIGTERM);
        self.0.ends();
    }
}

fn status(store: &str) -> String {
    leaderctl().args(["--store", store, "status", "s"]).said().out
}

/// The rows that tell of waiting.
fn lines(shell: &Shell) -> Vec<String> {
    shell.screen().lines().filter(|row| row.contains(": waiting ")).map(str::to_owned).collect()
}

fn the_line(shell: &Shell) -> String {
    // A look may fall between its erasure and the next one.
    let mut seen = Vec::new();
    shell.wait_until("one line", || {
        seen = lines(shell);
        seen.len() == 1
    });
    seen.remove(0)
}

/// That it has waited for, as its line tells; a look that comes late misses some.
fn seconds(shell: &Shell) -> Option<u64> {
    let line = the_line(shell);
    line.strip_prefix("leaderrun: s: waiting ")?.split_once("s: t")?.0.parse().ok()
}

#[test]
fn a_standby_shows_one_line_new_each_second_and_erases_it_before_command_starts() {
    let shell = Shell::start();
    let leader = Leader::of(&shell.files());
    shell.shows("leaderrun s -c 'echo it runs; sleep 1; echo it ran'", "s: the-other (term ");
    let mut told = BTreeSet::new();
    shell.wait_until("it counts the seconds", || {
        told.extend(seconds(&shell));
        told.len() >= 2 && told.last() >= Some(&3)
    });
    drop(leader);
    shell.wait_for("\nit ran");
    let screen = shell.screen();
    assert!(lines(&shell).is_empty() && screen.contains("\nit runs"), "{screen}");
    assert!(screen.contains("\nleaderrun: leading shard"), "{screen}");
}

#[test]
fn other_lines_stand_above_it() {
    let shell = Shell::start();
    let _leader = Leader::of(&shell.files());
    shell.line("leaderrun s -- true");
    the_line(&shell);
    leaderctl().args(["--store", &shell.files(), "pause", "s", "--reason", "deploy"]).said().good();
    shell.wait_until("it waits for the pause", || the_line(&shell).contains("paused by"));
    assert!(the_line(&shell).contains("deploy"), "{}", shell.screen());
    shell.wait_until("the notice stands above the line", || {
        let screen = shell.screen();
        let (told, line) = (screen.find("leaderrun: waiting: paused"), screen.find("leaderrun: s: waiting"));
        told.is_some() && told < line
    });
    shell.keys(&["C-c"]);
    // What is typed before it is erased takes the cursor off its row.
    shell.wait_until("it is erased", || lines(&shell).is_empty());
    shell.status(130);
}

#[test]
fn a_terminal_that_takes_no_output_delays_nothing() {
    let shell = Shell::start();
    let leader = Leader::of(&shell.files());
    shell.line("leaderrun -v s -c 'echo ran >$FILE'");
    the_line(&shell);
    shell.keys(&["C-s"]);
    // It is drawn in vain.
    sleep(Duration::from_millis(2500));
    drop(leader);
    wait_until("it led", || shell.file() == "ran\n");
    // It is gone within its second, though nobody reads its last words.
    wait_until("it released", || status(&shell.files()).contains("free"));
    sleep(Duration::from_millis(1500));
    shell.keys(&["C-q"]);
    shell.status(0);
}

#[test]
fn what_was_to_be_said_meanwhile_is_said_once_the_terminal_goes_on() {
    let shell = Shell::start();
    let leader = Leader::of(&shell.files());
    shell.line("leaderrun -v s -c 'echo ran >$FILE; sleep 1000' </dev/null");
    the_line(&shell);
    shell.keys(&["C-s"]);
    drop(leader);
    wait_until("it led", || shell.file() == "ran\n");
    assert!(!shell.screen().contains("leading"), "{}", shell.screen());
    shell.press("C-q", "\nleaderrun: leading");
    shell.wait_for("\nleaderrun: started the command");
    shell.press("C-c", "\nleaderrun: released");
}

#[test]
fn ctrl_z_fg_and_bg_leave_the_shells_lines_alone() {
    let shell = Shell::start();
    let _leader = Leader::of(&shell.files());
    shell.line("leaderrun s -- true");
    the_line(&shell);
    shell.press("C-z", "Stopped");
    shell.line("clear");
    // Until then, the line of before may be taken for one of after.
    shell.wait_until("it is cleared", || shell.screen() == "ready>");
    shell.line("fg");
    shell.wait_until("it goes on", || lines(&shell).len() == 1);
    shell.keys(&["C-z"]);
    // What is typed before the shell has the terminal again may be lost.
    shell.wait_for("Stopped");
    shell.shows("clear; bg", "leaderrun s -- true &");
    shell.keys(&["echo", "Space", "half", "Space", "a", "Space", "line"]);
    shell.wait_until("it is typed", || shell.screen().ends_with("ready> echo half a line"));
    sleep(Duration::from_millis(2500));
    let screen = shell.screen();
    assert!(screen.ends_with("ready> echo half a line") && lines(&shell).is_empty(), "{screen}");
    shell.shows("; kill %1; wait %1; echo status $?", "status 143");
}

#[test]
fn nobody_who_does_not_look_at_a_terminal_gets_it() {
    let shell = Shell::start();
    let _leader = Leader::of(&shell.files());
    let ways = [
        "leaderrun -w 2s s -- true 2>&1 | cat",
        "leaderrun -w 2s s -- true | cat",
        "leaderrun -w 2s s -- true 2>$FILE; cat $FILE",
        "leaderrun -q -w 2s s -- true",
        "leaderrun --log-format json -w 2s s -- true",
        "TERM=dumb leaderrun -w 2s s -- true",
        "env -u TERM leaderrun -w 2s s -- true",
        "setsid --wait leaderrun -w 2s s -- true",
    ];
    for (number, way) in (10..).zip(ways) {
        // Its own, for the screen may still show how the one before it ended.
        let done = format!("done {number}");
        shell.line(&format!("clear; {way}; echo done $(({number}+0))"));
        let mut seen = String::new();
        wait_until("it gives up", || {
            let screen = shell.screen();
            if screen.contains("waiting ") {
                seen.clone_from(&screen);
            }
            screen.contains(&done)
        });
        assert_eq!(seen, "", "{way}");
    }
}

/// Nobody leads, so -n does not give up; and the job would look stuck.
#[cfg(feature = "redis")]
#[test]
fn with_n_it_says_what_a_job_waits_for_on_a_store_that_was_just_set_up() {
    use crate::support::server::{Server as _, prepare};
    let server = crate::support::redis::Server::start();
    prepare(&server);
    let shell = Shell::with_store(Some(&server.own_url()));
    shell.line("leaderrun -n --lease 10s --renew 1s --kill-after 1s s -- echo it ran; echo status $?");
    let says = || the_line(&shell);
    shell.wait_until("it says why", || says().contains("first use of this store, which may have lost a lease"));
    assert!(says().contains(": nobody starts for another "), "{}", shell.screen());
    shell.wait_for("\nit ran\n");
    shell.wait_for("\nstatus 0");
    assert!(lines(&shell).is_empty(), "{}", shell.screen());
}
