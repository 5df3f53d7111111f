//! The metrics by their names, helps and labels.
//!
//! The hazard: an alert never sees the first increase of a counter that is missing until it counts. So every counter is
//! there from the beginning, with each of its labels.

use crate::election::Reason;
use crate::store::ErrorKind;
use prometheus::core::Collector;
use prometheus::{
    Gauge, GaugeVec, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, IntGaugeVec, Opts, Registry,
};

/// Seconds. A nearby store answers within the first few of them, an overloaded one within the last.
const LATENCIES: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0];

pub(super) struct Series {
    pub(super) registry: Registry,
    pub(super) is_leader: IntGauge,
    pub(super) term: IntGauge,
    pub(super) slot: IntGauge,
    pub(super) starts: IntCounter,
    pub(super) ends: IntCounterVec,
    pub(super) renewals: Histogram,
    pub(super) renew_failures: IntCounterVec,
    pub(super) deadline: GaugeVec,
    pub(super) observed: IntGaugeVec,
    pub(super) restarts: IntCounter,
    pub(super) silence: Gauge,
    pub(super) late: Gauge,
    pub(super) beyond: IntGauge,
}

const SOUND: &str = "a sound name that is registered once";

impl Series {
    pub(super) fn new(shard: &str) -> Self {
        let labels = [("shard".to_owned(), shard.to_owned())].into();
        let registry = Registry::new_custom(Some("leaderrun".to_owned()), Some(labels)).expect(SOUND);
        let gauge = |name, help| add(&registry, IntGauge::new(name, help));
        let seconds = |name, help| add(&registry, Gauge::new(name, help));
        let counter = |name, help| add(&registry, IntCounter::new(name, help));
        let counters = |name, help, label, values: &[&str]| {
            let counters = add(&registry, IntCounterVec::new(Opts::new(name, help), &[label]));
            for value in values {
                counters.with_label_values(&[value]).reset();
            }
            counters
        };
        let latency = HistogramOpts::new("renew_seconds", "Time from sending a renewal to the store's answer.");
        let deadline =
            Opts::new("deadline_seconds", "Time until COMMAND is stopped or killed if the lease is not renewed.");
        let observed = Opts::new("observed_leader_term", "The term of the leader that a standby waits for.");
        let build = Opts::new("build_info", "1, with the version and the commit of this leaderrun, if it is known.");
        // As Prometheus' own exporters have it.
        let build = add(&registry, IntGaugeVec::new(build, &["version", "commit"]));
        let commit = option_env!("SOURCE_COMMIT").unwrap_or_default();
        build.with_label_values(&[env!("CARGO_PKG_VERSION"), commit]).set(1);
        Self {
            is_leader: gauge("is_leader", "1 while COMMAND runs and the lease is not lost, else 0."),
            term: gauge("term", "The term of this candidate's leadership, 0 while it has none."),
            slot: gauge("slot", "The slot in which this candidate leads, 0 while it leads in none."),
            starts: counter("command_starts_total", "Starts of COMMAND."),
            ends: counters(
                "leadership_ends_total",
                "Ends of leaderships, by their reasons.",
                "reason",
                &Reason::ALL.iter().map(Reason::into_str).collect::<Vec<_>>(),
            ),
            renewals: add(&registry, Histogram::with_opts(latency.buckets(LATENCIES.to_vec()))),
            renew_failures: counters(
                "renew_failures_total",
                "Renewals that failed, by whether they were applied.",
                "conclusion",
                &ErrorKind::ALL.iter().map(ErrorKind::into_str).collect::<Vec<_>>(),
            ),
            deadline: add(&registry, GaugeVec::new(deadline, &["action"])),
            observed: add(&registry, IntGaugeVec::new(observed, &["owner", "host"])),
            restarts: counter("command_restarts_total", "Starts of COMMAND after the first of its leadership."),
            silence: seconds(
                "store_trouble_seconds",
                "How long the store has returned only errors, 0 while it answers.",
            ),
            late: seconds(
                "late_seconds",
                "How late the guard or the backstop was woken at the worst, in the last minutes.",
            ),
            beyond: gauge(
                "outside_guarantee",
                "1 while the guard or the backstop is woken too late for the lease, else 0.",
            ),
            registry,
        }
    }
}

fn add<C: Collector + Clone + 'static>(registry: &Registry, made: prometheus::Result<C>) -> C {
    let collector = made.expect(SOUND);
    registry.register(Box::new(collector.clone())).expect(SOUND);
    collector
}
