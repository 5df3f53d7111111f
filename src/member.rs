//! The election as a library: the work is code of the process that takes part.
//!
//! The hazard: nothing stops a thread but the end of its process. So a leadership is a value that knows its own end
//! ([`Leadership`]). The lease is given back when the last one is dropped. Code that still holds one when the lease is
//! about to end takes the process down with it ([`Overrun`]).
#![deny(missing_docs, clippy::missing_errors_doc)]

mod error;
mod host;
mod leadership;
mod role;

pub use error::{Detail, Error};
pub use leadership::Leadership;
pub use role::{Ending, Leader, Overrun, Role, Roles};

use crate::lease::{Candidate, Shard, Term, Timing, TimingOptions};
use crate::store::Location;
use crate::store::url::Secret;
use host::WorkSpec;
use leadership::Shared;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Weak, mpsc as threads};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Settings for joining an election. Made by [`Member::builder`].
#[must_use = "nothing happens before `join`"]
pub struct Builder {
    url: Secret,
    shard: String,
    owner: Option<String>,
    timing: TimingOptions,
    overrun: Overrun,
    on_leading: Option<Box<dyn FnMut(Leadership) + Send>>,
    on_losing: Option<Box<dyn FnMut(u64, Ending) + Send>>,
}

impl Builder {
    /// How long a lease lasts without renewal (default 15 s, in object storage a minute). After a crash, nobody leads
    /// for that long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.timing.lease = Some(lease);
        self
    }

    /// The time from one renewal to the next (default: 5 s, in object storage 20 s, or a third of a shorter lease).
    /// Together with a request, [`kill_after`](Self::kill_after) and the margin it must fit into the lease. If it does
    /// not, [`join`](Self::join) refuses and shows the sum.
    pub fn renew(mut self, interval: Duration) -> Self {
        self.timing.renew = Some(interval);
        self
    }

    /// How often a standby checks the lease if the store cannot report changes, and the longest wait between two
    /// attempts (default 2 s, in object storage 10 s).
    pub fn retry(mut self, interval: Duration) -> Self {
        self.timing.retry = Some(interval);
        self
    }

    /// How long work may take to end once the lease is being lost (default: 3 s, or a fifth of a shorter lease). See
    /// [`Leadership::ending`].
    pub fn kill_after(mut self, grace: Duration) -> Self {
        self.timing.kill_after = Some(grace);
        self
    }

    /// The name to show as the leader (default: `HOST-PID-` and 6 hexadecimal digits). Two members with the same name
    /// still exclude each other.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// What happens to work that does not end in time (default: [`Overrun::Abort`]).
    pub fn on_overrun(mut self, overrun: Overrun) -> Self {
        self.overrun = overrun;
        self
    }

    /// Calls `callback` with each leadership when it begins, on a thread of its own, which may block. Calls do not
    /// overlap: a leadership that ends while the callback still runs for an earlier one is skipped. If the callback
    /// panics, the member leaves the election.
    pub fn on_leading(mut self, callback: impl FnMut(Leadership) + Send + 'static) -> Self {
        self.on_leading = Some(Box::new(callback));
        self
    }

    /// Calls `callback` with the term and the reason when the work of a leadership has to end, on a thread of its own.
    /// If the callback panics, the member leaves the election.
    pub fn on_losing(mut self, callback: impl FnMut(u64, Ending) + Send + 'static) -> Self {
        self.on_losing = Some(Box::new(callback));
        self
    }

    /// Joins the election: from now on the member leads whenever it can. Returns once the store is open, without
    /// waiting for an answer of the store. The member keeps trying to reach it. If the store reports a wrong
    /// configuration, [`Member::run`] and similar calls return it.
    ///
    /// Works on any executor: the election has a thread and a runtime of its own.
    ///
    /// # Errors
    /// The URL, a name or a duration is wrong, the store cannot be opened as it is configured, or the operating system
    /// refused. The member has not joined then.
    pub async fn join(self) -> Result<Member, Error> {
        let location = Location::from_url(self.url.expose()).map_err(Error::Url)?;
        let timing = timing(self.timing, &location)?;
        let candidate = candidate(&self.shard, self.owner, timing.lease)?;
        let (told, endings) = threads::channel();
        let told = self.on_losing.is_some().then_some(told);
        let (shared, events) = Shared::new(candidate, timing.stop_grace, self.overrun, told)?;
        if let Some(mut callback) = self.on_losing {
            let tell = move |(term, why)| callback(term, why);
            call_back("leaderrun-lose", "an ending", Arc::downgrade(&shared), endings, tell)?;
        }
        let mut led = None;
        if let Some(mut callback) = self.on_leading {
            // A `Leadership` in a queue would count as work, and the process would be aborted for it. So the thread takes
            // it when the callback is free. Each is handed out once: one of a later term comes in its own turn.
            let (sender, begun) = threads::channel();
            let holder = Arc::clone(&shared);
            let hand_out = move |term: Term| {
                if let Some(leadership) = holder.hold().filter(|leadership| leadership.term() == term.0) {
                    callback(leadership);
                }
            };
            call_back("leaderrun-lead", "a leadership", Arc::downgrade(&shared), begun, hand_out)?;
            led = Some(sender);
        }
        // Dropping it leaves the election, for example if the caller stops waiting for `join`.
        let member = Member { shared: Arc::clone(&shared) };
        let (joined, has_joined) = oneshot::channel();
        let spec = WorkSpec { location, timing, shared: Arc::clone(&shared), events, led };
        let keeper = Arc::clone(&shared);
        let threads = spawn("leaderrun-keep", move || keeper.keep())
            .and_then(|()| spawn("leaderrun", move || spec.carry_out(joined)));
        if let Err(error) = threads {
            shared.over(Err(Error::Stopped));
            return Err(error.into());
        }
        has_joined.await.unwrap_or(Err(Error::Failed("its thread panicked".to_owned())))?;
        Ok(member)
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url, shard, owner, timing, overrun, .. } = self;
        let mut shown = f.debug_struct("Builder");
        shown.field("url", url).field("shard", shard).field("owner", owner).field("timing", timing);
        shown.field("overrun", overrun).finish_non_exhaustive()
    }
}

fn timing(chosen: TimingOptions, location: &Location) -> Result<Timing, Error> {
    // The messages are written for the command line.
    Timing::new(chosen.request(location.is_frugal())).map_err(|message| Error::Timing(message.replace("--", "")))
}

fn candidate(name: &str, owner: Option<String>, lease: Duration) -> Result<Candidate, Error> {
    let shard = Shard::whole(name).map_err(Error::Shard)?;
    let is_bad = |owner: &String| !(1..=256).contains(&owner.len()) || owner.contains(char::is_control);
    if owner.as_ref().is_some_and(is_bad) {
        return Err(Error::Owner("the owner is not 1 to 256 printable bytes".to_owned()));
    }
    Ok(Candidate::here(shard, owner, lease)?)
}

/// Starts a thread that calls `callback` with each of `items`. They end when their sender is gone.
fn call_back<T: Send + 'static>(
    name: &str,
    what: &'static str,
    shared: Weak<Shared>,
    items: threads::Receiver<T>,
    mut callback: impl FnMut(T) + Send + 'static,
) -> io::Result<()> {
    spawn(name, move || {
        for item in items {
            if catch_unwind(AssertUnwindSafe(|| callback(item))).is_err() {
                // A leader that does nothing keeps others from leading, work may have ended only in part, and the
                // callback may miss the next ending.
                tracing::error!("the callback of {what} panicked: leaving the election");
                if let Some(shared) = shared.upgrade() {
                    shared.ask();
                }
            }
        }
    })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(body).map(drop)
}

/// A candidate that wants to lead a shard.
///
/// It takes part from [`Builder::join`] until [`stop`](Self::stop), or until it is dropped. A dropped member leaves in
/// the background, and gives the lease back when the last [`Leadership`] is dropped. If the process ends before that,
/// the lease ends by itself: at once on `file:`, otherwise when it expires. So await `stop` before a program ends.
///
/// Put the work into [`run`](Self::run), or into code that holds a [`Leadership`]. Share a member with an [`Arc`].
pub struct Member {
    shared: Arc<Shared>,
}

impl Member {
    /// Starts the settings for a shard in a store. The URL is the one that `leaderrun --store` takes, such as
    /// `redis://HOST`, or `file:DIR` for the processes of one machine. Every `leaderrun` on the same shard takes part
    /// in the same election.
    pub fn builder(url: impl Into<String>, shard: impl Into<String>) -> Builder {
        Builder {
            url: Secret::from(url.into()),
            shard: shard.into(),
            owner: None,
            timing: TimingOptions::default(),
            overrun: Overrun::default(),
            on_leading: None,
            on_losing: None,
        }
    }

    /// Waits to lead, runs `work`, and returns its output. If the leadership ends first, the work is dropped at its
    /// next `await` and starts again in the next leadership.
    ///
    /// The member still leads afterwards: [`stop`](Self::stop) lets another one lead. Tasks that `work` spawns continue
    /// when it is dropped, so give each of them a clone of the [`Leadership`], and let it watch [`Leadership::ending`].
    /// Work that needs an orderly end should watch it too: use [`leadership`](Self::leadership) instead.
    ///
    /// # Errors
    /// If the member leaves first.
    pub async fn run<Work: Future>(&self, mut work: impl FnMut(Leadership) -> Work) -> Result<Work::Output, Error> {
        loop {
            // Declared before the work, so that it is dropped after it.
            let leadership = self.leadership().await?;
            let mut working = pin!(work(leadership.clone()));
            tokio::select! {
                biased;
                // A task that wakes after the end must not do work before it checks.
                _ = leadership.ending() => {}
                output = &mut working => return Ok(output),
            }
        }
    }

    /// Waits to lead.
    ///
    /// # Errors
    /// If the member leaves first.
    pub async fn leadership(&self) -> Result<Leadership, Error> {
        let left = |farewell: Result<(), Error>| Err(farewell.err().unwrap_or(Error::Stopped));
        self.shared.until(|| self.shared.hold().map(Ok).or_else(|| self.shared.farewell().map(left))).await
    }

    /// The leadership, if this member leads right now.
    #[must_use]
    pub fn try_leadership(&self) -> Option<Leadership> {
        self.shared.hold()
    }

    /// True if the member leads and may begin something, by the clock now, without a request. What you do with the
    /// answer may come too late; a [`Leadership`] says how much time is left.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.shared.is_leader()
    }

    /// The leader, as far as this member knows, without a request. A standby knows what the store said last, and may
    /// have missed a change that did not make it the leader. [`find_leader`](Self::find_leader) asks the store.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        self.shared.leader()
    }

    /// Asks the store who leads.
    ///
    /// # Errors
    /// If the store does not answer, or the member has left.
    pub async fn find_leader(&self) -> Result<Option<Leader>, Error> {
        self.shared.find_leader().await
    }

    /// The name that it shows as the leader.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.shared.candidate.owner
    }

    /// The store's last error, while it cannot be reached. For people and for probes.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble()
    }

    /// Follows the changes of the role. It shows the latest role: a slow reader may miss those in between.
    #[must_use]
    pub fn watch(&self) -> Roles {
        Roles::new(self.shared.watch())
    }

    /// Leaves the election: tells the work to end, waits until every [`Leadership`] is dropped, and gives the lease
    /// back, so that another member leads within moments. **It waits without limit for code that holds one and does not
    /// end**, which may be the caller. The lease is renewed meanwhile. Cancelling the wait does not cancel the request.
    ///
    /// # Errors
    /// If the lease could not be given back, so that it ends by itself; or why the member had already left.
    pub async fn stop(&self) -> Result<(), Error> {
        self.shared.ask();
        self.shared.until(|| self.shared.farewell()).await
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.ask();
    }
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member")
            .field("shard", &self.shared.candidate.shard.as_str())
            .field("owner", &self.owner())
            .field("role", &self.watch().current())
            .finish()
    }
}
