//! How a program follows its member's role.
//!
//! The hazard: a role that is lent out is locked meanwhile, and the next change of it would wait in the thread that renews
//! the lease. So every role that leaves this module is a copy.

use super::words::Role;
use std::fmt;
use tokio::sync::watch;

/// The roles of a [`Member`](crate::Member), as they follow each other. Made by [`Member::watch`](crate::Member::watch).
#[derive(Clone)]
pub struct Roles {
    changes: watch::Receiver<Role>,
    /// [`Role::Stopped`] was seen: nothing follows.
    over: bool,
}

impl Roles {
    pub(super) fn new(mut changes: watch::Receiver<Role>) -> Self {
        let over = *changes.borrow_and_update() == Role::Stopped;
        Self { changes, over }
    }

    /// The role at this moment.
    #[must_use]
    pub fn current(&self) -> Role {
        self.changes.borrow().clone()
    }

    /// Waits until the role is another one than this has told, and tells it. It shows the latest: who is slow may miss what
    /// was in between. None after [`Role::Stopped`], the last there is.
    ///
    /// Nothing is missed if it is dropped before it is done.
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
