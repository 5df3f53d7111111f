//! What a failed request or connection means, and what the library reports beside the answers.
//!
//! The hazard: a server reports a missing permission not in the answer to the request but beside it. So a request also
//! listens for such reports. Otherwise it would wait until its time is over, and could never say why.

use super::address::Login;
use crate::lease::show;
use crate::store::StoreError;
use crate::store::error::{causes, in_short, innermost, innermost_of};
use crate::store::tls;
use async_nats::{ConnectError, ConnectErrorKind, Event};
use std::collections::VecDeque;
use std::time::Duration;

/// The most refusals that are kept for the requests that wait. More arrive only while no request waits.
const MOST_DENIALS: usize = 32;

/// The reason why a request has no answer.
pub enum Failure {
    /// Nobody listens on the subject.
    NoResponders,
    Error(StoreError),
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self::Error(error)
    }
}

/// What the library reports beside the answers.
#[derive(Debug, Default)]
pub struct Trouble {
    pub broken: bool,
    /// How many refusals there were.
    pub count: u64,
    /// The last refusals.
    denials: VecDeque<String>,
    /// Some after the server refused to deliver answers to us.
    deaf: Option<String>,
}

impl Trouble {
    pub fn take_in(&mut self, event: &Event) -> bool {
        match event {
            Event::Disconnected | Event::Closed => {
                self.broken = true;
                true
            }
            Event::ServerError(error) => {
                // nats: Permissions Violation for Publish to "SUBJECT", in upper or lower case, depending on the
                // server.
                let text = in_short(&error.to_string());
                let lower = text.to_lowercase();
                if !lower.contains("permissions violation") {
                    return false;
                }
                let text = text.trim_start_matches("nats: ").to_owned();
                if lower.contains("for subscription") {
                    self.deaf = Some(text.clone());
                }
                self.count += 1;
                self.denials.push_back(text);
                if self.denials.len() > MOST_DENIALS {
                    self.denials.pop_front();
                }
                true
            }
            Event::Connected
            | Event::LameDuckMode
            | Event::Draining
            | Event::SlowConsumer(_)
            | Event::ClientError(_) => false,
        }
    }

    /// The message if a request on `subject` was refused after `before` other refusals, or if no answer can arrive.
    pub fn denial(&self, subject: &str, before: u64) -> Option<String> {
        let new = usize::try_from(self.count - before).unwrap_or(usize::MAX);
        let quoted = format!("\"{subject}\"");
        let refused = self.denials.iter().rev().take(new).find(|denial| denial.contains(&quoted));
        self.deaf.as_ref().or(refused).cloned()
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
    if let Some(error) = causes(error).find_map(|cause| cause.downcast_ref::<rustls::Error>()) {
        return tls_failed(server, error);
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

fn tls_failed(server: &str, error: &rustls::Error) -> StoreError {
    let message = format!("TLS with {server} failed: {}", innermost(error));
    match error {
        rustls::Error::InvalidCertificate(wrong) => {
            StoreError::misconfigured(format!("{message}{}", tls::advice(wrong, "ca")))
        }
        rustls::Error::InvalidMessage(_) => StoreError::misconfigured(format!(
            "TLS with {server} failed: the server may not use TLS: write nats://HOST/BUCKET"
        )),
        rustls::Error::AlertReceived(_) => {
            StoreError::denied(format!("{message}: it may want another certificate of ours (cert=FILE and key=FILE)"))
        }
        _ => StoreError::not_applied(message),
    }
}
