//! The CPU quotas of the cgroups that this process is in.
//!
//! The hazard: in a cgroup that has used up its quota nothing runs until the next period, whatever its priority, and
//! among many busy processes a helper may wait for many periods. So a quota below one processor counts as lateness
//! before any was measured.
//!
//! The kernel documents the files in Documentation/admin-guide/cgroup-v2.rst and Documentation/scheduler/sched-bwc.rst.

use crate::lease::show;
use crate::mounts::{Mount, mounts, read_table};
use std::fmt;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

/// A quota below one processor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quota {
    /// How long its processes may run in each period.
    budget: Duration,
    period: Duration,
    /// The cgroup that has it.
    cgroup: PathBuf,
}

impl Quota {
    /// The quota that stops this process for longest, among its cgroup and those above it, as far as it can see them.
    pub fn find() -> Option<Self> {
        let membership = fs::read_to_string("/proc/self/cgroup").ok()?;
        let table = read_table().ok()?;
        let quotas = cgroups(&membership, &table).into_iter().filter_map(|(cgroup, files)| {
            let texts = files.iter().map(|name| fs::read_to_string(cgroup.join(name)).ok());
            let (budget, period) = parsed(&texts.collect::<Option<String>>()?)?;
            Some(Self { budget, period, cgroup })
        });
        quotas.max_by_key(Self::pause)
    }

    /// How long nothing runs in each period.
    fn pause(&self) -> Duration {
        self.period - self.budget
    }

    /// The lateness to count with until it was measured. Deadlines move by sixteen times as much: two pauses.
    pub fn presumed_lateness(&self) -> Duration {
        self.pause() / 8
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of each {} in {}", show(self.budget), show(self.period), self.cgroup.display())
    }
}

/// The files of a quota and its period, in each version of cgroups.
const ONE: &[&str] = &["cpu.cfs_quota_us", "cpu.cfs_period_us"];
const TWO: &[&str] = &["cpu.max"];

/// The cgroups of this process that may have a quota, and those above them, as far as they are mounted here. With the
/// files that have it.
fn cgroups(membership: &str, table: &str) -> Vec<(PathBuf, &'static [&'static str])> {
    let mut found = Vec::new();
    // cgroups(7): `0::PATH`, or `NUMBER:CONTROLLER,CONTROLLER:PATH` of version 1.
    for (controllers, own) in membership.lines().filter_map(|line| line.split_once(':')?.1.split_once(':')) {
        let files = match controllers {
            "" => TWO,
            _ if has(controllers, "cpu") => ONE,
            _ => continue,
        };
        let shows = |mount: &Mount<'_>| match controllers {
            "" => mount.kind == "cgroup2",
            _ => mount.kind == "cgroup" && has(mount.options[1], "cpu"),
        };
        for mount in mounts(table).filter(shows) {
            if let Some(directory) = mount.directory_of(own) {
                let above = directory.ancestors().take_while(|path| path.starts_with(&mount.point));
                found.extend(above.map(|path| (path.to_owned(), files)));
            }
        }
    }
    found
}

fn has(list: &str, word: &str) -> bool {
    list.split(',').any(|one| one == word)
}

/// Reads a quota and a period in microseconds. None if there is no quota, or if it is for one processor or more.
fn parsed(text: &str) -> Option<(Duration, Duration)> {
    // Without a quota, the first word is `max` or -1.
    let mut numbers = text.split_ascii_whitespace().map(|word| word.parse().ok().map(Duration::from_micros));
    let budget = numbers.next()??;
    let period = numbers.next()??;
    (budget < period).then_some((budget, period))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_below_one_processor_is_read_from_either_version() {
        let micros = Duration::from_micros;
        assert_eq!(parsed("20000 100000\n"), Some((micros(20_000), micros(100_000))));
        assert_eq!(parsed("20000\n100000\n"), Some((micros(20_000), micros(100_000))));
        for none in ["max 100000\n", "-1\n100000\n", "100000 100000\n", "200000 100000\n", "", "20000\n"] {
            assert_eq!(parsed(none), None, "{none:?}");
        }
    }

    #[test]
    fn every_cgroup_that_can_be_seen_counts() {
        let table = "30 23 0:26 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n\
                     31 23 0:27 /box /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n\
                     32 23 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
        let membership = "3:cpuset:/\n2:cpu,cpuacct:/a/b\n0::/box/c\n";
        let found = cgroups(membership, table);
        let found: Vec<_> = found.iter().map(|(path, files)| (path.to_str().unwrap(), *files)).collect();
        assert_eq!(
            found,
            [
                ("/sys/fs/cgroup/cpu/a/b", ONE),
                ("/sys/fs/cgroup/cpu/a", ONE),
                ("/sys/fs/cgroup/cpu", ONE),
                ("/sys/fs/cgroup/unified/c", TWO),
                ("/sys/fs/cgroup/unified", TWO),
            ]
        );
    }
}
