//! Servers that say more than anybody asked, something else, or nothing.

use crate::support::hostile::{
    CONFIGURATION, Hostile, UNAVAILABLE, Victim, a_standby_survives, both_survive, operator, survives,
};

const TOO_MUCH: &str = "answered with more than 1 MiB: is it redis?";

fn url(hostile: &Hostile) -> String {
    format!("redis://{}", hostile.address)
}

fn assert_is_too_much(hostile: &Hostile, lines: &[String]) {
    for line in lines {
        assert!(line.ends_with(&format!("redis at {} {TOO_MUCH}", hostile.address)), "{line}");
    }
}

#[test]
fn a_string_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.says(b"$4294967296\r\n")?;
        victim.repeats(&[0; 1024])
    });
    assert_is_too_much(&hostile, &both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]));
}

#[test]
fn a_line_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.says(b"+")?;
        victim.repeats(b"x")
    });
    assert_is_too_much(&hostile, &both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]));
}

#[test]
fn an_array_of_very_many_is_given_up() {
    // Each takes twenty times as much once it was read, and a slow machine has no time for all of them.
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.says(b"*4294967296\r\n")?;
        victim.repeats(b"_\r\n")
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn arrays_in_arrays_without_end_overflow_nothing() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.repeats(b"*1\r\n")
    });
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn answers_that_nobody_asked_for_pile_up_nowhere() {
    let hostile = Hostile::that(|victim| victim.repeats(b"+OK\r\n"));
    both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]);
}

#[test]
fn a_sentinel_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.says(b"$4294967296\r\n")?;
        victim.repeats(&[0; 1024])
    });
    let url = format!("redis+sentinel://{}/main", hostile.address);
    for line in both_survive(&hostile, &url, &[UNAVAILABLE]) {
        assert!(
            line.ends_with(&format!("the Sentinel at {} answered with more than 1 MiB: is it redis?", hostile.address)),
            "{line}"
        );
    }
}

#[test]
fn a_handshake_of_tls_without_end_is_given_up() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.floods_a_handshake()
    });
    both_survive(&hostile, &format!("rediss://{}", hostile.address), &[UNAVAILABLE, CONFIGURATION]);
}

#[test]
fn a_list_without_end_is_cut_off() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.says(b"*2\r\n$1\r\n7\r\n*4294967296\r\n$4294967296\r\n")?;
        victim.repeats(b"leaderrun:{leases}:lock:db/1")
    });
    let line = survives(&hostile, &operator(&url(&hostile), &["list"]), &[UNAVAILABLE]);
    assert_is_too_much(&hostile, &[line]);
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let hostile = Hostile::that(|victim| {
        victim.hears(1)?;
        victim.raves()
    });
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.ends_with("does not speak the Redis protocol"), "{line}");
    }
}

#[test]
fn silence_is_given_up_in_time() {
    let hostile = Hostile::that(Victim::listens);
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.contains("did not answer within"), "{line}");
    }
}

#[test]
fn a_byte_a_second_is_given_up_in_time() {
    let hostile = Hostile::that(|victim| victim.trickles(b"$100000\r\nxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"));
    for line in both_survive(&hostile, &url(&hostile), &[UNAVAILABLE]) {
        assert!(line.contains("did not answer within"), "{line}");
    }
}

#[test]
fn a_standby_that_is_flooded_is_one_again_afterwards() {
    a_standby_survives(&super::old_server(), b"$4294967296\r\n", &[0; 1024]);
}
