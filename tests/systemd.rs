//! Under a service manager: what it is told, when its watchdog is fed, and the units to start
//! from. The service manager is the test itself, with a real socket.

#[macro_use]
mod support;

use leaderrun::internals::exit;
use std::cell::RefCell;
use std::fs::File;
use std::os::unix::net::UnixDatagram;
use std::process::ExitStatus;
use support::prelude::*;

/// The lease outlasts a stall of the machine, unless a test waits for its end.
const TIMING: [&str; 8] = ["--lease", "30s", "--renew", "500ms", "--kill-after", "500ms", "--retry", "200ms"];

struct Service {
    socket: UnixDatagram,
    name: String,
    told: RefCell<Vec<String>>,
    child: Option<Process>,
}

impl Service {
    /// Its manager listens on a path.
    fn at(path: &Path) -> Self {
        let socket = UnixDatagram::bind(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        Self { socket, name: path.to_str().unwrap().to_owned(), told: RefCell::default(), child: None }
    }

    /// With a watchdog, as systemd announces it: for this process and no other.
    fn start(mut self, patience: Option<Duration>, arguments: &[&str]) -> Self {
        let mut command = Command::new("sh");
        command.args(["-c", "WATCHDOG_PID=$$ exec \"$@\"", "sh", leaderrun().get_program().to_str().unwrap()]);
        command.args(arguments);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("LEADERRUN_")) {
            command.env_remove(name);
        }
        command.env("NOTIFY_SOCKET", &self.name);
        if let Some(patience) = patience {
            command.env("WATCHDOG_USEC", patience.as_micros().to_string());
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.child = Some(Process::start(&mut command));
        self
    }

    fn told(&self) -> Vec<String> {
        let mut buffer = [0; 8192];
        let mut told = self.told.borrow_mut();
        while let Ok(length) = self.socket.recv(&mut buffer) {
            told.extend(String::from_utf8_lossy(&buffer[..length]).lines().map(str::to_owned));
        }
        told.clone()
    }

    fn was_told(&self, line: &str) -> bool {
        self.told().iter().any(|told| told == line)
    }

    fn wait_for(&self, line: &str) {
        wait_until_or(line, || format!("{:?}", self.told()), || self.was_told(line));
    }

    fn status(&self) -> String {
        self.told().iter().rev().find_map(|line| line.strip_prefix("STATUS=").map(str::to_owned)).unwrap_or_default()
    }

    fn wait_for_status(&self, words: &str) {
        wait_until_or(words, || format!("{:?}", self.told()), || self.status().contains(words));
    }

    fn fed(&self) -> usize {
        self.told().iter().filter(|line| *line == "WATCHDOG=1").count()
    }

    fn wait_for_food(&self, times: usize) {
        let before = self.fed();
        wait_until_or("fed", || format!("{:?}", self.told()), || self.fed() >= before + times);
    }

    fn process(&self) -> &Process {
        self.child.as_ref().expect("it was started")
    }

    fn end(&mut self) -> ExitStatus {
        self.child.as_mut().expect("it was started").ends()
    }

    fn stop(&mut self) -> ExitStatus {
        self.process().signal(Signal::SIGTERM);
        self.end()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        if let Ok(None) = child.try_wait() {
            // In order, so that it leaves nothing and says nothing: COMMAND ends at once.
            child.signal(Signal::SIGCONT);
            child.signal(Signal::SIGTERM);
        }
        let begun = BootInstant::now();
        while let Ok(None) = child.try_wait() {
            if BootInstant::now().since(begun) > Duration::from_secs(10) {
                child.end();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Place {
    fn service(&self, name: &str) -> Service {
        Service::at(&self.path(name))
    }

    fn arguments<'a>(&'a self, owner: &'a str, flags: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
        let own = ["-q", "--store", &self.url, "--owner", owner];
        [&own, &usual_but(&TIMING, flags)[..], &["shard", "--"], command].concat()
    }
}

const WAIT: [&str; 2] = ["sleep", "1000"];

fn a_candidate_is_ready_when_it_waits_or_leads(place: &Place) {
    let mut leader = place.service("one").start(None, &place.arguments("one", &[], &WAIT));
    leader.wait_for("READY=1");
    leader.wait_for_status("leading in term ");
    let mut standby = place.service("two").start(None, &place.arguments("two", &[], &WAIT));
    standby.wait_for("READY=1");
    standby.wait_for_status("standby: one ");
    assert!(standby.status().ends_with(" leads"), "{}", standby.status());

    leader.stop();
    assert_eq!(leader.told().iter().filter(|line| *line == "STOPPING=1").count(), 1);
    standby.wait_for_status("leading in term ");
    assert!(!standby.was_told("STOPPING=1"));
    assert_eq!(standby.told().iter().filter(|line| *line == "READY=1").count(), 1, "once is enough");
    standby.stop();
    assert!(standby.was_told("STOPPING=1"));
}

fn with_leader_a_candidate_is_ready_when_command_was_started(place: &Place) {
    let flags = ["--notify", "leader"];
    place.order(&["pause", "shard"]);
    let file = place.path("up");
    let script = format!("touch {}; exec sleep 1000", file.display());
    let service = place.service("one").start(None, &place.arguments("one", &flags, &["sh", "-c", &script]));
    service.wait_for_status("standby: paused ");
    assert!(!service.was_told("READY=1"));
    let standby = place.service("two").start(None, &place.arguments("two", &flags, &WAIT));
    standby.wait_for_status("standby: paused ");
    // One of them leads from here on, and the other is never ready.
    place.order(&["resume", "shard"]);
    wait_until("one is ready", || service.was_told("READY=1") || standby.was_told("READY=1"));
    let (leads, waits) = if service.was_told("READY=1") { (&service, &standby) } else { (&standby, &service) };
    assert!(leads.status().starts_with("leading in term "), "{}", leads.status());
    waits.wait_for_status(" leads");
    assert!(!waits.was_told("READY=1"));
}

on_two_stores!(
    &a_candidate_is_ready_when_it_waits_or_leads,
    &with_leader_a_candidate_is_ready_when_command_was_started,
);

#[test]
fn with_command_it_is_ready_when_command_says_so() {
    let place = Place::local();
    let go = place.path("go");
    // The shell's own words to the service manager; any language has some.
    let script = format!(
        "while [ ! -e {} ]; do sleep 0.01; done
         perl -MIO::Socket::UNIX -e '
             my $manager = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Peer => $ENV{{NOTIFY_SOCKET}}) or die $!;
             $manager->send(\"READY=1\\nSTATUS=serving\");'
         exec sleep 1000",
        go.display()
    );
    let arguments = place.arguments("one", &["--notify", "command"], &["sh", "-c", &script]);
    let service = place.service("one").start(None, &arguments);
    service.wait_for_status("leading in term ");
    assert!(!service.was_told("READY=1"));
    File::create(go).unwrap();
    service.wait_for_status("serving");
    assert_eq!(service.told().iter().filter(|line| *line == "READY=1").count(), 1);
}

#[test]
fn command_gets_the_socket_only_where_it_is_to_use_it_and_never_the_watchdog() {
    for (when, expected) in [("candidate", false), ("leader", false), ("command", true)] {
        let place = Place::local();
        let file = place.path("environment");
        let script = format!("env >{0}.part; mv {0}.part {0}", file.display());
        let arguments = place.arguments("one", &["--notify", when], &["sh", "-c", &script]);
        let mut service = place.service("one").start(Some(Duration::from_mins(1)), &arguments);
        assert!(service.end().success());
        let environment = fs::read_to_string(&file).unwrap();
        assert_eq!(environment.contains(&format!("NOTIFY_SOCKET={}\n", service.name)), expected, "{when}");
        assert_eq!(environment.contains("NOTIFY_SOCKET="), expected, "{when}");
        assert!(!environment.contains("WATCHDOG_"), "{when}: {environment}");
    }
}

#[test]
fn a_service_manager_that_is_not_there_is_no_reason_not_to_run() {
    for name in ["/nowhere/notify", "@leaderrun-test-nobody", "vsock:2:9999"] {
        let place = Place::local();
        let mut command = leaderrun();
        command.args(&place.arguments("one", &[], &["true"])[1..]).env("NOTIFY_SOCKET", name);
        let said = command.said().ended(0).err;
        assert_eq!(said.matches("cannot notify the service manager").count(), 1, "{said}");
    }
}

#[test]
fn a_frozen_candidate_is_not_fed() {
    let patience = Some(Duration::from_millis(100));
    let place = Place::local();
    let leader = place.service("one").start(patience, &place.arguments("one", &[], &WAIT));
    leader.wait_for("READY=1");
    let standby = place.service("two").start(patience, &place.arguments("two", &[], &WAIT));
    standby.wait_for("READY=1");
    for (frozen, clock) in [(&standby, &leader), (&leader, &standby)] {
        frozen.wait_for_food(2);
        frozen.process().signal(Signal::SIGSTOP);
        wait_until("it is stopped", || state(frozen.process().id()) == 'T');
        let before = frozen.fed();
        clock.wait_for_food(10);
        assert_eq!(frozen.fed(), before);
        frozen.process().signal(Signal::SIGCONT);
        frozen.wait_for_food(2);
    }
}

/// As `ps` shows it.
fn state(pid: u32) -> char {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    line.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

#[test]
#[cfg(feature = "redis")]
fn an_outage_of_the_store_starves_no_watchdog() {
    let patience = Some(Duration::from_millis(400));
    let place = Place::remote(Box::new(support::redis::Server::start()));
    let soon_over = ["--lease", "6s"];
    let leader = place.service("one").start(patience, &place.arguments("one", &soon_over, &WAIT));
    leader.wait_for_status("leading in term ");
    let standby = place.service("two").start(patience, &place.arguments("two", &soon_over, &WAIT));
    standby.wait_for("READY=1");
    place.server().freeze();
    leader.wait_for_status("standby");
    for service in [&standby, &leader] {
        service.wait_for_status("trouble with the store: ");
        service.wait_for_food(10);
    }
    // One that starts now is fed as well, and not ready before the store has answered.
    let late = place.service("three").start(patience, &place.arguments("three", &soon_over, &WAIT));
    late.wait_for_food(10);
    assert!(!late.was_told("READY=1"));
    place.server().thaw();
    late.wait_for("READY=1");
    for service in [&leader, &standby, &late] {
        wait_until_or("no trouble", || service.status(), || !service.status().contains("trouble"));
        assert!(!service.was_told("STOPPING=1"));
    }
}

#[test]
fn a_reload_reaches_the_leaders_command_and_leaves_a_standby_alone() {
    let place = Place::local();
    let up = place.path("up");
    let script = format!("trap 'touch {0}.reloaded' HUP; touch {0}; while :; do sleep 0.05; done", up.display());
    let leader = place.service("one").start(None, &place.arguments("one", &[], &["sh", "-c", &script]));
    wait_until("COMMAND is up", || up.exists());
    let standby = place.service("two").start(None, &place.arguments("two", &[], &WAIT));
    standby.wait_for("READY=1");
    standby.process().signal(Signal::SIGHUP);
    leader.process().signal(Signal::SIGHUP);
    wait_until("COMMAND was told", || up.with_extension("reloaded").exists());
    for service in [&leader, &standby] {
        assert!(!service.was_told("STOPPING=1") && !service.was_told("RELOADING=1"));
    }
}

/// Names itself in the variables of sd_listen_fds(3), and becomes its arguments. Without any, says whether they name it.
const LISTENER: &str = r#"
    open my $pidfd, "<&=", syscall 434, $$, 0;
    my %own = (LISTEN_PID => $$, LISTEN_PIDFDID => (stat $pidfd)[1]);
    my $right = ($ENV{LISTEN_FDS} // "") eq "1" && !grep { $ENV{$_} ne $own{$_} } keys %own;
    if (@ARGV) { %ENV = (%ENV, %own, LISTEN_FDS => 1); exec @ARGV }
    open my $said, ">>", $ENV{FILE};
    print $said $right ? "mine\n" : "of another\n";
    exit 1
"#;

#[test]
fn sockets_of_the_service_manager_are_for_command_on_every_restart() {
    let scratch = TempDir::new().unwrap();
    let (script, file) = (scratch.path().join("listener"), scratch.path().join("file"));
    fs::write(&script, LISTENER).unwrap();
    let store = format!("file:{}", scratch.path().join("store").display());
    let status = Command::new("perl")
        .arg(&script)
        .args([env!("CARGO_BIN_EXE_leaderrun"), "-q", "--contain", "walk", "--store", &store])
        .args(["--restart", "on-failure", "--restart-limit", "1", "--restart-delay", "1ms", "-n", "s", "perl"])
        .arg(&script)
        .env("FILE", &file)
        .status()
        .unwrap();
    assert_eq!((status.code(), fs::read_to_string(&file).unwrap()), (Some(1), "mine\nmine\n".to_owned()));
}

/// The units as they are installed, but with programs that are there.
fn units() -> Vec<(PathBuf, TempDir)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/systemd");
    let paths: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(paths.len(), 3, "{paths:?}");
    paths
        .iter()
        .map(|path| {
            let scratch = TempDir::new().unwrap();
            let text = fs::read_to_string(path).unwrap();
            let text = text.replace("/usr/local/bin/leaderrun", leaderrun().get_program().to_str().unwrap());
            let text = text.replace("/usr/local/bin/leaderctl", leaderctl().get_program().to_str().unwrap());
            let copy = scratch.path().join(path.file_name().unwrap());
            fs::write(&copy, text.replace("/usr/local/bin/report", "/bin/true")).unwrap();
            (copy, scratch)
        })
        .collect()
}

fn systemd_analyze(arguments: &[&str], unit: &Path) -> String {
    Command::new("systemd-analyze").args(arguments).arg(unit).said().ended(0).all()
}

#[test]
fn systemd_accepts_the_units_and_they_are_hardened() {
    for (unit, _scratch) in units() {
        assert_eq!(systemd_analyze(&["verify", "--man=no"], &unit), "", "{}", unit.display());
        systemd_analyze(&["security", "--offline=true", "--threshold=17"], &unit);
    }
}

#[test]
fn the_units_start_what_leaderrun_takes_and_do_not_restart_what_no_restart_mends() {
    for (unit, _scratch) in units() {
        let text = fs::read_to_string(&unit).unwrap();
        let setting = |name: &str| {
            let mut values = text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            values.next_back().unwrap_or_else(|| panic!("{}: no {name}", unit.display()))
        };
        let hopeless = [exit::USAGE, exit::NO_PERMISSION, exit::CONFIGURATION].map(|status| status.to_string());
        assert_eq!(setting("RestartPreventExitStatus"), hopeless.join(" "));
        let line = setting("ExecStart").replace("%i", "queue-a");
        if line.contains("/leaderctl ") {
            // It ends with 0 when it is asked to, and tests/manpages.rs reads its options.
            continue;
        }
        let mut explain = leaderrun();
        explain.arg("--explain").args(line.split(' ').skip(1)).stdout(Stdio::null());
        assert!(explain.status().unwrap().success(), "{line}");
        assert_eq!(setting("SuccessExitStatus"), (exit::SIGNALLED + Signal::SIGTERM as u8).to_string());
    }
}
