//! The exit statuses that are documented, and what leads to each.

use crate::golden::golden;
use leaderrun::internals::election::{CommandEnd, Loss, Obstacle, Outcome, Skipped, StartError};
use leaderrun::internals::exit::{self, ctl};
use leaderrun::internals::store::{Holder, StoreError};

/// What stands in the list of a page's section EXIT STATUS, in its order. Lists within it are left out.
fn documented(page: &str) -> Vec<String> {
    let (_, text) = page.split_once("\n.Sh EXIT STATUS\n").expect("the page tells of statuses");
    let (text, _) = text.split_once("\n.Sh ").expect("another section follows");
    let mut depth = 0;
    let mut statuses = Vec::new();
    for line in text.lines() {
        match line.split(' ').next() {
            Some(".Bl") => depth += 1,
            Some(".El") => depth -= 1,
            Some(".It") if depth == 1 => statuses.push(line[".It ".len()..].to_owned()),
            _ => {}
        }
    }
    statuses
}

fn number(status: &str) -> Option<u8> {
    status.trim_end_matches("+N").parse().ok()
}

#[test]
fn the_exit_statuses_stay_as_they_are_and_are_those_of_the_manual() {
    let own = [
        ("wrong usage", exit::USAGE),
        ("store unreachable", exit::UNAVAILABLE),
        ("operating system refused", exit::OS_ERROR),
        ("not acquired", exit::NOT_ACQUIRED),
        ("permission denied", exit::NO_PERMISSION),
        ("wrong configuration", exit::CONFIGURATION),
        ("lost", exit::LOST),
        ("ran for too long", exit::OVERRAN),
        ("cannot be executed", exit::NOT_EXECUTABLE),
        ("not found", exit::NOT_FOUND),
        ("ended by signal N: N more than", exit::SIGNALLED),
        ("leaderctl selftest failed", ctl::FAILED),
        ("shard that the store has never seen", ctl::UNKNOWN_SHARD),
    ];
    let leaderrun = documented(include_str!("../../man/leaderrun.1"));
    let leaderctl = documented(include_str!("../../man/leaderctl.1"));
    for (what, status) in own {
        let known = leaderrun.iter().chain(&leaderctl).any(|documented| number(documented) == Some(status));
        assert!(known, "no page tells of {status}: {what}");
    }
    for status in leaderrun.iter().chain(&leaderctl).filter_map(|status| number(status)).filter(|&status| status != 0) {
        assert!(own.iter().any(|(_, known)| *known == status), "nothing ends with {status}");
    }

    let mut text = format!("leaderrun(1): {}\nleaderctl(1): {}\n", leaderrun.join(", "), leaderctl.join(", "));
    text.extend(own.map(|(what, status)| format!("{what}: {status}\n")));
    let outcomes = [
        ("exited with 3", Outcome::Ended(CommandEnd::Exited(3))),
        ("ended by signal 15", Outcome::Ended(CommandEnd::Signalled(15))),
        ("interrupted by signal 2", Outcome::Interrupted(2)),
        ("not started, ENOENT", Outcome::NotStarted(StartError(libc::ENOENT))),
        ("ran for too long", Outcome::Overran),
        ("another leads, with -E 9", Outcome::NotAcquired(Some(Obstacle::Holder(Holder::default())))),
        ("not acquired, with -E 9", Outcome::NotAcquired(None)),
        ("unreachable", Outcome::Unreachable(String::new())),
        ("refused, not applied", Outcome::Refused(StoreError::not_applied(""))),
        ("refused, unknown", Outcome::Refused(StoreError::unknown(""))),
        ("refused, denied", Outcome::Refused(StoreError::denied(""))),
        ("refused, misconfigured", Outcome::Refused(StoreError::misconfigured(""))),
        ("lost", Outcome::Lost(Loss::RecordGone)),
        ("a job that ended with 4", Outcome::Done(Skipped { said: String::new(), status: 4, failed: true })),
    ];
    text.extend(outcomes.map(|(what, outcome)| format!("outcome {what}: {}\n", outcome.exit_status(9))));
    let all = 1..=133;
    for status in [exit::NOT_FOUND, exit::NOT_EXECUTABLE] {
        let errors: Vec<String> = all
            .clone()
            .filter(|&errno| StartError(errno).exit_status() == status)
            .map(|errno| format!("{:?}", nix::errno::Errno::from_raw(errno)))
            .collect();
        text.extend([format!("errors that end with {status}: {}\n", errors.join(" "))]);
    }
    golden("exit", &text);
}
