//! A fleet of leaderruns and of programs that take only the lock that both share.

use super::evidence::Evidence;
use super::prelude::*;
use std::thread::sleep;

/// How long the lock of the others lasts; our lease is shorter.
pub const TTL: Duration = Duration::from_secs(5);
const FLAGS: [&str; 8] = ["--lease", "4s", "--renew", "1s", "--kill-after", "500ms", "--retry", "500ms"];

pub struct Mixed {
    fleet: Fleet,
    store: String,
    /// A program and its first words. The file of stamps and its owner follow.
    contender: Vec<String>,
    count: u32,
}

impl Mixed {
    pub fn new(store: String, contender: Vec<String>) -> Self {
        Self { fleet: Fleet::new(), store, contender, count: 0 }
    }

    fn start_ours(&mut self, stamp_flags: &[&str]) -> String {
        self.count += 1;
        let owner = format!("ours-{}", self.count);
        self.fleet.start(&owner, &[&FLAGS[..], &["--store", &*self.store]].concat(), stamp_flags, &[]);
        owner
    }

    /// One that leads until it is killed.
    fn start_theirs(&mut self) -> String {
        self.count += 1;
        let owner = format!("theirs-{}", self.count);
        let mut command = Command::new(&self.contender[0]);
        command.args(&self.contender[1..]).arg(self.fleet.scratch.path().join("stamps")).arg(&owner);
        self.fleet.launch(&owner, command);
        owner
    }

    /// A leader of ours, beside which one of them already waits and another begins, is stopped, killed and frozen.
    pub fn ends_in_each_way(mut self) {
        for way in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGSTOP] {
            let waiting = self.start_theirs();
            self.fleet.leader_where(|life| life.owner == waiting);
            let flags = if way == Signal::SIGTERM { &["daemon"][..] } else { &["ignore-term", "daemon"] };
            let leading = self.start_ours(flags);
            self.fleet.kill(&waiting);
            let theirs = self.refused_beside(&leading);
            self.fleet.signal(&leading, way);
            self.fleet.leader_where(|life| theirs.contains(&life.owner));
            for one in &theirs {
                self.fleet.kill(one);
            }
        }
        self.conclude();
    }

    /// Two of them that begin beside this leader of ours, and lead nothing for longer than the lock lasts.
    fn refused_beside(&mut self, leading: &str) -> [String; 2] {
        let mut attempt = 1;
        loop {
            self.fleet.leader_where(|life| life.owner == leading);
            let theirs = [(); 2].map(|()| self.start_theirs());
            let late = sleep_and_measure(TTL + Duration::from_secs(1));
            if self.fleet.lives().iter().all(|life| !theirs.contains(&life.owner)) {
                return theirs;
            }
            // A machine that stood still has ended our lease, and they lead rightly: once more.
            assert!(late > Duration::from_secs(1) && attempt < 5, "{theirs:?} led\n{}", self.fleet.logs());
            attempt += 1;
            for one in &theirs {
                self.fleet.kill(one);
            }
        }
    }

    fn conclude(mut self) {
        let (lives, Evidence { overlap, orphans, .. }) = self.fleet.end();
        assert_eq!((overlap, orphans), (Duration::ZERO, 0), "{lives:?}\n{}", self.fleet.logs());
        let (ours, theirs): (Vec<_>, Vec<_>) = lives.into_iter().partition(|life| life.owner.starts_with("ours-"));
        assert!(ours.len() >= 3 && theirs.len() >= 3, "{} and {}", ours.len(), theirs.len());
        assert!(ours.windows(2).all(|pair| pair[0].term < pair[1].term), "{ours:?}");
    }
}

/// Returns by how much it was woken too late at the most.
fn sleep_and_measure(time: Duration) -> Duration {
    const STEP: Duration = Duration::from_millis(100);
    let begun = Instant::now();
    let mut latest = Duration::ZERO;
    while begun.elapsed() < time {
        let asleep = Instant::now();
        sleep(STEP);
        latest = latest.max(asleep.elapsed().saturating_sub(STEP));
    }
    latest
}
