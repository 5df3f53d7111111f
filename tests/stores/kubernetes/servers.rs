//! Several API servers behind one address.

use super::*;
use crate::support::kubernetes::Member;
use crate::support::proxy::{NetworkFault, Proxy};
use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The address of several servers: each connection goes to the next one that takes it.
struct Balancer {
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
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
