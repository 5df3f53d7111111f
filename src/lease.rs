//! The basic types of the election: shard, owner, session, term, and the timing of a lease.

mod late;
mod timing;

pub use late::Late;
pub(crate) use timing::parts_of_a_stop;
pub use timing::{
    DEFAULT_GRACE, DEFAULT_LEASE, DEFAULT_RENEW, DEFAULT_RETRY, Deadline, TimeForHooks, Timing, TimingOptions,
    TimingRequest, kept, most_apart, show, show_seconds, to_count, usable,
};

use crate::text::quoted;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

macro_rules! names {
    ($($name:ident),*) => {$(
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

names!(Shard, Prefix, JobId, Session);

/// The name of a shard: 1 to 200 bytes of `A-Z a-z 0-9 . _ - / :`, where no part between slashes is empty, `.` or `..`.
/// Or the name of a slot: such a name, `#` and the slot's number.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Shard(String);

/// The shard that leaderctl itself leads while it moves leaders.
pub const BALANCE: &str = "leaderctl/balance";
pub const MOST_SLOTS: u32 = 64;
/// Between the name of a shard, which cannot contain it, and the number of a slot.
const SLOT: char = '#';

impl Shard {
    /// A shard, and not a slot of one.
    pub fn whole(name: &str) -> Result<Self, String> {
        let shard = Self::from_str(name)?;
        match shard.parent() {
            Some(parent) => Err(format!("{name} is a slot of the shard {parent}: name the shard")),
            None => Ok(shard),
        }
    }

    pub fn slot(&self) -> Option<u32> {
        split_slot(&self.0).map(|(_, slot)| slot)
    }

    /// The shard of which this is a slot.
    pub fn parent(&self) -> Option<Self> {
        split_slot(&self.0).map(|(parent, _)| Self(parent.to_owned()))
    }
}

/// The name of the shard and the number of the slot, if this ends like the name of a slot.
fn split_slot(name: &str) -> Option<(&str, u32)> {
    let (parent, number) = name.rsplit_once(SLOT)?;
    let slot =
        number.parse().ok().filter(|slot: &u32| (1..=MOST_SLOTS).contains(slot) && slot.to_string() == number)?;
    Some((parent, slot))
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let parent = split_slot(name).map_or(name, |(parent, _)| parent);
        check_length("shard", name)?;
        check_characters("shard", parent)?;
        if parent.is_empty() {
            return Err(format!("the shard is empty: name it with 1 to 200 {ALPHABET}"));
        }
        if is_path(parent) {
            return Err(format!("the shard {name:?} has a part that is empty, '.' or '..': it is a name, not a path"));
        }
        Ok(Self(name.to_owned()))
    }
}

/// The beginning of the names of some shards; empty for all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prefix(String);

impl FromStr for Prefix {
    type Err = String;

    fn from_str(prefix: &str) -> Result<Self, String> {
        check_length("prefix", prefix)?;
        if let Some((parent, number)) = prefix.split_once(SLOT)
            && (number.is_empty() || split_slot(prefix).is_some())
            && Shard::from_str(parent).is_ok()
        {
            return Ok(Self(prefix.to_owned()));
        }
        check_characters("prefix", prefix)?;
        // After a slash or a dot at the end, a longer part may follow, if the length allows one more byte.
        let may_go_on = prefix.len() < LONGEST && !is_path(&format!("{prefix}x"));
        if is_path(prefix) && !may_go_on {
            return Err(format!("no shard begins with {prefix:?}: no part of one is empty, '.' or '..'"));
        }
        Ok(Self(prefix.to_owned()))
    }
}

const ALPHABET: &str = "letters, digits and . _ - / :";
const LONGEST: usize = 200;

fn check_length(what: &str, name: &str) -> Result<(), String> {
    if name.len() > LONGEST {
        return Err(format!("the {what} is {} bytes long: use 1 to {LONGEST} {ALPHABET}", name.len()));
    }
    Ok(())
}

fn check_characters(what: &str, name: &str) -> Result<(), String> {
    if let Some(character) = name.chars().find(|&c| !(c.is_ascii_alphanumeric() || "._-/:".contains(c))) {
        let slots =
            if character == SLOT { format!(", and at the end of a slot #1 to #{MOST_SLOTS}") } else { String::new() };
        return Err(format!("the {what} {} has a {character:?} in it: use {ALPHABET}{slots}", quoted(name)));
    }
    Ok(())
}

/// Whether the name as a path would mean another one.
fn is_path(name: &str) -> bool {
    name.split('/').any(|part| ["", ".", ".."].contains(&part))
}

/// The name of a job that runs once, such as that of a migration: 1 to 100 bytes of `A-Z a-z 0-9 . _ -`, but neither
/// `.` nor `..`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(String);

const LONGEST_JOB: usize = 100;

impl FromStr for JobId {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > LONGEST_JOB || !name.chars().all(known) || is_path(name) {
            return Err(format!("name the job with 1 to {LONGEST_JOB} letters, digits and . _ -"));
        }
        Ok(Self(name.to_owned()))
    }
}

/// A random number that identifies this process, even among processes with the same owner.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Session(String);

impl Session {
    /// Makes a session of 128 random bits, written as a UUID of version 4 (RFC 9562).
    pub fn random() -> std::io::Result<Self> {
        let mut bytes = [0_u8; 16];
        getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
        bytes[6] = bytes[6] & 0x0f | 0x40;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex = format!("{:032x}", u128::from_be_bytes(bytes));
        Ok(Self(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])))
    }

    pub fn from_record(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The owner name if the user chose none: short, and different in each process. No decision depends on it; the
    /// session distinguishes candidates.
    fn default_owner(&self, host: &str, pid: u32) -> String {
        format!("{host}-{pid}-{}", self.0.get(..6).unwrap_or(&self.0))
    }
}

/// The fencing token: it rises with every leadership of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Term(pub u64);

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Candidate {
    pub shard: Shard,
    pub owner: String,
    pub session: Session,
    pub host: String,
    pub pid: u32,
    /// How long the store keeps a granted lease, by its own clock: [`kept`] of the holder's.
    pub lease: Duration,
}

impl Candidate {
    pub fn here(shard: Shard, owner: Option<String>, lease: Duration) -> std::io::Result<Self> {
        Self::on(host_name()?, shard, owner, lease)
    }

    pub fn on(host: String, shard: Shard, owner: Option<String>, lease: Duration) -> std::io::Result<Self> {
        let session = Session::random()?;
        let pid = std::process::id();
        let owner = owner.unwrap_or_else(|| session.default_owner(&host, pid));
        Ok(Self { shard, owner, session, host, pid, lease: kept(lease) })
    }

    #[cfg(test)]
    pub(crate) fn example() -> Self {
        Self {
            shard: Shard("db".to_owned()),
            owner: "me".to_owned(),
            session: Session::from_record("s"),
            host: "db1".to_owned(),
            pid: 7,
            lease: Duration::from_secs(15),
        }
    }
}

/// In a pod on the network of its node, the kernel reports the node's name. So in a pod `POD_NAME` comes first, which
/// the downward API of Kubernetes can set.
pub fn host_name() -> std::io::Result<String> {
    let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if let Some(pod) = std::env::var("POD_NAME").ok().filter(|pod| is_pod && !pod.is_empty()) {
        return Ok(pod);
    }
    Ok(nix::unistd::gethostname()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    #[test]
    fn a_slot_is_not_a_shard_and_no_shard_is_a_slot() {
        let slot: Shard = "db/main#64".parse().unwrap();
        assert_eq!((slot.parent(), slot.slot()), (Some("db/main".parse().unwrap()), Some(64)));
        let whole = Shard::whole("db/1").unwrap();
        assert_eq!((whole.parent(), whole.slot()), (None, None));
        for bad in ["db#", "db#0", "db#65", "db#07", "db#x", "#1", "db#1#2", "db#1/x", "..#1", "db #1"] {
            fuzz::assert_is_one_line(&Shard::from_str(bad).unwrap_err());
        }
        for (prefix, good) in [("db#", true), ("db#6", true), ("db#65", false), ("#1", false), ("db#1x", false)] {
            assert_eq!(Prefix::from_str(prefix).is_ok(), good, "{prefix}");
        }
    }

    #[test]
    fn jobs_have_names_that_every_store_can_keep() {
        for good in ["a", "2026-11-21_add.users", "...", "-x", &"x".repeat(100)] {
            assert_eq!(JobId::from_str(good).map(|job| job.to_string()).as_deref(), Ok(good));
        }
        for bad in ["", ".", "..", "a/b", "a:b", "a b", "a=b", "a+b", "a#", "ä", "a\n", &"x".repeat(101)] {
            fuzz::assert_is_one_line(&JobId::from_str(bad).unwrap_err());
        }
    }

    #[test]
    fn a_prefix_is_accepted_if_a_shard_can_begin_with_it() {
        let longest = "x".repeat(200);
        for good in ["", "a", "db/", ".", "a/..", "..a/", "A-Z_0.9:", &longest] {
            assert!(Prefix::from_str(good).is_ok(), "{good}");
        }
        for bad in [
            "/",
            "db//",
            "./",
            "a/../",
            "../b",
            "a b",
            "ä",
            "a*",
            "a[",
            "a%",
            "a\n",
            &format!("{longest}x"),
            &format!("{}/.", &longest[2..]),
        ] {
            let refusal = Prefix::from_str(bad).unwrap_err();
            assert!(refusal.contains("prefix") || refusal.contains("no shard begins with"), "{refusal}");
            fuzz::assert_is_one_line(&refusal);
        }
    }

    #[test]
    fn a_million_names_are_shards_exactly_when_the_manual_says_so() {
        let long = "x/y".repeat(67);
        let seeds = ["db/main:0", "A-Z_0.9", "db#7", "a#64", "a/../b", "a//b", ".", &long, &long[1..]];
        fuzz::bent_text("shard", &seeds, |text, _| {
            let read = Shard::from_str(text);
            let known = |c: char| c.is_ascii_alphanumeric() || "._-/:".contains(c);
            let parent = (1..=64).find_map(|slot| text.strip_suffix(&format!("#{slot}"))).unwrap_or(text);
            let is_path = parent.split('/').any(|part| ["", ".", ".."].contains(&part));
            let is_name = !parent.is_empty() && text.len() <= 200 && parent.chars().all(known) && !is_path;
            assert_eq!(read.is_ok(), is_name);
            match &read {
                Ok(shard) => assert_eq!(shard.to_string(), text),
                Err(message) => {
                    fuzz::assert_is_one_line(message);
                    assert!(message.starts_with("the shard "), "{message}");
                }
            }
            (&read).into()
        });
    }
}
