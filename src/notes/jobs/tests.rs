//! Tests of the ledger and of its gate.

use super::gate::until;
use super::*;
use crate::election::{Booking, CommandEnd, Loss};
use crate::fuzz;
use crate::store::lease_store::memory::reference;
use crate::store::notes;
use std::time::Duration;

const MINUTE: u64 = 60_000;
const EVERY: Duration = Duration::from_mins(5);
const ALONE: Behind = Behind { session: None, term: None };

fn period(started_millis: u64) -> Period {
    Period::new(started_millis, EVERY).unwrap()
}

fn run(session: &str, status: Option<u8>) -> Run {
    Run {
        owner: "\"".repeat(256),
        host: "h".repeat(64),
        session: Session::from_record(session),
        term: Term(u64::MAX),
        from_millis: u64::MAX,
        to_millis: status.map(|_| u64::MAX),
        status,
        ended: status.map(|_| "\u{10ffff}".repeat(LONGEST_END)),
    }
}

fn ledger(due_millis: u64, attempts: u32, status: Option<u8>) -> Ledger {
    let period = Turn { due_millis, next_millis: due_millis.saturating_add(5 * MINUTE), every_millis: 5 * MINUTE };
    Ledger { period: Some(period), attempts, run: run("a", status), succeeded: None }
}

fn once(name: &str, retry_failed: Option<u32>) -> Job {
    Job { frequency: Frequency::Once(name.parse().unwrap()), retry_failed, done_exit_code: 0 }
}

fn every(started_millis: u64, retry_failed: Option<u32>) -> Job {
    Job { frequency: Frequency::Every(period(started_millis)), retry_failed, done_exit_code: 0 }
}

#[test]
fn the_longest_ledger_is_no_longer_than_a_note_may_be() {
    let ledger = Ledger { succeeded: Some(run(&"s".repeat(36), Some(0))), ..ledger(u64::MAX, u32::MAX, Some(1)) };
    assert!(ledger.text().len() <= notes::LONGEST, "{}", ledger.text().len());
}

fn candidate(session: &str) -> Candidate {
    Candidate {
        owner: session.to_owned(),
        session: Session::from_record(session),
        host: format!("host of {session}"),
        ..Candidate::example()
    }
}

fn ended(status: i32) -> Ran {
    let end = CommandEnd::Exited(status);
    Ran { how: Ended::ByItself(end), end: Some(end) }
}

#[tokio::test]
async fn an_entry_whose_run_never_began_restores_the_earlier_text() {
    let (store, shard) = (reference(), "db".parse::<Shard>().unwrap());
    let job_gate = |retry_failed| JobGate::new(every(0, retry_failed));
    let (first, second) = (job_gate(None), job_gate(Some(1)));
    assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
    // Book again, as after a lost answer, and in another term.
    assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
    assert!(matches!(first.book(&store, &candidate("a"), Term(2), &ALONE).await, Ok(Booking::Booked(_))));
    assert_eq!(last(&store, &shard).await.unwrap().unwrap().attempts, 1);
    assert_eq!(first.settle(&store, &shard, None).await, Ok(()));
    assert_eq!(last(&store, &shard).await, Ok(None));
    assert_eq!(first.settle(&store, &shard, None).await, Ok(()), "also twice");

    assert!(matches!(first.book(&store, &candidate("a"), Term(3), &ALONE).await, Ok(Booking::Booked(_))));
    let before = last(&store, &shard).await;
    assert!(matches!(second.book(&store, &candidate("b"), Term(4), &ALONE).await, Ok(Booking::Booked(_))));
    assert_eq!(second.settle(&store, &shard, None).await, Ok(()));
    assert_eq!(last(&store, &shard).await, before);
    assert!(matches!(job_gate(None).book(&store, &candidate("c"), Term(5), &ALONE).await, Ok(Booking::Done(_))));
}

#[tokio::test]
async fn a_run_that_counted_as_failed_and_then_succeeds_is_the_one_that_counts() {
    let (store, shard) = (reference(), "db".parse::<Shard>().unwrap());
    let job_gate = || JobGate::new(once("a", Some(1)));
    for withdrawn in [false, true] {
        let (first, second) = (job_gate(), job_gate());
        assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
        assert!(matches!(second.book(&store, &candidate("b"), Term(2), &ALONE).await, Ok(Booking::Booked(_))));
        assert_eq!(first.settle(&store, &shard, Some(&ended(0))).await, Ok(()));
        assert_eq!(first.settle(&store, &shard, Some(&ended(0))).await, Ok(()), "also twice");
        let failed = ended(1);
        assert_eq!(second.settle(&store, &shard, Some(&failed).filter(|_| !withdrawn)).await, Ok(()));
        let third = job_gate().book(&store, &candidate("c"), Term(3), &ALONE).await;
        assert!(matches!(third, Ok(Booking::Done(skipped)) if skipped.said.contains("host of a did job a at ")));
        let page = Page::Once("a".parse().unwrap());
        let note = store.read(&shard, &page).await.unwrap().unwrap();
        assert_eq!(store.replace(&shard, &page, Some(&note.text), None).await, Ok(true));
    }
    assert_eq!(last(&store, &shard).await, Ok(None), "it has no periods");
}

#[tokio::test]
async fn the_store_forgets_a_period_two_durations_after_its_first_run() {
    let (store, shard) = (reference(), "db".parse::<Shard>().unwrap());
    let left = async || store.read(&shard, &Page::Runs).await.unwrap().unwrap().lasts.unwrap();
    let is_near = |left: Duration, wanted: Duration| left <= wanted && left > wanted - Duration::from_secs(20);
    let first = JobGate::new(every(0, Some(1)));
    assert!(matches!(first.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
    assert!(is_near(left().await, 2 * EVERY));
    // Minutes later.
    let page = &Page::Runs;
    let note = store.read(&shard, page).await.unwrap().unwrap();
    let aged = Note::lasting(note.text.clone(), Some(EVERY));
    assert_eq!(store.replace(&shard, page, Some(&note.text), Some(&aged)).await, Ok(true));
    first.entry.lock().await.as_mut().unwrap().until = until(Some(EVERY));
    assert_eq!(first.settle(&store, &shard, Some(&ended(1))).await, Ok(()));
    assert!(is_near(left().await, EVERY), "its end is no other run");
    let second = JobGate::new(every(1000, Some(1)));
    assert!(matches!(second.book(&store, &candidate("b"), Term(2), &ALONE).await, Ok(Booking::Booked(_))));
    assert!(is_near(left().await, EVERY), "a repeat belongs to its period");
    assert_eq!(second.settle(&store, &shard, None).await, Ok(()));
    assert!(is_near(left().await, EVERY), "nor does it count if it never began");
}

#[tokio::test]
async fn a_run_is_recorded_although_the_store_forgot_it_while_it_was_under_way() {
    let shard = "db".parse::<Shard>().unwrap();
    for job in [once("a", None), every(10 * MINUTE, None)] {
        let page = job.frequency.page();
        // Of another period, or of this name.
        let before = ledger(0, 1, Some(1));
        let before = Ledger {
            period: before.period.filter(|_| page == Page::Runs),
            run: Run { term: Term(4), ..before.run },
            ..before
        };
        for kept in [None, Some(&before)] {
            let store = reference();
            let gate = JobGate::new(job.clone());
            assert!(matches!(gate.book(&store, &candidate("a"), Term(5), &ALONE).await, Ok(Booking::Booked(_))));
            let kept = kept.map(|ledger| Note::for_ever(ledger.text()));
            let stands = async || store.read(&shard, &page).await.unwrap().map(|note| note.text);
            let forgets = async || {
                let text = stands().await;
                assert_eq!(store.replace(&shard, &page, text.as_deref(), kept.as_ref()).await, Ok(true));
            };
            // What an operator may have cleared since is not written again, nor what never began.
            forgets().await;
            let lost = Ran { how: Ended::Lost(Loss::DeadlinePassed), end: None };
            for ran in [None, Some(&lost)] {
                assert_eq!(gate.settle(&store, &shard, ran).await, Ok(()));
                assert_eq!(stands().await, kept.as_ref().map(|note| note.text.clone()));
            }
            assert_eq!(gate.settle(&store, &shard, Some(&ended(0))).await, Ok(()));
            let next = JobGate::new(job.clone()).book(&store, &candidate("b"), Term(6), &ALONE).await;
            assert!(matches!(next, Ok(Booking::Done(_))), "{next:?}");
        }
    }
}

#[tokio::test]
async fn a_run_whose_end_could_not_be_written_is_not_taken_for_one_that_never_began() {
    let (store, shard) = (reference(), "db".parse::<Shard>().unwrap());
    let gate = JobGate::new(once("a", Some(1)));
    assert!(matches!(gate.book(&store, &candidate("a"), Term(1), &ALONE).await, Ok(Booking::Booked(_))));
    // The store does not take the end.
    gate.entry.lock().await.as_mut().unwrap().has_run = true;
    let Ok(Booking::Booked(second)) = gate.book(&store, &candidate("a"), Term(2), &ALONE).await else { panic!() };
    assert!(second.variables.contains(&("LEADERRUN_PREVIOUS", "unknown".to_owned())), "{second:?}");
    assert_eq!(gate.settle(&store, &shard, Some(&ended(1))).await, Ok(()));
    assert!(matches!(gate.book(&store, &candidate("a"), Term(3), &ALONE).await, Ok(Booking::Done(_))));
}

#[test]
fn a_note_that_is_no_ledger_of_such_a_job_is_refused_in_one_line() {
    let shard: Shard = "a".parse().unwrap();
    let once = Page::Once("x".parse().unwrap());
    let periodic = ledger(0, 1, None).text();
    for (text, page) in [("null", &Page::Runs), ("{\"a\nb\":", &Page::Runs), (&*periodic, &once)] {
        let refusal = Ledger::read(Some(&Note::for_ever(text)), page, &shard).unwrap_err();
        fuzz::assert_is_one_line(&refusal.message);
    }
}
