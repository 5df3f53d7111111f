//! The tasks beside the event loop of a candidate: its requests to the store, and what it writes for people.

use crate::election::Event;
use std::future::{Future, pending};
use tokio::task::{AbortHandle, JoinError, JoinSet};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// A claim, a look, a release, or a standby's reading of orders. Each ends the one before.
    Request,
    /// A renewal, or something else that only a leader asks.
    Renewal,
    /// A write to the job's ledger. It is never cut short, because the next one depends on what it wrote.
    Entry,
    /// A standby's wait for a change in the store.
    Change,
    /// A leader's wait for a doubt of the store: something that may have ended the lease.
    Doubt,
    /// A leader's wait for the schedule's next rotation.
    Rotation,
    Note,
    /// The note that a leadership has begun. Nothing waits for it.
    Beginning,
    Announcement,
}

#[derive(Default)]
pub(super) struct Tasks {
    all: JoinSet<Option<Event>>,
    /// Those that were neither heard nor cancelled.
    known: Vec<(Kind, AbortHandle)>,
}

impl Tasks {
    /// Starts a task that ends with an event.
    pub fn ask(&mut self, kind: Kind, task: impl Future<Output = Event> + Send + 'static) {
        let handle = self.all.spawn(async { Some(task.await) });
        self.known.push((kind, handle));
    }

    /// Starts a task of which the election hears nothing.
    pub fn write(&mut self, kind: Kind, task: impl Future<Output = ()> + Send + 'static) {
        let handle = self.all.spawn(async {
            task.await;
            None
        });
        self.known.push((kind, handle));
    }

    pub fn has(&self, kind: Kind) -> bool {
        self.known.iter().any(|(known, _)| *known == kind)
    }

    /// Aborts the tasks of this kind. What one of them may have heard already is forgotten.
    pub fn cancel(&mut self, kind: Kind) {
        for (_, task) in self.known.extract_if(.., |(known, _)| *known == kind) {
            task.abort();
        }
    }

    /// Waits for the end of the next task, and returns its event. Cancel-safe.
    ///
    /// # Panics
    /// If the task has panicked: the election would wait for ever for the answer.
    pub async fn next(&mut self) -> Option<Event> {
        while let Some(ended) = self.all.join_next_with_id().await {
            let id = ended.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
            let Some(index) = self.known.iter().position(|(_, task)| task.id() == id) else { continue };
            self.known.remove(index);
            match ended {
                Ok((_, event)) => return event,
                Err(error) => std::panic::resume_unwind(error.into_panic()),
            }
        }
        pending().await
    }
}
