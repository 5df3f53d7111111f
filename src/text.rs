//! One line of text for people, without secrets.
//!
//! The hazard: a store URL that was given in the wrong place, such as a name, is repeated by the message that refuses
//! it, and then everybody can read its password in the journal. So only [`quoted`] and [`shown`] repeat what people
//! wrote. If a message is not ours, or if the text is kept and shown later, a text that [`looks_secret`] is refused.

use percent_encoding::percent_decode_str;
use std::io;

/// Replaces what is not shown.
pub const HIDDEN: &str = "(not shown: it holds a password)";

/// What precedes a secret, in a query or elsewhere.
const NAMES: [&str; 8] = ["password=", "passwd=", "passphrase=", "passcode=", "pwd=", "secret=", "token=", "api_key="];
/// By Jaro and Winkler, from 0 to 1. Below it, names have little in common but their beginning.
const NEAR: f64 = 0.85;
/// How many layers of percent-encoding are read.
const DEPTH: usize = 3;

/// Whether `text` contains the credentials of a URL or names a secret, also if it is percent-encoded. A user alone is
/// not a secret, except with NATS, where it is a token.
pub fn looks_secret(text: &str) -> bool {
    let mut text = text.to_owned();
    for _ in 0..DEPTH {
        if is_plain_secret(&text) {
            return true;
        }
        let decoded = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if decoded == text {
            return false;
        }
        text = decoded;
    }
    // A text with that many layers hides something.
    true
}

fn is_plain_secret(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let names_one = NAMES.iter().any(|name| lower.contains(name));
    let credentials = lower.split_once("//").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?.0)));
    names_one || credentials.is_some_and(|(scheme, user)| user.contains(':') || scheme.contains("nats"))
}

/// What a person wrote, in quotes and on one line; or [`HIDDEN`].
pub fn quoted(text: &str) -> String {
    if looks_secret(text) { HIDDEN.to_owned() } else { format!("{text:?}") }
}

/// The same without quotes, for paths and programs.
pub fn shown(text: &str) -> String {
    let printable = |c: char| if c.is_control() { '?' } else { c };
    if looks_secret(text) { HIDDEN.to_owned() } else { text.chars().map(printable).collect() }
}

/// The name among `known` that was probably meant by `name`, which is mistyped.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let near = |known: &str| strsim::jaro_winkler(name, known);
    let nearest = known.into_iter().max_by(|one, other| near(one).total_cmp(&near(other)));
    nearest.filter(|known| near(known) > NEAR)
}

/// Replaces line breaks and other characters that a terminal would obey, which a record may contain.
pub fn on_one_line(text: String) -> String {
    if text.contains(char::is_control) { text.replace(char::is_control, " ") } else { text }
}

/// The kernel's words for an error, without std's ` (os error N)`.
pub fn in_words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    text.to_lowercase()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_a_password_is_not_repeated() {
        for text in [
            "redis://u:hunter2@h",
            "redis://:hunter2@h/0",
            "see redis://u:hunter2@h, or ask",
            "//u:12/hunter2@h",
            "nats://hunter2@h/b",
            "Nats+TLS://hunter2@h/b",
            "redis://u%3Ahunter2@h",
            "redis%3A%2F%2Fu%3Ahunter2%40h",
            "redis%253A%252F%252Fu%253Ahunter2%2540h",
            "redis+sentinel://h/m?sentinel_password=hunter2",
            "postgres://h/d?PassWord=hunter2",
            "?password%3Dhunter2",
            "token=hunter2",
        ] {
            assert!(looks_secret(text), "{text}");
            assert!(!quoted(text).contains("hunter2") && !shown(text).contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn what_holds_none_is_repeated() {
        for text in
            ["db/main:0", "me@host", "postgres://user@h/db", "file:/a@b:c", "100 %", "password-reset", "a//b", ""]
        {
            assert!(!looks_secret(text), "{text}");
            assert_eq!(shown(text), text);
        }
        assert_eq!((quoted("a\nb").as_str(), shown("a\nb").as_str()), ("\"a\\nb\"", "a?b"));
    }
}
