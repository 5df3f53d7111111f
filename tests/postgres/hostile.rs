//! Servers that say more than anybody asked, something else, or nothing.

use crate::support::hostile::{
    CONFIGURATION, Hostile, UNAVAILABLE, Victim, a_standby_survives, both_survive, operator, survives,
};
use crate::support::postgres::Server;
use crate::support::server::prepare;
use std::io;

const LET_IN: &[u8] = b"R\0\0\0\x08\0\0\0\0";
const READY: &[u8] = b"Z\0\0\0\x05I";
/// The first bytes of a message that has two gigabytes.
const LONG_ROW: &[u8] = b"D\x7f\xff\xff\xff";

fn url(hostile: &Hostile) -> String {
    format!("postgres://app@{}/db?sslmode=disable", hostile.address)
}

/// What both said is that it is too much.
fn is_cut_off(serves: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) {
    let hostile = Hostile::that(serves);
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert_is_too_much(&hostile, &line);
    }
}

fn assert_is_too_much(hostile: &Hostile, line: &str) {
    let complaint = format!("PostgreSQL at {} answered with more than 4 MiB: is it PostgreSQL?", hostile.address);
    assert!(line.ends_with(&complaint), "{line}");
}

fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("short").to_be_bytes();
    [&[kind][..], &length, body].concat()
}

fn notice() -> Vec<u8> {
    let fields = [&b"SNOTICE\0VNOTICE\0C00000\0M"[..], &[b'x'; 1000], b"\0\0"].concat();
    message(b'N', &fields)
}

#[test]
fn a_greeting_without_end_is_cut_off() {
    is_cut_off(|victim| {
        victim.hears(8)?;
        victim.says(b"R\x7f\xff\xff\xff")?;
        victim.repeats(&[0; 1024])
    });
}

#[test]
fn settings_without_end_are_cut_off() {
    is_cut_off(|victim| {
        victim.hears(8)?;
        victim.says(LET_IN)?;
        // They are long, so that a busy machine has read too much of them before it runs out of time.
        let value = "x".repeat(1000);
        for number in 0_u64.. {
            victim.says(&message(b'S', format!("setting{number}\0{value}\0").as_bytes()))?;
        }
        Ok(())
    });
}

#[test]
fn notices_without_end_are_cut_off() {
    is_cut_off(|victim| {
        victim.hears(8)?;
        victim.says(LET_IN)?;
        victim.repeats(&notice())
    });
}

#[test]
fn an_answer_without_end_is_cut_off() {
    is_cut_off(|victim| {
        victim.hears(8)?;
        victim.says(&[LET_IN, READY].concat())?;
        victim.hears(1)?;
        victim.says(LONG_ROW)?;
        victim.repeats(&[0; 1024])
    });
}

#[test]
fn a_list_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        victim.hears(8)?;
        victim.says(&[LET_IN, READY].concat())?;
        victim.hears(1)?;
        victim.repeats(&notice())
    });
    let line = survives(&hostile, &operator(&url(&hostile), &["list"]), &[UNAVAILABLE]);
    assert_is_too_much(&hostile, &line);
}

#[test]
fn a_handshake_of_tls_without_end_is_given_up() {
    let hostile = Hostile::that(|victim| {
        victim.hears(8)?;
        victim.says(b"S")?;
        victim.hears(1)?;
        victim.floods_a_handshake()
    });
    let url = format!("postgres://app@{}/db?sslmode=require", hostile.address);
    both_survive(&hostile, &url, &[UNAVAILABLE, CONFIGURATION]);
}

#[test]
fn noise_silence_and_a_byte_a_second_are_given_up_in_time() {
    let hostile = Hostile::that(|victim| {
        victim.hears(8)?;
        victim.raves()
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
    let hostile = Hostile::that(Victim::listens);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
    let hostile = Hostile::that(|victim| victim.trickles(&notice()));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn a_standby_that_is_flooded_is_one_again_afterwards() {
    let server = Server::start();
    prepare(&server);
    a_standby_survives(&server, LONG_ROW, &[0; 1024]);
}
