//! The connection that a store keeps between requests: how long it is trusted, and when it is dropped.
//!
//! The hazards:
//!
//! - A connection may hang for ever: a partition, a frozen server, a firewall that forgot it. Later requests must not
//!   hang on it too. So a connection that has been silent for a while with a request unanswered is no longer chosen,
//!   and it is dropped when a request on it is given up. Other requests under way on it continue.
//! - A connection may have ended unnoticed, and shows that only when something is sent on it. Then the request is sent
//!   once more, on a new connection; every request of a store can safely be sent twice. But the first attempt may have
//!   been applied, whatever happens to the second.
//! - The machine may be suspended while the server gives up. So silence counts on `CLOCK_BOOTTIME`.

use super::{ErrorKind, StoreError};
use crate::time::BootInstant;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// The part of a request's time after which a connection with an answer outstanding is no longer chosen. It has bounds,
/// because a busy host may be silent for a moment, and because renewals must not follow each other onto a connection
/// that hangs, even where requests may take long.
const PATIENCE_PARTS: u32 = 4;
/// The part for requests so short that their quarter is below the least patience. A request that ends first would never
/// find the connection silent.
const SHORT_PATIENCE_PARTS: u32 = 3;
const LEAST_PATIENCE: Duration = Duration::from_millis(100);
const MOST_PATIENCE: Duration = Duration::from_secs(1);

/// The time for one request, including the connection: a little less than the caller allows. The caller has its own
/// bound, but its message cannot say what the request was waiting for.
pub fn bound(request_timeout: Duration) -> Duration {
    request_timeout - (request_timeout / 20).min(Duration::from_millis(100))
}

/// How long a connection with a request unanswered may be silent, if requests take at most `bound`.
pub fn patience(bound: Duration) -> Duration {
    (bound / PATIENCE_PARTS).clamp(LEAST_PATIENCE.min(bound / SHORT_PATIENCE_PARTS), MOST_PATIENCE)
}

pub struct Kept<C>(Mutex<Option<Arc<C>>>);

impl<C> Default for Kept<C> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<C> Kept<C> {
    pub fn get(&self) -> Option<Arc<C>> {
        self.0.lock().clone()
    }

    /// Keeps `connection`, unless the one that is already kept is `better`.
    pub fn keep_unless(&self, connection: &Arc<C>, better: impl FnOnce(&C) -> bool) {
        let mut kept = self.0.lock();
        if !kept.as_ref().is_some_and(|kept| better(kept)) {
            *kept = Some(Arc::clone(connection));
        }
    }

    pub fn drop_if(&self, is_bad: impl FnOnce(&C) -> bool) -> bool {
        self.0.lock().take_if(|kept| is_bad(kept)).is_some()
    }

    /// Drops `connection` if it is the kept one.
    pub fn forget(&self, connection: &Arc<C>) {
        self.0.lock().take_if(|kept| Arc::ptr_eq(kept, connection));
    }
}

#[derive(Default)]
pub struct Pending(Mutex<State>);

#[derive(Default)]
struct State {
    count: u32,
    /// When the last answer came, or when the first of the pending requests began, whichever is later.
    heard: Option<BootInstant>,
}

impl Pending {
    /// Whether no request is under way.
    pub fn is_idle(&self) -> bool {
        self.0.lock().count == 0
    }

    pub fn is_silent(&self, patience: Duration) -> bool {
        self.0.lock().is_silent(patience)
    }

    /// Begins a request. If it is dropped without an answer (an error, out of time, cancelled by its caller), calls
    /// `given_up` with whether the connection has been silent for `patience`.
    pub fn begin<F: FnOnce(bool)>(&self, patience: Duration, given_up: F) -> Asked<'_, F> {
        let mut state = self.0.lock();
        if state.count == 0 {
            state.heard = Some(BootInstant::now());
        }
        state.count += 1;
        drop(state);
        Asked { pending: self, patience, given_up: Some(given_up) }
    }
}

impl State {
    fn is_silent(&self, patience: Duration) -> bool {
        self.count > 0 && self.heard.is_some_and(|heard| BootInstant::now().since(heard) >= patience)
    }
}

pub struct Asked<'a, F: FnOnce(bool)> {
    pending: &'a Pending,
    patience: Duration,
    /// Some while there is no answer.
    given_up: Option<F>,
}

impl<F: FnOnce(bool)> Asked<'_, F> {
    pub fn answered(mut self) {
        self.given_up = None;
    }
}

impl<F: FnOnce(bool)> Drop for Asked<'_, F> {
    fn drop(&mut self) {
        let mut state = self.pending.0.lock();
        let silent = state.is_silent(self.patience);
        state.count -= 1;
        match self.given_up.take() {
            None => state.heard = Some(BootInstant::now()),
            Some(given_up) => {
                drop(state);
                given_up(silent);
            }
        }
    }
}

/// Sends a request, and once more by `again` if `has_ended` says that it failed because the connection had ended.
pub async fn once_more<T, E: Into<StoreError>>(
    first: impl Future<Output = Result<T, E>>,
    has_ended: impl FnOnce(&E) -> bool,
    again: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match first.await {
        Err(failure) if has_ended(&failure) => {
            let first = failure.into();
            again.await.map_err(|second| in_doubt(&first, second))
        }
        answer => answer.map_err(Into::into),
    }
}

/// The error of a second attempt. If the first may have been applied, the outcome is unknown.
pub fn in_doubt(first: &StoreError, second: StoreError) -> StoreError {
    let kind = if first.kind == ErrorKind::Unknown { ErrorKind::Unknown } else { second.kind };
    StoreError { kind, ..second }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const NO_PATIENCE: Duration = Duration::ZERO;
    const PATIENCE: Duration = Duration::from_hours(1);

    #[test]
    fn patience_is_shorter_than_the_request() {
        for millis in [1, 50, 100, 399, 400, 4_000, 10_000] {
            let bound = bound(Duration::from_millis(millis));
            assert!(patience(bound) < bound && patience(bound) <= MOST_PATIENCE, "{millis} ms");
        }
    }

    #[test]
    fn a_connection_is_silent_only_while_something_is_unanswered() {
        let pending = Pending::default();
        assert!(!pending.is_silent(NO_PATIENCE), "nothing was asked");
        let one = pending.begin(PATIENCE, |_| panic!("it is answered"));
        let two = pending.begin(PATIENCE, |_| panic!("it is answered"));
        assert!(pending.is_silent(NO_PATIENCE) && !pending.is_silent(PATIENCE));
        one.answered();
        assert!(pending.is_silent(NO_PATIENCE), "one of them is unanswered");
        two.answered();
        assert!(!pending.is_silent(NO_PATIENCE));
    }

    #[test]
    fn a_request_that_is_given_up_says_so_and_whether_there_was_silence() {
        let (pending, told) = (Pending::default(), Cell::new(None));
        drop(pending.begin(PATIENCE, |silent| told.set(Some(silent))));
        assert_eq!(told.take(), Some(false));
        drop(pending.begin(NO_PATIENCE, |silent| told.set(Some(silent))));
        assert_eq!(told.take(), Some(true));
        assert!(!pending.is_silent(NO_PATIENCE), "it is not pending any more");
    }

    #[test]
    fn only_the_connection_that_is_kept_is_forgotten() {
        let (kept, one, other) = (Kept::default(), Arc::new(1), Arc::new(2));
        kept.keep_unless(&one, |_| false);
        kept.forget(&other);
        assert!(kept.get() == Some(Arc::clone(&one)));
        kept.keep_unless(&other, |_| true);
        assert_eq!(kept.get(), Some(Arc::clone(&one)));
        kept.forget(&one);
        assert!(kept.get().is_none());
        kept.keep_unless(&other, |_| true);
        assert!(!kept.drop_if(|&kept| kept == 1) && kept.drop_if(|&kept| kept == 2));
    }

    #[tokio::test]
    async fn a_failed_second_attempt_leaves_the_first_one_in_doubt() {
        let attempt = async |first: StoreError, ended: bool| {
            let again = async { Err::<(), _>(StoreError::denied("no")) };
            once_more(async { Err(first) }, |_| ended, again).await.unwrap_err().kind
        };
        assert_eq!(attempt(StoreError::unknown("it broke"), true).await, ErrorKind::Unknown);
        assert_eq!(attempt(StoreError::not_applied("it was not sent"), true).await, ErrorKind::Denied);
        assert_eq!(attempt(StoreError::not_applied("busy"), false).await, ErrorKind::NotApplied);
    }
}
