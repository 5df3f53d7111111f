//! The host of a member's election: a thread with a runtime of its own, and work in place of a tree.
//!
//! The hazard: the program's own runtime belongs to the program, and a task that blocks it would stop the renewals. So
//! nothing of the election runs there.

use super::error::{Error, farewell};
use super::leadership::{Inquiries, Shared};
use crate::election::{Action, Event, Outcome, Settings, StartError, Stop, View};
use crate::lease::{Candidate, Deadline, Term, Timing};
use crate::runner::driver::{self, Host, Options};
use crate::runner::timer::Timer;
use crate::runtime;
use crate::slots::Campaign;
use crate::store::{Location, Store, Takeover};
use crate::time::BootInstant;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc as threads};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};

/// Everything that the election's thread needs.
pub(super) struct WorkSpec {
    pub(super) location: Location,
    pub(super) timing: Timing,
    pub(super) shared: Arc<Shared>,
    pub(super) events: mpsc::UnboundedReceiver<Event>,
    /// Gets the term of each leadership when it begins.
    pub(super) led: Option<threads::Sender<Term>>,
}

impl WorkSpec {
    /// Runs the thread. `joined` learns whether the store could be opened.
    pub(super) fn carry_out(self, joined: oneshot::Sender<Result<(), Error>>) {
        let shared = Arc::clone(&self.shared);
        let runtime = match runtime::of_one_thread().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                shared.over(Err(Error::Stopped));
                let _ = joined.send(Err(error.into()));
                return;
            }
        };
        let elected = catch_unwind(AssertUnwindSafe(|| runtime.block_on(self.elect(joined))));
        shared.over(match elected {
            Ok(Ok(outcome)) => farewell(outcome),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err(Error::Failed("its thread panicked".to_owned())),
        });
        // A name lookup may hang for a long time, and nobody needs its result.
        runtime.shutdown_background();
    }

    async fn elect(self, joined: oneshot::Sender<Result<(), Error>>) -> io::Result<Outcome> {
        let Self { location, timing, shared, events, led } = self;
        let store = match location.open(timing.request_timeout).await {
            Ok(store) => store,
            Err(error) => {
                let _ = joined.send(Err(error.clone().into()));
                return Ok(Outcome::Refused(error));
            }
        };
        let _ = shared.inquiries.set(Inquiries {
            runtime: Handle::current(),
            store: Arc::downgrade(&store),
            timeout: timing.request_timeout,
        });
        let seed = getrandom::u64()?;
        let candidate = shared.candidate.clone();
        let mut host =
            InProcess { shared: Arc::clone(&shared), store: Arc::clone(&store), events, timer: Timer::new()?, led };
        let usual = Settings::new(timing, store.expires(), store.delivery());
        let settings = Settings { shares_lock: store.shares_lock(), ..usual };
        let announces = !store.is_metered();
        let options = Options { announces, counts: announces, job: None, schedule: None };
        if joined.send(Ok(())).is_err() {
            shared.ask();
        }
        driver::run(settings, candidate, Campaign::new(store), &mut host, options, seed).await
    }
}

struct InProcess {
    shared: Arc<Shared>,
    store: Arc<dyn Store>,
    events: mpsc::UnboundedReceiver<Event>,
    timer: Timer,
    led: Option<threads::Sender<Term>>,
}

impl Host for InProcess {
    async fn next(&mut self, wake_at: BootInstant) -> io::Result<Event> {
        self.timer.set(wake_at)?;
        tokio::select! {
            Some(event) = self.events.recv() => Ok(event),
            () = self.timer.reached() => Ok(Event::Tick),
        }
    }

    fn start(
        &mut self,
        _: &Candidate,
        term: Term,
        deadline: Deadline,
        _: Takeover,
        _: &Campaign,
    ) -> Result<(), StartError> {
        self.shared.begin(term, deadline, &self.store);
        if let Some(led) = &self.led {
            // The callback's thread lives longer than this host.
            let _ = led.send(term);
        }
        Ok(())
    }

    fn carry_out(&mut self, action: &Action) {
        match action {
            Action::Extend(deadline) => self.shared.extend(*deadline),
            Action::Stop(stop) => self.shared.stop(*stop),
            Action::Seize => self.shared.stop(Stop::Kill),
            Action::ReleaseOver { failed } => self.shared.not_released(failed.clone()),
            // A member has no standby tasks, and shows nobody the rest.
            _ => {}
        }
    }

    fn show(&mut self, view: View) {
        self.shared.show(view);
    }
}
