//! What a failed request means, in one line.
//!
//! The hazard: a write that was applied, but is called "not applied", makes two candidates lead or loses a lease that
//! is held. So every failure is [`ErrorKind::Unknown`](crate::store::ErrorKind), unless the failure itself shows that
//! DynamoDB never saw the request or turned it away.

use crate::store::StoreError;
use crate::store::allowance::{self, MOST, TooLong};
use crate::store::error::{causes, in_short, innermost};
use crate::store::expiry::wrong_wall_clock;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::error::Error;
use std::io;

/// Where a request was sent, for messages.
#[derive(Clone, Debug)]
pub struct Place<'a> {
    pub table: &'a str,
    /// `DynamoDB (eu-west-1)`, or `DynamoDB at http://127.0.0.1:8000` for an endpoint that the user named.
    pub server: &'a str,
    /// `https://dynamodb.eu-west-1.amazonaws.com`; empty before the first request.
    pub endpoint: &'a str,
    /// How far our wall clock is from the server's, in seconds, if that is known.
    pub wall_clock_error: Option<i64>,
}

impl Place<'_> {
    /// The server, with the endpoint if a request went there.
    fn server_or_endpoint(&self) -> String {
        if self.endpoint.is_empty() { self.server.to_owned() } else { format!("DynamoDB at {}", self.endpoint) }
    }
}

/// AWS refuses a signature that is older or newer than this.
pub const MOST_SIGNATURE_AGE_SECONDS: i64 = 300;

/// An error of `action` (`dynamodb:PutItem`), other than a condition that failed.
pub fn failure<E>(place: &Place<'_>, action: &str, error: &SdkError<E, HttpResponse>) -> StoreError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    if causes(error).any(<dyn Error>::is::<TooLong>) {
        // Nothing was sent to DynamoDB if the request was for a source of credentials.
        return without_credentials(place, error).unwrap_or_else(|| {
            StoreError::unknown(allowance::complaint(&place.server_or_endpoint(), "DynamoDB", MOST))
        });
    }
    match error {
        SdkError::ConstructionFailure(_) => {
            StoreError::not_applied(format!("cannot ask {}: {}", place.server, innermost(error)))
        }
        SdkError::TimeoutError(_) => {
            StoreError::unknown(format!("cannot reach {}: no answer in time", place.server_or_endpoint()))
        }
        SdkError::DispatchFailure(failure) => undelivered(place, error, failure.is_timeout()),
        SdkError::ResponseError(_) => StoreError::unknown(format!(
            "cannot understand the answer of {}: {}",
            place.server_or_endpoint(),
            innermost(error)
        )),
        SdkError::ServiceError(answer) => {
            refused(place, action, answer.err().code(), answer.err().message(), answer.raw().status().as_u16())
        }
        _ => StoreError::unknown(format!("cannot ask {}: {}", place.server, innermost(error))),
    }
}

/// No response came.
fn undelivered(place: &Place<'_>, error: &(dyn Error + 'static), timeout: bool) -> StoreError {
    if let Some(failure) = without_credentials(place, error) {
        return failure;
    }
    let cause = if timeout { "no answer in time".to_owned() } else { innermost(error) };
    let message = format!("cannot reach {}: {cause}", place.server_or_endpoint());
    let failure = if never_connected(error) { StoreError::not_applied(message) } else { StoreError::unknown(message) };
    failure.because(error)
}

/// Whether the failure shows that no connection was made. The HTTP client says that only in words. If they change, the
/// answer is no, which is always safe.
fn never_connected(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let words = cause.to_string();
        let refused = cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused);
        refused || words == "client error (Connect)" || words.starts_with("HTTP connect timeout")
    })
}

/// Some if the request was not sent because there was nothing to sign it with. The error's type belongs to a crate that
/// the SDK does not re-export, so this check relies on words too.
fn without_credentials(place: &Place<'_>, error: &(dyn Error + 'static)) -> Option<StoreError> {
    let words = causes(error).map(ToString::to_string);
    let (misconfigured, reason) = words.into_iter().find_map(|words| match words.as_str() {
        "the credential provider was not enabled" => Some((true, "there are none")),
        "the credentials provider was not properly configured" => Some((true, "their configuration is wrong")),
        "an error occurred while loading credentials" | "unexpected credentials error" => {
            Some((false, "their source failed"))
        }
        other if other.starts_with("credentials provider timed out") => Some((false, "their source does not answer")),
        other if other.starts_with("failed to select an auth scheme") => Some((true, "there are none")),
        _ => None,
    })?;
    let cause = innermost(error);
    Some(if misconfigured {
        StoreError::misconfigured(format!(
            "no AWS credentials for {}: {reason} ({cause}): set AWS_PROFILE or AWS_ACCESS_KEY_ID and \
             AWS_SECRET_ACCESS_KEY, or give the host a role",
            place.server
        ))
    } else {
        StoreError::not_applied(format!("no AWS credentials for {}: {reason}: {cause}", place.server))
    })
}

/// An answer that is not a success.
fn refused(place: &Place<'_>, action: &str, code: Option<&str>, message: Option<&str>, status: u16) -> StoreError {
    let Place { table, server, .. } = place;
    let said = in_short(message.or(code).unwrap_or("no reason was given"));
    let code = code.unwrap_or_default();
    match code {
        "ThrottlingException"
        | "Throttling"
        | "ThrottledException"
        | "ProvisionedThroughputExceededException"
        | "RequestLimitExceeded"
        | "LimitExceededException"
        | "ReplicatedWriteConflictException"
        | "TransactionConflictException" => StoreError::not_applied(format!("{server} turned {action} away: {said}")),
        "InvalidSignatureException" | "SignatureDoesNotMatch" | "RequestExpired" | "RequestTimeTooSkewed"
            if place.wall_clock_error.is_some_and(|seconds| seconds.abs() >= MOST_SIGNATURE_AGE_SECONDS) =>
        {
            let wrong = wrong_wall_clock(place.wall_clock_error.unwrap_or_default(), "DynamoDB's");
            StoreError::denied(format!(
                "{server} denied {action} on table {table}: {wrong}, and a signature counts for \
                 {MOST_SIGNATURE_AGE_SECONDS} s: set the clock"
            ))
        }
        _ if is_denial(code) => StoreError::denied(format!("{server} denied {action} on table {table}: {said}")),
        "ResourceNotFoundException" | "TableNotFoundException" => {
            StoreError::misconfigured(format!("no table {table} in {server}: make it with leaderctl store init"))
        }
        "ValidationException" if said.to_lowercase().contains("key") => StoreError::misconfigured(format!(
            "table {table} in {server} does not have the keys pk and sk, both strings: use another table, or make one \
             with leaderctl store init ({said})"
        )),
        "ValidationException" | "SerializationException" | "UnknownOperationException" => {
            StoreError::misconfigured(format!("{server} rejected {action} on table {table}: {said}"))
        }
        _ if (400..500).contains(&status) => {
            StoreError::not_applied(format!("{server} rejected {action} on table {table} with status {status}: {said}"))
        }
        _ => StoreError::unknown(format!("{server} failed at {action} on table {table} with status {status}: {said}")),
    }
}

fn is_denial(code: &str) -> bool {
    const DENIALS: [&str; 14] = [
        "AccessDeniedException",
        "AccessDenied",
        "UnauthorizedOperation",
        "NotAuthorized",
        "OptInRequired",
        "UnrecognizedClientException",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "SignatureDoesNotMatch",
        "IncompleteSignature",
        "ExpiredTokenException",
        "ExpiredToken",
        "RequestExpired",
        "MissingAuthenticationToken",
    ];
    let base = code.strip_suffix("Exception").unwrap_or(code);
    DENIALS.iter().any(|&denial| denial == code || denial.strip_suffix("Exception").unwrap_or(denial) == base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    const PLACE: Place<'_> = Place {
        table: "locks",
        server: "DynamoDB (eu-west-1)",
        endpoint: "https://dynamodb.eu-west-1.amazonaws.com",
        wall_clock_error: Some(1),
    };

    fn kind(code: &str, status: u16) -> ErrorKind {
        refused(&PLACE, "dynamodb:PutItem", Some(code), Some("some words."), status).kind
    }

    #[test]
    fn throttling_was_not_applied() {
        for code in ["ThrottlingException", "ProvisionedThroughputExceededException", "RequestLimitExceeded"] {
            assert_eq!(kind(code, 400), ErrorKind::NotApplied, "{code}");
        }
    }

    #[test]
    fn a_server_error_may_have_been_applied() {
        for code in ["InternalServerError", "ServiceUnavailable", ""] {
            assert_eq!(kind(code, 500), ErrorKind::Unknown, "{code}");
        }
    }

    #[test]
    fn every_spelling_of_a_denial_is_one() {
        for code in [
            "AccessDeniedException",
            "AccessDenied",
            "UnrecognizedClientException",
            "InvalidSignatureException",
            "ExpiredTokenException",
            "ExpiredToken",
            "MissingAuthenticationTokenException",
            "MissingAuthenticationToken",
            "IncompleteSignatureException",
        ] {
            assert_eq!(kind(code, 400), ErrorKind::Denied, "{code}");
        }
    }

    #[test]
    fn a_denial_names_the_action_and_the_table() {
        let error = refused(&PLACE, "dynamodb:PutItem", Some("AccessDeniedException"), Some("not\nyours."), 400);
        assert_eq!(error.message, "DynamoDB (eu-west-1) denied dynamodb:PutItem on table locks: not yours");
    }

    #[test]
    fn a_signature_refused_for_a_wrong_clock_names_the_clock() {
        let place = Place { wall_clock_error: Some(-3600), ..PLACE };
        let error =
            refused(&place, "dynamodb:GetItem", Some("InvalidSignatureException"), Some("Signature expired"), 400);
        assert!(error.message.contains("3600 s behind DynamoDB's"), "{error}");
        assert_eq!(error.kind, ErrorKind::Denied);
    }

    #[test]
    fn a_missing_table_says_how_to_make_it() {
        let error = refused(&PLACE, "dynamodb:GetItem", Some("ResourceNotFoundException"), None, 400);
        assert_eq!(error.message, "no table locks in DynamoDB (eu-west-1): make it with leaderctl store init");
        assert_eq!(error.kind, ErrorKind::Misconfigured);
    }

    #[test]
    fn a_refused_connection_was_never_made_and_a_reset_one_was() {
        assert!(never_connected(&io::Error::from_raw_os_error(111)));
        assert!(!never_connected(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}
