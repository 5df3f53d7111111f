//! What the manual, the guide, the README and the examples show is run as it stands there, and does what they say: as
//! a container, as a script.
//!
//! Each is run where it would be: the programs in `/usr/local/bin` (in a mount namespace), with no more environment than
//! there is. Only the store's URL is another.

#[cfg(feature = "redis")]
mod examples;
mod fencing;
#[cfg(feature = "default")]
mod infrastructure;
#[path = "../support/mod.rs"]
mod support;

use std::net::TcpStream;
use std::os::unix::fs::symlink;
use std::thread::sleep;
use support::http::ask;
use support::ports::free_port;
use support::prelude::*;
use yaml_rust2::{Yaml, YamlLoader};

fn text(path: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path))
        .unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn write_script(path: &Path, script: &str) {
    // By another process: a child that another test starts meanwhile may have what we write ourselves still open, and then
    // it cannot be executed.
    let mut shell = Command::new("sh");
    shell.args(["-c", "printf %s \"$1\" >\"$0\" && chmod 755 \"$0\""]).arg(path).arg(script);
    assert!(shell.status().unwrap().success());
}

/// A machine with our programs, and others that write down what they find.
struct Machine {
    scratch: TempDir,
}

impl Machine {
    /// Each of `programs` writes into `ran`, a line a run.
    fn with(programs: &[&str]) -> Self {
        let machine = Self { scratch: TempDir::new().unwrap() };
        let bin = machine.path("bin");
        fs::create_dir(&bin).unwrap();
        for program in [env!("CARGO_BIN_EXE_leaderrun"), env!("CARGO_BIN_EXE_leaderctl")].map(Path::new) {
            symlink(program, bin.join(program.file_name().unwrap())).unwrap();
        }
        for program in programs {
            let log = machine.path("ran");
            let script = format!("#!/bin/sh\necho \"{program} $*\" >>{}\n", log.display());
            write_script(&bin.join(program), &script);
        }
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn store(&self) -> String {
        format!("file:{}", self.path("store").display())
    }

    fn ran(&self) -> Vec<String> {
        fs::read_to_string(self.path("ran")).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// `words` on this machine, with this environment and nothing else, and no terminal.
    fn command(&self, environment: &[(&str, &str)], words: &[&str], flags: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount"]).args(flags);
        let script = "mount --bind \"$0\" /usr/local/bin && exec /usr/bin/env -i \"$@\"";
        command.args(["setsid", "--wait", "sh", "-c", script]).arg(self.path("bin"));
        command.args(environment.iter().map(|(name, value)| format!("{name}={value}")));
        command.args(words).stdin(Stdio::null());
        command
    }
}

/// The words of `KEY ["a", "b"]`, in the form of a Dockerfile's ENTRYPOINT and CMD.
fn exec_form(text: &str, key: &str) -> Vec<String> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_else(|| panic!("no {key}"));
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{key}: {line}: {error}"))
}

/// They end with the first one.
const ITS_OWN_PROCESSES: [&str; 4] = ["--pid", "--fork", "--mount-proc", "--kill-child"];

/// A container: its first process is what the recipe says.
struct Container {
    child: Process,
    port: u16,
}

impl Container {
    fn run(machine: &Machine, words: &[String]) -> Self {
        let port = free_port();
        let store = machine.store();
        let told = |word: &String| match word.as_str() {
            ":9100" => format!("127.0.0.1:{port}"),
            word => word.replace("$(POD)", "pod-1"),
        };
        let words: Vec<String> = words.iter().map(told).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let path = ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin");
        let environment = [path, ("LEADERRUN_STORE", store.as_str())];
        let mut command = machine.command(&environment, &words, &ITS_OWN_PROCESSES);
        let log = || fs::File::options().create(true).append(true).open(machine.path("log")).unwrap();
        let child = Process::start(command.stdout(log()).stderr(log()));
        Self { child, port }
    }

    fn answers(&self, path: &str) -> bool {
        let Ok(stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let answer = ask(stream, &format!("GET {path} HTTP/1.1\r\nHost: probe\r\n\r\n"));
        answer.is_ok_and(|answer| answer.status == 200)
    }

    /// As `docker stop` and the kubelet do it: SIGTERM to the first process alone.
    fn stop(mut self) -> Option<i32> {
        let first = children_of(self.child.id().cast_signed())[0];
        kill(Pid::from_raw(first), Signal::SIGTERM).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Machine {
    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

#[test]
fn the_dockerfile_runs_its_worker_on_one_of_two_hosts_and_stops_in_order() {
    let dockerfile = text("examples/Dockerfile");
    let words = [exec_form(&dockerfile, "ENTRYPOINT "), exec_form(&dockerfile, "CMD ")].concat();
    let machine = Machine::with(&[]);
    let first = Container::run(&machine, &words);
    wait_until_or("it leads", || machine.log(), || machine.log().contains("leading in term 1"));
    let second = Container::run(&machine, &words);
    sleep(Duration::from_millis(500));
    assert_eq!(machine.log().matches("leading in term ").count(), 1, "{}", machine.log());
    assert_eq!(first.stop(), Some(143), "{}", machine.log());
    wait_until_or("the second leads", || machine.log(), || machine.log().matches("leading in term ").count() == 2);
    assert_eq!(second.stop(), Some(143), "{}", machine.log());
}

fn manifest(path: &str) -> Yaml {
    let documents = YamlLoader::load_from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(documents.len(), 1, "{path}");
    let manifest = documents.into_iter().next().unwrap();
    // What a Deployment cannot be without.
    assert_eq!(manifest["apiVersion"].as_str(), Some("apps/v1"), "{path}");
    assert_eq!(manifest["kind"].as_str(), Some("Deployment"), "{path}");
    assert!(manifest["metadata"]["name"].as_str().is_some(), "{path}");
    let labels = &manifest["spec"]["template"]["metadata"]["labels"];
    assert!(labels.as_hash().is_some() && *labels == manifest["spec"]["selector"]["matchLabels"], "{path}");
    assert!(manifest["spec"]["replicas"].as_i64() > Some(1), "{path}: nobody stands by");
    manifest
}

fn words(container: &Yaml) -> Vec<String> {
    let list = |key: &str| container[key].as_vec().cloned().unwrap_or_default();
    let text = |word: &Yaml| word.as_str().unwrap_or_else(|| panic!("{word:?} is no text")).to_owned();
    list("command").iter().chain(&list("args")).map(text).collect()
}

/// Where a probe asks; its port has to be one that the container names.
fn probe<'a>(container: &'a Yaml, name: &str) -> &'a str {
    let get = &container[name]["httpGet"];
    let ports = container["ports"].as_vec().unwrap();
    let port = ports.iter().find(|port| port["name"] == get["port"]).expect("a port of that name");
    let listens = words(container).windows(2).any(|pair| {
        pair[0] == "--listen"
            && pair[1].rsplit(':').next() == port["containerPort"].as_i64().map(|n| n.to_string()).as_deref()
    });
    assert!(listens, "nothing listens where {name} asks");
    get["path"].as_str().unwrap()
}

#[test]
fn the_probes_of_the_deployment_ask_where_it_listens() {
    let manifest = manifest("examples/kubernetes/worker.yaml");
    let container = &manifest["spec"]["template"]["spec"]["containers"][0];
    assert_eq!(["livenessProbe", "readinessProbe"].map(|name| probe(container, name)), ["/livez", "/readyz"]);
}

#[test]
fn the_sidecar_tells_the_app_when_to_take_a_step() {
    let manifest = manifest("examples/kubernetes/sidecar.yaml");
    let pod = &manifest["spec"]["template"]["spec"];
    let sidecar = &pod["initContainers"][0];
    assert_eq!(sidecar["restartPolicy"].as_str(), Some("Always"), "else it would have to end first");
    let machine = Machine::with(&["do-one-step"]);
    let other = Container::run(&machine, &words(sidecar));
    wait_until_or("the other leads", || machine.log(), || other.answers("/leader"));
    let here = Container::run(&machine, &words(sidecar));
    let path = probe(sidecar, "livenessProbe");
    wait_until_or(path, || machine.log(), || here.answers(path));

    let script = words(&pod["containers"][0]);
    assert!(script[2].contains("http://127.0.0.1:9100/leader"), "{script:?}");
    // The namespace of the network, which the two containers of a pod share, is this machine's here.
    let script: Vec<String> = script
        .iter()
        .map(|word| word.replace(":9100", &format!(":{}", here.port)).replace("sleep 5", "sleep 0.2"))
        .map(|word| word.replace("/tmp/leader", machine.path("leader").to_str().unwrap()))
        .collect();
    let script: Vec<&str> = script.iter().map(String::as_str).collect();
    let mut app =
        machine.command(&[("PATH", "/usr/local/bin:/usr/bin:/bin")], &script, &["--pid", "--fork", "--kill-child"]);
    let mut app = app.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    sleep(Duration::from_secs(1));
    assert_eq!(machine.ran(), Vec::<String>::new(), "it took a step while another led");
    other.stop();
    wait_until_or("it takes a step", || machine.log(), || !machine.ran().is_empty());
    assert!(machine.ran()[0].contains("\"leader\":true"), "{:?}", machine.ran());
    app.kill().unwrap();
    app.wait().unwrap();
}

#[test]
fn the_script_backs_up_once_and_not_while_another_does() {
    let machine = Machine::with(&[]);
    let script = machine.path("backup.sh");
    write_script(&script, &text("examples/backup.sh"));
    for directory in ["target", "source"] {
        fs::create_dir(machine.path(directory)).unwrap();
    }
    fs::write(machine.path("source/file"), "x").unwrap();
    let (target, source) = (machine.path("target"), machine.path("source"));
    let words = [&script, &target, &source].map(|path| path.to_str().unwrap());
    let store = machine.store();
    let environment = [("PATH", "/usr/local/bin:/usr/bin:/bin"), ("LEADERRUN_STORE", store.as_str())];
    let output = machine.command(&environment, &words, &[]).said().good();
    assert!(output.starts_with("backing up in term "), "{output}");
    assert!(target.join("backup.tar").exists() && !target.join("next.tar").exists());

    let marker = machine.path("held");
    let hold = format!("echo x >{}; exec sleep 1000", marker.display());
    let mut holder = machine.command(&environment, &["leaderrun", "-q", "backup", "-c", &hold], &ITS_OWN_PROCESSES);
    let mut holder = holder.spawn().unwrap();
    wait_until("another one backs up", || marker.exists());
    fs::remove_file(target.join("backup.tar")).unwrap();
    let impatient = [&["timeout", "20"][..], &words].concat();
    assert_eq!(machine.command(&environment, &impatient, &[]).said().ended(75).out, "");
    assert!(!target.join("backup.tar").exists());
    holder.kill().unwrap();
    holder.wait().unwrap();
}
