//! Servers that say more than anybody asked, something else, or nothing.

use crate::support::hostile::{
    CONFIGURATION, Hostile, UNAVAILABLE, Victim, both_survive, candidate, operator, survives, survives_elsewhere,
};
use std::io;

const CHUNKED: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ntransfer-encoding: chunked\r\n\r\n";

fn url(hostile: &Hostile) -> String {
    format!("dynamodb://locks?region=eu-west-1&endpoint=http://{}", hostile.address)
}

/// Asked over HTTP, it serves in this way.
fn asked(
    serves: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static,
) -> impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static {
    move |victim| {
        victim.hears_of(b"\r\n\r\n")?;
        serves(victim)
    }
}

fn chunk() -> Vec<u8> {
    [&b"4000\r\n"[..], &[b' '; 0x4000], b"\r\n"].concat()
}

fn assert_is_too_much(hostile: &Hostile, line: &str) {
    let complaint = format!("DynamoDB at http://{} answered with more than 4 MiB: is it DynamoDB?", hostile.address);
    assert!(line.ends_with(&complaint), "{line}");
}

#[test]
fn chunks_without_end_are_cut_off() {
    let hostile = Hostile::that(asked(|victim| {
        victim.says(CHUNKED)?;
        victim.repeats(&chunk())
    }));
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert_is_too_much(&hostile, &line);
    }
}

#[test]
fn a_list_without_end_is_cut_off() {
    let hostile = Hostile::that(asked(|victim| {
        victim.says(b"HTTP/1.1 200 OK\r\ncontent-length: 4294967296\r\n\r\n{\"Items\":[")?;
        victim.repeats(b"{\"pk\":{\"S\":\"SHARD#a\"}},")
    }));
    let line = survives(&hostile, &operator(&url(&hostile), &["list"]), &[UNAVAILABLE]);
    assert_is_too_much(&hostile, &line);
}

#[test]
fn headers_without_end_pile_up_nowhere() {
    for endless in [&b"x: yyyyyyyyyyyyyyyy\r\n"[..], b"y"] {
        let hostile = Hostile::that(asked(move |victim| {
            victim.says(b"HTTP/1.1 200 OK\r\nx: ")?;
            victim.repeats(endless)
        }));
        both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
    }
}

#[test]
fn promises_of_an_answer_without_end_are_given_up_in_time() {
    let hostile = Hostile::that(asked(|victim| {
        loop {
            victim.says(&b"HTTP/1.1 100 Continue\r\n\r\n".repeat(10))?;
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn nobody_is_sent_elsewhere_for_ever() {
    let hostile = Hostile::that(|victim| {
        loop {
            victim.hears_of(b"\r\n\r\n")?;
            victim.says(b"HTTP/1.1 307 Temporary Redirect\r\nlocation: /again\r\ncontent-length: 0\r\n\r\n")?;
        }
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn lists_in_lists_without_end_overflow_nothing() {
    let hostile = Hostile::that(asked(|victim| {
        let (open, depth) = (b"{\"L\":[", 500_000);
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", 13 + open.len() * depth);
        victim.says(head.as_bytes())?;
        victim.says(b"{\"Item\":{\"a\":")?;
        victim.says(&open.repeat(depth))
    }));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn a_source_of_credentials_without_end_is_cut_off() {
    let hostile = Hostile::that(asked(|victim| {
        victim.says(CHUNKED)?;
        victim.repeats(&chunk())
    }));
    // An address of nobody, which is asked only by who has credentials.
    let mut candidate = candidate("dynamodb://locks?region=eu-west-1&endpoint=http://192.0.2.1:9");
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("AWS_")) {
        candidate.env_remove(name);
    }
    candidate.env("HOME", "/nonexistent").env("AWS_EC2_METADATA_DISABLED", "true");
    candidate.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", format!("http://{}/", hostile.address));
    // The SDK asks it several times, for which a slow machine has no time.
    survives_elsewhere(&hostile, "192.0.2.1:9", &candidate, &[UNAVAILABLE]);
    assert!(hostile.sent() > 0, "nobody asked it");
}

#[test]
fn noise_silence_and_a_byte_a_second_are_given_up_in_time() {
    let hostile = Hostile::that(asked(Victim::raves));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE, CONFIGURATION]);
    let hostile = Hostile::that(Victim::listens);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
    let hostile = Hostile::that(asked(|victim| victim.trickles(CHUNKED)));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}
