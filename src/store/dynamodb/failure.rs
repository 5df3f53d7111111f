//! What a failed request means: unknown, unless the failure shows that DynamoDB never saw the request or turned it
//! away. The SDK says some of that only in words. If they change, the failure is unknown.

use super::Table;
use crate::lease::show;
use crate::store::allowance::{self, MOST};
use crate::store::aws;
use crate::store::error::{causes, in_short, innermost};
use crate::store::{ServerTime, StoreError};
use aws_sdk_dynamodb::error::{ErrorMetadata, ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use http_body_util::LengthLimitError;
use std::error::Error;
use std::io;

impl Table {
    /// An error of `action` (`dynamodb:PutItem`), other than a condition that failed.
    pub(super) fn failure<E>(&self, action: &str, error: &SdkError<E, HttpResponse>) -> StoreError
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let Self { server, name, .. } = self;
        // A request to a source of credentials failed, so nothing was sent to DynamoDB.
        if let Some(without) = causes(error).find_map(|cause| cause.downcast_ref()) {
            return aws::no_credentials(server, without);
        }
        if causes(error).any(<dyn Error>::is::<LengthLimitError>) {
            return StoreError::unknown(allowance::complaint(server, "DynamoDB", MOST));
        }
        match error {
            SdkError::ServiceError(answer) => {
                let clock = self.wrong_wall_clock().map(|wrong| format!("; {wrong}")).unwrap_or_default();
                refused(server, name, action, answer.err().meta(), answer.raw().status().as_u16(), &clock)
            }
            SdkError::ResponseError(_) => {
                StoreError::unknown(format!("cannot understand the answer of {server}: {}", innermost(error)))
            }
            SdkError::TimeoutError(_) => {
                StoreError::unknown(format!("{server} did not answer within {}", show(self.bound)))
            }
            _ => {
                let message = format!("cannot reach {server}: {}", innermost(error));
                if matches!(error, SdkError::ConstructionFailure(_)) || never_connected(error) {
                    StoreError::not_applied(message).because(error)
                } else {
                    // The connection broke.
                    StoreError::unknown(message).because(&io::Error::from(io::ErrorKind::BrokenPipe))
                }
            }
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

/// `clock` is what may be wrong with ours.
fn refused(server: &str, table: &str, action: &str, answer: &ErrorMetadata, status: u16, clock: &str) -> StoreError {
    let code = answer.code();
    let said = in_short(answer.message().or(code).unwrap_or("no reason was given"));
    // Servers differ about this ending.
    let code = code.map(|code| code.strip_suffix("Exception").unwrap_or(code)).unwrap_or_default();
    match code {
        "AccessDenied"
        | "NotAuthorized"
        | "OptInRequired"
        | "UnrecognizedClient"
        | "InvalidSignature"
        | "IncompleteSignature"
        | "ExpiredToken"
        | "RequestExpired"
        | "MissingAuthenticationToken" => {
            StoreError::denied(format!("{server} denied {action} on table {table}: {said}{clock}"))
        }
        "ResourceNotFound" | "TableNotFound" => {
            StoreError::misconfigured(format!("no table {table} in {server}: create it with leaderctl store init"))
        }
        "Validation" if said.to_lowercase().contains("key") => StoreError::misconfigured(format!(
            "table {table} in {server} does not have the keys pk and sk, both strings: use another table, or create \
             one with leaderctl store init ({said})"
        )),
        "Validation" | "Serialization" | "UnknownOperation" => {
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

    fn said(code: &str, message: &str, status: u16, clock: &str) -> StoreError {
        let answer = ErrorMetadata::builder().code(code).message(message).build();
        refused("DynamoDB (eu-west-1)", "locks", "dynamodb:GetItem", &answer, status, clock)
    }

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
                assert_eq!(said(code, "some words.", status, "").kind, kind, "{code}");
            }
        }
    }

    #[test]
    fn a_denial_names_a_wrong_clock() {
        let error = said("InvalidSignatureException", "Signature expired", 400, "; an hour behind");
        assert!(error.message.ends_with(": Signature expired; an hour behind"), "{error}");
    }

    #[test]
    fn a_missing_table_says_how_to_make_it() {
        let error = said("ResourceNotFoundException", "", 400, "");
        assert_eq!(error.message, "no table locks in DynamoDB (eu-west-1): create it with leaderctl store init");
        assert_eq!(error.kind, ErrorKind::Misconfigured);
    }

    #[test]
    fn a_refused_connection_was_never_made_and_a_reset_one_was() {
        assert!(never_connected(&io::Error::from_raw_os_error(111)));
        assert!(!never_connected(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}
