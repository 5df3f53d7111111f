//! A candidate's requests to the store, each within its time. Their answers are events.

use crate::election::{Behind, Event, Ran};
use crate::lease::{Candidate, Term};
use crate::notes::history::History;
use crate::notes::jobs::JobGate;
use crate::notes::{orders, standbys};
use crate::slots::Campaign;
use crate::store::{Answer, Store, within};
use crate::time::BootInstant;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

/// The shortest time from one doubt of the store to the next.
const DOUBTS_APART: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Requests {
    pub campaign: Arc<Campaign>,
    pub candidate: Arc<Candidate>,
    pub timeout: Duration,
    pub job_gate: Option<Arc<JobGate>>,
}

impl Requests {
    pub fn claim(self) -> impl Future<Output = Event> + Send + 'static {
        // Every lease counts from here, before anything is sent.
        let sent = BootInstant::now();
        async move { Event::Claimed { sent, answer: self.within(self.campaign.claim(&self.candidate)).await } }
    }

    pub async fn observe(self) -> Event {
        let look = self.campaign.leases().observe(&self.candidate.shard);
        Event::Observed { answer: self.within(look).await }
    }

    pub fn renew(self, term: Term, sequence: u64) -> impl Future<Output = Event> + Send + 'static {
        let sent = BootInstant::now();
        async move {
            match self.within(self.campaign.renew(&self.candidate, term, sequence)).await {
                Ok((renewal, orders)) => Event::Renewed { sent, answer: Ok(renewal), orders },
                Err(error) => Event::Renewed { sent, answer: Err(error), orders: None },
            }
        }
    }

    pub async fn release(self, term: Term) -> Event {
        let release = self.campaign.leases().release(&self.candidate, term);
        Event::Released { answer: self.within(release).await }
    }

    pub async fn changed(self) -> Event {
        Event::Changed(self.campaign.leases().changed(&self.candidate.shard).await)
    }

    pub async fn doubted(self) -> Event {
        // A store that doubts all the time must not keep us busy.
        tokio::time::sleep(DOUBTS_APART).await;
        self.campaign.leases().doubted(&self.candidate.shard).await;
        Event::Doubted
    }

    pub async fn orders(self) -> Event {
        Event::Ordered { answer: self.within(self.campaign.directives(&self.candidate)).await }
    }

    pub async fn count_standbys(self) -> Event {
        Event::Counted { answer: self.within(standbys::others(self.store(), &self.candidate)).await.map(Some) }
    }

    pub async fn book(self, term: Term, behind: Behind) -> Event {
        let booking = self.job_gate().book(self.store(), &self.candidate, term, &behind);
        Event::Booked { term, answer: self.within(booking).await }
    }

    pub async fn settle(self, term: Term, ran: Option<Ran>) -> Event {
        let settling = self.job_gate().settle(self.store(), &self.candidate.shard, ran.as_ref());
        Event::Settled { term, answer: self.within(settling).await }
    }

    pub async fn index(self) {
        self.write(self.job_gate().index(self.store(), &self.candidate.shard)).await;
    }

    pub async fn forget_handover(self, leader: Arc<Candidate>, term: Term) {
        self.write(orders::forget_handover(self.store(), &leader.shard, term)).await;
    }

    pub async fn save(self, leader: Arc<Candidate>, history: Arc<History>, after: Duration) {
        if !after.is_zero() {
            tokio::time::sleep(after).await;
        }
        self.write(history.save(self.store(), &leader.shard)).await;
    }

    pub async fn announce(self) {
        standbys::announce(self.store(), &self.candidate, self.timeout, log_unwritten).await;
    }

    pub async fn withdraw(self) {
        self.write(standbys::withdraw(self.store(), &self.candidate)).await;
    }

    /// The candidate, with the shard that it leads now: with slots, that is one slot's own shard.
    pub fn leader(&self) -> Arc<Candidate> {
        match self.campaign.slot() {
            Some(shard) => Arc::new(Candidate { shard, ..(*self.candidate).clone() }),
            None => Arc::clone(&self.candidate),
        }
    }

    fn store(&self) -> &dyn Store {
        &**self.campaign.store()
    }

    fn job_gate(&self) -> &JobGate {
        self.job_gate.as_ref().expect("only a job is booked")
    }

    /// Writes a note. The log has a failure only at debug level: the election reports the store's trouble already.
    async fn write(&self, note: impl Future<Output = Answer<()>>) {
        if let Err(error) = self.within(note).await {
            log_unwritten(&error.message);
        }
    }

    async fn within<T>(&self, request: impl Future<Output = Answer<T>>) -> Answer<T> {
        within(self.timeout, request).await
    }
}

fn log_unwritten(message: &str) {
    tracing::debug!("not recorded: {message}");
}
