//! One server of a cluster, on a host of its own, and short questions to such servers.
//!
//! A server that is cut off answers nobody, so a client gives up after some seconds, and asks all of them at once.

use crate::support::network::Network;
use crate::support::prelude::*;
use crate::support::server::{end_with_children, start_quietly};
use std::ffi::OsString;
use std::thread;

pub struct Member {
    words: Vec<OsString>,
    child: Option<Process>,
}

impl Member {
    /// Starts it. It dies with us.
    pub fn start(network: &Network, host: usize, command: &Command) -> Self {
        let mut words = vec![format!("--net={}", network.host_file(host).display()).into()];
        words.push(command.get_program().to_owned());
        words.extend(command.get_args().map(ToOwned::to_owned));
        let mut member = Self { words, child: None };
        member.start_again();
        member
    }

    pub fn start_again(&mut self) {
        assert!(self.child.is_none(), "it runs");
        let mut command = Command::new("nsenter");
        command.args(&self.words);
        self.child = Some(start_quietly(command));
    }

    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            end_with_children(&mut child);
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a program says that has three seconds and succeeds.
pub fn told_by(words: &[&str]) -> Option<String> {
    let mut command = Command::new("timeout");
    let output = command.arg("3").args(words).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let output = output.expect("timeout starts: it is in coreutils");
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

pub fn json_from(words: &[&str]) -> Option<Value> {
    serde_json::from_str(&told_by(&[&["curl", "-s"], words].concat())?).ok()
}

/// What each of so many hosts says, asked at once; the one that cannot answer is not asked.
pub fn each<T: Send>(hosts: usize, without: Option<usize>, ask: impl Fn(usize) -> Option<T> + Sync) -> Vec<Option<T>> {
    let ask = |host| if Some(host) == without { None } else { ask(host) };
    let ask = &ask;
    thread::scope(|threads| {
        let asked: Vec<_> = (0..hosts).map(|host| threads.spawn(move || ask(host))).collect();
        asked.into_iter().map(|thread| thread.join().expect("it only asks")).collect()
    })
}

/// As [`wait_until`], for what costs a few processes each time.
pub fn wait_calmly_until(what: &str, explain: impl Fn() -> String, mut condition: impl FnMut() -> bool) {
    wait_until_or(what, explain, || {
        thread::sleep(Duration::from_millis(200));
        condition()
    });
}

pub fn majority<T: PartialEq + Clone>(said: &[Option<T>]) -> Option<T> {
    let count = |one: &T| said.iter().flatten().filter(|other| *other == one).count();
    said.iter().flatten().find(|one| count(one) * 2 > said.len()).cloned()
}
