//! Servers that are broken or not what the URL says: their answers have no end, no meaning, or never arrive. Candidates
//! and operators end in time with one line, and take little memory. It is one limit (`store::allowance`) or one of a
//! library, so one flood a client shows it.
//!
//! The hazard is for this machine. So each server says no more than so many bytes to a client, and the programs that
//! meet it have a limit on their address space.

use crate::support::prelude::*;
use crate::support::process::told_of;
use crate::support::random::Random;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// All that a client is sent: far more than it reads.
const MOST_SENT: usize = 256 << 20;
/// Generous: libraries reserve what they never touch.
const ADDRESS_SPACE: u64 = 600 << 20;
/// What a program may have touched at most, code included: half of it on a fast machine, where NATS's library reads tens of
/// MiB between two looks at its counter. Without a bound it would be hundreds.
const MOST_RESIDENT_KIB: u64 = 128 << 10;
/// Long enough to read some MiB of a flood on a machine that stalls: what cuts it off is the bound on bytes, not the time.
const LONG_ENOUGH: &str = "20s";
/// For what never comes.
const SOON: &str = "6s";

const UNAVAILABLE: i32 = 69;
const CONFIGURATION: i32 = 78;

struct Victim(TcpStream);

/// Serves each client in this way, in a thread of its own, until the test ends. Answers where it listens.
fn hostile(way: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    let address = listener.local_addr().expect("it is bound");
    let way = Arc::new(way);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let way = Arc::clone(&way);
            thread::spawn(move || way(&mut Victim(stream)));
        }
    });
    address
}

impl Victim {
    fn says(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all(bytes)
    }

    fn repeats(&mut self, bytes: &[u8]) -> io::Result<()> {
        let many = bytes.repeat((256 << 10) / bytes.len() + 1);
        for _ in 0..MOST_SENT / many.len() {
            self.says(&many)?;
        }
        self.listens()
    }

    fn raves(&mut self) -> io::Result<()> {
        let mut random = Random::new(0);
        let noise: Vec<u8> = (0..8 << 10).flat_map(|_| random.next().to_le_bytes()).collect();
        self.repeats(&noise)
    }

    /// Takes what is sent, for as long as the client is there.
    fn listens(&mut self) -> io::Result<()> {
        io::copy(&mut self.0, &mut io::sink()).map(drop)
    }

    /// Waits until at least that many bytes came; answers them, and what came with them.
    fn hears(&mut self, least: usize) -> io::Result<Vec<u8>> {
        let (mut heard, mut chunk) = (Vec::new(), [0; 16 << 10]);
        while heard.len() < least {
            match self.0.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                length => heard.extend_from_slice(&chunk[..length]),
            }
        }
        Ok(heard)
    }

    fn hears_of(&mut self, word: &[u8]) -> io::Result<()> {
        let mut heard = Vec::new();
        while !heard.windows(word.len()).any(|window| window == word) {
            heard.extend(self.hears(1)?);
            // Nobody asks this much.
            assert!(heard.len() < 1 << 20, "a question without end");
        }
        Ok(())
    }
}

/// Runs a program with a bound on its memory. Answers what it said, and the KiB that it touched of that.
fn meet(command: &Command) -> (Said, u64) {
    let mut bounded = Command::new("prlimit");
    bounded.arg(format!("--as={ADDRESS_SPACE}")).arg("--core=0").arg("--").arg(command.get_program());
    bounded.args(command.get_args()).env("LEADERRUN_CONFIG", "/dev/null");
    bounded.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let begun = Instant::now();
    let mut child = bounded.spawn().unwrap_or_else(|error| panic!("prlimit: {error}: install util-linux"));
    let mut resident_kib = 0;
    while child.try_wait().expect("a child can be waited for").is_none() {
        // Of a process that has ended nothing is told any more.
        resident_kib = told_of(child.id(), "VmHWM").unwrap_or(resident_kib);
        if begun.elapsed() > PATIENCE {
            child.kill().expect("it can be killed");
        }
        thread::sleep(Duration::from_millis(2));
    }
    (child.wait_with_output().expect("it has ended").into(), resident_kib)
}

/// A candidate and an operator meet such a server: both end in time, with one of these statuses and one clear line, and
/// take little memory. Answers the lines.
fn both_survive(hostile: SocketAddr, url: &str, request_timeout: &str, statuses: &[i32]) -> Vec<String> {
    let mut candidate = leaderrun();
    candidate.args(["-n", "--lease", "30s", "--store", url, "db/main", "--", "true"]);
    let mut operator = leaderctl();
    operator.args(["--request-timeout", request_timeout, "--store", url, "status", "db/main"]);
    thread::scope(|scope| {
        let ends = [candidate, operator].map(|command| scope.spawn(move || meet(&command)));
        ends.map(|end| assert_survived(hostile, end.join().expect("it is met"), statuses)).to_vec()
    })
}

fn assert_survived(hostile: SocketAddr, (said, resident_kib): (Said, u64), statuses: &[i32]) -> String {
    assert!(statuses.contains(&said.code), "{said:?}");
    assert!(resident_kib < MOST_RESIDENT_KIB, "{resident_kib} KiB: {said:?}");
    // What a candidate logs meanwhile ends with fields: that it tries again, and that it could not give back what it may
    // have been granted.
    let lines = said.err.lines().filter(|line| !line.contains(" shard=\"db/main\" owner="));
    let [line] = lines.collect::<Vec<_>>()[..] else { panic!("not one line: {said:?}") };
    // Where the machine is slow, the candidate's time is over before that of the store's client.
    let names_it = line.contains(&hostile.to_string()) || line.contains("the store did not answer within");
    assert!(names_it && line.len() < 1000, "{said:?}");
    line.to_owned()
}

/// The server of a store as far as a client that knows nothing of it gets: it greets, and waits for a request.
struct Sham {
    /// `ADDRESS` stands for its own.
    url: &'static str,
    greets: fn(&mut Victim) -> io::Result<()>,
    opening: &'static [u8],
    filling: fn() -> Vec<u8>,
}

fn url(hostile: SocketAddr, sham: &Sham) -> String {
    sham.url.replace("ADDRESS", &hostile.to_string())
}

fn an_answer_without_end_is_cut_off(sham: &Sham) {
    let Sham { greets, opening, filling, .. } = *sham;
    let hostile = hostile(move |victim| {
        greets(victim)?;
        victim.says(opening)?;
        victim.repeats(&filling())
    });
    for line in both_survive(hostile, &url(hostile, sham), LONG_ENOUGH, &[UNAVAILABLE]) {
        assert!(line.contains("answered with more than ") || line.contains("the answer has no end"), "{line}");
    }
}

fn noise_and_silence_are_given_up_in_time(sham: &Sham) {
    let raving = hostile(|victim| {
        victim.hears(1)?;
        victim.raves()
    });
    both_survive(raving, &url(raving, sham), SOON, &[UNAVAILABLE, CONFIGURATION]);
    let silent = hostile(Victim::listens);
    both_survive(silent, &url(silent, sham), SOON, &[UNAVAILABLE]);
}

macro_rules! shams {
    ($($store:ident, $feature:literal: $sham:expr;)*) => {
        $(
            #[cfg(feature = $feature)]
            mod $store {
                use super::*;

                #[test]
                fn an_answer_without_end_is_cut_off() {
                    super::an_answer_without_end_is_cut_off(&$sham);
                }

                #[test]
                fn noise_and_silence_are_given_up_in_time() {
                    super::noise_and_silence_are_given_up_in_time(&$sham);
                }
            }
        )*
    };
}

shams! {
    dynamodb, "dynamodb": Sham {
        url: "dynamodb://locks?region=eu-west-1&endpoint=http://ADDRESS",
        greets: |victim| victim.hears_of(b"\r\n\r\n"),
        opening: b"HTTP/1.1 200 OK\r\ncontent-type: application/x-amz-json-1.0\r\ntransfer-encoding: chunked\r\n\r\n",
        filling: || [&b"4000\r\n"[..], &[b' '; 0x4000], b"\r\n"].concat(),
    };
    // Acknowledgements of pings, which no limit of HTTP/2 knows.
    etcd, "etcd": Sham {
        url: "etcd://ADDRESS/leases",
        greets: |victim| {
            victim.hears_of(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
            victim.says(b"\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0")?;
            victim.hears(1).map(drop)
        },
        opening: b"",
        // A frame of a type that nobody knows, which is to be ignored (RFC 9113, 4.1).
        filling: || [&b"\0\x40\0\xfa\0\0\0\0\0"[..], &[0; 0x4000]].concat(),
    };
    mysql, "mysql": Sham {
        url: "mysql://app@ADDRESS/db?ssl-mode=DISABLED",
        greets: lets_in_by_mysql,
        // A packet of sixteen megabytes.
        opening: b"\xfe\xff\xff\x01",
        filling: || vec![0; 1024],
    };
    nats, "nats": Sham {
        url: "nats://ADDRESS/locks",
        greets: |victim| {
            greets_by_nats(victim)?;
            victim.hears(1).map(drop)
        },
        opening: b"MSG a 1 4294967296\r\n",
        filling: || vec![0; 1024],
    };
    // A row of two gigabytes.
    postgres, "postgres": Sham {
        url: "postgres://app@ADDRESS/db?sslmode=disable",
        greets: lets_in_by_postgres,
        opening: b"D\x7f\xff\xff\xff",
        filling: || vec![0; 1024],
    };
    redis, "redis": Sham {
        url: "redis://ADDRESS",
        greets: |victim| victim.hears(1).map(drop),
        opening: b"$4294967296\r\n",
        filling: || vec![0; 1024],
    };
    sentinel, "redis": Sham {
        url: "redis+sentinel://ADDRESS/main",
        greets: |victim| victim.hears(1).map(drop),
        opening: b"$4294967296\r\n",
        filling: || vec![0; 1024],
    };
}

fn greets_by_nats(victim: &mut Victim) -> io::Result<()> {
    victim.says(
        b"INFO {\"server_id\":\"x\",\"server_name\":\"x\",\"version\":\"2.10.0\",\"go\":\"go1\",\"host\":\"127.0.0.1\",\
          \"port\":4222,\"headers\":true,\"max_payload\":1048576,\"proto\":1,\"client_id\":1}\r\n",
    )?;
    victim.hears_of(b"PING\r\n")?;
    victim.says(b"PONG\r\n")
}

fn lets_in_by_postgres(victim: &mut Victim) -> io::Result<()> {
    victim.hears(8)?;
    victim.says(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I")?;
    victim.hears(1).map(drop)
}

/// They have no columns, so they take far more memory than bytes on the wire.
#[cfg(feature = "postgres")]
#[test]
fn rows_without_end_of_a_server_of_postgres_are_cut_off() {
    let hostile = hostile(|victim| {
        lets_in_by_postgres(victim)?;
        victim.says(b"T\0\0\0\x06\0\0")?;
        victim.repeats(b"D\0\0\0\x06\0\0")
    });
    let url = format!("postgres://app@{hostile}/db?sslmode=disable");
    for line in both_survive(hostile, &url, LONG_ENOUGH, &[UNAVAILABLE]) {
        assert!(line.contains("is it PostgreSQL?"), "{line}");
    }
}

/// It can everything that a client may ask of a server, TLS among it.
fn lets_in_by_mysql(victim: &mut Victim) -> io::Result<()> {
    let body = b"\x0a8.0.36\0\x08\0\0\0abcdefgh\0\xff\xff\x2d\x02\0\xff\xdf\x15\0\0\0\0\0\0\0\0\0\0ijklmnopqrst\0\
                 caching_sha2_password\0";
    let length = u8::try_from(body.len()).expect("short");
    victim.says(&[&[length, 0, 0, 0], &body[..]].concat())?;
    victim.hears(36)?;
    victim.says(b"\x07\0\0\x02\0\0\0\x02\0\0\0")?;
    victim.hears(5).map(drop)
}

#[cfg(feature = "mysql")]
#[test]
fn a_server_of_mysql_that_asks_for_a_file_gets_none() {
    let hostile = hostile(|victim| {
        lets_in_by_mysql(victim)?;
        victim.says(b"\x0c\0\0\x01\xfb/etc/passwd")?;
        victim.listens()
    });
    let url = format!("mysql://app@{hostile}/db?ssl-mode=DISABLED");
    for line in both_survive(hostile, &url, LONG_ENOUGH, &[UNAVAILABLE]) {
        assert!(line.contains("is it MySQL?"), "{line}");
    }
}
