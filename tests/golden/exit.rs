//! The exit statuses, and what leads to each. That the manual has them is compared in tests/manpages.rs.

use crate::golden::golden;
use leaderrun::internals::election::{CommandEnd, Loss, Obstacle, Outcome, Skipped, StartError};
use leaderrun::internals::exit::{self, ctl};
use leaderrun::internals::store::{Holder, StoreError};

#[test]
fn the_exit_statuses_stay_as_they_are() {
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
    let mut text: String = own.map(|(what, status)| format!("{what}: {status}\n")).concat();
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
