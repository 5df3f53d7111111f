//! The election as a library: the work is code of the process that takes part.
//!
//! The hazard: nothing can stop a thread but the end of its process. So a leadership is handed out as a value that knows
//! its own end ([`Leadership`]), the lease is given back when the last of them is dropped, and whoever still holds one
//! when the lease is about to end takes the process down with it ([`Overrun`]).
#![deny(missing_docs)]

mod host;
mod leadership;
mod roles;
mod words;

pub use leadership::Leadership;
pub use roles::Roles;
pub use words::{Ending, Error, Leader, Overrun, Role};

use crate::lease::{Candidate, Session, Shard, Term, Timing, TimingRequest};
use crate::store::Location;
use crate::store::url::Secret;
use host::WorkSpec;
use leadership::Shared;
use std::fmt;
use std::future::Future;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::str::FromStr;
use std::sync::{Arc, Weak, mpsc as threads};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// What to join, and how. Made by [`Member::builder`].
#[must_use = "nothing happens before `join`"]
pub struct Builder {
    url: Secret,
    shard: String,
    owner: Option<String>,
    timing: TimingRequest,
    overrun: Overrun,
    on_leading: Option<Box<dyn FnMut(Leadership) + Send>>,
    on_losing: Option<Box<dyn FnMut(u64, Ending) + Send>>,
}

impl Builder {
    /// How long a lease lasts that is not renewed: after a crash nobody leads for so long (default 15 s).
    pub fn lease(mut self, lease: Duration) -> Self {
        self.timing.lease = lease;
        self
    }

    /// From one renewal to the next (default 5 s). It has to fit into the lease together with a request, the grace and
    /// the margin; if it does not, [`join`](Self::join) refuses, and shows the sum.
    pub fn renew(mut self, interval: Duration) -> Self {
        self.timing.renew_interval = interval;
        self
    }

    /// From one look of a standby to the next, where the store cannot tell; and the most between two attempts (default 2 s).
    pub fn retry(mut self, interval: Duration) -> Self {
        self.timing.retry_interval = interval;
        self
    }

    /// How long work has to end once the lease is slipping away (default 5 s). See [`Leadership::ending`].
    pub fn grace(mut self, grace: Duration) -> Self {
        self.timing.stop_grace = grace;
        self
    }

    /// The most for one request to the store (default: what the other durations leave, at most 10 s).
    pub fn request_timeout(mut self, timeout: Duration) -> Self {
        self.timing.request_timeout = Some(timeout);
        self
    }

    /// From the last moment of work to the end of the lease (default: 600 ms and 1 % of the lease).
    pub fn margin(mut self, margin: Duration) -> Self {
        self.timing.margin = Some(margin);
        self
    }

    /// The name to show as the leader (default: `HOST-PID-UUID`). Two members with one name exclude each other all the
    /// same.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// What happens to work that does not end in time (default: [`Overrun::Abort`]).
    pub fn on_overrun(mut self, overrun: Overrun) -> Self {
        self.overrun = overrun;
        self
    }

    /// Has `callback` called with each leadership at its beginning, on a thread of its own, which may block. It is called
    /// for one after the other: a leadership that ends while it still runs for an earlier one is left out. A callback that
    /// panics makes the member leave.
    pub fn on_leading(mut self, callback: impl FnMut(Leadership) + Send + 'static) -> Self {
        self.on_leading = Some(Box::new(callback));
        self
    }

    /// Has `callback` called with the term and the reason when the work of a leadership has to end, on a thread of its own.
    /// A callback that panics makes the member leave.
    pub fn on_losing(mut self, callback: impl FnMut(u64, Ending) + Send + 'static) -> Self {
        self.on_losing = Some(Box::new(callback));
        self
    }

    /// Joins the election: from now on the member leads whenever it can. Returns once the store is opened, and waits for
    /// no answer of it: a store that cannot be reached is tried again for as long as the member lives. What the store says
    /// of a wrong configuration comes from [`Member::run`] and the like.
    ///
    /// Any executor will do: the election has a thread and a runtime of its own.
    ///
    /// # Errors
    /// What is wrong with the URL, a name or the durations; or that the operating system refused. Nothing was begun then.
    pub async fn join(self) -> Result<Member, Error> {
        let location = Location::from_url(self.url.expose()).map_err(Error::Url)?;
        // The sentences are those of the command line.
        let timing = Timing::new(self.timing).map_err(|message| Error::Timing(message.replace("--", "")))?;
        let candidate = candidate(&self.shard, self.owner, timing.lease)?;
        let (told, endings) = threads::channel();
        let told = self.on_losing.is_some().then_some(told);
        let (shared, events) = Shared::new(candidate, timing.stop_grace, self.overrun, told)?;
        if let Some(callback) = self.on_losing {
            tell_endings(endings, Arc::downgrade(&shared), callback)?;
        }
        let led = self.on_leading.map(|callback| hand_out(Arc::clone(&shared), callback)).transpose()?;
        // Leaves again when it is dropped, as when nobody waits for us any more.
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

fn candidate(name: &str, owner: Option<String>, lease: Duration) -> Result<Candidate, Error> {
    let shard = Shard::from_str(name).map_err(Error::Shard)?;
    let session = Session::random()?;
    let host = nix::unistd::gethostname().map_err(io::Error::from)?.to_string_lossy().into_owned();
    let pid = std::process::id();
    let owner = match owner {
        None => format!("{host}-{pid}-{}", session.as_str()),
        Some(owner) if (1..=256).contains(&owner.len()) && !owner.contains(char::is_control) => owner,
        Some(_) => return Err(Error::Owner("the owner is not 1 to 256 printable bytes".to_owned())),
    };
    Ok(Candidate { shard, owner, session, host, pid, lease })
}

/// A thread that calls `callback` with the leadership of each term that it is sent.
///
/// A leadership that waits in a queue would be work, for which the process is aborted though nobody does it. So it is
/// taken here, where the callback is free, and not where it begins.
fn hand_out(
    shared: Arc<Shared>,
    mut callback: impl FnMut(Leadership) + Send + 'static,
) -> io::Result<threads::Sender<Term>> {
    let (sender, begun) = threads::channel::<Term>();
    spawn("leaderrun-lead", move || {
        for term in begun {
            // Each is handed out once: one of a later term has a turn of its own.
            if let Some(leadership) = shared.hold().filter(|leadership| leadership.term() == term.0)
                && panics(|| callback(leadership))
            {
                // A leader that does nothing keeps others from it.
                tracing::error!("the callback of a leadership panicked: leaving the election");
                shared.ask();
            }
        }
    })?;
    Ok(sender)
}

/// A thread that calls `callback` with each end. `endings` are over when nothing is left of `shared`.
fn tell_endings(
    endings: threads::Receiver<(u64, Ending)>,
    shared: Weak<Shared>,
    mut callback: impl FnMut(u64, Ending) + Send + 'static,
) -> io::Result<()> {
    spawn("leaderrun-lose", move || {
        for (term, why) in endings {
            if panics(|| callback(term, why)) {
                // What it was to end may be half done, and it may not hear of the next end.
                tracing::error!("the callback of an ending panicked: leaving the election");
                if let Some(shared) = shared.upgrade() {
                    shared.ask();
                }
            }
        }
    })
}

fn panics(callback: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(callback)).is_err()
}

fn spawn(name: &str, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(life).map(drop)
}

/// One of those who want to lead a shard.
///
/// It takes part from [`Builder::join`] until [`stop`](Self::stop), or until it is dropped; then it leaves in the
/// background, and gives the lease back when the last [`Leadership`] is dropped. Where the process ends before that, the
/// lease ends by itself: at once on `file:`, else after what is left of it. So programs that end should await `stop`.
///
/// Work goes into [`run`](Self::run), or into whatever holds a [`Leadership`]. Share a member by an [`Arc`].
pub struct Member {
    shared: Arc<Shared>,
}

impl Member {
    /// Begins to say which shard in which store. The URL is what `leaderrun --store` takes, such as `redis://HOST`, and
    /// `file:DIR` for the processes of one machine; whoever runs `leaderrun` on the shard takes part in the same election.
    pub fn builder(url: impl Into<String>, shard: impl Into<String>) -> Builder {
        Builder {
            url: Secret::from(url.into()),
            shard: shard.into(),
            owner: None,
            timing: TimingRequest::default(),
            overrun: Overrun::default(),
            on_leading: None,
            on_losing: None,
        }
    }

    /// Waits to lead, does `work`, and answers with what came out of it. If the leadership ends before the work does, the
    /// work is dropped at its next `await`, and done anew in the next leadership.
    ///
    /// The member goes on leading afterwards: [`stop`](Self::stop) lets another one lead. What `work` spawns goes on when it
    /// is dropped, so hand a clone of the [`Leadership`] to each task, and have it heed [`Leadership::ending`]. So does work
    /// that wants to end in order: take [`leadership`](Self::leadership) instead.
    ///
    /// # Errors
    /// When the member leaves before the work is done.
    pub async fn run<Work: Future>(&self, mut work: impl FnMut(Leadership) -> Work) -> Result<Work::Output, Error> {
        loop {
            // Dropped after the work, and not before it.
            let leadership = self.leadership().await?;
            let mut working = pin!(work(leadership.clone()));
            tokio::select! {
                biased;
                // Who wakes up after the end must not work first and ask then.
                _ = leadership.ending() => {}
                output = &mut working => return Ok(output),
            }
        }
    }

    /// Waits to lead.
    ///
    /// # Errors
    /// When the member leaves before that.
    pub async fn leadership(&self) -> Result<Leadership, Error> {
        let mut roles = self.shared.watch();
        loop {
            roles.borrow_and_update();
            if let Some(leadership) = self.shared.hold() {
                return Ok(leadership);
            }
            if let Some(farewell) = self.shared.farewell() {
                return Err(farewell.err().unwrap_or(Error::Stopped));
            }
            // It outlives us.
            let _ = roles.changed().await;
        }
    }

    /// A hold on the leadership, if there is one right now.
    #[must_use]
    pub fn try_leadership(&self) -> Option<Leadership> {
        self.shared.hold()
    }

    /// Whether it leads, and may begin something: by the clock at this moment and without a request. What is done upon
    /// the answer may come too late; a [`Leadership`] says how much time there is.
    #[must_use]
    pub fn is_leader(&self) -> bool {
        self.shared.is_leader()
    }

    /// Who leads, as far as is known here, without a request. A standby knows what the store said last, and may not have
    /// heard of a change by which it did not become the leader; [`find_leader`](Self::find_leader) asks the store.
    #[must_use]
    pub fn leader(&self) -> Option<Leader> {
        self.shared.leader()
    }

    /// Asks the store who leads.
    ///
    /// # Errors
    /// When the store does not answer, or the member has left.
    pub async fn find_leader(&self) -> Result<Option<Leader>, Error> {
        self.shared.find_leader().await
    }

    /// The name that it goes by as a leader.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.shared.candidate.owner
    }

    /// Why the store cannot be asked, while that lasts. For people and for probes.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.shared.trouble()
    }

    /// Every change of its role. It shows the latest: who is slow may miss what was in between.
    #[must_use]
    pub fn watch(&self) -> Roles {
        Roles::new(self.shared.watch())
    }

    /// Leaves the election: tells the work to end, waits until every [`Leadership`] is dropped, and gives the lease back,
    /// so that another member leads within moments. **It waits for ever for whoever holds one and does not end**, the
    /// caller among them; the lease is renewed meanwhile. Giving up the wait does not undo the request.
    ///
    /// # Errors
    /// When the lease could not be given back, so that it ends by itself; or why the member had left before.
    pub async fn stop(&self) -> Result<(), Error> {
        self.shared.ask();
        let mut roles = self.shared.watch();
        loop {
            roles.borrow_and_update();
            if let Some(farewell) = self.shared.farewell() {
                return farewell;
            }
            // It outlives us.
            let _ = roles.changed().await;
        }
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
