//! A server in memory, a clock that a story turns, and ways to the server that do what the story says.

use crate::memory::{Contents, Kept, Memory, Name, Server, Step, Style, Tells};
pub use crate::way::{Fate, Line};
use futures_util::FutureExt;
use leaderrun::internals::lease::{Candidate, Session, Shard, Term};
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::lease_store::documents::{Content, Marking};
use leaderrun::internals::store::{Administration, Claim, Grant, Holder, Leases, Note, Notes, Page, Release, Renewal};
use leaderrun::internals::time::{BootInstant, simulate};
use std::cell::Cell;
use std::sync::{Arc, Once};
use std::time::Duration;

pub const LEASE: Duration = Duration::from_secs(15);
/// By how much a clock that is known to some seconds may delay a takeover.
pub const SLACK: Duration = Duration::from_secs(5);
/// Where a server tells no time, a process that has not seen a wait begin believes its own wall clock that it is over,
/// but only after this long.
pub const UNTIL_A_WALL_CLOCK_KNOWS: Duration = Duration::from_mins(6);
const EPOCH_MILLIS: u64 = 1_800_000_000_000;

thread_local! {
    static NOW_MILLIS: Cell<u64> = const { Cell::new(1_000_000) };
}

fn now_millis() -> u64 {
    NOW_MILLIS.get()
}

fn wall_millis() -> u64 {
    EPOCH_MILLIS + now_millis()
}

/// The clock of the story goes on.
pub fn advance(time: Duration) {
    NOW_MILLIS.set(now_millis() + u64::try_from(time.as_millis()).unwrap());
}

/// On which a request takes a moment.
pub fn line() -> Line {
    Line::where_each(|| advance(Duration::from_millis(1)))
}

pub fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// As a server with scripts; one that can only compare; one that ends leases by itself and shows no clock; one that compares
/// and has lives; one that tells no time; one whose documents other programs write too.
pub const SCRIPTED: Style = Style::SCRIPTED;
pub const COMPARING: Style = Style::COMPARING;
pub const LEASED: Style = Style::LEASED;
pub const STAMPING: Style = Style { touches: false, ..SCRIPTED };
pub const TIMELESS: Style = Style { tells: Tells::Nothing, ..SCRIPTED };

pub const SHARED: Style = Style::SHARED;

pub const ALL: [Style; 6] = [SCRIPTED, COMPARING, LEASED, STAMPING, TIMELESS, SHARED];
/// Those with a clock by which others can tell when a lease ends, or a wait.
pub const DATED: [Style; 5] = [SCRIPTED, COMPARING, STAMPING, TIMELESS, SHARED];
/// Those that can lose what they acknowledged, and know it.
pub const LIVING: [Style; 3] = [SCRIPTED, STAMPING, LEASED];

pub fn any_put(step: &Step) -> bool {
    matches!(step, Step::Put(_))
}

pub fn put_of_shard(step: &Step) -> bool {
    matches!(step, Step::Put(Name::Shard(_)))
}

/// Of orders, wherever the style keeps them.
pub fn put_of_orders(step: &Step) -> bool {
    matches!(step, Step::Put(Name::Shard(_) | Name::Note(_, Page::Orders)))
}

pub fn put_of_led(step: &Step) -> bool {
    matches!(step, Step::Put(Name::Led(_)))
}

/// A renewal, as the style sends it.
pub fn renewal(step: &Step) -> bool {
    matches!(step, Step::Touch(_) | Step::Put(Name::Shard(_)))
}

/// The store of one process.
pub struct Client {
    pub store: LeaseStore,
    pub line: Line,
}

/// Answers without ever waiting.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("it waits for nothing")
}

/// Waits for what comes soon, by the real clock.
pub fn soon<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(seconds(20), future).await.expect("it is heard") })
}

pub fn shard() -> Shard {
    "db/main".parse().unwrap()
}

pub fn candidate(owner: &str) -> Candidate {
    Candidate {
        shard: shard(),
        owner: owner.to_owned(),
        session: Session::random().unwrap(),
        host: "host".to_owned(),
        pid: 7,
        lease: LEASE,
    }
}

impl Client {
    pub fn claim(&self, candidate: &Candidate) -> Claim {
        now(self.store.claim(candidate)).expect("the store answers")
    }

    #[track_caller]
    pub fn granted(&self, candidate: &Candidate) -> Grant {
        match self.claim(candidate) {
            Claim::Granted(grant) => grant,
            Claim::Refused(holder) => panic!("refused: {holder:?}"),
        }
    }

    #[track_caller]
    pub fn refused(&self, candidate: &Candidate) -> Holder {
        match self.claim(candidate) {
            Claim::Refused(holder) => holder,
            Claim::Granted(grant) => panic!("granted: {grant:?}"),
        }
    }

    /// Claims, and expects no wait.
    #[track_caller]
    pub fn lead(&self, candidate: &Candidate) -> Term {
        let grant = self.granted(candidate);
        assert_eq!(grant.start_after, None, "{grant:?}");
        grant.term
    }

    /// Leads, and gives the lease back.
    #[track_caller]
    pub fn leads_once(&self, candidate: &Candidate) -> Term {
        let term = self.lead(candidate);
        assert_eq!(now(self.store.release(candidate, term)), Ok(Release::Released));
        term
    }

    /// Claims, and has to wait for the tree of a leader that has the usual lease.
    #[track_caller]
    pub fn waits(&self, candidate: &Candidate) -> Grant {
        let grant = self.granted(candidate);
        assert!(wait_of(&grant) > LEASE - seconds(1), "{grant:?}");
        grant
    }

    pub fn renew(&self, candidate: &Candidate, term: Term, sequence: u64) -> Renewal {
        now(self.store.renew(candidate, term, sequence)).expect("the store answers")
    }

    /// Claims again and again, as a standby would. Returns the grant, and how long that took.
    pub fn in_time(&self, candidate: &Candidate) -> (Grant, Duration) {
        let begun = now_millis();
        for _ in 0..1_200 {
            if let Claim::Granted(grant) = self.claim(candidate) {
                return (grant, Duration::from_millis(now_millis() - begun));
            }
            advance(Duration::from_millis(100));
        }
        panic!("it is never granted");
    }

    pub fn orders(&self) -> Option<String> {
        now(self.store.read(&shard(), &Page::Orders)).unwrap().map(|note| note.text)
    }

    #[track_caller]
    pub fn order(&self, text: &str) {
        let before = self.orders();
        let (shard, note) = (shard(), Note::for_ever(text));
        assert_eq!(now(self.store.replace(&shard, &Page::Orders, before.as_deref(), Some(&note))), Ok(true));
    }
}

/// How long from now a grant makes its leader wait.
pub fn wait_of(grant: &Grant) -> Duration {
    grant.start_after.map_or(Duration::ZERO, |until| until.since(BootInstant::now()))
}

pub struct World {
    pub server: Arc<Server>,
    pub style: Style,
}

impl World {
    /// A server that nobody has used.
    pub fn new(style: Style) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| simulate(|| BootInstant::from_nanos(now_millis() * 1_000_000), wall_millis));
        Self { server: Arc::new(Server::new(style, wall_millis)), style }
    }

    /// A server that has remembered for long.
    pub fn old(style: Style) -> Self {
        let world = Self::new(style);
        let operator = world.client();
        now(operator.store.prepare()).unwrap();
        now(operator.store.vouch()).unwrap();
        world
    }

    pub fn client(&self) -> Client {
        let line = line();
        Client { store: LeaseStore::new(Memory::new(Arc::clone(&self.server), line.clone())), line }
    }

    /// A server without persistence.
    pub fn restarts_empty(&self) {
        self.server.wipe();
        self.server.restart();
    }

    /// To a copy that may be older.
    pub fn fails_over(&self, copy: Contents) {
        self.server.restart();
        self.server.restore(copy);
    }

    /// Whether it has lives that end.
    pub fn lives(&self) -> bool {
        self.style.marking != Marking::ByInit
    }

    /// Does something by hand with what is kept.
    pub fn edit(&self, act: impl FnOnce(&mut std::collections::BTreeMap<Name, Kept>)) {
        let mut contents = self.server.contents();
        act(&mut contents);
        self.server.restore(contents);
    }

    /// Somebody deletes the shard's document by hand.
    pub fn delete(&self) {
        self.edit(|contents| drop(contents.remove(&Name::Shard(shard()))));
    }

    pub fn text(&self) -> serde_json::Value {
        let contents = self.server.contents();
        let kept = contents.get(&Name::Shard(shard())).expect("there is a document");
        serde_json::from_str(&kept.text).expect("it is JSON")
    }

    /// Another program writes in the shard's place.
    pub fn write_foreign(&self, foreign: Option<Content>, text: &str) {
        self.edit(|contents| {
            let kept = Kept {
                foreign,
                text: text.to_owned(),
                leadership: None,
                sequence: 0,
                ends: None,
                write: "another program".to_owned(),
            };
            contents.insert(Name::Shard(shard()), kept);
        });
    }
}

/// Tells a story at an old server of each style.
pub fn each(styles: impl IntoIterator<Item = Style>, story: impl Fn(World)) {
    for style in styles {
        // It is shown where the story fails.
        println!("{style:?}");
        story(World::old(style));
    }
}

/// The same, where a candidate leads already.
pub fn each_led(styles: impl IntoIterator<Item = Style>, story: impl Fn(World, Client, Candidate, Term)) {
    each(styles, |world| {
        let (client, one, term) = leader(&world);
        story(world, client, one, term);
    });
}

/// A leader, and its term.
pub fn leader(world: &World) -> (Client, Candidate, Term) {
    let (client, one) = (world.client(), candidate("one"));
    let term = client.lead(&one);
    (client, one, term)
}
