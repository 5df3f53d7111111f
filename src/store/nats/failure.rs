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
            _ => None,
        }
    }
}

/// The error without a connection to `server`. `bound` is the time that the attempt had.
pub fn unconnected(login: &Login, bound: Duration, server: &str, error: &ConnectError) -> StoreError {
    let unreachable = |why: &str| StoreError::not_applied(format!("cannot reach {server}: {why}"));
    let login = login.describe();
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation => {
            StoreError::denied(format!("{server} denied {login}: authorization violation"))
        }
        ConnectErrorKind::Authentication => {
            StoreError::misconfigured(format!("cannot log in to {server}: {login} cannot sign"))
        }
        ConnectErrorKind::TimedOut => unreachable(&unanswered(bound)),
        _ => {
            let by_tls = BY_FILES.failure(server, error);
            by_tls.unwrap_or_else(|| unreachable(&innermost_of(error, "NATS")).because(error))
        }
    }
}

/// A NATS server speaks first, and most others do not.
pub fn unanswered(bound: Duration) -> String {
    format!("no answer within {}: is it NATS?", show(bound))
}
