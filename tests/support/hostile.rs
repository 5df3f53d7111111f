//! Servers that are hostile or broken: their answers have no end, no meaning, or never arrive.
//!
//! The hazard is for this machine. So each server stops by itself, after some time and after some number of bytes, and
//! the programs that meet it have a limit on their address space.

use super::fleet::{leaderctl, leaderrun};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// All that one server sends, to all of its clients.
const MOST_SENT: u64 = 2 << 30;
/// After this a server says nothing more.
const LONGEST: Duration = Duration::from_mins(1);
/// Generous: libraries reserve what they never touch.
const ADDRESS_SPACE: u64 = 600 << 20;
/// What a program may have touched at most, code included: half of it on a fast machine, where NATS's library reads tens of
/// MiB between two looks at its counter. Without a bound it would be hundreds.
const MOST_RESIDENT_KIB: u64 = 128 << 10;
/// Long enough to read some MiB of a flood on a busy machine: what cuts it off is the bound on bytes, not the time.
const REQUEST_TIMEOUT: &str = "6s";
/// Some attempts of that, on a busy machine.
const PATIENCE: Duration = Duration::from_mins(1);

/// Unable to reach the store.
pub const UNAVAILABLE: i32 = 69;
pub const CONFIGURATION: i32 = 78;

pub struct Hostile {
    pub address: SocketAddr,
    server: Arc<State>,
}

#[derive(Default)]
struct State {
    over: AtomicBool,
    sent: AtomicU64,
    /// Connections that the other side closed while it was flooded.
    cut_off: AtomicU64,
}

/// A client of a hostile server.
pub struct Victim {
    stream: TcpStream,
    server: Arc<State>,
    begun: Instant,
}

impl Hostile {
    /// Serves each client in this way, in a thread of its own.
    pub fn that(way: impl Fn(&mut Victim) -> io::Result<()> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let hostile = Self { address: listener.local_addr().expect("it is bound"), server: Arc::default() };
        let (state, way, begun) = (Arc::clone(&hostile.server), Arc::new(way), Instant::now());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if state.over.load(Ordering::Relaxed) {
                    break;
                }
                let (server, way) = (Arc::clone(&state), Arc::clone(&way));
                thread::spawn(move || {
                    let wait = Some(Duration::from_secs(1));
                    let _ = stream.set_write_timeout(wait).and_then(|()| stream.set_read_timeout(wait));
                    let _ = way(&mut Victim { stream, server, begun });
                });
            }
        });
        hostile
    }

    pub fn sent(&self) -> u64 {
        self.server.sent.load(Ordering::Relaxed)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.server.over.store(true, Ordering::Relaxed);
        // It waits for a client.
        let _ = TcpStream::connect(self.address);
    }
}

impl Victim {
    /// An error when the server has had its time, or said enough.
    fn go_on(&self) -> io::Result<()> {
        let State { over, sent, .. } = &*self.server;
        if over.load(Ordering::Relaxed) || sent.load(Ordering::Relaxed) > MOST_SENT || self.begun.elapsed() > LONGEST {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }

    pub fn says(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            self.go_on()?;
            match self.stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(length) => {
                    self.server.sent.fetch_add(length as u64, Ordering::Relaxed);
                    rest = &rest[length..];
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Says this again and again.
    pub fn repeats(&mut self, bytes: &[u8]) -> io::Result<()> {
        let many = bytes.repeat((256 << 10) / bytes.len() + 1);
        loop {
            self.says(&many)?;
        }
    }

    /// Says this once a second, a byte at a time.
    pub fn trickles(&mut self, bytes: &[u8]) -> io::Result<()> {
        for byte in bytes.iter().cycle() {
            self.says(std::slice::from_ref(byte))?;
            thread::sleep(Duration::from_secs(1));
        }
        Ok(())
    }

    /// Nothing that anybody understands.
    pub fn raves(&mut self) -> io::Result<()> {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut noise = Vec::with_capacity(64 << 10);
        while noise.len() < 64 << 10 {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            noise.extend(state.to_le_bytes());
        }
        self.repeats(&noise)
    }

    /// A certificate of 16 MiB, in records of the largest size, and then nothing but the records.
    pub fn floods_a_handshake(&mut self) -> io::Result<()> {
        let mut record = b"\x16\x03\x03\x40\x00\x0b\xff\xff\xff".to_vec();
        record.resize(5 + 0x4000, 0);
        self.says(&record)?;
        record[5..9].fill(0);
        self.repeats(&record)
    }

    /// Takes what is sent, for ever.
    pub fn listens(&mut self) -> io::Result<()> {
        loop {
            self.hears(1)?;
        }
    }

    /// Waits until at least that many bytes came; answers them, and what came with them.
    pub fn hears(&mut self, least: usize) -> io::Result<Vec<u8>> {
        let (mut heard, mut chunk) = (Vec::new(), [0; 16 << 10]);
        while heard.len() < least {
            self.go_on()?;
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(length) => heard.extend_from_slice(&chunk[..length]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(heard)
    }

    /// Waits until this was said.
    pub fn hears_of(&mut self, word: &[u8]) -> io::Result<Vec<u8>> {
        let mut heard = Vec::new();
        while !heard.windows(word.len()).any(|window| window == word) {
            heard.extend(self.hears(1)?);
            // Nobody asks this much.
            assert!(heard.len() < 1 << 20, "a question without end");
        }
        Ok(heard)
    }
}

/// How a program ended that met a hostile server.
#[derive(Debug)]
pub struct End {
    pub status: Option<i32>,
    pub said: String,
    pub resident_kib: u64,
    pub took: Duration,
}

/// Runs a program with a bound on its memory, and watches what it touches of that.
fn meet(command: &Command) -> End {
    let mut bounded = Command::new("prlimit");
    bounded.arg(format!("--as={ADDRESS_SPACE}")).arg("--core=0").arg("--").arg(command.get_program());
    bounded.args(command.get_args()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bounded.env(name, value),
            None => bounded.env_remove(name),
        };
    }
    let begun = Instant::now();
    let mut child = bounded.spawn().unwrap_or_else(|error| panic!("prlimit: {error}: install util-linux"));
    let (status_file, mut resident_kib) = (format!("/proc/{}/status", child.id()), 0);
    let status = loop {
        // Of a process that has ended nothing is told any more.
        if let Some(resident) = resident_peak(&status_file) {
            resident_kib = resident;
        }
        if let Some(status) = child.try_wait().expect("a child can be waited for") {
            break status;
        }
        if begun.elapsed() > PATIENCE {
            child.kill().expect("it can be killed");
        }
        thread::sleep(Duration::from_millis(2));
    };
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("messages are text");
    let said = said.chars().take(4000).collect();
    End { status: status.code(), said, resident_kib, took: begun.elapsed() }
}

fn resident_peak(status_file: &str) -> Option<u64> {
    let status = std::fs::read_to_string(status_file).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// A candidate that does not wait.
pub fn candidate(url: &str) -> Command {
    let mut command = leaderrun();
    command.args([
        "-n",
        "--lease",
        "30s",
        "--request-timeout",
        REQUEST_TIMEOUT,
        "--store",
        url,
        "db/main",
        "--",
        "true",
    ]);
    command
}

/// A question of an operator.
pub fn operator(url: &str, words: &[&str]) -> Command {
    let mut command = leaderctl();
    command.args(["--request-timeout", REQUEST_TIMEOUT, "--store", url]).args(words);
    command
}

/// A candidate and an operator meet such a server: both end in time, with one of these statuses and one clear line, and
/// take little memory. Answers the lines.
pub fn both_survive(hostile: &Hostile, url: &str, statuses: &[i32]) -> Vec<String> {
    let (candidate, operator) = (candidate(url), operator(url, &["status", "db/main"]));
    thread::scope(|scope| {
        let ends = [candidate, operator].map(|command| scope.spawn(move || meet(&command)));
        let place = hostile.address.to_string();
        ends.map(|end| assert_survived(hostile, &place, &end.join().expect("it is met"), statuses)).to_vec()
    })
}

/// The same of any one program.
pub fn survives(hostile: &Hostile, command: &Command, statuses: &[i32]) -> String {
    survives_elsewhere(hostile, &hostile.address.to_string(), command, statuses)
}

/// The same where the hostile server is not the one that is named in the end.
pub fn survives_elsewhere(hostile: &Hostile, place: &str, command: &Command, statuses: &[i32]) -> String {
    assert_survived(hostile, place, &meet(command), statuses)
}

fn assert_survived(hostile: &Hostile, place: &str, end: &End, statuses: &[i32]) -> String {
    assert!(end.took < PATIENCE, "{end:?}");
    assert!(end.status.is_some_and(|status| statuses.contains(&status)), "{end:?}");
    assert!(end.resident_kib < MOST_RESIDENT_KIB, "{end:?}, of {} bytes that were sent", hostile.sent());
    // What a candidate logs meanwhile ends with fields: that it tries again, and that it could not give back what it may
    // have been granted.
    let lines = end.said.lines().filter(|line| !line.contains(" shard=\"db/main\" owner="));
    let [line] = lines.collect::<Vec<_>>()[..] else { panic!("not one line: {end:?}") };
    assert!(line.contains(place) && line.len() < 1000, "{end:?}");
    line.to_owned()
}

/// Passes everything on between candidates and an honest server, until it has to flood: then it says things without end
/// in the server's place.
struct Injector {
    address: SocketAddr,
    floods: Arc<AtomicBool>,
    /// Something was passed on.
    passed: Arc<AtomicBool>,
    server: Arc<State>,
}

impl Injector {
    /// What it says begins with `opening`, and goes on with `filling`.
    fn before(target: SocketAddr, opening: &'static [u8], filling: &'static [u8]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().expect("it is bound");
        let injector = Self { address, floods: Arc::default(), passed: Arc::default(), server: Arc::default() };
        let (floods, passed) = (Arc::clone(&injector.floods), Arc::clone(&injector.passed));
        let state = Arc::clone(&injector.server);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if state.over.load(Ordering::Relaxed) {
                    break;
                }
                let (floods, passed, server) = (Arc::clone(&floods), Arc::clone(&passed), Arc::clone(&state));
                thread::spawn(move || {
                    let _ = client.set_write_timeout(Some(Duration::from_secs(1)));
                    let victim = Victim { stream: client, server, begun: Instant::now() };
                    let _ = relay(victim, target, [&floods, &passed], opening, filling);
                });
            }
        });
        injector
    }
}

impl Drop for Injector {
    fn drop(&mut self) {
        self.server.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn relay(
    mut victim: Victim,
    target: SocketAddr,
    [floods, passed]: [&AtomicBool; 2],
    opening: &[u8],
    filling: &[u8],
) -> io::Result<()> {
    let mut server = TcpStream::connect(target)?;
    server.set_read_timeout(Some(Duration::from_millis(20)))?;
    let (mut requests, mut to_server) = (victim.stream.try_clone()?, server.try_clone()?);
    thread::spawn(move || {
        let _ = io::copy(&mut requests, &mut to_server);
        let _ = to_server.shutdown(std::net::Shutdown::Both);
    });
    let mut chunk = [0; 16 << 10];
    while !floods.load(Ordering::Relaxed) {
        match server.read(&mut chunk) {
            Ok(0) => return victim.stream.shutdown(std::net::Shutdown::Both),
            Ok(length) => {
                victim.stream.write_all(&chunk[..length])?;
                passed.store(true, Ordering::Relaxed);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    let many = filling.repeat((64 << 10) / filling.len() + 1);
    let mut said = victim.says(opening);
    while said.is_ok() && floods.load(Ordering::Relaxed) {
        said = victim.says(&many);
    }
    let was_cut_off = said.is_err_and(|error| error.kind() != io::ErrorKind::QuotaExceeded);
    victim.server.cut_off.fetch_add(u64::from(was_cut_off), Ordering::Relaxed);
    victim.stream.shutdown(std::net::Shutdown::Both)
}

/// A standby whose connections say things without end in the middle of their lives cuts them off, takes little memory,
/// and leads in its turn once they are as they were.
pub fn a_standby_survives(server: &dyn super::server::Server, opening: &'static [u8], filling: &'static [u8]) {
    let flags = ["--lease", "6s", "--renew", "1s", "--retry", "500ms", "--kill-after", "1s", "--store"];
    let injector = Injector::before(server.address(), opening, filling);
    let mut fleet = super::fleet::Fleet::new();
    let with_url = |url: &str| flags.iter().map(|&flag| flag.to_owned()).chain([url.to_owned()]).collect::<Vec<_>>();
    let mut start = |owner: &str, address: SocketAddr| {
        let mut bounded = Command::new("prlimit");
        bounded.arg(format!("--as={ADDRESS_SPACE}")).arg("--core=0").arg("--").arg(leaderrun().get_program());
        bounded.env("LEADERRUN_CONFIG", "/dev/null");
        let flags = with_url(&server.url(address));
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        fleet.start_as(bounded, owner, &flags, &[], server.environment());
        if owner == "one" {
            fleet.leader();
        }
    };
    start("one", server.address());
    start("two", injector.address);
    let status_file = format!("/proc/{}/status", fleet.pid("two"));
    let resident = || resident_peak(&status_file).expect("it lives");
    super::fleet::wait_until("it was answered", || injector.passed.load(Ordering::Relaxed));
    injector.floods.store(true, Ordering::Relaxed);
    super::fleet::wait_until("it has cut them off", || injector.server.cut_off.load(Ordering::Relaxed) > 1);
    injector.floods.store(false, Ordering::Relaxed);
    assert!(resident() < MOST_RESIDENT_KIB, "{} KiB\n{}", resident(), fleet.logs());
    fleet.stop("one");
    fleet.leader_where(|life| life.owner == "two");
    assert!(resident() < MOST_RESIDENT_KIB, "{} KiB\n{}", resident(), fleet.logs());
    fleet.conclude();
}
