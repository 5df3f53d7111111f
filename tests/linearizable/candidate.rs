//! One candidate in a history: what it asks of its store, by a seed, and what it hears.
//!
//! The hazard: an error says what may be concluded from it, and the history must say no more. An error that says that
//! the request was not applied takes it out of the history, so the checker finds out where that is not true (only a
//! claim leaves a trace: see `History::is_excused`). After any other, or without an answer, the request stays open to
//! the end.
//!
//! A candidate keeps to what the trait asks of its caller: it renews with the term of its last grant and with sequences
//! that rise, and after a claim without an answer it does not renew before another one was granted.

use super::checker::Instant;
use super::history::{Call, Event, PAGES};
use super::lease::{self, Claimed, Named};
use super::page::{self, Text};
use crate::support::gate::{Gate, Mischief};
use crate::support::random::Random;
use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::store::{
    Claim, ErrorKind, Holder, Note, Observation, Page, Release, Renewal, Store, StoreError,
};
use leaderrun::internals::time::BootInstant;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

/// A machine that stalls makes short histories, and not long ones.
const MOST_TIME: Duration = Duration::from_secs(10);
/// How long an answer is waited for: the store gives up long before.
const PATIENCE: Duration = Duration::from_secs(90);

/// What is to happen on one shard.
pub struct Plan {
    pub seed: u64,
    pub shard: Shard,
    pub lease: Duration,
    /// Of the candidates; some of them may stay away.
    pub sessions: Vec<Session>,
    pub present: usize,
    pub is_disturbed: bool,
    pub revokes: bool,
    pub length: Length,
    /// The highest term that was heard of.
    pub term: AtomicU64,
}

#[derive(Clone, Copy)]
pub enum Length {
    /// So many calls of each candidate, one soon after another.
    Calls(usize),
    /// Calls with long pauses in between, for so long.
    Time(Duration),
}

pub struct Seat {
    pub store: Arc<dyn Store>,
    /// None where the store is a directory.
    pub network: Option<Gate>,
}

#[derive(Clone, Copy)]
enum Standing {
    /// With the term and sequence of its last leadership, which it may try to renew too late.
    Out(Option<(u64, u64)>),
    /// A claim or release was not answered.
    Doubt,
    Leads(u64, u64),
}

pub struct Player<'a> {
    seat: &'a Seat,
    plan: &'a Plan,
    me: usize,
    candidate: Candidate,
    random: Random,
    standing: Standing,
    /// What stood in each note when it was last seen.
    texts: [Text; PAGES],
    count: usize,
    events: Vec<Event>,
}

enum Heard<T> {
    Answer(T),
    /// It may have been applied.
    Nothing,
    NotApplied,
}

impl<'a> Player<'a> {
    pub fn new(seat: &'a Seat, plan: &'a Plan, me: usize) -> Self {
        let candidate = Candidate {
            shard: plan.shard.clone(),
            owner: format!("c{me}"),
            session: plan.sessions[me].clone(),
            host: "host".to_owned(),
            pid: 7,
            lease: plan.lease,
        };
        let random = Random::new(plan.seed.wrapping_mul(1000).wrapping_add(me as u64));
        let (standing, texts, events) = (Standing::Out(None), [None; PAGES], Vec::new());
        Self { seat, plan, me, candidate, random, standing, texts, count: 0, events }
    }

    pub async fn play(mut self) -> Vec<Event> {
        if self.me >= self.plan.present {
            return self.events;
        }
        let begun = BootInstant::now();
        loop {
            let passed = BootInstant::now().since(begun);
            let pause = match self.plan.length {
                Length::Calls(calls) if self.count >= calls || passed > MOST_TIME => break,
                Length::Calls(_) => Duration::from_micros(self.random.between(0, 2000)),
                Length::Time(time) if passed > time => break,
                Length::Time(_) => self.random.millis(1, 400),
            };
            sleep(pause).await;
            self.count += 1;
            let limit = self.disturb();
            self.act(limit).await;
            if let Some(network) = &self.seat.network {
                network.set(Mischief::None);
            }
        }
        self.events
    }

    /// Does something to the network. Returns how long the next answer is waited for.
    fn disturb(&mut self) -> Duration {
        let Some(network) = self.seat.network.as_ref().filter(|_| self.plan.is_disturbed) else { return PATIENCE };
        if !self.random.per_mille(250) {
            return PATIENCE;
        }
        let held = self.random.millis(5, 60);
        let (mischief, limit) = match self.random.below(5) {
            0 => (Mischief::LoseAnswer, PATIENCE),
            1 => (Mischief::LoseRequest, PATIENCE),
            2 => (Mischief::Delay(held / 4), PATIENCE),
            _ => (Mischief::HoldRequests(held), self.random.millis(1, 10)),
        };
        network.set(mischief);
        limit
    }

    async fn act(&mut self, limit: Duration) {
        if self.random.per_mille(250) {
            return self.write_or_read(limit).await;
        }
        if self.plan.revokes && self.random.per_mille(120) {
            return self.revoke(limit).await;
        }
        let chance = self.random.below(100);
        match self.standing {
            Standing::Out(_) if chance < 30 => self.look(limit).await,
            Standing::Out(Some((term, sequence))) if chance < 40 => self.renew(term, sequence + 1, limit).await,
            Standing::Out(_) => self.claim(limit).await,
            Standing::Doubt if chance < 60 => self.claim(limit).await,
            Standing::Doubt if chance < 80 => self.release(Term(0), limit).await,
            Standing::Doubt => self.look(limit).await,
            Standing::Leads(term, sequence) if chance < 60 => self.renew(term, sequence + 1, limit).await,
            Standing::Leads(..) if chance < 70 => self.look(limit).await,
            Standing::Leads(..) if chance < 75 => self.claim(limit).await,
            Standing::Leads(term, _) => self.release(Term(term), limit).await,
        }
    }

    fn event(&mut self, begun: Instant, ended: Option<Instant>, call: Call) {
        self.events.push(Event { begun, ended, call });
    }

    async fn claim(&mut self, limit: Duration) {
        let store = Arc::clone(&self.seat.store);
        let (begun, heard, ended) = timed(limit, store.claim(&self.candidate)).await;
        let answer = match heard {
            Heard::NotApplied => return self.event(begun, Some(ended), Call::Lease(lease::Call::FailedClaim)),
            Heard::Nothing => None,
            Heard::Answer(Claim::Granted(grant)) => {
                self.plan.term.fetch_max(grant.term.0, Ordering::Relaxed);
                let start = grant.start_after.map_or(ended, |start| start.as_nanos().max(ended));
                Some(Claimed::Granted { term: grant.term.0, start })
            }
            Heard::Answer(Claim::Refused(holder)) => Some(Claimed::Refused(self.named(&holder))),
        };
        self.standing = match (&answer, self.standing) {
            (None, _) => Standing::Doubt,
            (Some(Claimed::Granted { term, .. }), _) => Standing::Leads(*term, 0),
            (Some(Claimed::Refused(_)), Standing::Leads(term, sequence)) => Standing::Out(Some((term, sequence))),
            (Some(Claimed::Refused(_)), Standing::Doubt) => Standing::Out(None),
            (Some(Claimed::Refused(_)), out @ Standing::Out(_)) => out,
        };
        let (session, lease, number) = (self.me, self.plan.lease, self.me * 10_000 + self.count);
        let ended = answer.is_some().then_some(ended);
        self.event(begun, ended, Call::Lease(lease::Call::Claim { session, number, lease, answer }));
    }

    async fn renew(&mut self, term: u64, sequence: u64, limit: Duration) {
        let store = Arc::clone(&self.seat.store);
        let orders = if self.random.per_mille(500) { vec![self.plan.shard.clone()] } else { Vec::new() };
        let renewal = store.renew_and_read(&self.candidate, Term(term), sequence, &orders);
        let (begun, heard, ended) = timed(limit, renewal).await;
        let leads = matches!(self.standing, Standing::Leads(..));
        let answer = match heard {
            Heard::NotApplied => return,
            Heard::Nothing => None,
            Heard::Answer(renewed) => {
                if let Some(note) = renewed.orders.as_ref().and_then(|orders| orders.first()) {
                    let text = number_in(note.as_ref());
                    self.texts[0] = text;
                    self.event(begun, Some(ended), Call::Page(0, page::Call::Read { text }));
                }
                Some(match renewed.renewal {
                    Renewal::Renewed => lease::Renewal::Renewed,
                    Renewal::Overtaken => lease::Renewal::Overtaken,
                    Renewal::Lost(_) | Renewal::Revoked => lease::Renewal::Lost,
                })
            }
        };
        let lost = answer == Some(lease::Renewal::Lost) || !leads;
        self.standing = if lost { Standing::Out(Some((term, sequence))) } else { Standing::Leads(term, sequence) };
        let (session, lease) = (self.me, self.plan.lease);
        let ended = answer.is_some().then_some(ended);
        self.event(begun, ended, Call::Lease(lease::Call::Renew { session, term, sequence, lease, answer }));
    }

    async fn release(&mut self, term: Term, limit: Duration) {
        let store = Arc::clone(&self.seat.store);
        let (begun, heard, ended) = timed(limit, store.release(&self.candidate, term)).await;
        let done = match heard {
            Heard::NotApplied => return,
            Heard::Nothing => None,
            Heard::Answer(release) => Some(release == Release::Released),
        };
        self.standing = match (done, self.standing) {
            (None, _) => Standing::Doubt,
            (Some(_), Standing::Leads(term, sequence)) => Standing::Out(Some((term, sequence))),
            (Some(_), _) => Standing::Out(None),
        };
        let term = (term != Term(0)).then_some(term.0);
        let call = lease::Call::Release { session: self.me, term, done };
        self.event(begun, done.map(|_| ended), Call::Lease(call));
    }

    async fn revoke(&mut self, limit: Duration) {
        let term = self.plan.term.load(Ordering::Relaxed);
        let store = Arc::clone(&self.seat.store);
        let (begun, heard, ended) = timed(limit, store.revoke(&self.plan.shard, Term(term))).await;
        let done = match heard {
            Heard::NotApplied => return,
            Heard::Nothing => None,
            Heard::Answer(release) => Some(release == Release::Released),
        };
        self.event(begun, done.map(|_| ended), Call::Lease(lease::Call::Revoke { term, done }));
    }

    /// As a standby, or as an operator.
    async fn look(&mut self, limit: Duration) {
        let store = Arc::clone(&self.seat.store);
        let shard = &self.plan.shard;
        let (begun, heard, ended) = if self.random.per_mille(500) {
            timed(limit, async {
                Ok(match store.observe(shard).await? {
                    Observation::Free => None,
                    Observation::Held(holder) => Some(holder),
                })
            })
            .await
        } else {
            timed(limit, async { Ok(store.inspect(shard).await?.holder) }).await
        };
        let Heard::Answer(holder) = heard else { return };
        let holder = holder.map(|holder| self.named(&holder));
        self.event(begun, Some(ended), Call::Lease(lease::Call::Look { holder }));
    }

    async fn write_or_read(&mut self, limit: Duration) {
        let store = Arc::clone(&self.seat.store);
        let index = self.random.below(PAGES);
        let page = if index == 0 { Page::Orders } else { Page::Runs };
        if self.random.per_mille(400) {
            let (begun, heard, ended) = timed(limit, store.read(&self.plan.shard, &page)).await;
            let Heard::Answer(note) = heard else { return };
            let text = number_in(note.as_ref());
            self.texts[index] = text;
            let call = page::Call::Read { text };
            return self.event(begun, Some(ended), Call::Page(index, call));
        }
        let number = u32::try_from(self.me * 10_000 + self.count).expect("it is small");
        let expected = self.texts[index];
        let draft = Some(number).filter(|_| expected.is_none() || self.random.per_mille(700));
        let words = expected.map(|number| number.to_string());
        let note = draft.map(|number| Note::for_ever(number.to_string()));
        let replacement = store.replace(&self.plan.shard, &page, words.as_deref(), note.as_ref());
        let (begun, heard, ended) = timed(limit, replacement).await;
        let done = match heard {
            Heard::NotApplied => return,
            Heard::Nothing => None,
            Heard::Answer(done) => Some(done),
        };
        if done == Some(true) {
            self.texts[index] = draft;
        }
        self.event(begun, done.map(|_| ended), Call::Page(index, page::Call::Replace { expected, draft, done }));
    }

    fn named(&self, holder: &Holder) -> Named {
        let session = holder.session.as_ref();
        let session = session.and_then(|session| self.plan.sessions.iter().position(|known| known == session));
        Named { session, term: holder.term.map(|term| term.0) }
    }
}

fn number_in(note: Option<&Note>) -> Text {
    note.map(|note| note.text.parse().expect("only numbers are written"))
}

/// The instant of the call, what came back, and the instant of that.
async fn timed<T>(limit: Duration, call: impl Future<Output = Result<T, StoreError>>) -> (Instant, Heard<T>, Instant) {
    let begun = BootInstant::now().as_nanos();
    let heard = match timeout(limit, call).await {
        Err(_) => Heard::Nothing,
        Ok(Ok(answer)) => Heard::Answer(answer),
        Ok(Err(error)) => match error.kind {
            ErrorKind::NotApplied => Heard::NotApplied,
            ErrorKind::Unknown => Heard::Nothing,
            ErrorKind::Denied | ErrorKind::Misconfigured => panic!("the store is not in order: {error}"),
        },
    };
    (begun, heard, BootInstant::now().as_nanos())
}
