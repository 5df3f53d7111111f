//! `--health`: a COMMAND that hangs gives the lease to another host, with real candidates and servers.

use super::*;

/// A slow machine has time for everything that is not waited for.
const PATIENT: &str = "--lease 100s --renew 1s --kill-after 20s --retry 500ms --hook-timeout 20s";
/// Soon, and patient with a check that works.
const CHECKED: &str = "--lease 100s --renew 1s --kill-after 20s --retry 500ms --hook-timeout 20s \
                       --health-interval 100ms --health-timeout 30s";

impl Process {
    fn stop(&mut self) -> Option<i32> {
        self.signal(Signal::SIGTERM);
        self.status()
    }
}

impl Place {
    fn count(&self, line: &str) -> usize {
        self.lines().iter().filter(|known| *known == line).count()
    }

    #[track_caller]
    fn wait_for_times(&self, line: &str, times: usize) {
        let explain = || format!("{:?}\n{}", self.lines(), self.log());
        wait_until_or(line, explain, || self.count(line) >= times);
    }

    fn start_checked(&self, name: &str, flags: &[&str], script: &str) -> Process {
        let usual = if flags.contains(&"--health") { CHECKED } else { PATIENT };
        Process::start(&mut self.with_timing(usual, name, flags, script))
    }

    fn are_well(&self, well: bool) {
        let done = if well { fs::write(self.path("well"), "") } else { fs::remove_file(self.path("well")) };
        done.unwrap();
    }
}

const COMMAND: &str = r"trap 'echo $LEADERRUN_CANDIDATE term >> $DIARY; exit 0' TERM; echo $LEADERRUN_CANDIDATE command >> $DIARY
                        while :; do sleep 0.02; done";
/// It obeys no stop signal.
const HUNG: &str = r"trap '' TERM; echo $LEADERRUN_CANDIDATE command >> $DIARY; while :; do sleep 0.1; done";
/// The same, which writes only who is ill.
const COMPLAINT: &str = r"test -e $PLACE/well || { echo $LEADERRUN_CANDIDATE $LEADERRUN_EVENT >> $DIARY; exit 1; }";

fn a_command_that_hangs_gives_the_lease_to_another_host(place: &Place) {
    let flags =
        ["--health", COMPLAINT, "--pre-stop", LINE, "--post-stop", LINE, "--kill-after", "1s", "--restart", "always"];
    place.are_well(true);
    let _one = place.start_checked("one", &flags, HUNG);
    place.wait_for("one command");
    let mut two = place.start_checked("two", &[], COMMAND);
    // Its turn would come again, if nobody waited.
    wait_until_or("the other one waits", || place.log(), || place.log().contains("waiting: one "));
    place.are_well(false);
    place.wait_for("two command");
    let expected = ["one command", "one health", "one health", "one health", "one pre-stop unhealthy"];
    let expected = [&expected[..], &["one post-stop unhealthy 137", "two command"]].concat();
    assert_eq!(place.lines(), expected, "{}", place.log());
    let log = place.log();
    assert!(
        log.contains("stopping: the --health check failed 3 times in a row: it exited with 1; giving the"),
        "{log}"
    );
    // It says so after it has given the lease back.
    let back = "other candidates go first because the command was unhealthy here";
    wait_until_or("it says why it stands back", || place.log(), || place.log().contains(back));
    let history = place.history();
    let first = history.lines().next().unwrap();
    assert!(first.ends_with("unhealthy: the --health check failed 3 times in a row: it exited with 1"), "{history}");
    assert_eq!(two.stop(), Some(0));
    // Its turn comes again.
    place.wait_for_times("one command", 2);
}

/// A COMMAND that ends only once it may.
const PATIENT_COMMAND: &str = r"trap 'until test -e $PLACE/may-end; do sleep 0.02; done; exit 0' TERM
                                echo $LEADERRUN_CANDIDATE command >> $DIARY; while :; do sleep 0.02; done";
/// A check that hangs, with a process in its group, and one in a session of its own. They obey no stop signal.
const HUNG_CHECK: &str = r#"trap '' TERM; sits='open F, q(>), $ARGV[1]; sleep 1000'
    perl -e "$sits" $PLACE/marker $PLACE/sits1 & setsid perl -e "$sits" $PLACE/marker $PLACE/sits2 &
    until test -e $PLACE/sits1 -a -e $PLACE/sits2; do sleep 0.02; done; echo $LEADERRUN_CANDIDATE health >> $DIARY
    exec perl -e "$sits" $PLACE/marker $PLACE/sits1"#;

fn a_hung_check_counts_and_none_of_its_descendants_is_left(place: &Place) {
    let flags = ["--health", HUNG_CHECK, "--health-timeout", "2s", "--health-failures", "2", "--kill-after", "80s"];
    let mut one = place.start_checked("one", &[&flags[..], &["--lease", "300s", "-n"]].concat(), PATIENT_COMMAND);
    let marker = place.path("marker");
    place.wait_for("one health");
    wait_until_or(
        "it is stopped",
        || place.log(),
        || place.log().contains("stopping: the --health check failed 2 times"),
    );
    let left = || format!("{:?}", processes_naming(&marker));
    wait_until_or("nothing of a check is left while COMMAND drains", left, || processes_naming(&marker).is_empty());
    assert_eq!(one.try_wait().unwrap(), None);
    fs::write(place.path("may-end"), "").unwrap();
    assert_eq!(one.status(), Some(143));
    let log = place.log();
    assert!(log.contains("leaderrun: the --health check took longer than --health-timeout"), "{log}");
    assert!(
        log.contains("the --health check failed 2 times in a row: it took longer than --health-timeout; giving"),
        "{log}"
    );
    assert!(place.count("one health") <= 2, "{log}");
}

on_two_stores!(
    [
        &a_hung_check_counts_and_none_of_its_descendants_is_left,
    ]:
    &a_command_that_hangs_gives_the_lease_to_another_host,
);

#[test]
fn whatever_is_killed_while_a_check_runs_nothing_of_it_is_left() {
    for victim in ["candidate", "backstop", "guard", "command"] {
        let place = Place::local();
        let marker = place.path("marker");
        let check = r"trap '' TERM; setsid -f perl -e '$SIG{TERM} = q(IGNORE); sleep 1000' $PLACE/marker
                      echo checking >> $DIARY; exec perl -e '$SIG{TERM} = q(IGNORE); sleep 1000' $PLACE/marker";
        let script = format!("echo $$ > $PLACE/pid; {COMMAND}");
        let flags = ["--health", check, "--health-timeout", "500s", "--kill-after", "1s"];
        let mut one = place.start_checked("one", &flags, &script);
        place.wait_for("one command");
        place.wait_for("checking");
        wait_until("both are there", || processes_naming(&marker).len() == 2);
        let pid = match victim {
            "candidate" => one.pid(),
            "backstop" => helpers_of(one.pid())[0],
            "guard" => helpers_of(one.pid())[1],
            _ => Pid::from_raw(fs::read_to_string(place.path("pid")).unwrap().trim().parse().unwrap()),
        };
        kill(pid, Signal::SIGKILL).unwrap();
        if victim == "candidate" {
            one.wait().unwrap();
        }
        let mut two = place.start_checked("two", &[], "exit 0");
        wait_until_or(
            "nothing is left",
            || format!("{victim}: {}", place.log()),
            || processes_naming(&marker).is_empty(),
        );
        if victim != "command" {
            let _ = kill(one.pid(), Signal::SIGTERM);
        }
        drop(one);
        assert_eq!(two.status(), Some(0), "{victim}: {}", place.log());
    }
}
