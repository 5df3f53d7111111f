//! The checker and its models against histories that are known to be right or wrong.

use super::checker::{Instant, NEVER, Operation, Verdict, check};
use super::lease::{Call, Claimed, Lease, Leeway, Named, Renewal};
use super::page::{self, Page, Text};
use std::time::Duration;

const LEASE: Duration = Duration::from_nanos(1600);

fn at<C>(begun: Instant, ended: Instant, call: C) -> Operation<C> {
    Operation { call, begun, ended, required: ended != NEVER }
}

fn claim(session: usize, answer: Option<Claimed>) -> Call {
    Call::Claim { session, number: session * 100, lease: LEASE, answer }
}

fn granted(session: usize, term: u64) -> Call {
    granted_from(session, term, 0)
}

fn granted_from(session: usize, term: u64, start: Instant) -> Call {
    claim(session, Some(Claimed::Granted { term, start }))
}

fn unheard(session: usize) -> Call {
    claim(session, None)
}

fn renewed(session: usize, term: u64, sequence: u64) -> Call {
    Call::Renew { session, term, sequence, lease: LEASE, answer: Some(Renewal::Renewed) }
}

fn lost(session: usize, term: u64) -> Call {
    Call::Renew { session, term, sequence: 1, lease: LEASE, answer: Some(Renewal::Lost) }
}

fn held(session: usize, term: u64) -> Call {
    Call::Look { holder: Some(Named { session: Some(session), term: Some(term) }) }
}

fn free() -> Call {
    Call::Look { holder: None }
}

fn release(session: usize, term: u64, done: bool) -> Call {
    Call::Release { session, term: Some(term), done: Some(done) }
}

fn revoke(term: u64, done: bool) -> Call {
    Call::Revoke { term, done: Some(done) }
}

fn is_right(history: &[Operation<Call>]) -> bool {
    is_right_with(Leeway::default(), history)
}

fn is_right_with(leeway: Leeway, history: &[Operation<Call>]) -> bool {
    let verdict = check(&Lease { leeway }, history);
    assert_ne!(verdict, Verdict::Undecided);
    verdict == Verdict::Linearizable
}

#[test]
fn two_holders_at_once_are_wrong() {
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(11, 20, granted(2, 6))]));
    // Also if both claims were under way at the same time.
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(0, 10, granted(2, 6))]));
    // And if the first one was not heard, but seen.
    assert!(!is_right(&[at(0, NEVER, unheard(1)), at(5, 9, held(1, 5)), at(11, 20, granted(2, 6))]));
}

#[test]
fn a_stale_look_is_wrong_and_one_at_the_same_time_may_see_either() {
    let change = [at(0, 10, granted(1, 5)), at(11, 20, release(1, 5, true)), at(21, 30, granted(2, 6))];
    let with = |look| change.iter().cloned().chain([look]).collect::<Vec<_>>();
    assert!(!is_right(&with(at(31, 40, held(1, 5)))));
    assert!(!is_right(&with(at(31, 40, free()))));
    assert!(!is_right(&with(at(12, 40, held(2, 5)))), "a term of another");
    assert!(is_right(&with(at(12, 40, held(1, 5)))));
    assert!(is_right(&with(at(12, 40, free()))));
    assert!(is_right(&with(at(12, 40, held(2, 6)))));
}

#[test]
fn a_term_that_falls_or_stays_is_wrong() {
    for term in [4, 5] {
        let again = at(21, 30, granted(2, term));
        assert!(!is_right(&[at(0, 10, granted(1, 5)), at(11, 20, release(1, 5, true)), again]), "{term}");
    }
    // The same session made its claim again.
    assert!(is_right(&[at(0, 10, granted(1, 5)), at(11, 20, granted(1, 6))]));
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(11, 20, granted(1, 5))]));
    // A term that only a look has shown counts as well.
    let seen = [at(0, NEVER, unheard(1)), at(5, 9, held(1, 7)), at(10, 20, release(1, 7, true))];
    assert!(!is_right(&[&seen[..], &[at(21, 30, granted(2, 6))]].concat()));
    assert!(is_right(&[&seen[..], &[at(21, 30, granted(2, 8))]].concat()));
}

#[test]
fn a_release_that_frees_the_lease_of_another_is_wrong() {
    let two = [at(0, 10, granted(1, 5)), at(11, 20, release(1, 5, true)), at(21, 30, granted(2, 6))];
    let then = |rest: &[Operation<Call>]| is_right(&[&two[..], rest].concat());
    assert!(!then(&[at(31, 40, release(1, 5, true))]));
    assert!(!then(&[at(31, 40, release(1, 5, false)), at(41, 50, free())]));
    assert!(then(&[at(31, 40, release(1, 5, false)), at(41, 50, held(2, 6))]));
    // A late release of the session's own earlier leadership.
    let again = [at(0, 10, granted(1, 5)), at(11, 20, granted(1, 6)), at(21, 30, release(1, 5, true))];
    assert!(!is_right(&again));
}

#[test]
fn a_lease_is_given_to_another_after_its_end_and_not_before() {
    let with = |begun, ended| is_right(&[at(0, 10, granted(1, 5)), at(begun, ended, granted(2, 6))]);
    assert!(!with(1000, 1400));
    assert!(with(1000, 1700), "it may have been granted at its end");
    assert!(with(1700, 1800));
    // Every renewal counts from its call.
    let with_renewal =
        |ended| is_right(&[at(0, 10, granted(1, 5)), at(1000, 1100, renewed(1, 5, 1)), at(1700, ended, granted(2, 6))]);
    assert!(!with_renewal(2400));
    assert!(with_renewal(2700));
    // One that was not heard may have been applied, or not.
    let call = Call::Renew { session: 1, term: 5, sequence: 1, lease: LEASE, answer: None };
    assert!(is_right(&[at(0, 10, granted(1, 5)), at(1000, NEVER, call), at(1700, 1800, granted(2, 6))]));
    // Nor is it shown as free, or lost.
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(1000, 1400, free())]));
    assert!(is_right(&[at(0, 10, granted(1, 5)), at(1000, 1700, free()), at(1800, 1900, lost(1, 5))]));
    // Its holder may renew it as long as nobody else has it.
    assert!(is_right(&[at(0, 10, granted(1, 5)), at(1800, 1900, renewed(1, 5, 1)), at(1901, 1910, held(1, 5))]));
    // And a lease that never ends is not given away.
    let eternal = Leeway { is_of_kernel: true, ..Leeway::default() };
    assert!(!is_right_with(eternal, &[at(0, 10, granted(1, 5)), at(9000, 9900, granted(2, 6))]));
}

#[test]
fn after_a_revocation_nobody_starts_before_the_lease_would_have_ended() {
    let revoked = [at(0, 10, granted(1, 5)), at(11, 20, revoke(5, true)), at(21, 30, lost(1, 5))];
    let then = |rest: &[Operation<Call>]| is_right(&[&revoked[..], rest].concat());
    assert!(!then(&[at(31, 40, granted_from(2, 6, 40))]));
    assert!(then(&[at(31, 40, granted_from(2, 6, 1600))]));
    assert!(then(&[at(31, 40, release(1, 5, false)), at(41, 50, granted_from(2, 6, 50))]), "its tree is dead");
    assert!(then(&[at(31, 40, granted_from(1, 6, 40))]), "it has no tree");
    // Its record may stay, under a name that is nobody's.
    let nobody = || Call::Look { holder: Some(Named { session: None, term: None }) };
    assert!(then(&[at(31, 40, release(1, 5, false)), at(41, 50, nobody())]));
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(11, 20, nobody())]));
    assert!(
        is_right(&[at(0, 10, granted(1, 5)), at(1000, 1700, nobody())]),
        "a lease that has ended may be waited for"
    );
    // Who comes after the next one waits as well.
    let next = [at(31, 40, granted_from(2, 6, 1600)), at(41, 50, release(2, 6, true))];
    assert!(!then(&[&next[..], &[at(51, 60, granted_from(3, 7, 60))]].concat()));
    assert!(then(&[&next[..], &[at(51, 60, granted_from(3, 7, 1600))]].concat()));
    // What is no longer held cannot be revoked, nor a term that is over.
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(11, 20, revoke(4, true))]));
    assert!(!is_right(&[at(0, 10, granted(1, 5)), at(11, 20, revoke(5, false))]));
}

fn read(text: Text) -> page::Call {
    page::Call::Read { text }
}

fn replace(expected: Text, draft: Text, done: Option<bool>) -> page::Call {
    page::Call::Replace { expected, draft, done }
}

fn is_right_note(history: &[Operation<page::Call>]) -> bool {
    check(&Page, history) == Verdict::Linearizable
}

#[test]
fn a_note_that_is_overwritten_blindly_is_wrong() {
    let first = at(0, 10, replace(None, Some(1), Some(true)));
    assert!(is_right_note(&[
        first.clone(),
        at(11, 20, replace(Some(1), Some(2), Some(true))),
        at(21, 30, read(Some(2)))
    ]));
    assert!(!is_right_note(&[first.clone(), at(11, 20, replace(None, Some(2), Some(true)))]), "overwritten");
    assert!(
        !is_right_note(&[first.clone(), at(11, 20, replace(Some(1), Some(2), Some(false)))]),
        "refused for nothing"
    );
    // Both have read the same text, and both were told that they replaced it.
    let two = [at(11, 20, replace(Some(1), Some(2), Some(true))), at(11, 20, replace(Some(1), Some(3), Some(true)))];
    assert!(!is_right_note(&[&[first.clone()][..], &two].concat()), "a lost update");
    assert!(!is_right_note(&[first.clone(), at(11, 20, read(None))]), "a stale read");
    assert!(!is_right_note(&[first, at(11, 20, replace(Some(1), None, Some(true))), at(21, 30, read(Some(1)))]));
}
