//! The lock of other programs, beside the lease: in which order both are taken and given back.

use crate::memory::{Memory, Name, Server, Style};
use crate::world::*;
use leaderrun::internals::lease::{Candidate, Term};
use leaderrun::internals::store::foreign_lock::{ForeignLock, Hold};
use leaderrun::internals::store::lease_store::LeaseStore;
use leaderrun::internals::store::{Claim, ErrorKind, Holder, Leases, Observation, Release, Renewal, StoreError};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Arc, Mutex};

/// A lock in memory: who has it.
struct Lock {
    has: Arc<Mutex<Option<String>>>,
    server: Arc<Server>,
    /// The next one to take it finds this.
    fails: Arc<Mutex<Option<StoreError>>>,
    /// What its session needs.
    file: File,
}

const STRANGER: &str = "another program";

fn is_led(server: &Server) -> bool {
    server.contents().get(&Name::Shard(shard())).is_some_and(|kept| kept.leadership.is_some())
}

#[async_trait::async_trait]
impl ForeignLock for Lock {
    fn name(&self) -> String {
        "the lock".to_owned()
    }

    async fn holder(&self, candidate: Option<&Candidate>) -> Result<Option<Holder>, StoreError> {
        let has = self.has.lock().unwrap().clone();
        let other = has.filter(|of| candidate.is_none_or(|candidate| of != candidate.session.as_str()));
        Ok(other.map(|owner| Holder { owner, ..Holder::default() }))
    }

    async fn take(&self, candidate: &Candidate, _: Term, again: bool) -> Result<Hold, StoreError> {
        assert!(is_led(&self.server), "the lease comes first");
        if let Some(error) = self.fails.lock().unwrap().take() {
            return Err(error);
        }
        if let Some(holder) = self.holder(Some(candidate)).await? {
            return Ok(Hold::Taken(holder));
        }
        let before = self.has.lock().unwrap().replace(candidate.session.as_str().to_owned());
        Ok(if again && before.is_none() { Hold::Lost } else { Hold::Held })
    }

    async fn let_go(&self, candidate: &Candidate, _: Term) -> Result<(), StoreError> {
        let mut has = self.has.lock().unwrap();
        if has.as_deref() == Some(candidate.session.as_str()) {
            assert!(is_led(&self.server), "the lock is given back before the lease");
            *has = None;
        }
        Ok(())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }

    async fn try_out(&self) -> Result<Option<Holder>, StoreError> {
        Ok(None)
    }
}

struct Both {
    store: LeaseStore,
    line: Line,
    has: Arc<Mutex<Option<String>>>,
    fails: Arc<Mutex<Option<StoreError>>>,
    descriptor: i32,
}

impl Both {
    fn new(world: &World) -> Self {
        let line = line();
        let (has, fails) = (Arc::default(), Arc::default());
        let file = File::open("/dev/null").unwrap();
        let descriptor = file.as_raw_fd();
        let lock = Lock { has: Arc::clone(&has), server: Arc::clone(&world.server), fails: Arc::clone(&fails), file };
        let store = LeaseStore::new(Memory::new(Arc::clone(&world.server), line.clone()).beside(lock));
        Self { store, line, has, fails, descriptor }
    }

    fn set(&self, has: Option<&str>) {
        *self.has.lock().unwrap() = has.map(str::to_owned);
    }

    fn has(&self) -> Option<String> {
        self.has.lock().unwrap().clone()
    }

    #[track_caller]
    fn lead(&self, candidate: &Candidate) -> Term {
        let Ok(Claim::Granted(grant)) = now(self.store.claim(candidate)) else { panic!("it is refused") };
        assert_eq!(self.has().as_deref(), Some(candidate.session.as_str()));
        grant.term
    }

    fn refused(&self, candidate: &Candidate) -> String {
        let Ok(Claim::Refused(holder)) = now(self.store.claim(candidate)) else { panic!("it is not refused") };
        holder.owner
    }
}

#[test]
fn while_another_program_has_the_lock_no_lease_is_taken_and_it_is_named() {
    each(ALL, |world| {
        let (both, one) = (Both::new(&world), candidate("one"));
        both.set(Some(STRANGER));
        assert_eq!(both.refused(&one), STRANGER);
        assert!(!both.line.steps().iter().any(any_put));
        assert!(matches!(now(both.store.observe(&shard())), Ok(Observation::Held(_))));
        both.set(None);
        let term = both.lead(&one);
        // Its own lock is not in its way.
        assert!(both.lead(&one) > term);
    });
}

#[test]
fn a_claim_that_does_not_get_the_lock_gives_the_lease_back() {
    each(ALL, |world| {
        let (both, one) = (Both::new(&world), candidate("one"));
        let has = Arc::clone(&both.has);
        let between = move || *has.lock().unwrap() = Some(STRANGER.to_owned());
        both.line.next(put_of_shard, Fate::After(Box::new(between)));
        assert_eq!(both.refused(&one), STRANGER);
        assert!(!is_led(&world.server));
        assert_eq!(both.has().as_deref(), Some(STRANGER));
    });
}

#[test]
fn a_claim_whose_lock_fails_may_have_been_applied_unless_it_is_denied() {
    each(ALL, |world| {
        let (both, one) = (Both::new(&world), candidate("one"));
        *both.fails.lock().unwrap() = Some(StoreError::not_applied("connection refused"));
        assert_eq!(now(both.store.claim(&one)).unwrap_err().kind, ErrorKind::Unknown);
        *both.fails.lock().unwrap() = Some(StoreError::denied("no permission"));
        assert_eq!(now(both.store.claim(&one)).unwrap_err().kind, ErrorKind::Denied);
        assert!(!is_led(&world.server));
    });
}

#[test]
fn a_lock_that_is_gone_ends_the_leadership_and_is_held_until_the_tree_is_dead() {
    each(ALL, |world| {
        let (both, one) = (Both::new(&world), candidate("one"));
        let term = both.lead(&one);
        assert_eq!(now(both.store.renew(&one, term, 1)), Ok(Renewal::Renewed));
        both.set(None);
        assert_eq!(now(both.store.renew(&one, term, 2)), Ok(Renewal::Lost(None)));
        assert_eq!(both.has().as_deref(), Some(one.session.as_str()));
        both.set(Some(STRANGER));
        let lost = now(both.store.renew(&one, term, 3));
        assert!(matches!(lost, Ok(Renewal::Lost(Some(holder))) if holder.owner == STRANGER));
        assert_eq!(now(both.store.release(&one, term)), Ok(Release::Released));
        assert_eq!(both.has().as_deref(), Some(STRANGER));
    });
}

/// Nothing reports that the lease of a leader that vanished is over.
#[test]
fn a_standby_hears_of_another_program_that_took_the_lock_after_a_leader_vanished_and_gives_it_back() {
    each([SCRIPTED, LEASED, Style { pushes_documents: true, ..SCRIPTED }], |world| {
        let (both, two) = (Both::new(&world), candidate("two"));
        world.client().lead(&candidate("one"));
        assert_eq!(both.refused(&two), "one");
        soon(async {
            let shard = shard();
            let mut wait = std::pin::pin!(both.store.changed(&shard));
            let quiet = std::time::Duration::from_millis(20);
            assert!(tokio::time::timeout(quiet, &mut wait).await.is_err());
            advance(LEASE + SLACK);
            both.set(Some(STRANGER));
            assert!(matches!(now(both.store.observe(&shard)), Ok(Observation::Held(by)) if by.owner == STRANGER));
            assert!(tokio::time::timeout(quiet, &mut wait).await.is_err());
            both.set(None);
            wait.await.unwrap();
        });
    });
}

#[test]
fn what_the_lock_needs_to_last_is_told_to_the_guard() {
    let both = Both::new(&World::old(SCRIPTED));
    let mut told = Vec::new();
    both.store.with_lease_files(&shard(), &mut |files| told.extend(files.iter().map(AsRawFd::as_raw_fd)));
    assert_eq!(told, [both.descriptor]);
}
