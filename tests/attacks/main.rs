//! Attacks on the killing of a tree: programs whose only purpose is to outlive their leadership.
//!
//! The hazard is on both sides. A guard that can be outrun lets two trees run at once; a test that lets go of such a
//! program takes the machine along. So every candidate runs on a host of its own, a PID namespace that ends as a
//! whole (`programs/host.c`), and every attack bounds itself: in processes, and in time (`programs/life.h`).
//!
//! In every story: 0 ms between the last sign of life of the first tree and the first one of the second, nothing left of
//! the first, and the second starts.
#![cfg(feature = "redis")]

mod host;
mod leaves;
mod life;
mod story;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;
use story::{Attack, User, tell};

/// Makes tests of attacks: in a module of each method of killing that has to stand them, one for each event.
macro_rules! attacks {
    ($group:ident, [$($method:ident),*], $events:tt, $attacks:tt) => {
        mod $group {
            $(attacks!(@method $method, $events, $attacks);)*
        }
    };
    (@method $method:ident, [$($event:ident),*], $attacks:tt) => {
        mod $method {
            $(attacks!(@event $method, $event, $attacks);)*
        }
    };
    (
        @event $method:ident, $event:ident,
        { $($(#[$attribute:meta])* $attack:ident: $is:expr),* $(,)? }
    ) => {
        mod $event {
            use crate::*;
            $(
                $(#[$attribute])*
                #[test]
                fn $attack() {
                    tell($is, stringify!($method), stringify!($event));
                }
            )*
        }
    };
}

const DAEMON: Attack = Attack::of("quiet", &["deaf", "daemon"]);

// An orderly stop ends with the same kill.
attacks!(quiet, [walk, cgroup, pidns], [is_cut_off], {
    a_quiet_daemon: DAEMON,
    a_thread_outlives_main_in_command: Attack::of("thread_outlives_main", &[]),
    a_thread_outlives_main_in_a_deaf_command: Attack::of("thread_outlives_main", &["deaf"]),
    a_thread_outlives_main_in_a_daemon: Attack::of("thread_outlives_main", &["daemon"]),
    a_thread_outlives_main_in_a_deaf_daemon: Attack::of("thread_outlives_main", &["deaf", "daemon"]),
    a_proc_of_another_pid_namespace: DAEMON.on(&["proc=foreign"]).refusable(),
    processes_that_belong_to_root_under_hidepid: Attack::of("quiet", &["deaf", "daemon", "hidden"])
        .by(User::Somebody)
        .on(&["proc=hidden"])
        .refusable(),
    an_unreadable_program_under_hidepid: Attack::of("unreadable", &["deaf", "daemon"])
        .by(User::Somebody)
        .on(&["proc=hidden"])
        .refusable(),
    no_proc_any_more: Attack::of("unmounts", &["deaf", "detach"]),
    an_empty_proc: Attack::of("unmounts", &["deaf", "cover"]),
    a_proc_without_the_daemon: Attack::of("unmounts", &["deaf", "hide"]),
    a_proc_without_the_guard: Attack::of("unmounts", &["deaf", "blind"]),
    namespaces_of_its_own: Attack::of("namespaces", &["deaf", "daemon"]),
    namespaces_of_its_own_without_root: Attack::of("namespaces", &["deaf", "daemon"]).by(User::Somebody),
    everybody_of_its_user_is_stopped: Attack::of("signals", &["deaf", "daemon", "freeze"]).by(User::RootAndSomebody),
    everybody_of_its_user_is_killed: Attack::of("signals", &["deaf", "kill"]).by(User::Somebody),
    a_chain_of_300: Attack::of("crowd", &["deaf", "chain", "300"]),
    a_crowd_of_200_daemons: Attack::of("crowd", &["deaf", "daemons", "200"]),
    a_parent_held_in_vfork: Attack::of("vforks", &["deaf", "daemon"]),
    a_process_held_by_a_tracer: Attack::of("traces", &["deaf"]),
    a_name_that_reads_as_an_ended_process: Attack::of("quiet", &["deaf", "daemon", "renamed"]),
});

attacks!(quiet_and_stopped, [walk, cgroup, pidns], [is_stopped], {
    a_thread_outlives_main_in_a_deaf_daemon: Attack::of("thread_outlives_main", &["deaf", "daemon"]),
    a_parent_held_in_vfork: Attack::of("vforks", &["deaf", "daemon"]),
    everybody_of_its_user_is_stopped: Attack::of("signals", &["deaf", "daemon", "freeze"]).by(User::RootAndSomebody),
});

// What has no ancestor of ours any more no walk over /proc finds: it is the kernel's to kill.
attacks!(strangers, [cgroup, pidns], [is_stopped, is_cut_off], {
    a_process_of_another_pid_namespace: Attack::of("enters", &["deaf", "/proc/2/ns/pid"]).on(&["other"]),
});

// The kernel kills a cgroup in one step, whatever is in it: `bombs_of_a_user` shows it.
attacks!(bombs, [walk, pidns], [is_cut_off], {
    sixty_four_that_start_each_other_again: Attack::of("bomb", &["deaf", "slots", "64"]).bomb(),
});

// Orphans end as fast as their reaper finds them among thousands that live. A race against the walk is none where the
// kernel kills.
attacks!(crowds, [walk], [is_cut_off], {
    thousands_of_daemons_among_orphans_that_end_at_once:
        Attack::of("crowd", &["deaf", "daemons", "3000", "mayflies", "4"]).bomb(),
});

// What nobody reaps hides what lives, which is another process by the time that a walk gets to it.
attacks!(frozen, [walk], [is_cut_off_with_a_frozen_guard, is_cut_off_with_frozen_helpers], {
    sixteen_that_are_others_every_few_milliseconds: Attack::of("bomb", &["deaf", "hop", "16", "slow"]).bomb(),
});

attacks!(bombs_of_a_user, [walk, cgroup, pidns], [is_cut_off], {
    every_process_in_a_session_of_its_own: Attack::of("bomb", &["deaf", "setsid"]).by(User::RootAndSomebody).bomb(),
});

attacks!(more_bombs, [walk], [is_stopped], {
    sixteen_that_start_each_other_again: Attack::of("bomb", &["deaf", "slots", "16", "busy"]).bomb(),
    sixteen_that_are_others_every_moment: Attack::of("bomb", &["deaf", "hop", "16"]).bomb(),
    a_classic_bomb_of_a_user: Attack::of("bomb", &["deaf", "classic"]).by(User::RootAndSomebody).bomb(),
    a_bomb_of_a_user: Attack::of("bomb", &["deaf", "setsid"]).by(User::RootAndSomebody).bomb(),
    #[ignore = "half a minute where the guard may have no better priority than the bomb"]
    a_bomb_beside_a_guard_of_the_same_user: Attack::of("bomb", &["deaf", "setsid"])
        .by(User::Somebody)
        .on(&["nproc=600"])
        .bomb(),
    #[ignore = "to give it the priority wants CAP_SYS_RESOURCE"]
    a_bomb_beside_a_guard_of_the_same_user_that_may_have_priority: Attack::of("bomb", &["deaf", "setsid"])
        .by(User::Somebody)
        .on(&["nproc=600", "rtprio=10"])
        .bomb(),
});

// COMMAND dies with its guard. What it forked is beyond the walk and the cgroup then, and beyond nothing else.
attacks!(command, [walk, cgroup, pidns], [all_of_ours_are_killed], {
    a_deaf_command: Attack::of("quiet", &["deaf"]),
});

// One usual command of an operator.
attacks!(named, [walk, cgroup, pidns], [it_is_killed_by_name], {
    a_quiet_daemon: DAEMON,
});

// It has the processor to itself, except for who outranks it.
attacks!(hogs, [walk, pidns], [is_cut_off], {
    a_real_time_command_on_the_only_processor:
        Attack::of("hog", &["deaf", "fifo", "50", "busy", "1"]).on(&["cpu=1"]).alone(),
});

// Whoever leads on files loses no lease: only a candidate that runs hears that it shall stop.
attacks!(hogs_that_are_stopped, [walk], [is_stopped], {
    a_real_time_command_on_the_only_processor:
        Attack::of("hog", &["deaf", "fifo", "50", "busy", "1"]).on(&["cpu=1"]).alone(),
});

// Everybody waits for everybody: each of them gets a few hundredths of a processor, and a guard without priority is one of
// them. For a hundredth or less leaderrun(7) promises nothing.
attacks!(throttled, [walk], [is_cut_off], {
    busy_12_under_a_quota_of_50_ms: Attack::of("hog", &["deaf", "apart", "busy", "12"])
        .by(User::Somebody)
        .on(&["quota=50"])
        .under(Duration::from_secs(30))
        .alone(),
    busy_20_on_the_only_processor: Attack::of("hog", &["deaf", "busy", "20"])
        .by(User::Somebody)
        .on(&["cpu=1"])
        .under(Duration::from_secs(30))
        .alone(),
});

attacks!(service, [walk, cgroup, pidns], [the_service_is_killed], {
    a_quiet_daemon: DAEMON,
});

// Nobody of ours is left to kill anything.
attacks!(alone, [pidns], [all_of_ours_are_killed, all_of_ours_are_frozen], {
    a_quiet_daemon: DAEMON,
    a_thread_outlives_main_in_a_deaf_daemon: Attack::of("thread_outlives_main", &["deaf", "daemon"]),
    a_crowd_of_200_daemons: Attack::of("crowd", &["deaf", "daemons", "200"]),
});

attacks!(hostile, [pidns], [is_stopped, is_cut_off], {
    everybody_of_our_user_is_killed_by_a_daemon: Attack::of("signals", &["deaf", "daemon", "kill"]).by(User::Somebody),
    everybody_of_our_user_is_stopped: Attack::of("signals", &["deaf", "daemon", "freeze"]).by(User::Somebody),
});
