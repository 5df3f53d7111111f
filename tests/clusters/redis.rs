//! Two Redis servers, of which one replicates the other, and three Sentinels, which take the master for dead when it
//! is silent for 5 s.

use super::member::{Member, each, majority, told_by};
use super::{Cluster, MEMBERS};
use crate::support::network::{Network, address};
use crate::support::prelude::*;
use crate::support::server::mortal;

pub struct Redis {
    /// On each host a Sentinel, and on the first two a server before it.
    hosts: Vec<Vec<Member>>,
    options: &'static str,
    _data: TempDir,
}

const SERVERS: usize = 2;

impl Redis {
    /// A lease counts when the replica has it.
    pub fn waiting(network: &Network) -> Box<dyn Cluster> {
        Box::new(Self::start(network, "?wait=1"))
    }

    pub fn asynchronous(network: &Network) -> Box<dyn Cluster> {
        Box::new(Self::start(network, ""))
    }

    fn start(network: &Network, options: &'static str) -> Self {
        let data = TempDir::new().expect("a scratch directory");
        let hosts = (0..MEMBERS).map(|host| {
            let (own, place) = (address(host), data.path().join(host.to_string()));
            fs::create_dir(&place).expect("it can be made");
            let start = |name: &str, lines: String, flag: Option<&str>| {
                let file = place.join(name);
                // Sentinels and servers write what they learn into their files.
                let common = format!("bind {own} 127.0.0.1\nprotected-mode no\ndir {}\n", place.display());
                fs::write(&file, common + &lines).expect("it can be written");
                let mut command = mortal("redis-server");
                command.arg(&file).args(flag);
                Member::start(network, host, &command)
            };
            let master = address(0);
            let role = if host == 0 { String::new() } else { format!("replicaof {master} 6379\n") };
            let server = (host < SERVERS).then(|| {
                let lines = "port 6379\nsave \"\"\nappendonly yes\nappendfsync always\nrepl-diskless-sync-delay 0\n";
                start("redis.conf", format!("{lines}{role}"), None)
            });
            let lines = format!(
                "port 26379\nsentinel monitor main {master} 6379 2\nsentinel down-after-milliseconds main 5000\n\
                 sentinel failover-timeout main 5000\n"
            );
            server.into_iter().chain([start("sentinel.conf", lines, Some("--sentinel"))]).collect()
        });
        Self { hosts: hosts.collect(), options, _data: data }
    }

    fn cli(host: usize, port: &str, words: &[&str]) -> Option<String> {
        told_by(&[&["redis-cli", "-h", &address(host), "-p", port], words].concat())
    }

    fn info(host: usize, line: &str) -> bool {
        let info = Self::cli(host, "6379", &["INFO", "replication"]).unwrap_or_default();
        info.lines().any(|said| said.trim_end() == line)
    }
}

impl Cluster for Redis {
    fn url(&self) -> String {
        format!("redis+sentinel://{}/main{}", super::hosts(MEMBERS, ":26379"), self.options)
    }

    fn members(&mut self) -> &mut [Member] {
        unreachable!("each host has several")
    }

    fn kill(&mut self, host: usize) {
        self.hosts[host].iter_mut().for_each(Member::kill);
    }

    fn start_again(&mut self, host: usize) {
        self.hosts[host].iter_mut().for_each(Member::start_again);
    }

    fn leading(&self, without: Option<usize>) -> Option<usize> {
        let master = |host| Self::cli(host, "26379", &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", "main"]);
        let master = majority(&each(MEMBERS, without, master))?;
        let host = (0..SERVERS).find(|host| master.lines().next() == Some(&address(*host)))?;
        Self::info(host, "role:master").then_some(host)
    }

    fn is_whole(&self) -> bool {
        let Some(leader) = self.leading(None) else { return false };
        let others = |host| {
            let known = Self::cli(host, "26379", &["SENTINEL", "MASTER", "main"]).unwrap_or_default();
            let known: Vec<_> = known.lines().collect();
            let value = |name| known.windows(2).find(|pair| pair[0] == name).map(|pair| pair[1]);
            value("num-other-sentinels") == Some("2")
                && value("flags") == Some("master")
                && value("num-slaves") == Some("1")
        };
        Self::info(leader, "connected_slaves:1")
            && Self::info(1 - leader, "master_link_status:up")
            && (0..MEMBERS).all(others)
    }
}
