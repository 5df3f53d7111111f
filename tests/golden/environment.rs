//! The variables that COMMAND, hooks and standby commands are given, and those of ours that they are not.

use crate::golden::golden;
use crate::plain::Plain;
use crate::support::prelude::*;

/// Whose values are the same each time, or made so. Others are shown by name alone.
const SHOWN: [&str; 13] = [
    "LEADERRUN_TAKEOVER",
    "LEADERRUN_SHARD",
    "LEADERRUN_CANDIDATE",
    "LEADERRUN_TERM",
    "LEADERRUN_SLOT",
    "LEADERRUN_JOB",
    "LEADERRUN_ATTEMPT",
    "LEADERRUN_PREVIOUS",
    "LEADERRUN_EVENT",
    "LEADERRUN_REASON",
    "LEADERRUN_EXIT_STATUS",
    "LEADERRUN_LEADER",
    "LEADERRUN_LEADER_HOST",
];
/// What a shell adds by itself.
const SHELLS: [&str; 4] = ["PWD", "OLDPWD", "SHLVL", "_"];
/// What every candidate here is given.
const GIVEN: [&str; 5] = ["PATH", "LEADERRUN_CONFIG", "LEADERRUN_STORE", "LEADERRUN_KILL_AFTER", "WATCHDOG_USEC"];

struct Told {
    place: Place,
    text: String,
}

impl Told {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = leaderrun();
        command.env_clear().env("PATH", "/usr/bin:/bin").env("LEADERRUN_CONFIG", "/dev/null");
        command
            .env("LEADERRUN_STORE", &self.place.url)
            .env("LEADERRUN_KILL_AFTER", "5s")
            .env("WATCHDOG_USEC", "1000000000");
        command.args(["-q", "--owner", "one"]).args(words).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) {
        let status = self.command(words).status().expect("it starts");
        assert!(status.success(), "{words:?}: {status}");
    }

    /// `env >FILE`, in one step for those who wait for it.
    fn script(&self, name: &str) -> String {
        let path = self.place.path(name);
        format!("env >{0}.new; mv {0}.new {0}", path.display())
    }

    fn wait_for(&self, name: &str) {
        let path = self.place.path(name);
        wait_until_or(name, || self.place.fleet.logs(), || path.exists());
    }

    fn tell(&mut self, what: &str, name: &str) {
        let environment = fs::read_to_string(self.place.path(name)).expect("it was written");
        let plain = Plain::new();
        let mut lines = Vec::new();
        let mut left = GIVEN.to_vec();
        for (name, value) in environment.lines().filter_map(|line| line.split_once('=')) {
            left.retain(|given| *given != name);
            if SHOWN.contains(&name) {
                lines.push(format!("{name}={}", plain.text(value)));
            } else if !SHELLS.contains(&name) && !GIVEN.contains(&name) {
                lines.push(name.to_owned());
            }
        }
        lines.sort();
        lines.extend(left.iter().map(|name| format!("not {name}")));
        self.text.extend([format!("== {what}\n{}\n", lines.join("\n"))]);
    }
}

#[test]
fn the_environment_of_what_leaderrun_starts_stays_as_it_is() {
    let mut told = Told { place: Place::local(), text: String::new() };
    let script = |told: &Told, name: &str| told.script(name);
    let plain = script(&told, "plain");
    told.run(&["shard", "-c", &plain]);
    told.tell("COMMAND", "plain");
    let once = script(&told, "once");
    told.run(&["--once", "a.job", "shard", "-c", &once]);
    told.tell("COMMAND, --once", "once");
    let every = script(&told, "every");
    told.run(&["--every", "366days", "shard", "-c", &every]);
    told.tell("COMMAND, --every", "every");
    let slot = script(&told, "slot");
    told.run(&["--slots", "2", "shard", "-c", &slot]);
    told.tell("COMMAND, --slots", "slot");

    let [lead, losing, lost] = ["lead", "losing", "lost"].map(|name| script(&told, name));
    told.run(&["--pre-start", &lead, "--post-stop", &lost, "shard", "true"]);
    told.tell("--pre-start", "lead");
    told.tell("--post-stop", "lost");
    let leads = script(&told, "leads");
    let command =
        told.command(&["--pre-stop", &losing, "--restart", "never", "led", "-c", &format!("{leads}; exec sleep 1000")]);
    let leader = start(command);
    told.wait_for("leads");
    let [standby, change] = ["standby", "change"].map(|name| script(&told, name));
    let standby = format!("{standby}; exec sleep 1000");
    let waits = start(told.command(&["--standby", &standby, "--on-leader-change", &change, "led", "true"]));
    told.wait_for("standby");
    told.tell("--standby", "standby");
    told.wait_for("change");
    told.tell("--on-leader-change", "change");
    drop(waits);
    let pid = nix::unistd::Pid::from_raw(leader.id().cast_signed());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).expect("it is there");
    told.wait_for("losing");
    told.tell("--pre-stop", "losing");
    golden("environment", &told.text);
}

fn start(mut command: Command) -> Process {
    Process::start(&mut command)
}
