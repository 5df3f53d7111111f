//! Users with a part of the permissions: what the programs tell them, and that their attempts have no effect.

use super::prelude::*;

const SHARD: &str = "db/main";
const TIMING: [&str; 6] = ["--renew", "1s", "--kill-after", "1s", "--retry", "1s"];

/// Who reaches a store: by which URL, with which environment.
#[derive(Clone, Copy)]
pub struct User<'a> {
    pub url: &'a str,
    pub environment: &'a [(&'static str, &'static str)],
}

impl<'a> User<'a> {
    pub fn at(url: &'a str) -> Self {
        Self { url, environment: &[] }
    }

    fn prepared(self, mut command: Command, words: &[&str]) -> Command {
        command.args(["--store", self.url]).args(words).envs(self.environment.iter().copied());
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn ctl(self, words: &[&str]) -> Command {
        let mut command = leaderctl();
        // A machine that is busy may answer late.
        command.args(["--request-timeout", "1m"]);
        self.prepared(command, words)
    }

    fn lead(self, lease: &str, words: &[&str]) -> Command {
        self.prepared(leaderrun(), &candidacy(lease, words))
    }

    /// All of it that does not change by the mere passing of time, or with each renewal.
    fn status(self) -> Value {
        let mut status = self.ctl(&["status", "--json", SHARD]).said().ended(0).json();
        status["expires_in_seconds"].take();
        status["renewed_seconds_ago"].take();
        status
    }
}

fn candidacy<'a>(lease: &'a str, words: &[&'a str]) -> Vec<&'a str> {
    [&["--lease", lease], &TIMING[..], &["-q", SHARD], words].concat()
}

/// A candidate leads, as `owner`. The user of `ctl` changes nothing of that; each refusal has `sign` in it.
pub fn assert_changes_nothing(owner: User, ctl: impl Fn(&[&str]) -> Command, sign: &str) -> Process {
    // Nobody waits for its end, so a machine that stands still for some seconds may not end it either.
    let mut leader = owner.lead("1m", &["sleep", "1000"]);
    let leader = Process::start(leader.stdout(Stdio::null()).stderr(Stdio::inherit()));
    wait_until("somebody leads", || owner.status()["held"] == true);
    let history = || owner.ctl(&["history", SHARD]).said().out;
    wait_until("it is written down", || !history().is_empty());
    let term = owner.status()["term"].to_string();
    let before = owner.status();
    let revoke: &[&str] = &["revoke", "--term", &term, "--force", SHARD];
    // Nobody ends a kernel's lease by way of the store.
    let revoke = (!owner.url.starts_with("file:")).then_some(revoke);
    for words in [&["pause", SHARD][..], &["step-down", "--force", SHARD]].into_iter().chain(revoke) {
        ctl(words).said().refused(77, sign);
        assert_eq!(owner.status(), before, "{words:?} changed something");
    }
    owner.ctl(&["pause", "--keep", SHARD]).said().good();
    let before = owner.status();
    assert_eq!(before["paused"], true);
    for words in [&["resume", SHARD][..], &["pause", "--force", SHARD]] {
        ctl(words).said().refused(77, sign);
        assert_eq!(owner.status(), before, "{words:?} changed something");
    }
    leader
}

/// The same of a user who may look at all of it.
pub fn assert_may_only_look(owner: User, looker: User, sign: &str) {
    let _leader = assert_changes_nothing(owner, |words| looker.ctl(words), sign);
    for verb in [&["status", SHARD][..], &["list"], &["history", SHARD], &["why", SHARD]] {
        assert_ne!(looker.ctl(verb).said().good(), "", "{verb:?}");
    }
}

/// The user of `lead` may be granted the lease, and not know what is ordered: COMMAND is not started, and the lease is
/// left free.
pub fn assert_leads_nothing(owner: User, lead: impl Fn(&[&str]) -> Command, sign: &str) {
    let scratch = TempDir::new().unwrap();
    let started = scratch.path().join("started");
    let touch = ["touch", started.to_str().unwrap()];
    lead(&candidacy("5m", &touch)).said().refused(77, sign);
    assert!(!fs::exists(&started).unwrap(), "COMMAND was started");
    let status = owner.status();
    assert!(status["held"] == false && status["paused"] == false, "{status}");
    // Nor does it keep anybody else waiting.
    let begun = Instant::now();
    owner.lead("5m", &touch).said().good();
    assert!(fs::exists(&started).unwrap());
    assert!(begun.elapsed() < PATIENCE, "it waited for {:?}", begun.elapsed());
}
