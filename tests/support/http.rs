//! A client of HTTP/1.1 that says what it is told to, however wrong, and hears all of one answer.

use std::io::{self, Read, Write};

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// In small letters.
    pub head: String,
    pub body: String,
}

/// The answer is over when the server closes the connection.
pub fn ask(mut stream: impl Read + Write, request: &str) -> io::Result<Answer> {
    stream.write_all(request.as_bytes())?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let broken = || io::Error::other(format!("not an answer: {text:?}"));
    let (head, body) = text.split_once("\r\n\r\n").ok_or_else(broken)?;
    let status = head.strip_prefix("HTTP/1.").and_then(|rest| rest.get(2..5)?.parse().ok()).ok_or_else(broken)?;
    Ok(Answer { status, head: head.to_lowercase(), body: body.to_owned() })
}
