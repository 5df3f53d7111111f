//! `top`, in a terminal.

use crate::support::prelude::*;
use crate::support::shell::Shell;

#[test]
fn top_searches_shows_one_shard_and_asks_before_it_pauses() {
    let shell = Shell::start();
    let store = shell.files();
    for shard in ["mail/outbox", "billing"] {
        let run = leaderrun().args(["-n", "--store", &store, shard, "true"]).stderr(Stdio::null()).status().unwrap();
        assert!(run.success());
    }
    shell.shows("stty -a | tr -d '\\n' | md5sum; leaderctl top --interval 200ms", "2 shards: 2 free");
    shell.keys(&["/"]);
    shell.keys(&["o", "u", "t"]);
    shell.wait_for("/out_");
    shell.keys(&["Enter"]);
    shell.wait_for("found by \"out\"");
    assert!(!shell.screen().contains("billing"), "{}", shell.screen());
    shell.keys(&["Enter"]);
    shell.wait_for("= leads");
    shell.wait_for("exited with 0");
    shell.keys(&["p"]);
    shell.wait_for("pause mail/outbox? Reason: _");
    shell.keys(&["Escape"]);
    shell.wait_for("found by");
    shell.keys(&["p"]);
    shell.wait_for("pause mail/outbox? Reason: _");
    shell.keys(&["m", "o", "v", "e", "Enter"]);
    shell.wait_for("Enter goes back.");
    assert!(shell.screen().contains("leaderctl pause mail/outbox --reason=move"), "{}", shell.screen());
    shell.keys(&["Enter"]);
    shell.wait_for("1 paused");
    shell.wait_for(": move");
    shell.keys(&["r"]);
    shell.wait_for("resume mail/outbox?");
    shell.keys(&["n"]);
    shell.wait_for("found by");
    assert!(shell.screen().contains("1 paused"), "{}", shell.screen());
    shell.keys(&["r"]);
    shell.wait_for("resume mail/outbox?");
    shell.keys(&["y"]);
    shell.wait_for("Enter goes back.");
    shell.keys(&["Enter"]);
    shell.wait_for("2 shards: 2 free");
    // The terminal is the shell's meanwhile.
    shell.keys(&["C-z"]);
    shell.wait_for("Stopped");
    shell.shows("clear; echo icanon $(stty -a | grep -c ' icanon')", "icanon 1");
    shell.shows("clear; fg", "2 shards: 2 free");
    shell.keys(&["q"]);
    shell.wait_for("ready>");
    shell.shows("clear; echo status $?; stty -a | grep -c ' icanon'", "status 0\n1");
    // A signal ends it as `q` does, and the terminal is put back.
    let top = "clear; echo as before; sh -c 'echo $$ >$FILE; exec leaderctl top --interval 200ms'";
    shell.shows(top, "2 shards: 2 free");
    kill(Pid::from_raw(shell.file().trim().parse().unwrap()), Signal::SIGQUIT).unwrap();
    shell.wait_for("as before");
    shell.shows("clear; echo icanon $(stty -a | grep -c ' icanon')", "icanon 1");
}

#[test]
fn without_a_terminal_top_says_what_to_use() {
    leaderctl().arg("top").stdin(Stdio::null()).said().ended(64).tells("leaderctl watch");
}
