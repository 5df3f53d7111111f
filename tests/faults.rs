//! Two never run at once, whatever happens to processes, connections, the store and the clocks: three candidates
//! on one DynamoDB table, a lease of 6 s, renewed every second, 1 s of grace.
#![cfg(feature = "dynamodb")]

mod support;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::Duration;
use support::dynamo::{REGION, client, free_port, millis_now, write_marker};
use support::fleet::{Fleet, Life, children_of, leaderctl, wait_until};
use support::proxy::{Proxy, Weather};
use tempfile::TempDir;

const LEASE: Duration = Duration::from_secs(6);
const TIMING: [&str; 10] = ["--lease", "6s", "--renew", "1s", "--grace", "1s", "--retry", "1s", "--drain", "1s"];
const NAMES: [&str; 3] = ["one", "two", "three"];
const PLAIN: &[&str] = &[];
const STUBBORN: &[&str] = &["ignore-term"];
const DAEMON: &[&str] = &["ignore-term", "daemon"];
const CREDENTIALS: [(&str, &str); 4] = [
    ("AWS_ACCESS_KEY_ID", "test"),
    ("AWS_SECRET_ACCESS_KEY", "test"),
    ("AWS_EC2_METADATA_DISABLED", "true"),
    ("AWS_CONFIG_FILE", "/dev/null"),
];

/// A dynoxide that can be stopped and started again with its data, on one port.
struct Server {
    data: TempDir,
    port: u16,
    child: Child,
}

impl Server {
    fn start() -> Self {
        let data = TempDir::new().unwrap();
        let port = free_port();
        let child = Self::spawn(&data, port);
        Self { data, port, child }
    }

    fn spawn(data: &TempDir, port: u16) -> Child {
        let program = std::env::var_os("LEADERRUN_DYNOXIDE").unwrap_or_else(|| "dynoxide".into());
        let mut child = Command::new(program)
            .args(["--host", "127.0.0.1", "--log", "quiet", "--port", &port.to_string(), "--db-path"])
            .arg(data.path().join("db"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("tests/run installs dynoxide");
        wait_until("dynoxide listens", || {
            assert!(child.try_wait().unwrap().is_none(), "dynoxide ended");
            TcpStream::connect(("127.0.0.1", port)).is_ok()
        });
        child
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    fn start_again(&mut self) {
        self.child = Self::spawn(&self.data, self.port);
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Three candidates, each with its own way to the server.
struct World {
    server: Server,
    fleet: Fleet,
    ways: Vec<Proxy>,
}

impl World {
    fn new(stamp_flags: &[&str]) -> Self {
        Self::with_wall_clocks(stamp_flags, [0; 3])
    }

    /// Each candidate's wall clock is so many seconds off.
    fn with_wall_clocks(stamp_flags: &[&str], shifts: [i64; 3]) -> Self {
        let server = Server::start();
        let status = leaderctl()
            .args(["--store", &url(server.address()), "store", "init"])
            .envs(CREDENTIALS)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success());
        // The table is an hour old, so nobody waits in case it was wiped.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let endpoint = format!("http://{}", server.address());
        runtime.block_on(write_marker(&client(&endpoint), "locks", millis_now() - 3_600_000));
        let mut world = Self { ways: NAMES.map(|_| Proxy::to(server.address())).to_vec(), server, fleet: Fleet::new() };
        for ((name, way), shift) in NAMES.iter().zip(&world.ways).zip(shifts) {
            let (store, shift) = (url(way.address), shift.to_string());
            let flags = [&TIMING, &["--store", &store][..]].concat();
            let mut environment = CREDENTIALS.to_vec();
            if shift != "0" {
                environment.extend([("LD_PRELOAD", wall_clock()), ("WALLCLOCK_SHIFT", &shift)]);
            }
            world.fleet.start(name, &flags, stamp_flags, &environment);
        }
        world
    }

    fn set(&self, owner: &str, weather: Weather) {
        let index = NAMES.iter().position(|name| *name == owner).expect("one of ours");
        self.ways[index].set(weather);
    }

    fn set_all(&self, weather: Weather) {
        for way in &self.ways {
            way.set(weather);
        }
    }

    /// Another tree took over from this one.
    fn successor(&self, leader: &Life) -> Life {
        self.fleet.leader_where(|life| life.term > leader.term)
    }

    /// The same tree is still the only one that there ever was.
    fn assert_undisturbed(&self, leader: &Life) {
        let now = self.fleet.leader();
        let lives = self.fleet.lives();
        assert!(now.term == leader.term && lives.len() == 1, "{lives:?}\n{}", self.fleet.logs());
    }
}

fn url(server: SocketAddr) -> String {
    format!("dynamodb://locks?region={REGION}&endpoint=http://{server}")
}

/// A library to preload that shifts the wall clock and no other.
fn wall_clock() -> &'static str {
    static LIBRARY: OnceLock<(TempDir, String)> = OnceLock::new();
    let (_, path) = LIBRARY.get_or_init(|| {
        let directory = TempDir::new().unwrap();
        let library = directory.path().join("wallclock.so");
        let source: PathBuf = [env!("CARGO_MANIFEST_DIR"), "tests/support/wallclock.c"].iter().collect();
        let status = Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source).status();
        assert!(status.expect("a C compiler").success());
        let path = library.to_str().unwrap().to_owned();
        (directory, path)
    });
    path
}

fn leader_is_killed(stamp_flags: &[&str]) {
    let mut world = World::new(stamp_flags);
    let leader = world.fleet.leader();
    world.fleet.kill(&leader.owner);
    world.successor(&leader);
    // Nobody had to wait for the lease to end.
    let logs = world.fleet.logs();
    assert!(logs.contains("released after it was killed"), "{logs}");
    world.fleet.conclude();
}

#[test]
fn the_leader_is_killed() {
    leader_is_killed(PLAIN);
}

#[test]
fn the_leader_of_a_stubborn_command_is_killed() {
    leader_is_killed(STUBBORN);
}

#[test]
fn the_leader_of_a_daemon_is_killed() {
    leader_is_killed(DAEMON);
}

fn leader_is_frozen_for_two_leases(stamp_flags: &[&str]) {
    let world = World::new(stamp_flags);
    let leader = world.fleet.leader();
    world.fleet.signal(&leader.owner, Signal::SIGSTOP);
    sleep(2 * LEASE);
    let next = world.successor(&leader);
    world.fleet.signal(&leader.owner, Signal::SIGCONT);
    // The one that woke up has to see that it lost, and to leave the other alone.
    sleep(LEASE / 2);
    assert_eq!(world.fleet.leader().term, next.term);
    world.fleet.conclude();
}

#[test]
fn the_leader_is_frozen_for_two_leases() {
    leader_is_frozen_for_two_leases(PLAIN);
}

#[test]
fn the_leader_of_a_stubborn_command_is_frozen_for_two_leases() {
    leader_is_frozen_for_two_leases(STUBBORN);
}

#[test]
fn the_leader_of_a_daemon_is_frozen_for_two_leases() {
    leader_is_frozen_for_two_leases(DAEMON);
}

fn leader_is_cut_off_for_three_leases(stamp_flags: &[&str]) {
    let world = World::new(stamp_flags);
    let leader = world.fleet.leader();
    world.set(&leader.owner, Weather::BlackHole);
    sleep(3 * LEASE);
    let next = world.successor(&leader);
    world.set(&leader.owner, Weather::Fair);
    sleep(LEASE / 2);
    assert_eq!(world.fleet.leader().term, next.term);
    world.fleet.conclude();
}

#[test]
fn the_leader_is_cut_off_for_three_leases() {
    leader_is_cut_off_for_three_leases(PLAIN);
}

#[test]
fn the_leader_of_a_stubborn_command_is_cut_off_for_three_leases() {
    leader_is_cut_off_for_three_leases(STUBBORN);
}

#[test]
fn the_leader_of_a_daemon_is_cut_off_for_three_leases() {
    leader_is_cut_off_for_three_leases(DAEMON);
}

/// Freezes those of (candidate, backstop, guard) that `frozen` names, for two leases.
fn processes_are_frozen(frozen: [bool; 3]) {
    let world = World::new(DAEMON);
    let leader = world.fleet.leader();
    let candidate = world.fleet.pid(&leader.owner);
    let backstop = Pid::from_raw(children_of(candidate.as_raw())[0]);
    let guard = Pid::from_raw(children_of(backstop.as_raw())[0]);
    let chosen = || [candidate, backstop, guard].into_iter().zip(frozen).filter(|(_, frozen)| *frozen);
    for (process, _) in chosen() {
        kill(process, Signal::SIGSTOP).unwrap();
    }
    sleep(2 * LEASE);
    for (process, _) in chosen() {
        let _ = kill(process, Signal::SIGCONT);
    }
    // A frozen guard is noticed at the deadline at the latest; a frozen backstop alone does no harm.
    if frozen[0] {
        world.successor(&leader);
    }
    world.fleet.conclude();
}

#[test]
fn candidate_and_guard_are_frozen() {
    processes_are_frozen([true, false, true]);
}

#[test]
fn candidate_and_backstop_are_frozen() {
    processes_are_frozen([true, true, false]);
}

#[test]
fn the_guard_is_frozen_while_the_leader_is_cut_off() {
    let world = World::new(DAEMON);
    let leader = world.fleet.leader();
    let backstop = children_of(world.fleet.pid(&leader.owner).as_raw())[0];
    let guard = Pid::from_raw(children_of(backstop)[0]);
    kill(guard, Signal::SIGSTOP).unwrap();
    kill(Pid::from_raw(backstop), Signal::SIGSTOP).unwrap();
    world.set(&leader.owner, Weather::BlackHole);
    world.successor(&leader);
    world.fleet.conclude();
}

#[test]
fn the_server_is_away_for_half_a_lease() {
    let mut world = World::new(PLAIN);
    let leader = world.fleet.leader();
    world.server.kill();
    // Starting takes its time as well: until it answers again it is half a lease.
    sleep(LEASE * 9 / 20);
    world.server.start_again();
    sleep(LEASE);
    world.assert_undisturbed(&leader);
    world.fleet.conclude();
}

#[test]
fn the_server_is_restarted() {
    let mut world = World::new(PLAIN);
    let leader = world.fleet.leader();
    for _ in 0..3 {
        world.server.kill();
        world.server.start_again();
        sleep(LEASE / 3);
    }
    world.assert_undisturbed(&leader);
    world.fleet.conclude();
}

#[test]
fn the_server_is_away_for_two_leases() {
    let mut world = World::new(DAEMON);
    let leader = world.fleet.leader();
    world.server.kill();
    sleep(2 * LEASE);
    world.server.start_again();
    world.successor(&leader);
    world.fleet.conclude();
}

/// Each request takes so long for two leases.
fn every_answer_is_slow(latency: Duration) -> (World, Life) {
    let world = World::new(PLAIN);
    let leader = world.fleet.leader();
    world.set_all(Weather::Slow(latency));
    sleep(2 * LEASE);
    world.set_all(Weather::Fair);
    sleep(LEASE / 2);
    (world, leader)
}

#[test]
fn every_answer_takes_three_seconds() {
    // 0.38 s more would cost the lease, so on a busy machine it may be lost; what counts is that two never run.
    // (That three seconds cost nothing by themselves is shown by the election's own tests, where no machine is slow.)
    let (world, _) = every_answer_is_slow(Duration::from_secs(3));
    world.fleet.conclude();
}

#[test]
fn answers_that_take_two_seconds_disturb_nothing() {
    let (world, leader) = every_answer_is_slow(Duration::from_secs(2));
    world.assert_undisturbed(&leader);
    world.fleet.conclude();
}

#[test]
fn connections_are_reset_for_half_a_lease() {
    let world = World::new(PLAIN);
    let leader = world.fleet.leader();
    world.set_all(Weather::Storm);
    sleep(LEASE / 2);
    world.set_all(Weather::Fair);
    sleep(LEASE);
    world.assert_undisturbed(&leader);
    world.fleet.conclude();
}

#[test]
fn wall_clocks_are_an_hour_off_both_ways() {
    let mut world = World::with_wall_clocks(PLAIN, [3600, -3600, 0]);
    let mut leader = world.fleet.leader();
    // Each of the three is killed once as the leader, and the next one takes over, whose clock differs.
    for _ in 0..2 {
        world.fleet.kill(&leader.owner);
        leader = world.successor(&leader);
    }
    world.fleet.conclude();
}

#[test]
fn the_table_is_wiped_while_somebody_leads() {
    let world = World::new(DAEMON);
    let leader = world.fleet.leader();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = client(&format!("http://{}", world.server.address()));
    runtime.block_on(async {
        client.delete_table().table_name("locks").send().await.unwrap();
    });
    let init = || {
        let mut init = leaderctl();
        init.args(["--store", &url(world.server.address()), "store", "init"]).envs(CREDENTIALS).stdout(Stdio::null());
        init.stderr(Stdio::null()).status().unwrap().success()
    };
    wait_until("the table is made again", init);
    world.successor(&leader);
    world.fleet.conclude();
}

#[test]
fn the_lock_item_is_deleted_while_somebody_leads() {
    let world = World::new(DAEMON);
    let leader = world.fleet.leader();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = client(&format!("http://{}", world.server.address()));
    runtime.block_on(async {
        use aws_sdk_dynamodb::types::AttributeValue::S;
        let request = client.delete_item().table_name("locks").key("pk", S("SHARD#shard".into()));
        request.key("sk", S("LOCK".into())).send().await.unwrap();
    });
    world.successor(&leader);
    world.fleet.conclude();
}
