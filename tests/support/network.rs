//! Several hosts on one machine: a network namespace for each, and a switch between them.
//!
//! A test runs a second time inside the hub's namespace, so that its servers and clients are there; the first process
//! keeps the namespaces, and removes them however the second one ended.
//!
//! A namespace lives as long as its name or a process in it, and outlives its maker. So each name begins with the
//! process that made it: what a killed test has left is found and removed by the next one. Packets are dropped where
//! they arrive, as a cable would lose them: dropped where they are sent, the sender is told.

use super::prelude::*;
use super::server::{ALONE, is_alone, mortal};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Where `ip netns` keeps its names.
const NAMES: &str = "/run/netns";
const PREFIX: &str = "leaderrun-test-";
/// The server's address; that of host 0 ends in 10.
pub const HUB: &str = "10.77.0.1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    BothWays,
    HostToStore,
    StoreToHost,
}

/// A host for the server, and some for candidates.
pub struct Network {
    name: String,
    /// Removed with this.
    owned: bool,
}

impl Network {
    fn make(hosts: usize) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        static ONCE: Once = Once::new();
        assert!(nix::unistd::geteuid().is_root(), "only root can make network namespaces: run this test as root");
        ONCE.call_once(remove_leftovers);
        let name = format!("{PREFIX}{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // From here on, so that it is removed if anything of the rest fails.
        let network = Self { name, owned: true };
        let hub = network.hub();
        ip(&["netns", "add", &hub]);
        ip(&["-n", &hub, "link", "set", "lo", "up"]);
        ip(&["-n", &hub, "link", "add", "switch", "type", "bridge"]);
        ip(&["-n", &hub, "addr", "add", &format!("{HUB}/24"), "dev", "switch"]);
        ip(&["-n", &hub, "link", "set", "switch", "up"]);
        heal(&hub);
        for index in 0..hosts {
            let (host, port) = (network.host(index), format!("port{index}"));
            ip(&["netns", "add", &host]);
            ip(&["-n", &hub, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &host]);
            ip(&["-n", &hub, "link", "set", &port, "master", "switch", "up"]);
            ip(&["-n", &host, "addr", "add", &format!("{}/24", address(index)), "dev", "eth0"]);
            ip(&["-n", &host, "link", "set", "lo", "up"]);
            ip(&["-n", &host, "link", "set", "eth0", "up"]);
            heal(&host);
        }
        network
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn host(&self, index: usize) -> String {
        format!("{}-{index}", self.name)
    }

    /// The file that stands for the namespace of a host.
    pub fn host_file(&self, index: usize) -> PathBuf {
        file_of(&self.host(index))
    }

    pub fn cut(&self, index: usize, cut: Cut) {
        if cut != Cut::StoreToHost {
            nft(&self.hub(), &format!("add rule ip cut input ip saddr {} drop", address(index)));
        }
        if cut != Cut::HostToStore {
            nft(&self.host(index), &format!("add rule ip cut input ip saddr {HUB} drop"));
        }
    }

    /// From now on, nothing passes between these hosts and all the others of `hosts`, among them the hub.
    pub fn part(&self, some: &[usize], hosts: usize) {
        let drop_from = |namespace: &str, addresses: Vec<String>| {
            nft(namespace, &format!("add rule ip cut input ip saddr {{ {} }} drop", addresses.join(", ")));
        };
        for index in 0..hosts {
            let is_inside = some.contains(&index);
            let across = (0..hosts).filter(|other| some.contains(other) != is_inside).map(address);
            let hub = is_inside.then(|| HUB.to_owned());
            drop_from(&self.host(index), across.chain(hub).collect());
        }
        drop_from(&self.hub(), some.iter().copied().map(address).collect());
    }

    pub fn cut_between(&self, one: usize, other: usize) {
        for (here, there) in [(one, other), (other, one)] {
            nft(&self.host(here), &format!("add rule ip cut input ip saddr {} drop", address(there)));
        }
    }

    pub fn heal_all(&self, hosts: usize) {
        (0..hosts).for_each(|index| self.heal(index));
    }

    pub fn heal(&self, index: usize) {
        heal(&self.hub());
        heal(&self.host(index));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if self.owned {
            let mine = names().into_iter().filter(|name| name.starts_with(&format!("{}-", self.name)));
            mine.for_each(|name| remove(&name));
        }
    }
}

/// Tells a story in a process of its own, within a network of its own. `path` is the test's.
pub fn tell(hosts: usize, path: &str, story: impl FnOnce(Network)) {
    if is_alone() {
        let name = std::env::var(ALONE).expect("a name is text");
        return story(Network { name, owned: false });
    }
    let network = Network::make(hosts);
    let (_, test) = path.split_once("::").expect("a crate and a test");
    let mut command = mortal("nsenter");
    command.arg(format!("--net={}", file_of(&network.hub()).display()));
    command.arg(std::env::current_exe().expect("a test has a path")).args(["--exact", test, "--nocapture"]);
    let output = command.env(ALONE, &network.name).output().expect("setpriv and nsenter start: install util-linux");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    let told = output.status.success() && said.contains("1 passed");
    assert!(told, "{}\n{said}", output.status);
    println!("{said}");
}

pub fn address(index: usize) -> String {
    format!("10.77.0.{}", 10 + index)
}

fn file_of(namespace: &str) -> PathBuf {
    Path::new(NAMES).join(namespace)
}

fn ip(words: &[&str]) {
    let output = Command::new("ip").args(words).output().expect("ip is missing: install the package iproute2");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "network namespaces do not work here: ip {}: {said}", words.join(" "));
}

fn heal(namespace: &str) {
    let chain = "chain input { type filter hook input priority 0; policy accept; };";
    nft(namespace, &format!("table ip cut {{}}; delete table ip cut; table ip cut {{ {chain} }}"));
}

fn nft(namespace: &str, commands: &str) {
    let namespace = format!("--net={}", file_of(namespace).display());
    let mut command = Command::new("nsenter");
    let output = command.args([&namespace, "nft", commands]).output().expect("nsenter is missing: install util-linux");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft (package nftables) cannot drop packets here: {commands}: {said}");
}

fn names() -> Vec<String> {
    let entries = fs::read_dir(NAMES).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}

/// Those whose makers are gone.
fn remove_leftovers() {
    for name in names() {
        let maker = name[PREFIX.len()..].split('-').next().unwrap_or_default().to_owned();
        if maker == std::process::id().to_string() || !Path::new("/proc").join(&maker).exists() {
            remove(&name);
        }
    }
}

/// With all that runs in it.
fn remove(namespace: &str) {
    let output = Command::new("ip").args(["netns", "pids", namespace]).output();
    let pids = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    for pid in pids.split_whitespace().filter_map(|pid| pid.parse().ok()) {
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = Command::new("ip").args(["netns", "delete", namespace]).stderr(Stdio::null()).status();
}
