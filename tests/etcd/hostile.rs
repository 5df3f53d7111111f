//! Servers that say more than anybody asked, something else, or nothing.

use crate::support::etcd::Server;
use crate::support::hostile::{
    CONFIGURATION, Hostile, UNAVAILABLE, Victim, a_standby_survives, both_survive, operator, survives,
};
use crate::support::server::prepare;
use std::io;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;
/// `:status: 200`, `content-type: application/grpc`.
const GRPC: &[u8] = b"\x88\x5f\x10application/grpc";

fn url(hostile: &Hostile) -> String {
    format!("etcd://{}/leases", hostile.address)
}

/// Of HTTP/2, on the first stream of a client or, where that is said, on none.
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    let stream = u8::from(!matches!(kind, SETTINGS | PING));
    [&length[1..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// Answers the client's first frames, and waits for a request.
fn greets(victim: &mut Victim) -> io::Result<()> {
    victim.hears_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
    victim.says(&[frame(SETTINGS, 0, b""), frame(SETTINGS, 1, b"")].concat())?;
    victim.hears(1).map(drop)
}

fn are_survived(serves: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) -> Vec<String> {
    let hostile = Hostile::that(serves);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE])
}

fn assert_are_too_much(lines: &[String]) {
    for line in lines {
        assert!(line.ends_with("answered with more than 4 MiB: is it etcd?"), "{line}");
    }
}

#[test]
fn a_message_without_end_is_cut_off() {
    let lines = are_survived(|victim| {
        greets(victim)?;
        victim.says(&frame(HEADERS, END_HEADERS, GRPC))?;
        victim.says(&frame(DATA, 0, b"\0\xff\xff\xff\xff"))?;
        victim.repeats(&frame(DATA, 0, &[0; 16 << 10]))
    });
    assert_are_too_much(&lines);
}

#[test]
fn messages_without_end_pile_up_nowhere() {
    are_survived(|victim| {
        greets(victim)?;
        victim.says(&frame(HEADERS, END_HEADERS, GRPC))?;
        victim.repeats(&frame(DATA, 0, &[0; 16_000]))
    });
}

#[test]
fn headers_without_end_pile_up_nowhere() {
    are_survived(|victim| {
        greets(victim)?;
        victim.says(&frame(HEADERS, 0, GRPC))?;
        // A literal that is not remembered: `x: yyy`.
        let header = [&b"\x00\x01x\x7d"[..], &[b'y'; 125]].concat();
        victim.repeats(&frame(CONTINUATION, 0, &header.repeat(100)))
    });
}

#[test]
fn pings_without_end_are_cut_off() {
    let lines = are_survived(|victim| {
        greets(victim)?;
        victim.repeats(&frame(PING, 1, &[0; 8]))
    });
    assert_are_too_much(&lines);
}

#[test]
fn settings_without_end_pile_up_nowhere() {
    are_survived(|victim| {
        greets(victim)?;
        victim.repeats(&frame(SETTINGS, 0, b"\0\x05\0\0\x40\0"))
    });
}

#[test]
fn a_list_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        greets(victim)?;
        victim.repeats(&frame(PING, 1, &[0; 8]))
    });
    let line = survives(&hostile, &operator(&url(&hostile), &["list"]), &[UNAVAILABLE]);
    assert_are_too_much(&[line]);
}

#[test]
fn a_handshake_of_tls_without_end_is_given_up() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.floods_a_handshake()
    });
    let url = format!("etcds://{}/leases", hostile.address);
    both_survive(&hostile, &url, &[UNAVAILABLE, CONFIGURATION]);
}

#[test]
fn noise_silence_and_a_byte_a_second_are_given_up_in_time() {
    are_survived(|victim| {
        victim.hears(1)?;
        victim.raves()
    });
    are_survived(Victim::listens);
    are_survived(|victim| victim.trickles(&frame(SETTINGS, 0, b"")));
}

#[test]
fn a_standby_that_is_flooded_is_one_again_afterwards() {
    // Answers to pings that nobody sent.
    let server = Server::start();
    prepare(&server);
    a_standby_survives(&server, b"", b"\0\0\x08\x06\x01\0\0\0\0aaaaaaaa");
}
