//! What a failed request means, in one line.
//!
//! The hazard: an error of the server says that a write was not applied only where it turned the request away before it
//! was handled. Its other errors leave that open: etcd behind it may have been too slow.

use super::connection::Connection;
use crate::store::StoreError;
use crate::store::allowance::{self, MOST};
use crate::store::error::{causes, in_short, innermost};
use crate::store::tls;
use http::{Method, StatusCode};
use http_body_util::LengthLimitError;
use serde::Deserialize;
use std::error::Error;
use std::time::Duration;

/// What a request does, as rights name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Delete,
}

impl Verb {
    pub const ALL: [Self; 6] = [Self::Get, Self::List, Self::Watch, Self::Create, Self::Update, Self::Delete];

    pub fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
        }
    }

    pub fn method(self) -> Method {
        match self {
            Self::Get | Self::List | Self::Watch => Method::GET,
            Self::Create => Method::POST,
            Self::Update => Method::PUT,
            Self::Delete => Method::DELETE,
        }
    }
}

/// A request that failed, with what a caller may need.
#[derive(Debug)]
pub struct Refusal {
    /// None if there was no answer.
    pub status: Option<StatusCode>,
    /// The Lease is not there.
    pub is_absence: bool,
    /// The connection broke, or could not be made.
    pub has_broken: bool,
    /// When the server wants to be asked again.
    pub retry_after: Option<Duration>,
    pub sent_twice: bool,
    pub error: StoreError,
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self { status: None, is_absence: false, has_broken: false, retry_after: None, sent_twice: false, error }
    }
}

/// The server's words.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    reason: String,
    message: String,
    details: Details,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Details {
    name: String,
    kind: String,
}

/// The error of a kubeconfig, or of a pod's account, that cannot be used.
pub fn unconfigured(error: &(dyn Error + 'static)) -> StoreError {
    let why = in_short(&error.to_string());
    let cause = innermost(error);
    let why = if why.contains(&cause) { why } else { format!("{why}: {cause}") };
    StoreError::misconfigured(format!("no cluster is configured for kubernetes: {why}"))
}

/// The error of a login that cannot be made ready.
pub fn no_login(server: &str, error: &(dyn Error + 'static)) -> StoreError {
    StoreError::denied(format!("cannot log in to kubernetes at {server}: {}", in_short(&error.to_string())))
}

/// A request without an answer.
pub fn broken(connection: &Connection, verb: Verb, error: &(dyn Error + 'static)) -> Refusal {
    let place = format!("kubernetes at {}", connection.server);
    if causes(error).any(<dyn Error>::is::<LengthLimitError>) {
        return StoreError::unknown(allowance::complaint(&place, "kubernetes", MOST)).into();
    }
    let certificate = causes(error).find_map(|cause| match cause.downcast_ref::<rustls::Error>()? {
        rustls::Error::InvalidCertificate(wrong) => Some(wrong),
        _ => None,
    });
    let mut cause = innermost(error);
    let was_not_sent = causes(error).any(|cause| {
        let client = cause.downcast_ref::<hyper_util::client::legacy::Error>();
        client.is_some_and(hyper_util::client::legacy::Error::is_connect)
    });
    let has_login = causes(error).find_map(|cause| cause.downcast_ref::<kube::client::AuthError>());
    let error = if let Some(wrong) = certificate {
        cause.push_str(&tls::advice(wrong, "certificate-authority"));
        StoreError::misconfigured(format!("the certificate of {place} cannot be trusted: {cause}"))
    } else if let Some(login) = has_login {
        no_login(&connection.server, login)
    } else if was_not_sent {
        StoreError::not_applied(format!("cannot reach {place}: {cause}")).because(error)
    } else {
        let verb = verb.name();
        StoreError::unknown(format!("the connection to {place} broke at a {verb} of leases: {cause}")).because(error)
    };
    Refusal { has_broken: true, ..error.into() }
}

/// What an answer means that is no success.
pub fn refused(connection: &Connection, verb: Verb, code: StatusCode, body: &[u8]) -> Refusal {
    let Connection { server, namespace, .. } = connection;
    let status: Status = serde_json::from_slice(body).unwrap_or_default();
    let place = format!("kubernetes at {server}");
    let verb = verb.name();
    let said = match in_short(&status.message) {
        said if said.is_empty() => format!("status {code}"),
        said => said,
    };
    let error = match code.as_u16() {
        401 => StoreError::denied(format!(
            "{place} does not accept the login: is the token or certificate still valid? ({said})"
        )),
        // It cannot evaluate its rules yet, such as while it starts.
        403 if said.contains(": RBAC: ") => {
            StoreError::not_applied(format!("{place} turned a {verb} of leases away: {said}"))
        }
        403 => StoreError::denied(format!(
            "{place} denied {verb} of leases in namespace {namespace}: grant the verb {verb} on leases of \
             coordination.k8s.io by a Role ({said})"
        )),
        404 | 405 if status.reason.is_empty() => StoreError::misconfigured(format!(
            "{place} answered a {verb} of leases with {said}: is it the API server of Kubernetes?"
        )),
        404 => StoreError::misconfigured(format!("{place} cannot {verb} leases in namespace {namespace}: {said}")),
        429 => StoreError::not_applied(format!("{place} turned a {verb} of leases away: {said}")),
        400..=499 => StoreError::not_applied(format!("{place} rejected a {verb} of leases: {said}")),
        _ => StoreError::unknown(format!("{place} failed at a {verb} of leases: {said}")),
    };
    // A namespace may be missing as well, and has another kind.
    let is_lease = status.details.kind == "leases" && !status.details.name.is_empty();
    let is_absence = code == StatusCode::NOT_FOUND && is_lease;
    Refusal { status: Some(code), is_absence, ..error.into() }
}
