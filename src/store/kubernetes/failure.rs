//! What a failed request means, in one line.
//!
//! The hazard: a write was certainly not applied only if the server turned the request away before it handled it. Its
//! other errors leave that open: etcd behind it may have been too slow.

use super::connection::Connection;
use crate::store::StoreError;
use crate::store::allowance::{self, MOST};
use crate::store::error::{causes, in_short, innermost};
use crate::store::tls;
use http::StatusCode;
use http_body_util::LengthLimitError;
use kube::core::Status;
use std::error::Error;
use std::time::Duration;

const TLS: tls::Words =
    tls::Words { any_name: None, ca: "certificate-authority", own: "client-certificate and client-key" };

#[derive(Debug)]
pub struct Refusal {
    /// None if there was no answer.
    pub code: Option<u16>,
    pub is_absence: bool,
    pub retry_after: Option<Duration>,
    pub sent_twice: bool,
    pub error: StoreError,
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        Self { code: None, is_absence: false, retry_after: None, sent_twice: false, error }
    }
}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        refusal.error
    }
}

/// The kubeconfig, or the pod's account, cannot be used.
pub fn unconfigured(error: &(dyn Error + 'static)) -> StoreError {
    let why = in_short(&error.to_string());
    StoreError::misconfigured(format!(
        "no cluster is configured for kubernetes: {why}; name a file with kubernetes:?kubeconfig=FILE or KUBECONFIG"
    ))
}

pub fn no_login(server: &str, error: &(dyn Error + 'static)) -> StoreError {
    StoreError::denied(format!("cannot log in to {server}: {}", in_short(&error.to_string())))
}

/// `verb` is the right that the request needs.
pub fn refusal(connection: &Connection, verb: &str, error: &kube::Error) -> Refusal {
    match error {
        kube::Error::Api(status) => refused(connection, verb, status),
        kube::Error::SerdeError(_) | kube::Error::FromUtf8(_) => {
            let (place, why) = (&connection.server, innermost(error));
            StoreError::unknown(format!("cannot understand the answer of {place} to a {verb} of leases: {why}")).into()
        }
        error => broken(connection, verb, error).into(),
    }
}

fn broken(connection: &Connection, verb: &str, error: &(dyn Error + 'static)) -> StoreError {
    let place = &connection.server;
    if causes(error).any(<dyn Error>::is::<LengthLimitError>) {
        return StoreError::unknown(allowance::complaint(place, "kubernetes", MOST));
    }
    if let Some(failure) = TLS.failure(place, error) {
        return failure;
    }
    let cause = innermost(error);
    let was_not_sent = causes(error).any(|cause| {
        let client = cause.downcast_ref::<hyper_util::client::legacy::Error>();
        client.is_some_and(hyper_util::client::legacy::Error::is_connect)
    });
    if let Some(login) = causes(error).find_map(|cause| cause.downcast_ref::<kube::client::AuthError>()) {
        no_login(place, login)
    } else if was_not_sent {
        StoreError::not_applied(format!("cannot reach {place}: {cause}")).because(error)
    } else {
        StoreError::unknown(format!("the connection to {place} broke during a {verb} of leases: {cause}"))
            .because(error)
    }
}

fn refused(connection: &Connection, verb: &str, status: &Status) -> Refusal {
    let Connection { server: place, namespace, .. } = connection;
    let said = match (in_short(&status.message), StatusCode::from_u16(status.code)) {
        (said, Ok(code)) if said.is_empty() => format!("status {code}"),
        (said, _) => said,
    };
    let error = match status.code {
        401 => StoreError::denied(format!(
            "{place} does not accept the login: is the token or certificate still valid? ({said})"
        )),
        // While it starts, it may be unable to evaluate its rules.
        403 | 429 if status.code == 429 || said.contains(": RBAC: ") => {
            StoreError::not_applied(format!("{place} rejected a {verb} of leases for now: {said}"))
        }
        403 => StoreError::denied(format!(
            "{place} denied {verb} of leases in namespace {namespace}: grant the verb {verb} on leases of \
             coordination.k8s.io by a Role ({said})"
        )),
        404 | 405 if status.reason.is_empty() => StoreError::misconfigured(format!(
            "{place} answered a {verb} of leases with {said}: is it the API server of Kubernetes?"
        )),
        404 => StoreError::misconfigured(format!("{place} cannot {verb} leases in namespace {namespace}: {said}")),
        400..=499 => StoreError::not_applied(format!("{place} rejected a {verb} of leases: {said}")),
        _ => StoreError::unknown(format!("{place} failed to {verb} leases: {said}")),
    };
    let details = status.details.as_ref();
    // A missing namespace has another kind.
    let is_lease = details.is_some_and(|details| details.kind == "leases" && !details.name.is_empty());
    let seconds = details.map(|details| u64::from(details.retry_after_seconds)).filter(|seconds| *seconds > 0);
    Refusal {
        code: Some(status.code),
        is_absence: status.code == 404 && is_lease,
        retry_after: seconds.map(Duration::from_secs),
        ..error.into()
    }
}
