//! examples/kubernetes as it is printed: the server takes it, and what it runs does what it says.

use super::*;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::thread;
use support::fleet::wait_until_or;
use support::ports::free_port;
use tempfile::TempDir;
use yaml_rust2::{Yaml, YamlLoader};

const LEADER: &str = include_str!("../../examples/kubernetes/leader.yaml");

fn document(kind: &str) -> Yaml {
    let documents = YamlLoader::load_from_str(LEADER).expect("it is YAML");
    documents.into_iter().find(|document| document["kind"].as_str() == Some(kind)).expect("there is one")
}

fn words(container: &Yaml) -> Vec<String> {
    let lists = [&container["command"], &container["args"]].map(|list| list.as_vec().expect("a list").clone());
    lists.concat().iter().map(|word| word.as_str().expect("text").to_owned()).collect()
}

/// What the Deployment runs, as two Pods.
struct Pods<'a> {
    server: &'a Server,
    scratch: TempDir,
}

impl<'a> Pods<'a> {
    fn of(server: &'a Server) -> Self {
        server.apply(LEADER);
        let pods = Self { server, scratch: TempDir::new().unwrap() };
        let script = document("ConfigMap")["data"]["label"].as_str().expect("a script").to_owned();
        fs::create_dir(pods.path("leads")).unwrap();
        fs::write(pods.path("leads/label"), script).unwrap();
        fs::create_dir(pods.path("account")).unwrap();
        fs::write(pods.path("account/token"), server.token("pods")).unwrap();
        // The script is run by another program, since files that were written here may be open elsewhere.
        std::process::Command::new("chmod").arg("+x").arg(pods.path("leads/label")).status().unwrap();
        for pod in ["pod-1", "pod-2"] {
            let pod = json!({
                "metadata": { "name": pod, "labels": { "app": "worker" } },
                "spec": { "containers": [{ "name": "worker", "image": "worker:1" }] },
            });
            let made = server.api.ask("POST", &pods.api(""), &pod.to_string());
            assert_eq!(made.status, 201, "{made:?}");
        }
        pods
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn api(&self, pod: &str) -> String {
        format!("/api/v1/namespaces/{}/pods/{pod}", self.server.namespace).trim_end_matches('/').to_owned()
    }

    /// Those with the label by which the Service finds the leader.
    fn labelled(&self) -> Vec<String> {
        let selector = document("Service")["spec"]["selector"]["leads"].as_str().expect("a label").to_owned();
        let answer = self.server.api.ask("GET", &format!("{}?labelSelector=leads%3D{selector}", self.api("")), "");
        let items = answer.body["items"].as_array().expect("a list").clone();
        items.iter().map(|pod| pod["metadata"]["name"].as_str().expect("a name").to_owned()).collect()
    }

    fn start(&self, pod: &str) -> Pod {
        let deployment = document("Deployment");
        let container = &deployment["spec"]["template"]["spec"]["containers"][0];
        let listen = format!("--listen=127.0.0.1:{}", free_port());
        let programs = Path::new(env!("CARGO_BIN_EXE_leaderrun")).parent().unwrap();
        let words: Vec<String> = words(container)
            .iter()
            .map(|word| {
                let word = word.replace("/etc/leads", &self.path("leads").display().to_string());
                word.replace("--listen=:9100", &listen).replace("$(POD)", pod).replace("/usr/local/bin/worker", "sleep")
            })
            .chain(["1000".to_owned()])
            .collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = self.server.in_a_pod(&self.path("account"), &words);
        command.env("LEADERRUN_STORE", "kubernetes:").env("POD", pod);
        command.env("PATH", format!("{}:{}", programs.display(), std::env::var("PATH").unwrap()));
        let log = fs::File::options().append(true).create(true).open(self.path("log")).unwrap();
        Pod(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap())
    }

    fn wait_until_labelled(&self, pods: &[&str]) {
        let log = || fs::read_to_string(self.path("log")).unwrap_or_default();
        wait_until_or(&format!("{pods:?} have the label"), log, || self.labelled() == pods);
    }
}

struct Pod(Child);

impl Pod {
    fn stop(mut self) {
        kill(Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM).unwrap();
        assert_eq!(self.0.wait().unwrap().code(), Some(143));
    }

    /// The node has ended it, and nothing had time for anything.
    fn kill(mut self) {
        let leaderrun = self.0.id().cast_signed();
        let children = support::fleet::children_of(leaderrun);
        let all = children.iter().flat_map(|child| support::fleet::children_of(*child)).chain(children.clone());
        let all: Vec<i32> = all.chain([leaderrun]).collect();
        // Stopped, none of them sees the end of another.
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            for process in &all {
                let _ = kill(Pid::from_raw(*process), signal);
            }
        }
        self.0.wait().unwrap();
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_pod_that_leads_has_the_label_by_which_the_service_finds_it() {
    let server = server();
    let pods = Pods::of(&server);
    let first = pods.start("pod-1");
    pods.wait_until_labelled(&["pod-1"]);
    let second = pods.start("pod-2");
    thread::sleep(Duration::from_secs(2));
    pods.wait_until_labelled(&["pod-1"]);
    first.stop();
    pods.wait_until_labelled(&["pod-2"]);
    // A container that was killed has left its label, and the next one in this Pod takes it off.
    second.kill();
    let again = pods.start("pod-2");
    pods.wait_until_labelled(&[]);
    pods.wait_until_labelled(&["pod-2"]);
    again.stop();
    pods.wait_until_labelled(&[]);
}

#[test]
fn the_kubelet_waits_for_longer_than_the_stop_takes() {
    let deployment = document("Deployment");
    let pod = &deployment["spec"]["template"]["spec"];
    let words = words(&pod["containers"][0]);
    let seconds = |option: &str| {
        let value = words.iter().find_map(|word| word.strip_prefix(option)).expect("it is set");
        humantime::parse_duration(value).expect("a duration").as_secs()
    };
    let grace = pod["terminationGracePeriodSeconds"].as_i64().expect("it is set").cast_unsigned();
    assert!(grace > seconds("--stop-timeout=") + 2 * seconds("--hook-timeout="));
    assert_eq!(pod["serviceAccountName"].as_str(), Some("leaderrun"));
    assert!(
        pod["containers"][0]["lifecycle"].is_badvalue(),
        "a preStop delays the stop and knows nothing of the lease"
    );
}
