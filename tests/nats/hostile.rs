//! Servers that say more than anybody asked, something else, or nothing.

use crate::support::fleet::{Fleet, wait_until_or, wakes_in_a_second};
use crate::support::hostile::{
    CONFIGURATION, Hostile, UNAVAILABLE, Victim, a_standby_survives, both_survive, operator, survives,
};
use crate::support::nats::Server;
use crate::support::server::prepare;
use std::io;

const INFO: &[u8] = b"INFO {\"server_id\":\"x\",\"server_name\":\"x\",\"version\":\"2.10.0\",\"go\":\"go1\",\
                      \"host\":\"127.0.0.1\",\"port\":4222,\"headers\":true,\"max_payload\":1048576,\"proto\":1,\
                      \"client_id\":1}\r\n";

fn url(hostile: &Hostile) -> String {
    format!("nats://{}/locks", hostile.address)
}

/// Lets a client in.
fn greets(victim: &mut Victim) -> io::Result<()> {
    victim.says(INFO)?;
    victim.hears_of(b"PING\r\n")?;
    victim.says(b"PONG\r\n")
}

/// What both said is that it is too much.
fn is_cut_off(serves: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) {
    let hostile = Hostile::that(serves);
    let complaint = format!("nats at {} answered with more than 2 MiB: is it nats?", hostile.address);
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.ends_with(&complaint), "{line}");
    }
}

#[test]
fn a_greeting_without_end_is_given_up() {
    // The library looks for the end of the line from its beginning each time, which takes a slow machine longer than a
    // request may.
    let hostile = Hostile::that(|victim| {
        victim.says(b"INFO {")?;
        victim.repeats(b"\"x\":1,")
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn a_message_without_end_is_cut_off() {
    is_cut_off(|victim| {
        greets(victim)?;
        victim.hears(1)?;
        victim.says(b"MSG a 1 4294967296\r\n")?;
        victim.repeats(&[0; 1024])
    });
}

#[test]
fn a_line_without_end_is_cut_off() {
    is_cut_off(|victim| {
        greets(victim)?;
        victim.hears(1)?;
        victim.says(b"-ERR '")?;
        victim.repeats(b"x")
    });
}

#[test]
fn pings_without_end_are_cut_off() {
    is_cut_off(|victim| {
        greets(victim)?;
        victim.hears(1)?;
        victim.repeats(b"PING\r\n")
    });
}

#[test]
fn a_list_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        greets(victim)?;
        victim.hears(1)?;
        victim.says(b"MSG a 1 4294967296\r\n")?;
        victim.repeats(&[0; 1024])
    });
    let line = survives(&hostile, &operator(&url(&hostile), &["list"]), &[UNAVAILABLE]);
    assert!(line.contains("answered with more than"), "{line}");
}

#[test]
fn noise_silence_and_a_byte_a_second_are_given_up_in_time() {
    let hostile = Hostile::that(Victim::raves);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE, CONFIGURATION]);
    let hostile = Hostile::that(Victim::listens);
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
    let hostile = Hostile::that(|victim| victim.trickles(INFO));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

/// A thousand candidates that do anything while they wait keep a busy server on their machine from answering.
#[test]
fn a_server_that_only_greets_is_waited_for_asleep() {
    let hostile = Hostile::that(|victim| {
        greets(victim)?;
        victim.listens()
    });
    let mut fleet = Fleet::new();
    fleet.start("one", &["--store", &url(&hostile)], &[], &[]);
    wait_until_or("it tells why it waits", || fleet.logs(), || fleet.logs().contains("did not answer within"));
    let wakes = wakes_in_a_second(fleet.pid("one"));
    assert!(wakes < 40, "{wakes} in a second");
    fleet.stop("one");
}

#[test]
fn a_standby_that_is_flooded_is_one_again_afterwards() {
    let server = Server::start();
    prepare(&server);
    a_standby_survives(&server, b"MSG a 1 4294967296\r\n", &[0; 1024]);
}
