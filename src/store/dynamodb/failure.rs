//! What a failed request means: unknown, unless the failure itself shows that DynamoDB never saw the request or turned
//! it away. The SDK shows some of that only in words: should they change, the failure is unknown.

use crate::store::StoreError;
use crate::store::allowance::{self, MOST, TooLong};
use crate::store::aws;
use crate::store::error::{causes, in_short, innermost};
use crate::store::expiry::wrong_wall_clock;
use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use std::error::Error;
use std::io;

#[derive(Clone, Debug)]
pub struct Place<'a> {
    pub table: &'a str,
    pub server: &'a str,
    /// How far our wall clock is from the server's, in seconds, if that is known.
    pub wall_clock_error: Option<i64>,
}

/// AWS refuses a signature that is older or newer than this.
const MOST_SIGNATURE_AGE_SECONDS: i64 = 300;

/// An error of `action` (`dynamodb:PutItem`), other than a condition that failed.
pub fn failure<E>(place: &Place<'_>, action: &str, error: &SdkError<E, HttpResponse>) -> StoreError
where
    E: ProvideErrorMetadata + Error + 'static,
{
    // Nothing was sent to DynamoDB if the request was for a source of credentials.
    if let Some(failure) = without_credentials(place.server, error) {
        return failure;
    }
    let server = place.server;
    if causes(error).any(<dyn Error>::is::<TooLong>) {
        return StoreError::unknown(allowance::complaint(server, "DynamoDB", MOST));
    }
    match error {
        SdkError::ServiceError(answer) => {
            refused(place, action, answer.err().code(), answer.err().message(), answer.raw().status().as_u16())
        }
        SdkError::ConstructionFailure(_) => {
            StoreError::not_applied(format!("cannot ask {server}: {}", innermost(error)))
        }
        SdkError::ResponseError(_) => {
            StoreError::unknown(format!("cannot understand the answer of {server}: {}", innermost(error)))
        }
        _ => {
            let is_late = match error {
                SdkError::TimeoutError(_) => true,
                SdkError::DispatchFailure(failure) => failure.is_timeout(),
                _ => false,
            };
            let cause = if is_late { "no answer in time".to_owned() } else { innermost(error) };
            let message = format!("cannot reach {server}: {cause}");
            let unsent = never_connected(error);
            let failure = if unsent { StoreError::not_applied(message) } else { StoreError::unknown(message) };
            failure.because(error)
        }
    }
}

/// Whether the failure shows that no connection was made.
fn never_connected(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| {
        let words = cause.to_string();
        let refused = cause.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == io::ErrorKind::ConnectionRefused);
        refused || words == "client error (Connect)" || words.starts_with("HTTP connect timeout")
    })
}

/// What the SDK says without credentials, what that means, and whether it may pass.
const NO_CREDENTIALS: [(&str, &str, bool); 6] = [
    ("the credential provider was not enabled", "there are none", false),
    ("failed to select an auth scheme", "there are none", false),
    ("the credentials provider was not properly configured", "their configuration is wrong", false),
    ("an error occurred while loading credentials", "their source failed", true),
    ("unexpected credentials error", "their source failed", true),
    ("credentials provider timed out", "their source does not answer", true),
];

fn without_credentials(server: &str, error: &(dyn Error + 'static)) -> Option<StoreError> {
    let (_, reason, may_pass) = causes(error).find_map(|cause| {
        let words = cause.to_string();
        NO_CREDENTIALS.iter().find(|(begin, ..)| words.starts_with(begin))
    })?;
    let cause = innermost(error);
    let why = if *may_pass { format!("{reason}: {cause}") } else { format!("{reason} ({cause})") };
    Some(aws::no_credentials(server, &why, *may_pass))
}

fn refused(place: &Place<'_>, action: &str, code: Option<&str>, message: Option<&str>, status: u16) -> StoreError {
    let Place { table, server, wall_clock_error } = place;
    let said = in_short(message.or(code).unwrap_or("no reason was given"));
    // Servers write some with this end, and some without.
    let code = code.map(|code| code.strip_suffix("Exception").unwrap_or(code)).unwrap_or_default();
    let wrong_clock = wall_clock_error.filter(|seconds| seconds.abs() >= MOST_SIGNATURE_AGE_SECONDS);
    match (code, wrong_clock) {
        (
            "Throttling"
            | "Throttled"
            | "ProvisionedThroughputExceeded"
            | "RequestLimitExceeded"
            | "LimitExceeded"
            | "ReplicatedWriteConflict"
            | "TransactionConflict",
            _,
        ) => StoreError::not_applied(format!("{server} turned {action} away: {said}")),
        ("InvalidSignature" | "SignatureDoesNotMatch" | "RequestExpired" | "RequestTimeTooSkewed", Some(seconds)) => {
            StoreError::denied(format!(
                "{server} denied {action} on table {table}: {}, and a signature counts for {MOST_SIGNATURE_AGE_SECONDS} s: \
             set the clock",
                wrong_wall_clock(seconds, "DynamoDB's")
            ))
        }
        (
            "AccessDenied"
            | "UnauthorizedOperation"
            | "NotAuthorized"
            | "OptInRequired"
            | "UnrecognizedClient"
            | "InvalidClientTokenId"
            | "InvalidSignature"
            | "SignatureDoesNotMatch"
            | "IncompleteSignature"
            | "ExpiredToken"
            | "RequestExpired"
            | "MissingAuthenticationToken",
            _,
        ) => StoreError::denied(format!("{server} denied {action} on table {table}: {said}")),
        ("ResourceNotFound" | "TableNotFound", _) => {
            StoreError::misconfigured(format!("no table {table} in {server}: make it with leaderctl store init"))
        }
        ("Validation", _) if said.to_lowercase().contains("key") => StoreError::misconfigured(format!(
            "table {table} in {server} does not have the keys pk and sk, both strings: use another table, or make one \
             with leaderctl store init ({said})"
        )),
        ("Validation" | "Serialization" | "UnknownOperation", _) => {
            StoreError::misconfigured(format!("{server} rejected {action} on table {table}: {said}"))
        }
        _ if (400..500).contains(&status) => {
            StoreError::not_applied(format!("{server} rejected {action} on table {table} with status {status}: {said}"))
        }
        _ => StoreError::unknown(format!("{server} failed at {action} on table {table} with status {status}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    const PLACE: Place<'_> = Place { table: "locks", server: "DynamoDB (eu-west-1)", wall_clock_error: Some(1) };

    #[test]
    fn a_request_was_not_applied_only_where_that_is_certain() {
        for (kind, status, codes) in [
            (ErrorKind::NotApplied, 400, &["ThrottlingException", "ProvisionedThroughputExceededException"][..]),
            (ErrorKind::Unknown, 500, &["InternalServerError", "ServiceUnavailable", ""]),
            (ErrorKind::Denied, 400, &["AccessDeniedException", "AccessDenied", "UnrecognizedClientException"]),
            (ErrorKind::Denied, 400, &["InvalidSignatureException", "ExpiredTokenException", "ExpiredToken"]),
            (ErrorKind::Denied, 400, &["MissingAuthenticationToken", "IncompleteSignatureException"]),
        ] {
            for code in codes {
                let error = refused(&PLACE, "dynamodb:PutItem", Some(code), Some("some words."), status);
                assert_eq!(error.kind, kind, "{code}");
            }
        }
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
