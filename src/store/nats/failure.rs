//! What a failed connection means, and what the library reports beside the answers.

use super::address::Login;
use crate::lease::show;
use crate::store::StoreError;
use crate::store::error::{in_short, innermost_of};
use crate::store::tls::BY_FILES;
use async_nats::{ConnectError, ConnectErrorKind, Event as Reported};
use std::time::Duration;

/// What the library reports beside the answers.
#[derive(Clone, Debug)]
pub enum Event {
    Broken,
    /// The server sent too much.
    Flooded,
    /// In the server's words.
    Denied(String),
}

impl Event {
    pub fn of(reported: &Reported) -> Option<Self> {
        match reported {
            Reported::Disconnected | Reported::Closed => Some(Self::Broken),
            Reported::ServerError(error) => {
                // nats: Permissions Violation for Publish to "SUBJECT", in upper or lower case.
                let text = in_short(&error.to_string()).trim_start_matches("nats: ").to_owned();
                text.to_lowercase().contains("permissions violation").then_some(Self::Denied(text))
            }
            Reported::Connected
            | Reported::LameDuckMode
            | Reported::Draining
            | Reported::SlowConsumer(_)
            | Reported::ClientError(_) => None,
        }
    }
}

/// The error without a connection to `server`. `bound` is the time that the attempt had.
pub fn unconnected(login: &Login, bound: Duration, server: &str, error: &ConnectError) -> StoreError {
    let kind = error.kind();
    let unreachable = |why: &str| StoreError::not_applied(format!("cannot reach {server}: {why}"));
    if kind == ConnectErrorKind::AuthorizationViolation {
        let login = login.describe();
        return StoreError::denied(format!("{server} denied {login}: authorization violation"));
    }
    if kind == ConnectErrorKind::Authentication {
        let login = login.describe();
        return StoreError::misconfigured(format!("cannot log in to {server}: {login} cannot sign"));
    }
    if let Some(failure) = BY_FILES.failure(server, error) {
        return failure;
    }
    if kind == ConnectErrorKind::TimedOut {
        return unreachable(&unanswered(bound));
    }
    unreachable(&innermost_of(error, "NATS")).because(error)
}

/// A NATS server speaks first, and most others do not.
pub fn unanswered(bound: Duration) -> String {
    format!("no answer within {}: is it NATS?", show(bound))
}
