//! `--listen`: what a candidate tells over HTTP, asked as probes and Prometheus ask, and by those who mean no good.

#[macro_use]
mod support;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use support::http::{Answer, ask};
use support::ports::free_port;
use support::prelude::*;
use support::process::told_of;

/// As in examples/kubernetes: a probe that has no answer by then has failed.
const PROBE: Duration = Duration::from_secs(5);
/// Where it does not matter how long an answer takes.
const PATIENT: Duration = Duration::from_secs(20);

/// A lease that outlasts a stall of the machine, where nobody waits for its end.
const LONG: [&str; 2] = ["--lease", "30s"];

trait Stream: Read + Write {}
impl<T: Read + Write> Stream for T {}

/// `address` as `--listen` takes it, but for `:PORT`.
fn connect(address: &str, patience: Duration) -> io::Result<Box<dyn Stream>> {
    if address.contains('/') {
        let stream = UnixStream::connect(address.trim_start_matches("unix:"))?;
        stream.set_read_timeout(Some(patience))?;
        return Ok(Box::new(stream));
    }
    let stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(patience))?;
    Ok(Box::new(stream))
}

fn send(address: &str, request: &str) -> io::Result<Answer> {
    send_within(PATIENT, address, request)
}

fn send_within(patience: Duration, address: &str, request: &str) -> io::Result<Answer> {
    ask(connect(address, patience)?, request)
}

fn try_get(address: &str, path: &str) -> io::Result<Answer> {
    send(address, &get_request(path))
}

fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n")
}

fn probe(address: &str, path: &str) -> io::Result<Answer> {
    send_within(PROBE, address, &get_request(path))
}

#[track_caller]
fn get(address: &str, path: &str) -> Answer {
    try_get(address, path).unwrap_or_else(|error| panic!("{address}{path}: {error}"))
}

fn leader(address: &str) -> (u16, Value) {
    let answer = get(address, "/leader");
    assert!(answer.head.contains("\r\ncontent-type: application/json\r\n"), "{answer:?}");
    (answer.status, serde_json::from_str(&answer.body).unwrap())
}

/// Name and labels, as they are written, to values.
type Samples = BTreeMap<String, f64>;

fn metrics(address: &str) -> Samples {
    let answer = get(address, "/metrics");
    assert_eq!(answer.status, 200);
    assert!(answer.head.contains("content-type: text/plain; version=0.0.4"), "{answer:?}");
    samples(&answer.body)
}

fn samples(text: &str) -> Samples {
    let samples =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| line.rsplit_once(' ').expect("a sample"));
    samples.map(|(name, value)| (name.to_owned(), value.parse().expect("a number"))).collect()
}

fn own(samples: &Samples, name: &str) -> f64 {
    samples[&format!("leaderrun_{name}{{shard=\"shard\"}}")]
}

fn labelled(samples: &Samples, name: &str, label: &str) -> f64 {
    samples[&format!("leaderrun_{name}{{{label},shard=\"shard\"}}")]
}

fn is(value: f64, wanted: u64) -> bool {
    format!("{value}") == wanted.to_string()
}

impl Place {
    fn start(&mut self, owner: &str, flags: &[&str]) -> String {
        let address = format!("127.0.0.1:{}", free_port());
        self.start_at(owner, &address, flags);
        address
    }

    fn start_at(&mut self, owner: &str, address: &str, flags: &[&str]) {
        self.launch_with(owner, &[&["--listen", address], flags].concat(), &[]);
        self.wait_until("it listens", || try_get(address, "/livez").is_ok_and(|answer| answer.status == 200));
    }

    fn wait_until_it_leads(&self, address: &str) {
        self.wait_until("it leads", || leader(address).0 == 200);
    }
}

fn a_leader_and_its_standby_tell_who_they_are(mut place: Place) {
    let first = place.start("one", &LONG);
    place.wait_until_it_leads(&first);
    let second = place.start("two", &LONG);
    place.wait_until("it stands by", || get(&second, "/readyz").status == 200);
    let life = place.fleet.leader();
    let (status, said) = leader(&first);
    assert_eq!((status, &said["leader"], said["term"].as_u64()), (200, &true.into(), Some(life.term)), "{said}");
    assert_eq!((&said["shard"], &said["owner"]), (&"shard".into(), &"one".into()), "{said}");
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(said["host"], host.as_str());
    humantime::parse_rfc3339(said["since"].as_str().unwrap()).unwrap();
    let (status, said) = leader(&second);
    assert_eq!((status, &said["leader"], &said["term"]), (503, &false.into(), &Value::Null), "{said}");
    assert_eq!((get(&first, "/readyz").body, get(&second, "/readyz").body), ("leader\n".into(), "standby\n".into()));

    let (leading, standing) = (metrics(&first), metrics(&second));
    assert!(is(own(&leading, "is_leader"), 1) && is(own(&leading, "term"), life.term), "{leading:?}");
    assert!(is(own(&standing, "is_leader"), 0) && is(own(&standing, "term"), 0), "{standing:?}");
    assert!(is(own(&leading, "command_starts_total"), 1), "{leading:?}");
    let seen = format!("leaderrun_observed_leader_term{{host=\"{host}\",owner=\"one\",shard=\"shard\"}}");
    assert!(is(standing[&seen], life.term), "{standing:?}");

    if place.server.is_none() {
        assert!(!leading.keys().any(|name| name.contains("deadline_seconds")), "this lease does not expire");
    } else {
        wait_until("it renews", || own(&metrics(&first), "renew_seconds_count") >= 2.0);
        let leading = metrics(&first);
        let until = |action| labelled(&leading, "deadline_seconds", action);
        let (stop, kill) = (until("action=\"stop\""), until("action=\"kill\""));
        assert!(stop > 0.0 && kill < 30.0 && (kill - stop - 1.0).abs() < 0.001, "{stop} {kill}");
    }

    place.fleet.kill("one");
    place.wait_until_it_leads(&second);
    assert!(leader(&second).1["term"].as_u64() > Some(life.term));
    place.fleet.leader_where(|next| next.term > life.term);
    place.fleet.conclude();
}

#[test]
fn leaders_tell_their_slots() {
    let mut place = Place::local();
    let addresses = ["one", "two", "three"].map(|owner| place.start(owner, &["--slots", "2", LONG[0], LONG[1]]));
    let slots = || addresses.each_ref().map(|address| leader(address).1["slot"].as_u64());
    let both_are_led = || {
        let mut slots = slots();
        slots.sort_unstable();
        slots == [None, Some(1), Some(2)]
    };
    place.wait_until("both slots are led", both_are_led);
    // The term and the name by which a fencing token is checked belong together.
    for (_, told) in addresses.each_ref().map(|address| leader(address)) {
        let expected = told["slot"].as_u64().map_or("shard".to_owned(), |slot| format!("shard#{slot}"));
        assert_eq!(told["shard"], expected.as_str(), "{told}");
        assert_eq!(told["term"].is_u64(), told["slot"].is_u64(), "{told}");
        if let Some(term) = told["term"].as_u64() {
            place.ask(&["verify", &expected, "--term", &term.to_string()]).good();
        }
    }
    for (address, slot) in addresses.iter().zip(slots()) {
        assert!(is(own(&metrics(address), "slot"), slot.unwrap_or(0)), "{:?}", metrics(address));
    }
    let (_, evidence) = place.fleet.end();
    assert_eq!(evidence.orphans, 0, "{}", place.fleet.logs());
}

/// Opens hundreds of connections that say little or nothing, for as long as `meanwhile` takes, and others that ask as
/// fast as they can.
fn under_siege(address: &str, meanwhile: impl FnOnce()) {
    let over = std::sync::atomic::AtomicBool::new(false);
    let goes_on = || !over.load(std::sync::atomic::Ordering::Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let connect = || {
                let stream = TcpStream::connect(address).ok()?;
                stream.set_nonblocking(true).ok()?;
                Some(stream)
            };
            let mut slow: Vec<Option<TcpStream>> = (0..400).map(|_| connect()).collect();
            while goes_on() {
                for (index, stream) in slow.iter_mut().enumerate() {
                    // Every other one never says a word.
                    let word: &[u8] = if index % 2 == 0 { b"G" } else { b"" };
                    let gone = stream.as_mut().is_none_or(|stream| {
                        stream.write(word).is_err()
                            || !matches!(stream.read(&mut [0]), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
                    });
                    if gone {
                        *stream = connect();
                    }
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        for path in ["/metrics", "/leader"] {
            scope.spawn(move || {
                while goes_on() {
                    let _ = probe(address, path);
                }
            });
        }
        // Also where it panics, for the scope waits for the others.
        let _ended = Ended(&over);
        meanwhile();
    });
}

struct Ended<'a>(&'a std::sync::atomic::AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, std::sync::atomic::Ordering::Relaxed);
    }
}

fn hundreds_of_slow_connections_do_not_disturb_a_leader(mut place: Place) {
    let address = place.start("one", &LONG);
    place.wait_until_it_leads(&address);
    let life = place.fleet.leader();
    let before = own(&metrics(&address), "renew_seconds_count");
    let begun = Instant::now();
    let (mut asked, mut answered, mut most_open) = (0, 0, 0);
    // A renewal is due each second.
    let siege = Duration::from_secs(8);
    under_siege(&address, || {
        while begun.elapsed() < siege {
            asked += 1;
            most_open = most_open.max(fs::read_dir(format!("/proc/{}/fd", place.fleet.pid("one"))).unwrap().count());
            answered += u32::from(probe(&address, "/leader").is_ok_and(|answer| answer.status == 200));
            std::thread::sleep(Duration::from_millis(100));
        }
    });
    let after = metrics(&address);
    let failures: f64 = after.iter().filter(|(name, _)| name.contains("renew_failures")).map(|(_, value)| value).sum();
    assert!(is(failures, 0), "{after:?}\n{}", place.fleet.logs());
    let renewals = own(&after, "renew_seconds_count") - before;
    assert!(renewals >= 4.0, "{renewals} in {siege:?}");
    // Its own, and those of 32 connections.
    assert!(most_open < 80, "{most_open} descriptors");
    assert!(answered * 10 >= asked * 9, "of {asked} probes {answered} were answered");
    assert_eq!(place.fleet.leader().term, life.term);
    assert_eq!(leader(&address).1["term"].as_u64(), Some(life.term));
    assert_eq!(place.fleet.conclude().len(), 1);
}

fn a_store_that_hangs_ends_the_leadership_and_then_the_readiness_but_not_the_life(mut place: Place) {
    let address = place.start("one", &[]);
    place.wait_until_it_leads(&address);
    let life = place.fleet.leader();
    place.server().freeze();
    let ready = || get(&address, "/readyz");
    place.wait_until("it leads no more", || leader(&address).0 == 503);
    place.wait_until("it is not ready", || {
        let answer = ready();
        let silent = answer.body.starts_with("not ready: the store has not answered for ");
        assert!(answer.body.lines().count() == 1 && (!silent || answer.status == 503), "{answer:?}");
        silent
    });
    assert_eq!(get(&address, "/livez").status, 200);
    let seen = metrics(&address);
    assert!(own(&seen, "store_trouble_seconds") > 6.0 && is(own(&seen, "is_leader"), 0), "{seen:?}");
    // Where the guard is woken late, the leadership ends before the renewal is given up.
    let has_failed = labelled(&seen, "renew_failures_total", "conclusion=\"unknown\"") > 0.0;
    assert!(has_failed || own(&seen, "late_seconds") > 0.1, "{seen:?}");
    assert!(is(labelled(&seen, "leadership_ends_total", "reason=\"lost\""), 1), "{seen:?}");
    place.server().thaw();
    place.wait_until_it_leads(&address);
    assert_eq!(ready().status, 200);
    assert!(is(own(&metrics(&address), "command_restarts_total"), 0), "another leadership");
    place.fleet.leader_where(|next| next.term > life.term);
    place.fleet.conclude();
}

on_two_stores!(
    [
        hundreds_of_slow_connections_do_not_disturb_a_leader,
        a_store_that_hangs_ends_the_leadership_and_then_the_readiness_but_not_the_life,
    ]:
    a_leader_and_its_standby_tell_who_they_are,
);

#[cfg(feature = "redis")]
#[test]
fn nothing_that_is_secret_is_shown() {
    let mut place = Place::local();
    place.url = format!("redis://me:hunter2@127.0.0.1:{}", free_port());
    let address = place.start("one", &[]);
    wait_until("the store is in trouble", || own(&metrics(&address), "store_trouble_seconds") > 0.0);
    for path in ["/livez", "/readyz", "/leader", "/metrics"] {
        let answer = get(&address, path);
        assert!(!format!("{answer:?}").contains("hunter2") && !answer.body.contains("redis"), "{answer:?}");
    }
    assert_eq!(get(&address, "/readyz").body, "not ready: the store has not answered yet\n");
    place.fleet.stop("one");
}

#[test]
fn what_is_not_there_is_not_found_and_nothing_can_be_changed() {
    let mut place = Place::local();
    let address = place.start("a\"b\"\\é", &[]);
    place.wait_until_it_leads(&address);
    // Its COMMAND has started as well.
    place.fleet.leader();
    for path in ["/", "/leader/", "/metrics/../leader"] {
        assert_eq!(get(&address, path).status, 404, "{path}");
    }
    for method in ["POST", "DELETE", "BREW"] {
        let request = format!("{method} /leader HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let answer = send(&address, &request).unwrap();
        assert!(answer.status == 405 && answer.head.contains("allow: get, head"), "{method}: {answer:?}");
    }
    assert_eq!(send(&address, "rubbish\r\n\r\n").unwrap().status, 400);
    assert_eq!(leader(&address).1["owner"], "a\"b\"\\é");
    metrics(&address);
    place.fleet.conclude();
}

/// Resident memory at its highest, in KiB.
fn peak_memory(process: Pid) -> u64 {
    told_of(process, "VmHWM").expect("it lives")
}

/// Writes `beginning`, and then `more` again and again until it is cut off.
fn write_without_end(address: &str, beginning: &str, more: &str) {
    const MOST: usize = 256 << 20;
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_write_timeout(Some(PATIENT)).unwrap();
    let _ = stream.write_all(beginning.as_bytes());
    let more = more.repeat(16 * 1024 / more.len());
    let mut written = 0;
    while written < MOST && stream.write_all(more.as_bytes()).is_ok() {
        written += more.len();
    }
    assert!(written < MOST, "{beginning:?} was read without end");
}

#[test]
fn who_writes_without_end_or_connects_a_thousand_times_takes_neither_memory_nor_descriptors() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    assert!(hard >= 2048, "this test wants 2048 descriptors");
    setrlimit(Resource::RLIMIT_NOFILE, hard.min(4096), hard).unwrap();
    let mut place = Place::local();
    let address = place.start("one", &[]);
    place.wait_until_it_leads(&address);
    let process = place.fleet.pid("one");
    let (life, before) = (place.fleet.leader(), peak_memory(process));
    std::thread::scope(|scope| {
        for (beginning, more) in [
            ("", "x"),
            ("GET /", "x"),
            ("GET /livez HTTP/1.1\r\nHost: ", "x"),
            ("GET /livez HTTP/1.1\r\n", "A: b\r\n"),
            ("POST /livez HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999999\r\n\r\n", "x"),
            ("POST /livez HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", "1\r\nx\r\n"),
        ] {
            let address = &address;
            scope.spawn(move || write_without_end(address, beginning, more));
        }
    });
    let crowd: Vec<_> = (0..1000).filter_map(|_| TcpStream::connect(&address).ok()).collect();
    assert!(crowd.len() > 900, "{}", crowd.len());
    let descriptors = || fs::read_dir(format!("/proc/{process}/fd")).unwrap().count();
    // Who came before has gone, or is among the last 32.
    place.wait_until("it answers", || probe(&address, "/leader").is_ok_and(|it| it.status == 200));
    assert!(descriptors() < 80, "{} descriptors", descriptors());
    drop(crowd);
    let after = peak_memory(process);
    assert!(after < before + 8 * 1024, "{before} KiB, and then {after} KiB");
    assert_eq!(place.fleet.leader().term, life.term);
    place.fleet.conclude();
}

#[track_caller]
fn refused(address: &str, status: i32, words: &str) {
    let scratch = TempDir::new().unwrap();
    let (store, file) = (scratch.path().join("store"), scratch.path().join("started"));
    let mut command = leaderrun();
    command.args(["--listen", address, "--store", &format!("file:{}", store.display()), "shard", "touch"]).arg(&file);
    command.stdin(Stdio::null()).said().refused(status, &format!("leaderrun:  … {words}"));
    assert!(!file.exists() && !store.exists(), "it took part");
}

#[test]
fn an_address_that_is_none_is_a_usage_error() {
    for address in ["", ":http", "127.0.0.1:65536", "unix:", "http://127.0.0.1:9100"] {
        refused(address, 64, "'--listen <ADDR>'");
    }
}

#[test]
fn an_address_in_use_is_refused_before_anything_is_started() {
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap().to_string();
    refused(&address, 71, &format!("cannot listen on {address}: address already in use"));
    refused("192.0.2.1:9100", 71, "cannot listen on 192.0.2.1:9100: ");
    let scratch = TempDir::new().unwrap();
    let file = scratch.path().join("precious");
    fs::write(&file, "data").unwrap();
    refused(file.to_str().unwrap(), 71, "is not a socket: remove it");
    assert_eq!(fs::read_to_string(&file).unwrap(), "data");
    refused(scratch.path().join("no/such").to_str().unwrap(), 71, "no such file or directory");
}

#[test]
fn a_socket_in_use_is_refused_and_one_that_was_left_over_is_replaced() {
    let mut place = Place::local();
    let path = place.path("own.sock");
    let address = format!("unix:{}", path.display());
    place.start_at("one", &address, &[]);
    place.wait_until_it_leads(&address);
    refused(&address, 71, &format!("cannot listen on {address}: address already in use"));
    refused(path.to_str().unwrap(), 71, "address already in use");
    assert_eq!(leader(&address).1["owner"], "one");

    place.fleet.kill("one");
    assert!(path.exists() && try_get(&address, "/livez").is_err(), "nobody listens, not even its guard");
    place.start_at("two", &address, &[]);
    place.wait_until_it_leads(&address);
    assert_eq!(leader(&address).1["owner"], "two");
    place.fleet.stop("two");
    assert!(!path.exists(), "who ends in order takes its socket along");
    place.fleet.conclude();
}
