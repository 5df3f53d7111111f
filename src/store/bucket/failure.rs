//! What a failed request means: unknown, unless the failure shows that the server never saw the request or turned it
//! away.

use super::{Action, Objects};
use crate::store::allowance::{self, MOST};
use crate::store::error::{causes, in_short, innermost};
use crate::store::{ServerTime, StoreError};
use http_body_util::LengthLimitError;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error;
use std::fmt;

/// An answer that is neither a success nor a failed condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub status: u16,
    /// `AccessDenied`; empty if the server named none.
    pub code: String,
    message: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}: {}", self.status, self.message)
    }
}

impl Error for Refusal {}

impl Refusal {
    /// Reads XML of S3 and Azure, or JSON of Google. `code` is that of a header.
    pub fn read(status: u16, code: Option<&str>, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body);
        let within = |tag: &str| {
            let (_, after) = text.split_once(&format!("<{tag}>"))?;
            Some(after.split_once(&format!("</{tag}>"))?.0.to_owned())
        };
        let json = serde_json::from_str::<serde_json::Value>(&text).ok();
        let in_json = |name: &str| json.as_ref()?.pointer(&format!("/error/{name}"))?.as_str().map(str::to_owned);
        let code = code.map(str::to_owned).or_else(|| within("Code")).or_else(|| in_json("status"));
        let code: String = code.unwrap_or_default().chars().filter(char::is_ascii_alphanumeric).take(80).collect();
        let whole = || (!text.contains('<')).then(|| text.to_string());
        let said = within("Message").or_else(|| in_json("message")).or_else(whole).map(|said| in_short(&said));
        let message = said.filter(|said| !said.is_empty()).unwrap_or_else(|| format!("status {status}"));
        let message = if code.is_empty() { message } else { format!("{message} ({code})") };
        Self { status, code, message }
    }

    fn is_without_bucket(&self) -> bool {
        ["NoSuchBucket", "ContainerNotFound", "BucketNotFound"].contains(&self.code.as_str())
            || (self.status == 404 && self.message.contains("bucket does not exist"))
    }

    /// Whether other credentials may be accepted.
    pub fn is_of_credentials(&self) -> bool {
        const CODES: [&str; 5] =
            ["ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "TokenRefreshRequired"];
        CODES.contains(&self.code.as_str())
    }

    /// Any web server may say 404, so that counts only with a code that says what is absent.
    pub fn is_a_condition(&self) -> bool {
        let of_the_bucket = self.code.starts_with("BlobImmutable") || self.code.starts_with("Container");
        match self.status {
            304 | 412 => true,
            404 => !self.code.is_empty() && !self.is_without_bucket(),
            409 => !of_the_bucket,
            _ => false,
        }
    }
}

/// The write was applied, but the answer names no version. The library says so only in words.
pub fn names_no_version(error: &(dyn Error + 'static)) -> bool {
    causes(error).any(|cause| cause.to_string() == "ETag Header missing from response")
}

pub fn is_too_long(error: &(dyn Error + 'static)) -> bool {
    found::<LengthLimitError>(error).is_some()
}

fn found<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

impl Objects {
    /// An error of `action`, other than a condition that failed.
    pub(super) fn failure(&self, action: Action, error: &(dyn Error + 'static)) -> StoreError {
        let Self { name, server, .. } = self;
        if is_too_long(error) {
            return StoreError::unknown(allowance::complaint(server, "an object store", MOST));
        }
        if let Some(refusal) = found::<Refusal>(error) {
            let clock = self.wrong_wall_clock().map(|wrong| format!("; {wrong}")).unwrap_or_default();
            return refused(server, name, action[self.kind as usize], refusal, &clock);
        }
        if let Some(without_credentials) = found::<StoreError>(error) {
            return without_credentials.clone();
        }
        let Some(undelivered) = found::<HttpError>(error) else {
            return StoreError::unknown(format!("cannot understand the answer of {server}: {}", innermost(error)));
        };
        let message = format!("cannot reach {server}: {}", innermost(error));
        let failure = match undelivered.kind() {
            HttpErrorKind::Connect => StoreError::not_applied(message),
            _ => StoreError::unknown(message),
        };
        failure.because(error)
    }
}

/// `clock` is what may be wrong with ours.
fn refused(server: &str, bucket: &str, action: &str, refusal: &Refusal, clock: &str) -> StoreError {
    let said = &refusal.message;
    if refusal.is_without_bucket() {
        return StoreError::misconfigured(format!(
            "no such bucket: {bucket} in {server}: create it, then run leaderctl store init"
        ));
    }
    match (refusal.status, refusal.code.as_str()) {
        (401 | 403, _) | (400, "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired") => {
            StoreError::denied(format!("{server} denied {action} on {bucket}: {said}{clock}"))
        }
        (300..=399, _) | (400, "AuthorizationHeaderMalformed" | "IllegalLocationConstraintException") => {
            StoreError::misconfigured(format!(
                "{server} is not where {bucket} is: name its region with region=REGION or AWS_REGION ({said})"
            ))
        }
        (501, _) => StoreError::misconfigured(format!(
            "{server} does not know {action} with a condition, which {bucket} needs: use another server ({said})"
        )),
        (404 | 405, "") => StoreError::misconfigured(format!(
            "{server} answered {action} on {bucket} as a web server does: is it an object store? ({said})"
        )),
        (400..=499, _) | (503, "SlowDown" | "ServerBusy" | "TooManyRequests") => {
            StoreError::not_applied(format!("{server} rejected {action} on {bucket}: {said}"))
        }
        _ => StoreError::unknown(format!("{server} failed at {action} on {bucket}: {said}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::ErrorKind;

    fn error(status: u16, body: &str) -> StoreError {
        let refusal = Refusal::read(status, None, body.as_bytes());
        refused("S3 (eu-west-1)", "s3://locks/x/", "s3:PutObject", &refusal, "")
    }

    #[test]
    fn the_words_of_each_server_are_found() {
        let xml = "<?xml?><Error><Code>AccessDenied</Code><Message>not\nyours.</Message></Error>";
        assert_eq!(
            error(403, xml).message,
            "S3 (eu-west-1) denied s3:PutObject on s3://locks/x/: not yours (AccessDenied)"
        );
        let json = r#"{"error": {"code": 403, "status": "PERMISSION_DENIED", "message": "no"}}"#;
        assert!(error(403, json).message.ends_with("no (PERMISSIONDENIED)"));
        assert!(error(403, "<html>a page</html>").message.ends_with("status 403"));
    }

    #[test]
    fn only_what_was_certainly_turned_away_was_not_applied() {
        for (status, body, kind) in [
            (503, "<Code>SlowDown</Code>", ErrorKind::NotApplied),
            (429, "", ErrorKind::NotApplied),
            (503, "", ErrorKind::Unknown),
            (500, "<Code>InternalError</Code>", ErrorKind::Unknown),
            (200, "<Code>InternalError</Code>", ErrorKind::Unknown),
            (400, "<Code>ExpiredToken</Code>", ErrorKind::Denied),
            (404, "<Code>NoSuchBucket</Code>", ErrorKind::Misconfigured),
            (301, "<Code>PermanentRedirect</Code>", ErrorKind::Misconfigured),
            (501, "<Code>NotImplemented</Code>", ErrorKind::Misconfigured),
            (404, "<html>Not Found</html>", ErrorKind::Misconfigured),
        ] {
            assert_eq!(error(status, body).kind, kind, "{status} {body}");
        }
    }

    #[test]
    fn a_failed_condition_is_no_failure() {
        for (status, body, is_condition) in [
            (412, "", true),
            (409, "<Code>ConditionalRequestConflict</Code>", true),
            (409, "<Code>BlobImmutableDueToPolicy</Code>", false),
            (404, "<Code>NoSuchKey</Code>", true),
            (404, "<Code>NoSuchBucket</Code>", false),
            (404, "<html>Not Found</html>", false),
            (403, "", false),
        ] {
            assert_eq!(Refusal::read(status, None, body.as_bytes()).is_a_condition(), is_condition, "{status} {body}");
        }
    }
}
