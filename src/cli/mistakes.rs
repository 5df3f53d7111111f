//! One line about what is wrong with a command line: clap's words, without its layout, and without the password of a
//! URL in the wrong place, which clap would repeat.

use crate::text::{HIDDEN, looks_secret};
use clap::Error;
use clap::error::ContextValue;
use std::error::Error as _;
use std::num::ParseIntError;

const MOST_SHOWN: usize = 100;

pub fn told(error: &Error) -> String {
    let mut text = error.render().to_string();
    let words = error.context().flat_map(|(_, value)| match value {
        ContextValue::String(word) => vec![word],
        ContextValue::Strings(words) => words.iter().collect(),
        _ => Vec::new(),
    });
    for word in words.filter(|word| looks_secret(word) || word.chars().count() > MOST_SHOWN) {
        if !text.contains(word) {
            // Clap leaves out what a terminal would obey.
            return error.kind().to_string();
        }
        text = text.replace(&format!("'{word}'"), &quoted(word)).replace(word, &quoted(word));
    }
    if let Some(why) = error.source().filter(|why| why.is::<ParseIntError>()) {
        text = text.replace(&why.to_string(), "write a whole number");
    }
    // Clap's tip would make a word SHARD.
    let layout = ["Usage:", "For more information", "  tip: to pass"];
    let kept = text.split("\n\n").filter_map(|part| part.split("\n  tip: to pass").next());
    let kept: Vec<&str> = kept.filter(|part| !layout.iter().any(|begins| part.starts_with(begins))).collect();
    on_one_line(kept.join(" ").trim_start_matches("error: ")).replace(" tip: ", "; ")
}

/// The beginning of a word, in quotes; or [`HIDDEN`].
pub fn quoted(word: &str) -> String {
    if looks_secret(word) {
        return HIDDEN.to_owned();
    }
    format!("'{}'", beginning(&on_one_line(word)))
}

pub fn beginning(line: &str) -> String {
    match line.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}

/// Without line breaks, and with escapes for other characters that a terminal would obey.
fn on_one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let escaped = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    line.chars().map(escaped).collect()
}
