//! A lock that a session of the server holds in addition to the lease, and that other programs take as well.
//!
//! The hazards:
//!
//! - The lock lives as long as its session, and the session as long as its connection. So it would be free as soon as
//!   the candidate is killed, while the tree still runs. Therefore guard and backstop inherit an [`Anchor`] of it.
//! - A connection may be lost to us and not to the server, which then keeps the lock for nobody. So we remember which
//!   sessions were ours, and the store ends such a session.

use super::StoreError;
use super::anchor::Anchor;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::MutexGuard;

/// From one doubt to the next while we do not hold the lock. Each makes a renewal due at once, which takes the lock
/// again. While the server is away, renewals must not follow each other like that.
pub const DOUBT_PAUSE: Duration = Duration::from_secs(1);
/// How many lost sessions to remember. The server has noticed by then that the older ones are lost.
const MOST_LOST: usize = 16;

/// A session that holds the lock.
pub trait Keeper {
    /// What the server calls it.
    type Id: Copy + PartialEq;

    fn id(&self) -> Self::Id;

    /// False once the session is known to have ended.
    fn is_open(&self) -> bool;
}

pub struct SessionLock<K: Keeper> {
    anchor: Anchor,
    gate: tokio::sync::Mutex<()>,
    slot: Mutex<Slot<K>>,
}

struct Slot<K: Keeper> {
    /// Some while we hold the lock, as far as we know.
    held: Option<Arc<K>>,
    /// Sessions of ours that may hold the lock although we lost them.
    lost: VecDeque<K::Id>,
}

impl<K: Keeper> Slot<K> {
    fn lose(&mut self, id: K::Id) {
        self.lost.truncate(MOST_LOST - 1);
        self.lost.push_front(id);
    }
}

impl<K: Keeper> SessionLock<K> {
    /// Prepares the lock, and its anchor.
    ///
    /// # Errors
    /// The kernel has no sockets left.
    pub fn new() -> Result<Self, StoreError> {
        let anchor = Anchor::new().map_err(|error| {
            StoreError::not_applied(format!("the operating system gives no pair of sockets: {error}"))
        })?;
        let slot = Mutex::new(Slot { held: None, lost: VecDeque::new() });
        Ok(Self { anchor, gate: tokio::sync::Mutex::default(), slot })
    }

    /// Waits until no other task takes the lock: two sessions of ours would keep each other out.
    pub async fn alone(&self) -> MutexGuard<'_, ()> {
        self.gate.lock().await
    }

    /// The session that holds the lock for us.
    pub fn held(&self) -> Option<Arc<K>> {
        self.slot.lock().held.clone().filter(|keeper| keeper.is_open())
    }

    /// Our sessions, even those that we can no longer reach.
    pub fn own(&self) -> Vec<K::Id> {
        let slot = self.slot.lock();
        slot.held.iter().map(|keeper| keeper.id()).chain(slot.lost.iter().copied()).collect()
    }

    /// From here on this session may hold the lock.
    pub fn may_hold(&self, id: K::Id) {
        self.slot.lock().lose(id);
    }

    /// This session does not hold the lock.
    pub fn does_not_hold(&self, id: K::Id) {
        self.slot.lock().lost.retain(|&lost| lost != id);
    }

    /// Keeps a connection whose session has taken the lock open for as long as the tree lives. Before
    /// [`SessionLock::keep`], because nothing may start under a lock without its anchor.
    ///
    /// # Errors
    /// The kernel does not keep the descriptor.
    pub fn anchor(&self, descriptor: &OwnedFd) -> Result<(), StoreError> {
        self.anchor
            .hold(descriptor)
            .map_err(|error| StoreError::not_applied(format!("the operating system keeps no descriptor: {error}")))
    }

    pub fn keep(&self, keeper: K) {
        *self.slot.lock() = Slot { held: Some(Arc::new(keeper)), lost: VecDeque::new() };
    }

    /// Closes the connection whose session has freed the lock.
    pub fn freed(&self) {
        self.slot.lock().held = None;
        self.anchor.let_go();
    }

    /// Closes the connection of the session that held the lock, if there is one. It may hold the lock for a while yet.
    pub fn abandon(&self) {
        let mut slot = self.slot.lock();
        if let Some(keeper) = slot.held.take() {
            slot.lose(keeper.id());
        }
        drop(slot);
        self.anchor.let_go();
    }

    /// What guard and backstop inherit.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.anchor.descriptor()
    }
}
