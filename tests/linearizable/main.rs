//! Every store against one model: random histories of candidates on a real server, whose network loses, delays and
//! holds what they say, are linearizable.
//!
//! A history has a shard of its own, two to four candidates, and a dozen calls of each: claims, renewals with and
//! without orders, looks, releases, revocations, and notes that are read and replaced. Each is recorded with the instants
//! of its call and of its answer, and the checker looks for one order in which a model of one shard gives all of these
//! answers. What the model is, and what it may conclude from time, stands in `lease` and `page`.
//!
//! `Leases::observe` may be a little behind by its contract. These servers are alone, and there it never is: so here it
//! counts like any other answer.

#[macro_use]
#[path = "../support/mod.rs"]
mod support;
mod candidate;
mod checker;
mod history;
mod known;
mod lease;
mod page;
mod stage;

use lease::Leeway;
use stage::Stage;
use std::time::Duration;

/// On `file:` the kernel keeps the lease, and its holder writes its name afterwards. On etcd a claim has an etcd lease of
/// its own, which its client revokes unless the claim is known to have succeeded.
fn leeway(store: &str) -> Leeway {
    Leeway { is_of_kernel: store == "file", gives_back: store == "etcd" }
}

fn asked<T: std::str::FromStr>(name: &str) -> Option<T> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// For so many minutes, or as long as `TEST_LINEARIZABLE_MINUTES` says.
fn hold(name: &'static str, start: Option<fn() -> Box<dyn support::server::Server>>, minutes: f64) {
    let minutes = asked("TEST_LINEARIZABLE_MINUTES").unwrap_or(minutes);
    let seed = asked("TEST_LINEARIZABLE_SEED").unwrap_or_else(leaderrun::internals::time::wall_clock_millis);
    Stage { name, leeway: leeway(name), start }.run(seed, Duration::from_secs_f64(minutes * 60.0));
}

macro_rules! histories {
    ($store:ident, $start:expr, [$($test:ident $minutes:literal $(#[$ignored:meta])?),*]) => {
        mod $store {
            $(
                #[test]
                $(#[$ignored])?
                fn $test() {
                    super::hold(stringify!($store), $start, $minutes);
                }
            )*
        }
    };
}

macro_rules! on_a_server {
    ($store:ident, $start:expr, $tests:tt) => {
        histories!($store, Some(|| Box::new($start)), $tests);
    };
}

histories!(file, None, [
    every_history_is_linearizable 0.2,
    every_history_of_an_hour_is_linearizable 60.0 #[ignore = "an hour"]
]);
every_store!(on_a_server:
    every_history_is_linearizable 0.2,
    every_history_of_an_hour_is_linearizable 60.0 #[ignore = "an hour"]
);
