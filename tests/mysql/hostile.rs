//! Servers that say more than anybody asked, something else, or nothing.

use crate::support::hostile::{
    CONFIGURATION, Hostile, UNAVAILABLE, Victim, a_standby_survives, both_survive, operator, survives,
};
use crate::support::mysql::Server;
use crate::support::server::prepare;
use std::io;

const OK: &[u8] = b"\0\0\0\x02\0\0\0";
/// The first bytes of a packet of sixteen megabytes, of which no one has a use.
const LONG_ROW: &[u8] = b"\xfe\xff\xff\x01";

fn url(hostile: &Hostile) -> String {
    format!("mysql://app@{}/db?ssl-mode=DISABLED", hostile.address)
}

fn packet(sequence: u8, body: &[u8]) -> Vec<u8> {
    let [low, middle, high, _] = u32::try_from(body.len()).expect("short").to_le_bytes();
    [&[low, middle, high, sequence], body].concat()
}

/// Everything that a client may ask of a server, TLS among it.
fn greeting() -> Vec<u8> {
    let body = b"\x0a8.0.36\0\x08\0\0\0abcdefgh\0\xff\xff\x2d\x02\0\xff\xdf\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0\
                 caching_sha2_password\0";
    packet(0, body)
}

fn lets_in(victim: &mut Victim) -> io::Result<()> {
    victim.says(&greeting())?;
    victim.hears(36)?;
    victim.says(&packet(2, OK))?;
    victim.hears(5).map(drop)
}

/// What both said is that it is too much.
fn is_cut_off(serves: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) {
    let hostile = Hostile::that(serves);
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert_is_too_much(&hostile, &line);
    }
}

fn assert_is_too_much(hostile: &Hostile, line: &str) {
    let complaint = format!("MySQL at {} answered with more than 4 MiB: is it MySQL?", hostile.address);
    assert!(line.ends_with(&complaint), "{line}");
}

#[test]
fn a_greeting_without_end_is_cut_off() {
    is_cut_off(|victim| {
        victim.says(b"\xff\xff\xff\0\x0a")?;
        victim.repeats(&[b'8'; 1024])
    });
}

#[test]
fn an_answer_without_end_is_cut_off() {
    is_cut_off(|victim| {
        lets_in(victim)?;
        victim.says(LONG_ROW)?;
        victim.repeats(&[0; 1024])
    });
}

#[test]
fn rows_without_end_are_cut_off() {
    is_cut_off(|victim| {
        lets_in(victim)?;
        victim.says(&packet(1, b"\x01"))?;
        victim.says(&packet(2, b"column"))?;
        victim.says(&packet(3, b"\xfe\0\0\x02\0"))?;
        let row = [&b"\xfc\x40\x1f"[..], &[b'x'; 8000]].concat();
        let rows: Vec<u8> = (4_u8..=255).chain(0..4).flat_map(|sequence| packet(sequence, &row)).collect();
        victim.repeats(&rows)
    });
}

#[test]
fn answers_to_statements_that_nobody_sent_are_cut_off() {
    let hostile = Hostile::that(|victim| {
        lets_in(victim)?;
        let answers: Vec<u8> =
            (1_u8..=255).chain(0..1).flat_map(|sequence| packet(sequence, b"\0\0\0\x0a\0\0\0")).collect();
        victim.repeats(&answers)
    });
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.contains("is it MySQL?"), "{line}");
    }
}

#[test]
fn short_rows_without_end_are_cut_off() {
    let hostile = Hostile::that(|victim| {
        lets_in(victim)?;
        victim.says(&packet(1, b"\x01"))?;
        victim.says(&packet(2, b"column"))?;
        victim.says(&packet(3, b"\xfe\0\0\x02\0"))?;
        let rows: Vec<u8> = (4_u8..=255).chain(0..4).flat_map(|sequence| packet(sequence, b"\xfb")).collect();
        victim.repeats(&rows)
    });
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.contains("is it MySQL?"), "{line}");
    }
}

#[test]
fn a_list_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        lets_in(victim)?;
        victim.says(LONG_ROW)?;
        victim.repeats(&[0; 1024])
    });
    let line = survives(&hostile, &operator(&url(&hostile), &["list"]), &[UNAVAILABLE]);
    assert_is_too_much(&hostile, &line);
}

#[test]
fn a_login_without_end_is_given_up() {
    let hostile = Hostile::that(|victim| {
        victim.says(&greeting())?;
        victim.hears(36)?;
        let switch = packet(2, b"\xfecaching_sha2_password\0abcdefghijklmnopqrst\0");
        victim.repeats(&switch)
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn a_handshake_of_tls_without_end_is_given_up() {
    let hostile = Hostile::that(|victim| {
        victim.says(&greeting())?;
        victim.hears(36)?;
        victim.floods_a_handshake()
    });
    let url = format!("mysql://app@{}/db?ssl-mode=REQUIRED", hostile.address);
    both_survive(&hostile, &url, &[UNAVAILABLE, CONFIGURATION]);
}

#[test]
fn noise_silence_and_a_byte_a_second_are_given_up_in_time() {
    let hostile = Hostile::that(Victim::raves);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE, CONFIGURATION]);
    let hostile = Hostile::that(|victim| {
        lets_in(victim)?;
        victim.raves()
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE, CONFIGURATION]);
    let hostile = Hostile::that(Victim::listens);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
    let hostile = Hostile::that(|victim| victim.trickles(&greeting()));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn a_server_that_asks_for_a_file_gets_none() {
    let hostile = Hostile::that(|victim| {
        lets_in(victim)?;
        victim.says(&packet(1, b"\xfb/etc/passwd"))?;
        victim.listens()
    });
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.contains("is it MySQL?"), "{line}");
    }
}

#[test]
fn a_standby_that_is_flooded_is_one_again_afterwards() {
    let server = Server::start();
    prepare(&server);
    a_standby_survives(&server, LONG_ROW, &[0; 1024]);
}
