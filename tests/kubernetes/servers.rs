//! Several API servers behind one address, and one that is too busy.

use super::*;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use support::fleet::Fleet;
use support::kubernetes::Member;
use support::proxy::{NetworkFault, Proxy};

/// The address of several servers: each connection goes to the next one that takes it.
struct Balancer {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Which server has the last connection.
    last: AtomicUsize,
}

impl Balancer {
    fn before(servers: Vec<SocketAddr>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().unwrap();
        let state = Arc::<State>::default();
        let shared = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let first = shared.last.load(Ordering::Relaxed) + 1;
                let order = (first..first + servers.len()).map(|index| index % servers.len());
                let taken = order.into_iter().find_map(|index| {
                    let server = TcpStream::connect_timeout(&servers[index], Duration::from_millis(500)).ok()?;
                    Some((index, server))
                });
                if let Some((index, server)) = taken {
                    shared.last.store(index, Ordering::Relaxed);
                    pass_on(&client, &server);
                }
            }
        });
        Self { address, state }
    }

    fn last(&self) -> usize {
        self.state.last.load(Ordering::Relaxed)
    }
}

/// Until one of them ends.
fn pass_on(client: &TcpStream, server: &TcpStream) {
    for (from, to) in [(client, server), (server, client)] {
        let mut from = from.try_clone().expect("a descriptor");
        let mut to = to.try_clone().expect("a descriptor");
        thread::spawn(move || {
            let _ = io::copy(&mut from, &mut to);
            let _ = to.shutdown(Shutdown::Both);
            let _ = from.shutdown(Shutdown::Both);
        });
    }
}

#[derive(Clone, Copy, Debug)]
enum Fault {
    Killed,
    Frozen,
    CutOff,
}

/// The server that the leader is connected to suffers, for longer than a leader may be without any.
fn one_of_three(fault: Fault) {
    const OUTAGE: Duration = Duration::from_secs(20);
    let times = std::env::var("TEST_CLUSTERS_TIMES").map_or(1, |times| times.parse().expect("a number"));
    let mut server = Server::start();
    server.grow_old();
    let mut others = [server.api.another(), server.api.another()];
    let addresses = [server.address(), others[0].address(), others[1].address()];
    let ways = addresses.map(Proxy::to);
    let mut fleet = Fleet::titled("kubernetes, three API servers", "one of them fails");
    let balancers: BTreeMap<String, Balancer> = ["one", "two", "three"]
        .map(|owner| (owner.to_owned(), Balancer::before(ways.iter().map(|way| way.address).collect())))
        .into();
    for (owner, balancer) in &balancers {
        let flags = ["--stop-timeout", "1s", "--store", &server.url(balancer.address)];
        fleet.start(owner, &flags, &["ignore-term", "daemon"], &[]);
    }
    let mut struck_by = |index: usize, act: &mut dyn FnMut(&mut Member)| match index.checked_sub(1) {
        None => act(&mut server.own().member),
        Some(other) => act(&mut others[other]),
    };
    let mut lost = 0;
    for _ in 0..times {
        let leader = fleet.leader();
        let struck = balancers[&leader.owner].last();
        match fault {
            Fault::Killed => struck_by(struck, &mut Member::kill),
            Fault::Frozen => struck_by(struck, &mut |member| member.signal(Signal::SIGSTOP)),
            Fault::CutOff => ways[struck].set(NetworkFault::Partition),
        }
        thread::sleep(OUTAGE);
        lost += u32::from(fleet.leader().term != leader.term);
        match fault {
            Fault::Killed => struck_by(struck, &mut Member::start_again),
            Fault::Frozen => struck_by(struck, &mut |member| member.signal(Signal::SIGCONT)),
            Fault::CutOff => ways[struck].set(NetworkFault::Fair),
        }
        thread::sleep(Duration::from_secs(2));
    }
    println!("one of three is {fault:?} {times} times: {lost} leaderships lost");
    let logs = fleet.logs();
    fleet.conclude();
    assert_eq!(lost, 0, "{logs}");
}

#[test]
fn one_of_three_is_killed_and_the_leader_goes_on() {
    one_of_three(Fault::Killed);
}

#[test]
fn one_of_three_is_frozen_and_the_leader_goes_on() {
    one_of_three(Fault::Frozen);
}

#[test]
fn one_of_three_is_cut_off_and_the_leader_goes_on() {
    one_of_three(Fault::CutOff);
}

/// Before a server: turns requests away while it is busy, and speaks TLS by openssl(1).
struct Gate {
    address: SocketAddr,
    is_busy: Arc<AtomicBool>,
    /// The first lines of the requests.
    turned_away: Arc<Mutex<Vec<String>>>,
}

impl Gate {
    fn before(server: SocketAddr, answer: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let address = listener.local_addr().unwrap();
        let is_busy = Arc::<AtomicBool>::default();
        let turned_away = Arc::<Mutex<Vec<String>>>::default();
        let gate = Self { address, is_busy: Arc::clone(&is_busy), turned_away: Arc::clone(&turned_away) };
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (is_busy, turned_away) = (Arc::clone(&is_busy), Arc::clone(&turned_away));
                thread::spawn(move || serve(client, server, answer, &is_busy, &turned_away));
            }
        });
        gate
    }
}

/// One request a connection.
fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    answer: &str,
    is_busy: &AtomicBool,
    turned_away: &Mutex<Vec<String>>,
) {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        if !matches!(client.read(&mut byte), Ok(1)) {
            return;
        }
        head.push(byte[0]);
    }
    if is_busy.load(Ordering::Relaxed) {
        let line = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
        turned_away.lock().expect("nobody panicked").push(String::from_utf8_lossy(line).into_owned());
        let _ = client.write_all(answer.as_bytes());
        return;
    }
    let head = String::from_utf8(head).expect("a head is text").replacen("\r\n", "\r\nConnection: close\r\n", 1);
    let mut tls = Command::new("openssl");
    tls.args(["s_client", "-quiet", "-no_ign_eof", "-connect", &server.to_string()]);
    tls.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut tls = tls.spawn().expect("openssl is missing: install the package openssl");
    let mut to = tls.stdin.take().expect("it is piped");
    let mut from = tls.stdout.take().expect("it is piped");
    let mut more = client.try_clone().expect("a descriptor");
    thread::spawn(move || {
        if to.write_all(head.as_bytes()).is_ok() {
            copy(&mut more, &mut to);
        }
    });
    copy(&mut from, &mut client);
    let _ = client.shutdown(Shutdown::Both);
    let _ = tls.wait();
}

/// Each piece as it comes. [`io::copy`] would leave it to the kernel, which waits for more from a pipe.
fn copy(from: &mut impl Read, to: &mut impl Write) {
    let mut piece = [0; 8192];
    while let Ok(length @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..length]).is_err() {
            return;
        }
    }
}

const TOO_MANY: &str =
    "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
const IN_AN_HOUR: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 3600\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

/// What `--store` takes for the server behind the gate.
fn url_through(gate: &Gate, server: &Server) -> String {
    let user = format!("token: {}", server.token("busy"));
    let kubeconfig = server.kubeconfig_of(&format!("http://{}", gate.address), &user, "busy");
    format!("kubernetes:?kubeconfig={}", kubeconfig.display())
}

/// How often each request comes that a look needs, if it may take four seconds and the server is busy all the time.
async fn requests_of_a_look(answer: &'static str) -> BTreeMap<String, usize> {
    let server = server();
    let gate = Gate::before(server.address(), answer);
    let location = Location::from_url(&url_through(&gate, &server)).expect("the URL is right");
    let store = location.open(Duration::from_secs(4)).await.expect("the configuration is right");
    let shard = "shard".parse().expect("a shard");
    store.observe(&shard).await.expect("nobody is busy");
    gate.is_busy.store(true, Ordering::Relaxed);
    store.observe(&shard).await.expect_err("it is busy");
    let mut times = BTreeMap::new();
    for request in gate.turned_away.lock().expect("nobody panicked").drain(..) {
        *times.entry(request).or_default() += 1;
    }
    times
}

#[tokio::test]
async fn a_request_that_is_turned_away_is_sent_again_when_the_server_says() {
    let times = requests_of_a_look(TOO_MANY).await;
    assert!(!times.is_empty() && times.values().all(|times| (2..=4).contains(times)), "{times:?}");
}

#[tokio::test]
async fn a_request_for_which_the_server_has_no_time_is_sent_once() {
    let times = requests_of_a_look(IN_AN_HOUR).await;
    assert!(!times.is_empty() && times.values().all(|times| *times == 1), "{times:?}");
}

/// A wait beyond what the leader has left must not cost it the lease.
#[test]
fn while_a_server_says_to_wait_for_an_hour_the_leader_goes_on() {
    let server = server();
    let gate = Gate::before(server.address(), IN_AN_HOUR);
    let url = url_through(&gate, &server);
    let mut fleet = Fleet::new();
    // Such an outage must disturb nothing.
    fleet.start("one", &["--renew", "2s", "--store", &url], &[], &[]);
    let leader = fleet.leader();
    for _ in 0..2 {
        gate.turned_away.lock().expect("nobody panicked").clear();
        gate.is_busy.store(true, Ordering::Relaxed);
        thread::sleep(Duration::from_secs(6));
        gate.is_busy.store(false, Ordering::Relaxed);
        assert!(!gate.turned_away.lock().expect("nobody panicked").is_empty(), "it was not asked");
        thread::sleep(LEASE);
        assert_eq!((fleet.leader().term, fleet.lives().len()), (leader.term, 1), "{}", fleet.logs());
    }
    fleet.conclude();
}
