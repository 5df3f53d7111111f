//! `--restart`: a COMMAND that ends is started again under the same lease, with real candidates and real stores, and
//! whatever happens in between no two trees run at once.

use crate::support::prelude::*;

impl Place {
    /// Each run of COMMAND writes its owner and term as a line, and then does `then`.
    fn start(&mut self, owner: &str, flags: &[&str], then: &str) {
        let mut command = leaderrun();
        // Nobody waits for the end of the lease, and it outlasts a stall of the machine.
        command.args(usual_but(&TIMING, &["--lease", "30s"]));
        command.args(["-v", "--store", &self.url, "--owner", owner]).args(flags).arg("shard");
        let directory = self.fleet.scratch.path().display();
        let script = format!("cd {directory}; echo $LEADERRUN_CANDIDATE $LEADERRUN_TERM >>runs; {then}");
        command.args(["-c", &script]).envs(self.environment.iter().copied());
        self.fleet.launch(owner, command);
    }

    #[track_caller]
    fn is_told(&self, part: &str) {
        self.wait_until(part, || self.fleet.logs().contains(part));
    }

    fn runs(&self) -> Vec<(String, u64)> {
        let text = fs::read_to_string(self.path("runs")).unwrap_or_default();
        let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
        whole
            .map(|line| line.trim_end().split_once(' ').unwrap())
            .map(|(o, t)| (o.to_owned(), t.parse().unwrap()))
            .collect()
    }

    #[track_caller]
    fn wait_for_runs(&self, number: usize) {
        self.wait_until("it has run so often", || self.runs().len() >= number);
    }

    fn history(&self) -> Vec<String> {
        let chapters = self.objects(&["history", "shard", "--json"]);
        chapters.iter().map(|chapter| chapter["ended"].as_str().unwrap_or("-").to_owned()).collect()
    }
}

const SOON: &[&str] = &["--restart", "on-failure", "--restart-delay", "200ms"];

fn who_cannot_run_it_gives_the_lease_up_and_another_takes_it(mut place: Place) {
    let script = "[ $LEADERRUN_CANDIDATE = b ] && exec sleep 1000; exit 3";
    let flags = [SOON, &["--restart-limit", "2"][..]].concat();
    place.start("a", &flags, script);
    place.wait_for_runs(1);
    place.start("b", &flags, script);
    place.is_told("the command exited with 3 after 2 restarts in a row; giving the lease up");
    place.wait_for_runs(4);
    let runs = place.runs();
    let owners: Vec<&str> = runs.iter().map(|(owner, _)| owner.as_str()).collect();
    assert_eq!(owners, ["a", "a", "a", "b"], "{}", place.fleet.logs());
    assert!(runs[3].1 > runs[2].1);
    wait_until("it is written down", || place.history().first().is_some_and(|how| how != "-"));
    assert!(place.history().contains(&"exited with 3, after 2 restarts in a row".to_owned()), "{:?}", place.history());
}

fn a_pause_that_is_ordered_while_nothing_runs_lets_nothing_start(mut place: Place) {
    let flags = ["--restart", "always", "--restart-delay", "8s"];
    place.start("a", &flags, "[ $(wc -l <runs) -lt 2 ] || exec sleep 1000");
    place.is_told("restarting in ");
    place.order(&["pause", "shard"]);
    place.is_told("waiting: paused");
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!(place.runs().len(), 1, "{}", place.fleet.logs());
    assert_eq!(place.history(), ["paused"]);
    place.order(&["resume", "shard"]);
    place.wait_for_runs(2);
    let runs = place.runs();
    assert!(runs[1].1 > runs[0].1, "{runs:?}");
}

on_two_stores!(
    who_cannot_run_it_gives_the_lease_up_and_another_takes_it,
    a_pause_that_is_ordered_while_nothing_runs_lets_nothing_start,
);
