//! What --listen tells Prometheus and probes: names, types, help and labels, without the values.

use crate::golden::golden;
use crate::json::members;
use crate::plain::Plain;
use crate::support::http::ask;
use crate::support::ports::free_port;
use crate::support::prelude::*;
use std::net::TcpStream;

/// The body of an answer, or nothing while there is none.
fn get(port: u16, path: &str) -> String {
    let Ok(stream) = TcpStream::connect(("127.0.0.1", port)) else { return String::new() };
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket has a timeout");
    let answer = ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n"));
    answer.map_or(String::new(), |answer| answer.body)
}

/// Without values, and the same for each version.
fn families(text: &str, plain: &Plain) -> String {
    let text = text.replace(concat!("version=\"", env!("CARGO_PKG_VERSION"), "\""), "version=\"VERSION\"");
    let told = |line: &str| match line.rsplit_once(' ') {
        Some((name, _)) if !line.starts_with('#') => plain.text(name),
        _ => line.to_owned(),
    };
    text.lines().map(told).collect::<Vec<_>>().join("\n")
}

fn start(place: &mut Place, owner: &str, flags: &[&str]) -> u16 {
    let port = free_port();
    let mut command = leaderrun();
    // No end of a lease is waited for.
    command.args(usual_but(&TIMING, &["--lease", "60s"]));
    command.args(["--store", &place.url, "--owner", owner, "--listen", &format!("127.0.0.1:{port}")]);
    command.args(flags).args(["shard", "sleep", "1000"]).envs(place.environment.iter().copied());
    place.fleet.launch(owner, command);
    port
}

fn pin(name: &str, mut place: Place, flags: &[&str]) {
    let wait = |what: &str, place: &Place, port: u16, sign: &str| {
        wait_until_or(what, || place.fleet.logs() + &get(port, "/metrics"), || get(port, "/metrics").contains(sign));
    };
    let leader = start(&mut place, "one", flags);
    wait("it leads", &place, leader, "\nleaderrun_is_leader{shard=\"shard\"} 1\n");
    let standby = start(&mut place, "two", flags);
    wait("it waits", &place, standby, "\nleaderrun_observed_leader_term{");
    if place.server.is_some() {
        let none = "leaderrun_renew_seconds_count{shard=\"shard\"} 0\n";
        place.wait_until("it renews", || !get(leader, "/metrics").contains(none));
    }
    let plain = Plain::new();
    let mut text = String::new();
    for (what, port) in [("leader", leader), ("standby", standby)] {
        text.extend([format!("== {what}: /metrics\n{}\n", families(&get(port, "/metrics"), &plain))]);
        text.extend([format!("== {what}: /leader\n{}\n", members(&get(port, "/leader"), &plain))]);
        text.extend([format!("== {what}: /readyz /livez\n{}{}", get(port, "/readyz"), get(port, "/livez"))]);
    }
    golden(&format!("metrics-{name}"), &text);
}

#[test]
fn the_metrics_of_a_lease_that_the_kernel_keeps_stay_as_they_are() {
    pin("file", Place::local(), &[]);
}

#[test]
#[cfg(feature = "redis")]
fn the_metrics_of_a_lease_that_expires_stay_as_they_are() {
    pin("redis", Place::remote(Box::new(crate::support::redis::Server::start())), &[]);
}
