//! Candidates that have hooks, a standby command and restarts: one of a COMMAND that ends again and again, and in slots.
//!
//! The hazard: what strikes between two runs finds a lease without a tree, and keepers that are about to begin or to end.

use crate::DAEMON;
use crate::support::fleet::wait_until;
use crate::support::proxy::NetworkFault;
use crate::support::random::Random;
use crate::support::slots;
use crate::support::world::{LEASE, Story, TIMING, World};
use leaderrun::internals::time::BootInstant;
use nix::sys::signal::Signal;
use std::thread::sleep;

/// Also between two runs.
pub fn the_leader_is_killed_whatever_it_does(story: Story) {
    let seed = BootInstant::now().as_nanos();
    println!("seed {seed}");
    let mut random = Random::new(seed);
    let mut world = World::new(story, DAEMON);
    for _ in 0..2 {
        let leader = world.leader();
        sleep(random.millis(0, 2000));
        world.fleet.kill(&leader.owner);
        world.successor(&leader);
        world.start(&leader.owner);
    }
    world.conclude();
}

pub fn in_two_slots_a_leader_is_cut_off_and_then_everybody(story: Story) {
    let mut world = World::empty(story, &TIMING, DAEMON);
    world.crew(5);
    let [one, two] = world.leaders();
    world.set(&one.owner, NetworkFault::Partition);
    let next = slots::successor(&world.fleet, 1, &one);
    sleep(LEASE / 2);
    world.set(&one.owner, NetworkFault::Fair);
    sleep(LEASE / 2);
    let now = slots::leaders(&world.fleet);
    assert!(now[0].term >= next.term && now[1].term >= two.term, "{now:?}\n{}", world.fleet.logs());
    world.set_all(NetworkFault::Partition);
    sleep(LEASE);
    world.set_all(NetworkFault::Fair);
    // Between a look at one slot and a look at the other, a leader may change over.
    wait_until("both slots are led", || {
        let [one, two] = slots::leaders(&world.fleet);
        one.owner != two.owner
    });
    world.conclude();
}

pub fn in_two_slots_one_leader_is_killed_and_the_other_is_frozen(story: Story) {
    let mut world = World::empty(story, &TIMING, DAEMON);
    world.crew(5);
    let [one, two] = world.leaders();
    world.fleet.kill(&one.owner);
    world.fleet.signal(&two.owner, Signal::SIGSTOP);
    world.start(&one.owner);
    let next = [slots::successor(&world.fleet, 1, &one), slots::successor(&world.fleet, 2, &two)];
    sleep(LEASE / 2);
    world.fleet.signal(&two.owner, Signal::SIGCONT);
    sleep(LEASE / 2);
    let now = slots::leaders(&world.fleet);
    assert!(now[0].term >= next[0].term && now[1].term >= next[1].term, "{now:?}\n{}", world.fleet.logs());
    world.conclude();
}
