//! Three NATS servers, and a bucket with a replica on each. A stream's leader that is silent for 4 to 9 s is replaced.

use super::member::{Member, each, json_from, majority};
use super::{Cluster, MEMBERS};
use crate::support::nats::Client;
use crate::support::network::{Network, address};
use crate::support::server::mortal;
use serde_json::{Value, json};
use std::fs;
use std::time::Duration;
use tempfile::TempDir;

/// A bucket of other programs, with replicas as well.
const ELECTIONS: &str = "elections";
/// What is written there is forgotten after this time, which is longer than any lease of ours.
const TTL: Duration = Duration::from_secs(40);

pub struct Nats {
    members: Vec<Member>,
    /// The leader also takes a key of other programs.
    takes_a_key: bool,
    _data: TempDir,
}

impl Nats {
    pub fn start(network: &Network) -> Box<dyn Cluster> {
        Self::started(network, false)
    }

    /// With `key=`.
    pub fn with_a_key(network: &Network) -> Box<dyn Cluster> {
        Self::started(network, true)
    }

    fn started(network: &Network, takes_a_key: bool) -> Box<dyn Cluster> {
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
        Box::new(Self { members: members.collect(), takes_a_key, _data: data })
    }

    /// What each server says about the raft group of a bucket's stream.
    fn said(bucket: &str, without: Option<usize>) -> Vec<Option<Value>> {
        let state = |host| {
            let url = format!("http://{}:8222/jsz?accounts=true&streams=true", address(host));
            let mut said = json_from(&[&url])?;
            let streams = said.pointer_mut("/account_details/0/stream_detail")?.as_array_mut()?;
            let stream = streams.iter_mut().find(|stream| stream["name"] == format!("KV_{bucket}"))?;
            Some(stream["cluster"].take())
        };
        each(MEMBERS, without, state)
    }
}

impl Cluster for Nats {
    fn url(&self) -> String {
        let key = if self.takes_a_key { "&lock_key=elections/svc/leader" } else { "" };
        format!("nats://{}/locks?replicas={MEMBERS}{key}", super::hosts(MEMBERS, ""))
    }

    fn make_what_others_have(&self) -> bool {
        let config = json!({
            "name": format!("KV_{ELECTIONS}"),
            "subjects": [format!("$KV.{ELECTIONS}.>")],
            "max_msgs_per_subject": 1,
            "max_age": u64::try_from(TTL.as_nanos()).expect("it is short"),
            "discard": "new",
            "allow_rollup_hdrs": true,
            "num_replicas": MEMBERS,
            "storage": "file",
        });
        let address = format!("{}:4222", address(0)).parse().expect("an address");
        let client = || Client::connect(address, "{}");
        let made = || Some(client()?.api(&format!("STREAM.CREATE.KV_{ELECTIONS}"), &config)["error"].is_null());
        !self.takes_a_key || made() == Some(true)
    }

    fn members(&mut self) -> &mut [Member] {
        &mut self.members
    }

    fn leading(&self, without: Option<usize>) -> Option<usize> {
        let said = Self::said("locks", without);
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
        let is_whole = |bucket| Self::said(bucket, None).iter().flatten().any(has_all);
        self.leading(None).is_some() && is_whole("locks") && (!self.takes_a_key || is_whole(ELECTIONS))
    }
}
