//! A real Prometheus that scrapes a real `serve`: each query of the dashboard and of the alerts finds metrics there.

use crate::server::Serve;
use crate::support::fleet::{Fleet, leaderctl, leaderrun, wait_until_or};
use crate::support::http;
use crate::support::ports::free_port;
use crate::support::process::Process;
use crate::support::world::TIMING;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::Value;
use std::fs;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const DASHBOARD: &str = include_str!("../../examples/grafana/leaderrun.json");
const ALERTS: &str = include_str!("../../examples/prometheus/alerts.yml");

struct Prometheus {
    _child: Process,
    port: u16,
    scratch: TempDir,
}

impl Prometheus {
    fn start(target: u16) -> Self {
        let (port, scratch) = (free_port(), TempDir::new().unwrap());
        let path = |name: &str| scratch.path().join(name);
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: leaderrun\n    static_configs:\n      - targets: ['127.0.0.1:{target}']\n"
        );
        fs::write(path("prometheus.yml"), config).unwrap();
        let log = fs::File::create(path("log")).unwrap();
        let mut prometheus = Command::new("prometheus");
        prometheus.arg(format!("--config.file={}", path("prometheus.yml").display()));
        prometheus.arg(format!("--storage.tsdb.path={}", path("data").display()));
        prometheus.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let child = Process::start(prometheus.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log));
        Self { _child: child, port, scratch }
    }

    /// The result of a query; None while Prometheus does not answer.
    fn ask(&self, query: &str) -> Option<Vec<Value>> {
        let query = utf8_percent_encode(query, NON_ALPHANUMERIC);
        let stream = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        let request = format!("GET /api/v1/query?query={query} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let answer = http::ask(stream, &request).ok()?;
        let said: Value = serde_json::from_str(&answer.body).ok()?;
        assert!(answer.status != 400, "{said}");
        Some(said["data"]["result"].as_array()?.clone())
    }

    fn log(&self) -> String {
        fs::read_to_string(self.scratch.path().join("log")).unwrap()
    }
}

/// As Grafana asks when all is chosen.
fn filled_in(query: &str) -> String {
    query.replace("$instance", ".*").replace("$shard", ".*").replace("$__rate_interval", "1m")
}

/// The names of metrics in a query.
fn metrics_in(query: &str) -> Vec<String> {
    let words = query.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("leaderrun_")).map(str::to_owned).collect()
}

#[test]
fn each_query_of_the_dashboard_and_of_the_alerts_finds_what_prometheus_scraped() {
    let directory = TempDir::new().unwrap();
    let store = format!("file:{}", directory.path().display());
    let mut fleet = Fleet::new();
    fleet.start("one", &[&["--store", &store][..], &TIMING].concat(), &[], &[]);
    for (shard, command) in [("nightly", "true"), ("weekly", "false")] {
        let _ = leaderrun().args(["--store", &store, "--every", "1h", shard, command]).stderr(Stdio::null()).status();
    }
    let words = ["--store", &store, "pause", "idle", "--force"];
    assert!(leaderctl().args(words).output().unwrap().status.success());
    assert!(
        leaderrun().args(["-n", "--store", &store, "free", "true"]).stderr(Stdio::null()).status().unwrap().success()
    );
    let serve = Serve::start(&store, &["--interval", "200ms"]);
    serve.wait_for("the job shows", || serve.get("/metrics").contains("leaderrun_job_last_status{shard=\"weekly\""));
    let prometheus = Prometheus::start(serve.port);
    let scraped = || prometheus.ask("leaderrun_job_last_status").is_some_and(|found| found.len() == 2);
    wait_until_or("Prometheus has scraped", || prometheus.log(), scraped);

    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let mut queries: Vec<String> = targets.map(|target| filled_in(target["expr"].as_str().unwrap())).collect();
    assert!(queries.len() > 15, "{queries:#?}");
    let alerts = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("expr: "));
    queries.extend(alerts.map(str::to_owned));
    // A file store's leases do not expire, so no leader is late there: tests/golden has these from Redis.
    let of_expiring = ["leaderrun_shard_lease_used_ratio", "leaderrun_shard_renewed_seconds"];
    let page = serve.get("/metrics");
    for query in &queries {
        let found = prometheus.ask(query).expect("Prometheus answers");
        let named = metrics_in(query);
        for metric in &named {
            assert!(page.contains(&format!("# TYPE {metric} ")), "{query}: there is no metric {metric}");
            let scraped = !prometheus.ask(metric).unwrap().is_empty();
            assert!(scraped || of_expiring.contains(&metric.as_str()), "{query}: {metric} was not scraped");
        }
        // Those that compare find something only when something is wrong.
        let compares = [" > ", " == ", " >= "].iter().any(|sign| query.contains(sign));
        let needs_time = named.iter().any(|metric| of_expiring.contains(&metric.as_str())) || query.contains("[1m]");
        assert!(compares || needs_time || !found.is_empty(), "{query} finds nothing");
    }
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        for metric in metrics_in(variable["query"].as_str().unwrap()) {
            assert!(page.contains(&format!("# TYPE {metric} ")), "{variable}");
        }
    }
    fleet.conclude();
}

#[test]
fn each_alert_comes_when_it_should_and_not_before() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/prometheus");
    for words in [&["check", "rules", "alerts.yml"][..], &["test", "rules", "alerts_test.yml"]] {
        let said = Command::new("promtool").args(words).current_dir(directory).output();
        let said = said.expect("tests/run installs prometheus");
        assert!(
            said.status.success(),
            "{}{}",
            String::from_utf8_lossy(&said.stdout),
            String::from_utf8_lossy(&said.stderr)
        );
    }
    let tests = fs::read_to_string(format!("{directory}/alerts_test.yml")).unwrap();
    let alerts: Vec<&str> = ALERTS.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() >= 9);
    for alert in alerts {
        let named = format!("alertname: {alert}\n");
        assert!(tests.matches(&named).count() >= 2, "{alert} is not tried both ways");
    }
}

#[test]
fn the_manual_names_every_metric_and_no_other() {
    let directory = TempDir::new().unwrap();
    let serve = Serve::start(&format!("file:{}", directory.path().display()), &[]);
    let page = serve.get("/metrics");
    let mut told: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE leaderrun_")?.split(' ').next()).collect();
    let manual = include_str!("../../man/leaderrun-formats.5");
    let (_, section) = manual.split_once("\n.Sh METRICS OF THE FLEET\n").unwrap();
    let (section, _) = section.split_once("\n.Sh ").unwrap();
    let mut named: Vec<&str> = section
        .lines()
        .filter(|line| line.starts_with(".It Va ") || line.starts_with(".Va "))
        .flat_map(|line| line.split(' '))
        .filter_map(|word| word.strip_prefix("leaderrun_"))
        .collect();
    told.sort_unstable();
    named.sort_unstable();
    assert_eq!(told, named);
}
