//! Three members of etcd with its usual timing: a leader that is silent for 1 to 2 s is replaced.

use super::member::{Member, each, json_from, majority};
use super::{Cluster, MEMBERS};
use crate::support::network::{Network, address};
use crate::support::prelude::*;
use crate::support::server::mortal;

pub struct Etcd {
    members: Vec<Member>,
    _data: TempDir,
}

impl Etcd {
    pub fn start(network: &Network) -> Box<dyn Cluster> {
        let data = TempDir::new().expect("a scratch directory");
        let peers: Vec<_> = (0..MEMBERS).map(|host| format!("m{host}=http://{}:2380", address(host))).collect();
        let members = (0..MEMBERS).map(|host| {
            let (clients, peer) = (format!("http://{}:2379", address(host)), format!("http://{}:2380", address(host)));
            let mut command = mortal("etcd");
            command.args(["--name", &format!("m{host}"), "--logger", "zap", "--log-level", "error"]);
            command.arg("--data-dir").arg(data.path().join(host.to_string()));
            command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
            command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
            // SIGKILL leaves the page cache alone.
            command.args(["--initial-cluster", &peers.join(","), "--unsafe-no-fsync"]);
            Member::start(network, host, &command)
        });
        Box::new(Self { members: members.collect(), _data: data })
    }

    /// Of each member: who it is, and who leads according to it.
    fn said(without: Option<usize>) -> Vec<Option<(String, String)>> {
        let status = |host| {
            let url = format!("http://{}:2379/v3/maintenance/status", address(host));
            let said = json_from(&["-d", "{}", &url])?;
            let text = |value: &Value| Some(value.as_str()?.to_owned());
            Some((text(said.pointer("/header/member_id")?)?, text(said.get("leader")?)?))
        };
        each(MEMBERS, without, status)
    }
}

impl Cluster for Etcd {
    fn url(&self) -> String {
        format!("etcd://{}/leaderrun", super::hosts(MEMBERS, ""))
    }

    fn members(&mut self) -> &mut [Member] {
        &mut self.members
    }

    fn leading(&self, without: Option<usize>) -> Option<usize> {
        let said = Self::said(without);
        let leader = majority(&said.iter().map(|said| said.clone().map(|(_, leader)| leader)).collect::<Vec<_>>())?;
        said.iter().position(|said| said.as_ref().is_some_and(|(id, _)| *id == leader))
    }

    fn is_whole(&self) -> bool {
        self.leading(None).is_some() && Self::said(None).iter().all(Option::is_some)
    }
}
