//! What a former version has left in a store is read by this one: tests/former/VERSION, which packaging/keep made.

use crate::support::prelude::*;
#[cfg(feature = "redis")]
use std::os::unix::net::UnixStream;

fn versions() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/former");
    let versions: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!versions.is_empty());
    versions
}

struct Former {
    url: String,
    _directory: TempDir,
    _server: Option<Process>,
}

impl Former {
    fn file(version: &Path) -> Self {
        let directory = TempDir::new().unwrap();
        copy(&version.join("file"), &directory.path().join("store"));
        let url = format!("file:{}", directory.path().join("store").display());
        Self { url, _directory: directory, _server: None }
    }

    #[cfg(feature = "redis")]
    fn redis(version: &Path) -> Self {
        let directory = TempDir::new().unwrap();
        fs::copy(version.join("redis.rdb"), directory.path().join("dump.rdb")).unwrap();
        let socket = directory.path().join("socket");
        let mut server = Command::new("redis-server");
        server.args(["--port", "0", "--save", "", "--maxmemory-policy", "noeviction", "--unixsocket"]).arg(&socket);
        let server = Process::start(server.arg("--dir").arg(directory.path()).stdout(Stdio::null()));
        // Its socket is there before it listens.
        wait_until("Redis listens", || UnixStream::connect(&socket).is_ok());
        Self { url: format!("redis+unix://{}", socket.display()), _directory: directory, _server: Some(server) }
    }

    fn run(&self, program: &str, words: &[&str]) -> Said {
        let mut command = Command::new(program);
        command.args(["--store", &self.url]).args(words).env("LEADERRUN_CONFIG", "/dev/null");
        command.stdin(Stdio::null()).said()
    }

    fn ask(&self, words: &[&str]) -> Vec<Value> {
        objects(&self.run(env!("CARGO_BIN_EXE_leaderctl"), words).out)
    }
}

/// With the permissions of a store, which a repository does not keep.
fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    fs::set_permissions(to, fs::Permissions::from_mode(0o700)).unwrap();
    for entry in fs::read_dir(from).unwrap().map(|entry| entry.unwrap()) {
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), &target).unwrap();
            fs::set_permissions(&target, fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
}

fn is_read_and_led_on(former: &Former) {
    let history = former.ask(&["history", "--json", "report"]);
    assert_eq!(history.len(), 1, "{history:?}");
    assert_eq!((&history[0]["owner"], &history[0]["exit_status"]), (&Value::from("one"), &Value::from(0)));
    let last = history[0]["term"].as_u64().unwrap();
    let status = former.ask(&["status", "--json", "report"]);
    assert_eq!(status[0]["pause"]["reason"], "fixture", "{status:?}");
    let jobs = former.ask(&["jobs", "--json", "jobs"]);
    let told: Vec<_> = jobs.iter().map(|job| (job["job"].as_str().unwrap(), job["state"].as_str().unwrap())).collect();
    assert_eq!(told, [("fails", "failed"), ("succeeds", "succeeded")]);
    // Its jobs count, its pause holds, and the next term is higher than its last.
    let leaderrun = |words: &[&str]| former.run(env!("CARGO_BIN_EXE_leaderrun"), words);
    leaderrun(&["--once", "succeeds", "jobs", "false"]).ended(0);
    leaderrun(&["--once", "fails", "--retry-failed", "0", "jobs", "true"]).ended(1);
    leaderrun(&["-n", "report", "true"]).ended(75);
    former.run(env!("CARGO_BIN_EXE_leaderctl"), &["resume", "report"]).good();
    let term: u64 = leaderrun(&["report", "sh", "-c", "echo $LEADERRUN_TERM"]).out.trim().parse().unwrap();
    assert!(term > last, "{term} after {last}");
}

#[test]
fn files_of_a_former_version_are_read_and_led_on() {
    for version in versions() {
        is_read_and_led_on(&Former::file(&version));
    }
}

#[cfg(feature = "redis")]
#[test]
fn the_keys_of_a_former_version_are_read_and_led_on() {
    for version in versions() {
        is_read_and_led_on(&Former::redis(&version));
    }
}
