//! The texts about a leadership: the lock, and the record that other programs read.
//!
//! The hazard: an owner may have any name, and a host too. In the lock they are percent-encoded, so that a blank in
//! them does not change the record.

use crate::lease::{Candidate, Session, Term};
use crate::store::Holder;
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde::Serialize;

const BLANKS: &AsciiSet = &CONTROLS.add(b' ').add(b'%');

/// The text after `SESSION TERM BEAT SINCE ` in the lock.
pub fn tail(candidate: &Candidate) -> String {
    let encode = |text| utf8_percent_encode(text, BLANKS);
    format!("{} {} {}", candidate.pid, encode(&candidate.host), encode(&candidate.owner))
}

/// The holder according to a lock's text. None if another program wrote it.
pub fn holder(text: &str) -> Option<Holder> {
    let mut words = text.split(' ');
    let mut next = || words.next();
    let session = Session::from_record(next().filter(|session| !session.is_empty())?);
    let term = Term(next()?.parse().ok()?);
    let _beat: u64 = next()?.parse().ok()?;
    let since_millis = next()?.parse().ok()?;
    let pid = next()?.parse().ok()?;
    let mut decoded = || Some(percent_decode_str(next()?).decode_utf8().ok()?.into_owned());
    let (host, owner) = (decoded()?, decoded()?);
    if words.next().is_some() {
        return None;
    }
    Some(Holder {
        owner,
        session: Some(session),
        host: Some(host),
        pid: Some(pid),
        term: Some(term),
        since_millis: Some(since_millis),
        expires_in: None,
        renewed_ago: None,
        doubt: None,
    })
}

/// The record, with the names that services use that publish their leader in Redis, and some of our own.
#[derive(Serialize)]
struct Record<'a> {
    instance_id: &'a str,
    hostname: &'a str,
    started_at: &'a str,
    last_heartbeat: &'a str,
    pid: u32,
    session: &'a str,
    lease_ms: u64,
}

/// A JSON object without its last brace: the script decides on the term and adds it.
pub fn unfinished(candidate: &Candidate, lease_millis: u64, started_at: &str, now: &str) -> String {
    let record = Record {
        instance_id: &candidate.owner,
        hostname: &candidate.host,
        started_at,
        last_heartbeat: now,
        pid: candidate.pid,
        session: candidate.session.as_str(),
        lease_ms: lease_millis,
    };
    let mut text = serde_json::to_string(&record).expect("a record is plain data");
    text.pop();
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;
    use proptest::prelude::*;

    fn candidate(owner: &str, host: &str) -> Candidate {
        let session = Session::from_record("11111111-2222-4333-8444-555555555555");
        Candidate { owner: owner.to_owned(), session, host: host.to_owned(), ..Candidate::example() }
    }

    #[test]
    fn a_million_locks_are_read_as_they_were_written_or_are_of_another_program() {
        let seeds = [
            "11111111-2222-4333-8444-555555555555 1795268611017 2 1795268600000 7 host host-7-x",
            "s 5 2 9 7 h%20ost o%25%0Awner",
            "s 18446744073709551615 18446744073709551615 18446744073709551615 4294967295  ",
        ];
        fuzz::bent_text("lock of redis://", &seeds, |text, _| {
            let read = holder(text);
            if let Some(known) = &read {
                let candidate = Candidate {
                    session: known.session.clone().expect("it has one"),
                    pid: known.pid.expect("it has one"),
                    ..candidate(&known.owner, known.host.as_deref().expect("it has one"))
                };
                let (term, since) = (known.term.expect("it has one"), known.since_millis.expect("it has one"));
                let written = format!("{} {term} 0 {since} {}", candidate.session.as_str(), tail(&candidate));
                assert_eq!(holder(&written).as_ref(), Some(known));
                let json = unfinished(&candidate, since, text, text) + ",\"term\":5}";
                assert!(serde_json::from_str::<serde_json::Value>(&json).is_ok(), "{json}");
            }
            (&read).into()
        });
    }

    proptest! {
        #[test]
        fn any_name_survives(owner in "\\PC{0,20}", host in "\\PC{0,20}") {
            let candidate = candidate(&owner, &host);
            let text = format!("{} 5 2 9 {}", candidate.session.as_str(), tail(&candidate));
            let holder = holder(&text).expect("it is ours");
            prop_assert_eq!((holder.owner, holder.host, holder.pid), (owner, Some(host), Some(7)));
            prop_assert_eq!((holder.term, holder.since_millis), (Some(Term(5)), Some(9)));
        }
    }

    #[test]
    fn a_lock_that_another_program_wrote_has_no_holder() {
        for text in ["", "x", "true", "{\"a\":1}", "s 1 2 3", "s 1 2 3 4 h o more", "s x 2 3 4 h o", " 1 2 3 4 h o"] {
            assert_eq!(holder(text), None, "{text}");
        }
    }

    #[test]
    fn the_record_becomes_json_when_the_script_has_finished_it() {
        let text = unfinished(&candidate("a \"b\"", "h"), 1000, "then", "now") + ",\"term\":5}";
        let record: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!((record["instance_id"].as_str(), record["term"].as_u64()), (Some("a \"b\""), Some(5)));
    }
}
