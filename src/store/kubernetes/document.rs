//! What a Lease looks like that is a document, and what it is called.
//!
//! ```text
//! NAME                          who leads the shard NAME; for one that is no name of a Lease: leaderrun.xESCAPED
//! leaderrun.marker              since when the namespace remembers
//! leaderrun.led.NAME            what must outlive NAME
//! leaderrun.history.NAME, leaderrun.runs.NAME, leaderrun.jobs.NAME, leaderrun.once.xJOB.NAME
//! leaderrun.standby.xSESSION.NAME
//! leaderrun.trial.NAME          what store check writes
//! leaderrun.sha256.HASH         any of these, where the name would be too long
//! ```
//!
//! All of them are Leases, so a Role needs one resource. A label says which kind it is; an annotation holds the
//! document. The fields of a shard's Lease are filled as client-go's electors do, for them and for `kubectl get
//! leases`.
//!
//! The hazard: another elector may take the Lease and leave our annotations as they are, which then say who led before.
//! So they count only while the fields are those that were written with them ([`SIGN`]).

use crate::lease::Shard;
use crate::store::lease_store::documents::{Content, Draft, Ends, Found, Key, Life, Listed, Part, Version};
use crate::store::record::Record;
use crate::store::{Holder, Page};
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use sha2::{Digest, Sha256};
use std::time::Duration;

const LONGEST_NAME: usize = 253;
/// Names that begin with this are ours.
const OURS: &str = "leaderrun.";
/// Leaderctl's own shards (orders for hosts, the lease of `balance`), which other programs do not know.
const OF_LEADERCTL: &str = "leaderctl/";

pub const KIND: &str = "leaderrun/kind";
const SHARD: &str = "leaderrun/shard";
const WHICH: &str = "leaderrun/which";
const RECORD: &str = "leaderrun/record";
/// The fields that were written with the record.
const SIGN: &str = "leaderrun/sign";
const MARK: char = ' ';

/// Differs after each renewal, whichever program holds the Lease.
fn sign(spec: &LeaseSpec) -> String {
    let renewed = spec.renew_time.as_ref().map(|time| time.0.to_string()).unwrap_or_default();
    let [duration, transitions] = [spec.lease_duration_seconds, spec.lease_transitions].map(Option::unwrap_or_default);
    format!("{renewed} {transitions} {duration} {}", spec.holder_identity.as_deref().unwrap_or_default())
}

/// None as holder: the present one.
fn hold(spec: &mut LeaseSpec, holder: Option<String>, lasts: Duration, now: Timestamp) {
    if let Some(holder) = holder.filter(|holder| spec.holder_identity.as_ref() != Some(holder)) {
        spec.acquire_time = Some(MicroTime(now));
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |before| before.saturating_add(1)));
        spec.holder_identity = Some(holder);
    }
    let whole_seconds = lasts.as_secs() + u64::from(lasts.subsec_nanos() > 0);
    spec.lease_duration_seconds = Some(i32::try_from(whole_seconds).unwrap_or(i32::MAX).max(1));
    renew(spec, now);
}

/// As client-go does.
fn release(spec: &mut LeaseSpec, now: Timestamp) {
    spec.holder_identity = Some(String::new());
    spec.lease_duration_seconds = Some(1);
    renew(spec, now);
}

/// Moves the time of renewal by at least a second: electors of client-go compare whole seconds.
fn renew(spec: &mut LeaseSpec, now: Timestamp) {
    let last = spec.renew_time.as_ref().map(|last| last.0);
    let next = last.and_then(|last| last.checked_add(Duration::from_secs(1)).ok());
    spec.renew_time = Some(MicroTime(next.map_or(now, |next| next.max(now))));
}

/// `now_millis` is what the server's clock may show.
pub fn drafted(key: Key<'_>, name: String, draft: &Draft<'_>, record: &Record, over: &Found, now_millis: u64) -> Lease {
    let mut lease: Lease = serde_json::from_str(&over.version.write).unwrap_or_default();
    lease.metadata.name = Some(name);
    let annotations = lease.metadata.annotations.get_or_insert_default();
    if matches!(key, Key::Shard(_)) {
        let spec = lease.spec.get_or_insert_default();
        let now = i64::try_from(now_millis).ok().and_then(|now| Timestamp::from_millisecond(now).ok());
        let now = now.unwrap_or(Timestamp::MAX);
        // Two candidates may have the same owner, and an elector of another program may have that name too.
        let holder = draft.leadership.zip(draft.owner);
        let holder = holder.map(|(leadership, owner)| format!("{owner}_{}", leadership.session.as_str()));
        match draft.ends {
            Ends::Keep => {}
            Ends::In(lasts) => hold(spec, holder, lasts, now),
            Ends::Now | Ends::Never => release(spec, now),
        }
        annotations.insert(SIGN.to_owned(), sign(spec));
    }
    let (kind, shard) = match key {
        Key::Marker => ("marker", None),
        Key::Scratch(_) => ("trial", None),
        Key::Shard(shard) => ("shard", Some(shard)),
        Key::Led(shard) => ("led", Some(shard)),
        Key::Note(shard, Page::Standby(_)) => ("standby", Some(shard)),
        Key::Note(shard, _) => ("note", Some(shard)),
    };
    let which = if let Key::Note(_, page) = key { Some(page.name(MARK)) } else { None };
    lease.metadata.labels.get_or_insert_default().insert(KIND.to_owned(), kind.to_owned());
    let ours = [(SHARD, shard.map(Shard::to_string)), (WHICH, which), (RECORD, Some(record.json()))];
    annotations.extend(ours.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
    lease
}

pub fn found(mut lease: Lease, is_shard: bool, incarnation: String) -> Found {
    let annotations = lease.metadata.annotations.get_or_insert_default();
    let record = annotations.remove(RECORD).map(|record| Record::read(record.as_bytes()));
    let sign = lease.spec.as_ref().map(sign).unwrap_or_default();
    let is_ours = !is_shard || annotations.get(SIGN) == Some(&sign);
    let content = match record {
        Some(Err(why)) => Content::Unreadable(why),
        Some(Ok(record)) if is_ours => Content::Ours(record.document()),
        _ if is_shard => foreign(&lease, sign),
        _ => Content::Unreadable("it has no annotation of ours".to_owned()),
    };
    // The version is what the next write needs. The server compares its uid and resourceVersion.
    (lease.metadata.managed_fields, lease.metadata.self_link) = (None, None);
    let write = serde_json::to_string(&lease).expect("it is plain data");
    Found { content, version: Version { write, incarnation } }
}

/// Held until it stood unchanged for its duration, as electors judge it. Without a duration it never ends.
fn foreign(lease: &Lease, sign: String) -> Content {
    let spec = lease.spec.clone().unwrap_or_default();
    let owner = spec.holder_identity.unwrap_or_default();
    let life = match spec.lease_duration_seconds {
        _ if owner.is_empty() => Life::Over,
        Some(seconds) => Life::Unchanged { whole: Duration::from_secs(u64::try_from(seconds).unwrap_or(0)) },
        None => Life::ForEver,
    };
    let foreign_lock = Some(format!("the Lease {}", lease.metadata.name.as_deref().unwrap_or_default()));
    Content::Foreign { holder: Holder { owner, foreign_lock, ..Holder::default() }, sign, life }
}

pub fn is_of(lease: &Lease, write: &str) -> bool {
    let record = lease.metadata.annotations.as_ref().and_then(|annotations| annotations.get(RECORD));
    record.and_then(|record| Record::read(record.as_bytes()).ok()).is_some_and(|record| record.write == write)
}

pub fn listed(lease: Lease) -> Option<Listed> {
    let annotation = |name: &str| lease.metadata.annotations.as_ref()?.get(name);
    let part = match lease.metadata.labels.as_ref()?.get(KIND)?.as_str() {
        "shard" => Part::Lease,
        "led" => Part::Led,
        "note" | "standby" => Part::Note(Page::of_name(annotation(WHICH)?, MARK)?),
        _ => return None,
    };
    let shard = annotation(SHARD)?.parse().ok()?;
    Some(Listed { shard, found: found(lease, part == Part::Lease, String::new()), part })
}

/// Whether an object may have this name (RFC 1123, a subdomain).
pub fn is_name(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    let is_part = |part: &str| {
        part.starts_with(is_letter) && part.ends_with(is_letter) && part.chars().all(|c| is_letter(c) || c == '-')
    };
    name.len() <= LONGEST_NAME && name.split('.').all(is_part)
}

fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let letter = |byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("-{byte:02x}") };
    text.bytes().map(letter).fold("x".to_owned(), |name, letter| name + &letter)
}

fn of_shard(shard: &Shard) -> String {
    let name = shard.as_str();
    if is_name(name) && !name.starts_with(OURS) { name.to_owned() } else { format!("{OURS}{}", escaped(name)) }
}

/// The name of a document's Lease, different for each. `lease` names one that other programs use as well.
pub fn name_of(key: Key<'_>, lease: Option<&str>) -> String {
    let name = match key {
        Key::Marker => format!("{OURS}marker"),
        Key::Scratch(name) => format!("{OURS}trial.{name}"),
        Key::Shard(shard) => match lease {
            Some(lease) if !shard.as_str().starts_with(OF_LEADERCTL) => return lease.to_owned(),
            _ => of_shard(shard),
        },
        Key::Led(shard) => format!("{OURS}led.{}", of_shard(shard)),
        Key::Note(shard, page) => {
            let (word, of) = page.words();
            let of = of.map(|of| format!(".{}", escaped(of))).unwrap_or_default();
            format!("{OURS}{word}{of}.{}", of_shard(shard))
        }
    };
    if name.len() <= LONGEST_NAME {
        return name;
    }
    Sha256::digest(name).iter().fold(format!("{OURS}sha256."), |name, byte| format!("{name}{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Session, Term};
    use crate::store::expiry::Undated;
    use crate::store::lease_store::documents::Leadership;
    use std::collections::HashSet;

    const NOW: u64 = Undated::WALL_MILLIS;

    fn put(key: Key<'_>, draft: &Draft<'_>, over: &Found) -> Lease {
        let record = Record::new(draft, over, &Undated).expect("random bytes");
        drafted(key, name_of(key, None), draft, &record, over, NOW)
    }

    fn shard(name: &str) -> Shard {
        name.parse().expect("a shard")
    }

    fn led<'a>(text: &'a str, leadership: &'a Leadership, ends: Ends) -> Draft<'a> {
        Draft { text, leadership: Some(leadership), sequence: 3, ends, owner: Some("one") }
    }

    #[test]
    fn no_two_documents_meet_and_each_has_a_name_that_the_api_takes() {
        let long = "A".repeat(200);
        let shards = [
            "db",
            "a/b",
            "a-2fb",
            "xa-2fb",
            "A",
            "a.b",
            "a..b",
            "-a",
            "w#2",
            "leaderrun.xa-2fb",
            "leaderrun.marker",
            "leaderrun.led.db",
            "led.db",
            "db.history",
            "x",
            "leaderrun",
            &long,
        ];
        let mut names = HashSet::from([name_of(Key::Marker, None)]);
        for shard in shards.map(shard) {
            let pages = [
                Page::History,
                Page::Runs,
                Page::Jobs,
                Page::Once("a-b".parse().expect("a job")),
                Page::Once("a.b".parse().expect("a job")),
                Page::Standby(Session::from_record("s-1")),
            ];
            let keys = pages.iter().map(|page| Key::Note(&shard, page)).chain([Key::Shard(&shard), Key::Led(&shard)]);
            for key in keys {
                let name = name_of(key, None);
                assert!(is_name(&name), "{name}");
                assert!(names.insert(name), "{key:?}");
            }
        }
        assert_eq!(name_of(Key::Shard(&shard("db")), None), "db");
        assert_eq!(name_of(Key::Shard(&shard("db")), Some("theirs")), "theirs");
        assert_eq!(name_of(Key::Led(&shard("a/b")), Some("theirs")), "leaderrun.led.leaderrun.xa-2fb");
    }

    #[test]
    fn the_fields_are_filled_as_electors_of_client_go_fill_them_and_what_is_not_ours_stays() {
        let shard = shard("db");
        let leadership = Leadership { session: Session::from_record("s"), term: Term(7) };
        let theirs = r#"{"metadata": {"name": "db", "uid": "u", "resourceVersion": "5", "annotations": {"a": "b"},
            "managedFields": [{}], "ownerReferences": [{"uid": "o"}]}, "spec": {"holderIdentity": "other",
            "leaseDurationSeconds": 15, "renewTime": "2027-01-15T08:00:00.000000Z", "leaseTransitions": 4,
            "strategy": "OldestEmulationVersion"}}"#;
        let theirs: Lease = serde_json::from_str(theirs).expect("a Lease");
        let found = self::found(theirs, true, String::new());
        let Content::Foreign { holder, life, .. } = &found.content else { panic!("another program's") };
        assert_eq!((holder.owner.as_str(), *life), ("other", Life::Unchanged { whole: Duration::from_secs(15) }));
        let put = |over: &Found, draft: &Draft<'_>| put(Key::Shard(&shard), draft, over);
        let value = |lease: &Lease| serde_json::to_value(lease).expect("plain data");
        let taken = put(&found, &led("{}", &leadership, Ends::In(Duration::from_millis(16_250))));
        let seen = value(&taken);
        assert_eq!(seen["spec"]["holderIdentity"], "one_s");
        assert_eq!(seen["spec"]["leaseDurationSeconds"], 17);
        assert_eq!(seen["spec"]["leaseTransitions"], 5);
        // Of the last renewal and of now, the later; at the least a second later.
        assert_eq!(seen["spec"]["renewTime"], "2027-01-15T08:00:01.000000Z");
        assert_eq!(seen["spec"]["acquireTime"], "2027-01-15T08:00:00.400000Z");
        assert_eq!(seen["spec"]["strategy"], "OldestEmulationVersion");
        assert_eq!(seen["metadata"]["annotations"]["a"], "b");
        assert_eq!(seen["metadata"]["ownerReferences"][0]["uid"], "o");
        assert_eq!((&seen["metadata"]["uid"], &seen["metadata"]["resourceVersion"]), (&"u".into(), &"5".into()));
        assert!(seen["metadata"].get("managedFields").is_none());
        let found = self::found(taken, true, String::new());
        let kept = value(&put(&found, &led("{}", &leadership, Ends::Keep)));
        assert_eq!(kept["spec"], seen["spec"], "for others, orders are no renewal");
        let renewal = Draft { owner: None, ..led("{}", &leadership, Ends::In(Duration::from_secs(2))) };
        let renewed = value(&put(&found, &renewal));
        assert_eq!(renewed["spec"]["holderIdentity"], "one_s");
        assert_eq!(renewed["spec"]["renewTime"], "2027-01-15T08:00:02.000000Z");
        let release = Draft { leadership: None, ..led("{}", &leadership, Ends::Now) };
        let released = value(&put(&found, &release));
        assert_eq!(released["spec"]["holderIdentity"], "");
        assert_eq!(
            (&released["spec"]["leaseDurationSeconds"], &released["spec"]["leaseTransitions"]),
            (&1.into(), &5.into())
        );
    }
}
