//! What is made for Prometheus and Grafana: the dashboard, the alerts, and what the manual says of the metrics.

use crate::server::Serve;
use crate::support::prelude::*;

const DASHBOARD: &str = include_str!("../../examples/grafana/leaderrun.json");
const ALERTS: &str = include_str!("../../examples/prometheus/alerts.yml");

fn metrics_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("leaderrun_")).map(str::to_owned).collect()
}

#[test]
fn the_dashboard_and_the_alerts_name_metrics_that_are_there() {
    let place = Place::local();
    let serve = Serve::start(&place, &[]);
    let page = serve.get("/metrics");
    let named: Vec<String> = [DASHBOARD, ALERTS].into_iter().flat_map(metrics_in).collect();
    assert!(named.len() > 25, "{named:?}");
    for metric in named {
        assert!(page.contains(&format!("# TYPE {metric} ")), "there is no metric {metric}");
    }
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
    let place = Place::local();
    let serve = Serve::start(&place, &[]);
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
