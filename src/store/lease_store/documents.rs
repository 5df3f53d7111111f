//! What a server has to do for the lease protocol: read a document, replace it if it is unchanged, prolong the lease in
//! it, list, watch.
//!
//! A **document** is a text, and beside it what the server compares or judges: whose leadership it names (session and
//! term), the sequence of its last renewal, and its end on the server's clock. The text is the protocol's, and no
//! server reads it.

use super::touch;
use crate::lease::{Session, Shard, Term};
use crate::store::expiry::ServerTime;
use crate::store::foreign_lock::ForeignLock;
use crate::store::{Delivery, Finding, Holder, Page, StoreError};
use serde::Deserialize;
use std::ops::ControlFlow;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Key<'a> {
    /// Since when, and in which incarnation, the store has forgotten nothing.
    Marker,
    /// Who leads the shard, its last term, and the operators' orders.
    Shard(&'a Shard),
    /// The led mark: the shard was led, and how long its longest lease was. It must survive an operator who deletes all
    /// that has the shard's name: it stands elsewhere, or the server forbids the deletion.
    Led(&'a Shard),
    /// A note beside the shard. Orders are one only where the server has no clock ([`Properties::has_clock`]).
    Note(&'a Shard, &'a Page),
    /// For the trials of `store init` and `store check`.
    Scratch(&'a str),
}

/// Which write made a document, and in which incarnation of the server it was read. An absence has a version too.
///
/// The hazard: a server that fails over or restarts may have lost writes that it acknowledged. A write over a version
/// of an earlier incarnation must not apply, or two leaderships get the same term.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Version {
    /// Different for each write, even of the same text; a touch may keep it. An absence has that of the marker, which
    /// changes when the server is emptied, or none where nothing tells one absence from another.
    pub write: String,
    /// Changes whenever the server may have lost acknowledged writes. Empty where it cannot lose any.
    pub incarnation: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// Until the server's clock shows this, in milliseconds since 1970.
    Ends(u64),
    /// The server says that it has ended.
    Over,
    ForEver,
    /// At most this long, unless its holder prolongs it, which the document does not show. So only `Over` ends it.
    Left {
        at_most: Duration,
    },
    /// Until it was seen unchanged for this long: another program wrote it without a date.
    Unchanged {
        whole: Duration,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leadership {
    pub session: Session,
    pub term: Term,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ours {
    pub text: String,
    /// None: nobody leads.
    pub leadership: Option<Leadership>,
    /// Of the last renewal in this leadership.
    pub sequence: u64,
    pub life: Life,
}

impl Ours {
    pub fn of(text: String, session: Option<Session>, term: u64, sequence: u64, ends_millis: Option<u64>) -> Self {
        let leadership = session.map(|session| Leadership { session, term: Term(term) });
        Self { text, leadership, sequence, life: ends_millis.map_or(Life::ForEver, Life::Ends) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Absent,
    Ours(Ours),
    Foreign {
        holder: Holder,
        /// Differs after each of its renewals.
        sign: String,
        life: Life,
    },
    /// Why it cannot be read: something else wrote it, or a later release.
    Unreadable(String),
}

pub fn strange(name: &str, why: &str, remedy: &str) -> StoreError {
    StoreError::misconfigured(format!("{name} was written by another program ({why}): {remedy}"))
}

impl From<Result<Ours, String>> for Content {
    fn from(read: Result<Ours, String>) -> Self {
        read.map_or_else(Self::Unreadable, Self::Ours)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub content: Content,
    pub version: Version,
}

/// A name for one write or one trial.
pub(crate) fn random_name() -> Result<String, StoreError> {
    Ok(Session::random().map_err(StoreError::no_random_bytes)?.as_str().to_owned())
}

pub(crate) fn of_format<'a, T: Deserialize<'a>>(text: &'a str, format: u64) -> Result<T, String> {
    #[derive(Deserialize)]
    struct Format {
        format: u64,
    }
    match serde_json::from_str(text) {
        Ok(Format { format: found }) if found != format => {
            Err(format!("its format is {found}, and this release reads {format}"))
        }
        Ok(Format { .. }) => serde_json::from_str(text).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

impl Found {
    pub fn ours(&self) -> Option<&Ours> {
        match &self.content {
            Content::Ours(ours) => Some(ours),
            Content::Absent | Content::Foreign { .. } | Content::Unreadable(_) => None,
        }
    }

    /// The leadership that it names, whether or not its lease has ended.
    pub fn leadership(&self) -> Option<&Leadership> {
        self.ours()?.leadership.as_ref()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// Keeps the sequence and the end that stand when the write is applied.
    Keep,
    /// At least this long after the write was sent, on the server's clock. For a server that looks at no clock,
    /// [`ServerTime::expiry`] computes the end.
    In(Duration),
    Now,
    Never,
}

#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    pub text: &'a str,
    pub leadership: Option<&'a Leadership>,
    pub sequence: u64,
    pub ends: Ends,
    /// Who leads, for other programs that read the document. None: unchanged.
    pub owner: Option<&'a str>,
}

impl Draft<'_> {
    /// The sequence and the end to write, for a server that does not understand [`Ends`]. `after` turns a duration into
    /// an end.
    pub fn sequence_and_end(&self, over: &Found, after: impl FnOnce(Duration) -> u64) -> (u64, Option<u64>) {
        match (self.ends, over.ours()) {
            (Ends::Keep, Some(&Ours { sequence, life: Life::Ends(ends), .. })) => (sequence, Some(ends)),
            (Ends::Keep, Some(ours)) => (ours.sequence, None),
            (Ends::Keep, None) | (Ends::Never, _) => (self.sequence, None),
            (Ends::In(lasts), _) => (self.sequence, Some(after(lasts))),
            (Ends::Now, _) => (self.sequence, Some(after(Duration::ZERO))),
        }
    }
}

/// What a write replaces. It is refused if something else stands there, or the server has another incarnation.
#[derive(Clone, Copy, Debug)]
pub enum Over<'a> {
    /// This version, sequence and end: for a write that relies on the end of a lease, which a late renewal may move.
    Exactly(&'a Found),
    /// This version, however often its lease was renewed meanwhile. (Where a renewal makes another version, that is the
    /// same.) The write ends a leadership, or has orders, so [`Documents::watch`] has to show it soon.
    Text(&'a Found),
}

#[derive(Clone, Copy, Debug)]
pub struct Touch<'a> {
    pub shard: &'a Shard,
    pub leadership: &'a Leadership,
    pub owner: &'a str,
    pub sequence: u64,
    /// Whether to renew even if this renewal was applied before.
    pub again: bool,
    pub lease: Duration,
    /// The document as this process knows it, for a server that can only compare: it refuses what is not known to name
    /// this leadership, and is asked again after a look.
    pub known: Option<&'a Found>,
    /// Documents to read in the same request, where the server can.
    pub also: &'a [Key<'a>],
}

#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "it is looked at once")]
pub enum Touched {
    /// Applied, perhaps by an earlier copy of the same request.
    Done {
        found: Found,
        /// None if they could not be read. The renewal counts all the same.
        also: Option<Vec<Found>>,
    },
    /// A later renewal was applied before.
    Overtaken,
    /// The document does not name this leadership.
    Refused,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marking {
    /// The first process that sees that it is absent, or of another incarnation.
    ByAnyone,
    /// Claims and renewals. Where looks alternate between two nodes that accept writes, they would rewrite it for ever.
    ByWriters,
    /// `store init` alone, after it has tried the server. Without a marker nobody leads.
    ByInit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each may be so or not, whatever the others are")]
pub struct Properties {
    pub marking: Marking,
    pub delivery: Delivery,
    /// Other programs may replace or delete the document of a shard. So the led mark also has what would be lost: the
    /// last term, whether it was released, and the orders.
    pub is_shared: bool,
    /// Answers have the server's time in milliseconds, and it sets the end of a lease itself. Where they have only a
    /// `Date` (whole seconds), our wall clock may also delay a takeover.
    pub tells_time: bool,
    /// Documents end on a clock of the server ([`Life::Ends`]). Without one they have [`Life::Left`] or [`Life::Over`],
    /// also the marker while it is young; orders are a note of their own; and a wait lasts from when a process first
    /// saw it.
    pub has_clock: bool,
    /// A renewal is a put over the write before: [`Documents::touch`] is not overridden. So of several renewals under
    /// way, only one is applied.
    pub compares_only: bool,
    /// A watch shows each state of a document. So a look may take what was shown last, and a watch that fails begins
    /// again by itself.
    pub pushes_documents: bool,
    /// As [`crate::store::Store::is_metered`]. Like `delivery`, it must agree with what `Location` says.
    pub is_metered: bool,
}

impl Default for Properties {
    /// Of a server with scripts or statements, which announces changes.
    fn default() -> Self {
        Self {
            marking: Marking::ByAnyone,
            delivery: Delivery::Push,
            is_shared: false,
            tells_time: true,
            has_clock: true,
            compares_only: false,
            pushes_documents: false,
            is_metered: false,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub enum List<'a> {
    /// The documents of the shards whose names begin with this, in parts. Where [`Properties::is_shared`], with their
    /// led marks, all in one part.
    Shards(&'a str),
    Standbys(&'a str),
    /// All notes beside one shard, announcements too.
    Notes(&'a Shard),
}

#[derive(Clone, Debug)]
pub struct Listed {
    pub shard: Shard,
    pub part: Part,
    pub found: Found,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    Lease,
    Led,
    Note(Page),
}

pub type EachListed<'a> = dyn FnMut(Vec<Listed>) + Send + 'a;
/// Receives a document that a watch shows: its place among the keys, and what stands there. Breaks to end the watch.
pub type EachSeen<'a> = dyn FnMut(usize, Found) -> ControlFlow<()> + Send + 'a;

/// The documents of a store.
///
/// Dropping a method's future cancels it; its request may have been applied, as after a lost answer. Methods run in the
/// only thread of the election, so blocking calls belong in [`tokio::task::spawn_blocking`], where they outlive the
/// future. Each answers or fails within the bound given to [`Location::open`](crate::store::Location::open)
/// (`store::within`).
///
/// Each answer that has the server's time must go into the [`Clock`](crate::store::Clock) of [`ServerTime`] by
/// `sample_millis`, or by `sample` for a `Date`. Until then our wall clock is believed.
///
/// An error says what the caller may conclude ([`ErrorKind`](crate::store::ErrorKind)): `NotApplied` only where no
/// request was sent, or the server says that it did nothing. A document that cannot be read is not an error but
/// [`Content::Unreadable`]; a missing table or bucket is `Misconfigured`.
#[async_trait::async_trait]
pub trait Documents: ServerTime + Send + Sync {
    /// Where the documents are, for people: `s3://locks/prefix/`.
    fn place(&self) -> String;

    /// The name of a document in the server's own words: `the object s3://locks/shard/db`.
    fn name(&self, key: Key<'_>) -> String;

    /// What to do about a document that cannot be read: `delete it, or use another prefix`.
    fn remedy(&self, key: Key<'_>) -> String;

    fn properties(&self) -> Properties {
        Properties::default()
    }

    /// Where the server has no clock: a number that is higher after each change since the marker was written, as the last
    /// answers showed it. It rises more slowly than milliseconds pass.
    fn changes(&self) -> u64 {
        0
    }

    /// The lock of other programs that is held beside each lease, if there is one.
    fn lock(&self) -> Option<&dyn ForeignLock> {
        None
    }

    /// Reads documents, one for each key and in the order of the keys. If `may_be_behind`, they may be a little older
    /// than what stands.
    async fn get(&self, keys: &[Key<'_>], may_be_behind: bool) -> Result<Vec<Found>, StoreError>;

    /// Replaces a document, and returns it as written, also if an earlier copy of the same request was applied and
    /// nothing since. None: it was refused.
    async fn put(&self, key: Key<'_>, draft: Draft<'_>, over: Over<'_>) -> Result<Option<Found>, StoreError>;

    /// Renews: if the document names this leadership with a lower sequence, sets only its sequence and end.
    ///
    /// The default is for a server that can only compare.
    async fn touch(&self, touch: Touch<'_>) -> Result<Touched, StoreError> {
        touch::by_put(self, touch).await
    }

    /// Deletes an announcement, a scratch document or a note that nobody can read, whatever is in it, if it is there.
    async fn remove(&self, key: Key<'_>) -> Result<(), StoreError>;

    /// Lists documents, in parts as they arrive. Leaves out what is not named after a shard, or is no [`Part`]. Where
    /// it collects or pages, it fails at a bound (`allowance::listed`).
    async fn list(&self, list: List<'_>, each: &mut EachListed<'_>) -> Result<(), StoreError>;

    /// Shows what stands once no later change can be missed, then each state of which it learns, until `each` breaks.
    /// It may skip states, or repeat one. Under [`Delivery::Poll`] it never returns. Where reads are cheap it may poll,
    /// more often than standbys do.
    async fn watch(&self, keys: &[Key<'_>], each: &mut EachSeen<'_>) -> Result<(), StoreError> {
        let _ = (keys, each);
        std::future::pending().await
    }

    /// As [`crate::store::Leases::doubted`].
    async fn doubted(&self, shard: &Shard) {
        let _ = shard;
        std::future::pending::<()>().await;
    }

    /// Creates what the documents need, unless it exists, but not the marker. Returns a line for each step.
    async fn prepare(&self) -> Result<Vec<String>, StoreError> {
        Ok(Vec::new())
    }

    /// What kind of server it is, for `store check`, which tries nothing after a bad finding.
    async fn identify(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }

    /// What `store check` reports beyond the trial of documents.
    async fn findings(&self) -> Result<Vec<Finding>, StoreError> {
        Ok(Vec::new())
    }
}
