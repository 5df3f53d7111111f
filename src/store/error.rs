//! Errors of stores: what the caller may conclude from a failed request, and how the messages of servers and libraries
//! become messages of ours: lowercase fragments, short, on one line.
//!
//! The hazard: if a write that was applied is reported as not applied, two candidates lead or a held lease is lost. So
//! whatever is not certain is `Unknown`.

use crate::exit;
use crate::text::on_one_line;
use std::error::Error;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::io;
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoreError {
    pub kind: ErrorKind,
    /// A lowercase fragment without secrets: `cannot reach redis at 10.0.0.5:6379: connection refused`.
    pub message: String,
    pub cause: Option<Cause>,
}

/// What the operating system or the network said, for programs. The message says it for people.
#[derive(Clone, Debug)]
pub struct Cause(Arc<io::Error>);

impl Cause {
    pub fn error(&self) -> &io::Error {
        &self.0
    }

    /// The innermost such cause of `error`, if it means something to programs.
    fn of(error: &(dyn Error + 'static)) -> Option<Self> {
        let copy = |error: &io::Error| match (error.raw_os_error(), error.kind()) {
            (Some(code), _) => Some(io::Error::from_raw_os_error(code)),
            (None, io::ErrorKind::Other) => None,
            (None, kind) => Some(io::Error::from(kind)),
        };
        let found = causes(error).filter_map(|cause| cause.downcast_ref().and_then(copy)).last()?;
        Some(found.into())
    }

    fn key(&self) -> (Option<i32>, io::ErrorKind) {
        (self.0.raw_os_error(), self.0.kind())
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        Self(Arc::new(error))
    }
}

impl PartialEq for Cause {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Cause {}

impl Hash for Cause {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, strum::IntoStaticStr, strum::VariantArray)]
#[strum(const_into_str, serialize_all = "snake_case")]
pub enum ErrorKind {
    /// The request was not applied: it was never sent, or the server turned it away for the moment (throttled).
    NotApplied,
    /// The request may have been applied, or may be applied later. Look before you conclude anything.
    Unknown,
    /// The request was not applied, and will not be until a permission is granted.
    Denied,
    /// The request was not applied, and will not be until an operator repairs the configuration or the record.
    Misconfigured,
}

impl ErrorKind {
    pub const ALL: &[Self] = <Self as strum::VariantArray>::VARIANTS;

    /// Whether further requests fail in the same way until an operator does something.
    pub fn is_final(self) -> bool {
        match self {
            Self::Denied | Self::Misconfigured => true,
            Self::NotApplied | Self::Unknown => false,
        }
    }
}

impl StoreError {
    pub fn not_applied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::NotApplied, message.into())
    }

    #[expect(clippy::needless_pass_by_value, reason = "what `map_err` takes")]
    pub(crate) fn no_random_bytes(error: std::io::Error) -> Self {
        Self::not_applied(format!("no random bytes: {error}"))
    }

    pub fn unknown(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Unknown, message.into())
    }

    pub fn denied(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Denied, message.into())
    }

    pub fn misconfigured(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Misconfigured, message.into())
    }

    fn new(kind: ErrorKind, message: String) -> Self {
        Self { kind, message: on_one_line(message), cause: None }
    }

    #[must_use]
    pub fn because(self, error: &(dyn Error + 'static)) -> Self {
        Self { cause: Cause::of(error), ..self }
    }

    /// The same error, from a call that has already applied an earlier request.
    #[must_use]
    pub fn after_a_part(self) -> Self {
        let kind = if self.kind == ErrorKind::NotApplied { ErrorKind::Unknown } else { self.kind };
        Self { kind, ..self }
    }

    pub fn exit_status(&self) -> u8 {
        match self.kind {
            ErrorKind::NotApplied | ErrorKind::Unknown => exit::UNAVAILABLE,
            ErrorKind::Denied => exit::NO_PERMISSION,
            ErrorKind::Misconfigured => exit::CONFIGURATION,
        }
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_ref().map(|cause| cause.error() as _)
    }
}

/// What `store check` says of a missing permission. Any other failure stays an error.
pub fn denied(tried: Result<(), StoreError>) -> Result<Option<String>, StoreError> {
    match tried {
        Ok(()) => Ok(None),
        Err(error) if error.kind == ErrorKind::Denied => Ok(Some(format!("permission missing: {error}"))),
        Err(error) => Err(error),
    }
}

/// A server's words, cut short: some servers and proxies send whole pages.
pub fn in_short(text: &str) -> String {
    const MOST: usize = 400;
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let line = words.collect::<Vec<_>>().join(" ");
    let line = line.trim_end_matches('.');
    match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

/// One error for several hosts: the first if an operator must repair each of them, otherwise all messages.
pub fn worst(failures: &[StoreError]) -> StoreError {
    // A host that cannot be reached now may be the right one.
    if failures.iter().all(|failure| failure.kind.is_final())
        && let Some(first) = failures.first()
    {
        return first.clone();
    }
    joined(failures)
}

/// One error for several hosts, none of which a request was sent to.
pub fn joined(failures: &[StoreError]) -> StoreError {
    let messages: Vec<&str> = failures.iter().map(|failure| failure.message.as_str()).collect();
    let cause = failures.iter().find_map(|failure| failure.cause.clone());
    StoreError { cause, ..StoreError::not_applied(messages.join("; ")) }
}

/// The error and its causes, from the outside in.
pub fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    fn next<'a>(error: &&'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
        // Not a reference to it, which would be an error of its own.
        let error = *error;
        // `source` of an `io::Error` does not show the error inside.
        match error.downcast_ref::<io::Error>().and_then(io::Error::get_ref) {
            Some(within) => Some(within),
            None => error.source(),
        }
    }
    std::iter::successors(Some(error), next)
}

/// What libraries say of a connection, and what it means to people.
const MEANINGS: [(&str, &str); 18] = [
    ("received corrupt message", NO_TLS),
    ("tls handshake eof", NO_TLS),
    ("bytes remaining on stream", NO_SUCH_SERVER),
    ("frame with invalid size", NO_SUCH_SERVER),
    ("invalid server operation", NO_SUCH_SERVER),
    ("invalid HTTP version", NO_SUCH_SERVER),
    ("received unexpected message from connection", NO_SUCH_SERVER),
    ("invalid message length", NO_SUCH_SERVER),
    ("unable to parse unknown input", NO_SUCH_SERVER),
    ("peer certificate: UnknownIssuer", "its certificate is signed by no authority that this host trusts"),
    ("CaUsedAsEndEntity", "its certificate is self-signed"),
    ("peer certificate: Expired", "its certificate has expired"),
    ("peer certificate: NotValidYet", "its certificate is not valid yet: check the clocks"),
    ("early eof", "the server closed the connection"),
    ("expected INFO, got nothing", "the server closed the connection"),
    ("expected INFO, got", NO_SUCH_SERVER),
    ("connection closed before message completed", "the server closed the connection"),
    ("failed to lookup address information", "its name cannot be resolved: check the host in the store URL"),
];
const NO_TLS: &str =
    "the server does not answer with TLS: name the port where it does, or write the store URL without TLS";
const NO_SUCH_SERVER: &str = "what answers there speaks another protocol";

/// As [`innermost`], with a question if a server of another kind seems to answer.
pub fn innermost_of(error: &(dyn Error + 'static), kind: &str) -> String {
    let cause = innermost(error);
    if cause == NO_SUCH_SERVER { format!("{cause}: is it {kind}?") } else { cause }
}

/// The innermost cause of an error, in our words if we know the library's. The errors around it only repeat it.
pub fn innermost(error: &(dyn Error + 'static)) -> String {
    let bottom = causes(error).last().unwrap_or(error).to_string();
    if let Some((_, meaning)) = MEANINGS.iter().find(|(said, _)| bottom.contains(said)) {
        return (*meaning).to_owned();
    }
    // An `io::Error` ends in " (os error 111)", which does not help people.
    let bottom = bottom.split(" (os error ").next().unwrap_or_default();
    let mut letters: Vec<char> = in_short(bottom).chars().collect();
    // Keeps an acronym as it is.
    if letters.get(1).is_some_and(|second| second.is_lowercase()) {
        letters[0] = letters[0].to_ascii_lowercase();
    }
    letters.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_becomes_one_short_line() {
        for page in ["<html>\n", "words\n\u{7}"].map(|line| line.repeat(500)) {
            let line = in_short(&page);
            assert!(line.len() < 410 && !line.contains(char::is_control), "{line}");
        }
    }

    #[test]
    fn an_error_has_what_the_operating_system_said_as_its_source() {
        let refused = io::Error::other(io::Error::from_raw_os_error(111));
        let error = StoreError::not_applied("a message").because(&refused);
        let source = error.source().and_then(|source| source.downcast_ref::<io::Error>()).unwrap();
        assert_eq!(source.raw_os_error(), Some(111));
        assert_eq!(error.clone(), error);
        assert_ne!(error, StoreError::not_applied("a message"));
        assert!(StoreError::unknown("a message").because(&io::Error::other("words alone")).source().is_none());
    }

    #[test]
    fn the_innermost_cause_is_a_lowercase_fragment() {
        let refused = || io::Error::from_raw_os_error(111);
        assert_eq!(innermost(&refused()), "connection refused");
        assert_eq!(innermost(&io::Error::other(refused())), "connection refused");
        assert_eq!(innermost(&io::Error::other("TLS is not spoken here.")), "TLS is not spoken here");
        for (said, meaning) in MEANINGS {
            assert_eq!(innermost(&io::Error::other(format!("{said}: X"))), meaning);
        }
    }
}
