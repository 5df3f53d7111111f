//! The roles of a member, for a program that follows them.
//!
//! The hazard: a borrowed role is locked, and the next change of it would wait, in the thread that renews the lease. So
//! every role that leaves this module is a copy.

use super::role::Role;
use std::fmt;
use tokio::sync::watch;

/// The roles of a [`Member`](crate::Member), one after the other. Made by [`Member::watch`](crate::Member::watch).
#[derive(Clone)]
pub struct Roles {
    changes: watch::Receiver<Role>,
    /// [`Role::Stopped`] was seen. Nothing follows.
    over: bool,
}

impl Roles {
    pub(super) fn new(mut changes: watch::Receiver<Role>) -> Self {
        let over = *changes.borrow_and_update() == Role::Stopped;
        Self { changes, over }
    }

    /// The current role.
    #[must_use]
    pub fn current(&self) -> Role {
        self.changes.borrow().clone()
    }

    /// Waits for a role that this has not returned yet. It returns the latest: a slow reader may miss those in between.
    /// None after [`Role::Stopped`], which is the last.
    ///
    /// Cancel-safe.
    pub async fn changed(&mut self) -> Option<Role> {
        if self.over {
            return None;
        }
        self.changes.changed().await.ok()?;
        let role = self.changes.borrow_and_update().clone();
        self.over = role == Role::Stopped;
        Some(role)
    }
}

impl fmt::Debug for Roles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Roles").field(&self.current()).finish()
    }
}
