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
    shell.press("Enter", "found by \"out\"");
    assert!(!shell.screen().contains("billing"), "{}", shell.screen());
    shell.press("Enter", "= leads");
    shell.wait_for("exited with 0");
    shell.press("p", "pause mail/outbox? Reason: _");
    shell.press("Escape", "found by");
    shell.press("p", "pause mail/outbox? Reason: _");
    shell.keys(&["m", "o", "v", "e", "Enter"]);
    shell.wait_for("Enter goes back.");
    assert!(shell.screen().contains("leaderctl pause mail/outbox --reason=move"), "{}", shell.screen());
    shell.press("Enter", "1 paused");
    shell.wait_for(": move");
    // What an operator should know of stands above, and the chosen shard stays chosen.
    shell.press("Escape", "billing");
    let place_of = |shard: &str| shell.screen().find(shard).expect("it is shown");
    assert!(place_of("mail/outbox") < place_of("billing"), "{}", shell.screen());
    shell.press("r", "resume mail/outbox?");
    shell.press("n", "q leave");
    assert!(shell.screen().contains("1 paused"), "{}", shell.screen());
    shell.press("r", "resume mail/outbox?");
    shell.press("y", "Enter goes back.");
    shell.press("Enter", "2 shards: 2 free");
    // The terminal is the shell's meanwhile.
    shell.press("C-z", "Stopped");
    shell.shows("clear; echo icanon $(stty -a | grep -c ' icanon')", "icanon 1");
    shell.shows("clear; fg", "2 shards: 2 free");
    shell.press("q", "ready>");
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
