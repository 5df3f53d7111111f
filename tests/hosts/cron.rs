//! Six hours of cron on three hosts in 47 seconds. Each host has a cron(8), a wall clock, a name and files of its own.
//!
//! A faster day would not be one: cron leaves out what it is five minutes late for, which is 0.6 seconds here.

use crate::HOSTS;
use crate::support::network::{HUB, Network, tell};
use crate::support::process::Process;
use crate::support::redis::Server;
use crate::support::server::{Server as _, prepare};
use crate::support::world::wall_clock;
use leaderrun::internals::time::{BootInstant, wall_clock_millis};
use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;
use tempfile::TempDir;

/// A lease is 24 minutes of the hosts' clocks.
const TIMING: [&str; 8] = ["--lease", "3s", "--renew", "1s", "--retry", "400ms", "--kill-after", "1s"];
/// How much faster than the kernel's clock those of the hosts are.
const RATE: i64 = 480;
const HOURS: u64 = 6;
/// What the hosts' clocks say at the start, in seconds since 1970.
const MIDNIGHT: i64 = 1_800_057_600;
/// How many seconds they are off.
const OFF: [i64; HOSTS] = [-240, 0, 150];
/// Only cron's own files are hidden, and only here: jobs of the machine would run 480 times as often.
const HOST: &str = "
    hostname host$0
    mount -t tmpfs none /run
    mount -t tmpfs none /var/spool/cron
    for dir in /etc/cron.d /etc/cron.hourly /etc/cron.daily; do [ ! -d $dir ] || mount -t tmpfs none $dir; done
    [ ! -e /etc/crontab ] || mount --bind /dev/null /etc/crontab
    mkdir /var/spool/cron/crontabs
    chmod 1730 /var/spool/cron/crontabs
    cp \"$1\" /var/spool/cron/crontabs/root
    chmod 600 /var/spool/cron/crontabs/root
    exec env $2 /usr/sbin/cron -f";

fn lines(path: &Path) -> Vec<String> {
    fs::read_to_string(path).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn a_job_at_half_past_runs_once_each_hour(network: &Network) {
    // A new one: the first run waits for a lease, and is not lost.
    let server = Server::start();
    prepare(&server);
    let url = server.url(SocketAddr::new(HUB.parse().expect("an address"), server.address().port()));
    let scratch = TempDir::new().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let runs = path("runs");
    // The clocks are fast since the machine's start.
    let begun = BootInstant::now().since(BootInstant::from_nanos(0)).as_secs();
    let ahead =
        MIDNIGHT - i64::try_from(wall_clock_millis() / 1000).unwrap() - (RATE - 1) * i64::try_from(begun).unwrap();
    let starts = |host: usize| path(&format!("starts{host}"));
    let crons: Vec<Process> = (0..HOSTS)
        .map(|host| {
            let file = path(&format!("clock{host}"));
            fs::write(&file, format!("{} {}", ahead + OFF[host], (RATE - 1) * 1_000_000)).unwrap();
            let clock = [
                "TZ=UTC".to_owned(),
                format!("WALLCLOCK_FILE={}", file.display()),
                format!("LD_PRELOAD={}", wall_clock()),
            ];
            let job = format!(
                "30 * * * * date +\\%H >>{}; {} -q -n -E 0 --store {url} {} --every 1h report -- sh -c 'echo $LEADERRUN_DUE \
                 $(hostname) >>{}' 2>>{}",
                starts(host).display(),
                env!("CARGO_BIN_EXE_leaderrun"),
                TIMING.join(" "),
                runs.display(),
                path("said").display(),
            );
            let crontab = path(&format!("crontab{host}"));
            fs::write(&crontab, format!("MAILTO=\"\"\n{}\n{job}\n", clock.join("\n"))).unwrap();
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "nsenter"]);
            command.arg(format!("--net={}", network.host_file(host).display())).args(["unshare", "--mount", "--uts"]);
            command.args(["sh", "-ec", HOST, &host.to_string()]).arg(crontab).arg(clock.join(" "));
            Process::start(&mut command)
        })
        .collect();
    // Until a quarter past the hour, by all clocks.
    sleep(Duration::from_secs((HOURS * 60 + 15) * 60) / u32::try_from(RATE).unwrap());
    drop(crons);
    let (runs, said) = (lines(&runs), lines(&path("said")));
    let told = || format!("{runs:#?} {said:?}");
    // On a machine that stalls, a cron may leave out an hour. All of them hardly do.
    let mut started = BTreeSet::new();
    for host in 0..HOSTS {
        let hours = lines(&starts(host));
        assert!(hours.len() > 1, "cron starts the job on host {host}: {hours:?} {}", told());
        started.extend(hours);
    }
    // Where it stalls at the end, a cron begins one more hour.
    let is_over = |hour: &str| hour.parse::<u64>().is_ok_and(|hour| hour < HOURS);
    started.retain(|hour| is_over(hour));
    assert!(started.len() > 3, "{started:?} {}", told());
    // Nor does the store answer in time there; but no run is missed in silence.
    started.retain(|hour| {
        let is_of = |line: &String| line.starts_with(&format!("2027-01-16T{hour}:"));
        runs.iter().any(is_of) || !said.iter().any(is_of)
    });
    let hours = runs.iter().map(|run| &run["2027-01-16T".len()..][..2]);
    let hours: Vec<&str> = hours.filter(|hour| is_over(hour)).collect();
    assert_eq!(hours, started.iter().map(String::as_str).collect::<Vec<_>>(), "{}", told());
    // A process starts in some of these minutes.
    assert!(runs.iter().all(|run| matches!(run[14..16].parse(), Ok(30..60))), "{}", told());
}

#[test]
fn six_hours_of_cron_on_three_hosts_have_each_run_once() {
    let test = concat!(module_path!(), "::six_hours_of_cron_on_three_hosts_have_each_run_once");
    tell(HOSTS, test, |network| a_job_at_half_past_runs_once_each_hour(&network));
}
