//! Three NATS servers, and a bucket with a replica on each. A stream's leader that is silent for 4 to 9 s is replaced.

use super::member::{Member, each, json_from, majority};
use super::{Cluster, MEMBERS};
use crate::support::network::{Network, address};
use crate::support::prelude::*;
use crate::support::server::mortal;

pub struct Nats {
    members: Vec<Member>,
    _data: TempDir,
}

impl Nats {
    pub fn start(network: &Network) -> Box<dyn Cluster> {
        let data = TempDir::new().expect("a scratch directory");
        let routes: Vec<_> = (0..MEMBERS).map(|host| format!("\"nats://{}:6222\"", address(host))).collect();
        let members = (0..MEMBERS).map(|host| {
            let (file, own) = (data.path().join(format!("{host}.conf")), address(host));
            let store = data.path().join(host.to_string());
            let lines = format!(
                "server_name: m{host}\nlisten: \"{own}:4222\"\nhttp: \"{own}:8222\"\n\
                 jetstream {{ store_dir: \"{}\" }}\n\
                 cluster {{ name: c, listen: \"{own}:6222\", routes: [{}] }}\n",
                store.display(),
                routes.join(", ")
            );
            fs::write(&file, lines).expect("it can be written");
            let program = crate::support::nats::program().into_string().expect("a path");
            let mut command = mortal(&program);
            command.arg("-c").arg(&file).arg("-l").arg(data.path().join(format!("{host}.log")));
            Member::start(network, host, &command)
        });
        Box::new(Self { members: members.collect(), _data: data })
    }

    /// What each server says about the raft group of the bucket's stream.
    fn said(without: Option<usize>) -> Vec<Option<Value>> {
        let state = |host| {
            let url = format!("http://{}:8222/jsz?accounts=true&streams=true", address(host));
            let mut said = json_from(&[&url])?;
            let streams = said.pointer_mut("/account_details/0/stream_detail")?.as_array_mut()?;
            let stream = streams.iter_mut().find(|stream| stream["name"] == "KV_locks")?;
            Some(stream["cluster"].take())
        };
        each(MEMBERS, without, state)
    }
}

impl Cluster for Nats {
    fn url(&self) -> String {
        format!("nats://{}/locks?replicas={MEMBERS}", super::hosts(MEMBERS, ""))
    }

    fn members(&mut self) -> &mut [Member] {
        &mut self.members
    }

    fn leading(&self, without: Option<usize>) -> Option<usize> {
        let said = Self::said(without);
        let leaders = said.iter().map(|said| Some(said.as_ref()?.get("leader")?.as_str()?.to_owned()));
        let leader = majority(&leaders.collect::<Vec<_>>())?;
        (0..MEMBERS).find(|host| leader == format!("m{host}") && said[*host].is_some())
    }

    fn is_whole(&self) -> bool {
        let has_all = |said: &Value| {
            let replicas = said["replicas"].as_array().cloned().unwrap_or_default();
            replicas.len() + 1 == MEMBERS && replicas.iter().all(|replica| replica["current"] == true)
        };
        // Only a leader knows it of the others.
        self.leading(None).is_some() && Self::said(None).iter().flatten().any(has_all)
    }
}
