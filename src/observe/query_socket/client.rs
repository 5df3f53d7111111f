//! Asks candidates of this host.
//!
//! The hazard: any user of this host may bind any number of names, say what a candidate would, say nothing, or never stop.
//! So an answer comes with the process and the user that listen, as the kernel names them (`SO_PEERCRED`, unix(7)); it has
//! bounds on its length and its time; and while those of one user say nothing, those of another are asked. Only who listens
//! on each name is looked up first: that never waits for the other side, and takes some microseconds for each name.

use super::{ASKER, Key, PATIENCE, Statement, all, path};
use crate::lease::Session;
use crate::store::parallel;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixSocket, UnixStream};

/// No statement with its proof is longer.
const MOST: u64 = 16 * 1024;
/// Sockets of one user that are asked at once: descriptors are few.
const AT_ONCE: usize = 32;

/// What was answered, and who has answered it.
#[derive(Debug)]
pub struct Answer {
    pub statement: Statement,
    peer: Peer,
}

/// Who listens.
#[derive(Clone, Copy, Debug)]
struct Peer {
    user: u32,
    /// None where it is outside of our PID namespace.
    process: Option<u32>,
}

/// What all the candidates of this host answer.
#[derive(Debug, Default)]
pub struct Survey {
    pub answers: Vec<Answer>,
    /// Sockets on which somebody listens who gave no answer, or none that a candidate would give.
    pub silent: usize,
}

impl Answer {
    /// Which process it is, as far as the kernel tells. Where the kernel shows no number, it is the process's own word.
    #[must_use]
    pub fn process(&self) -> String {
        let Peer { user, process } = self.peer;
        let process = match process {
            Some(process) => format!("process {process}"),
            None => format!("process {} of another PID namespace", self.statement.pid),
        };
        if self.peer.is_ours() { process } else { format!("{process} of user {user}") }
    }
}

impl Peer {
    fn of(stream: &UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let process = credentials.pid().and_then(|pid| u32::try_from(pid).ok()).filter(|&pid| pid != 0);
        Ok(Self { user: credentials.uid(), process })
    }

    /// Our own user's, or root's.
    fn is_ours(self) -> bool {
        [0, nix::unistd::geteuid().as_raw()].contains(&self.user)
    }

    /// An older leaderrun tells no key. Then the kernel's word has to do.
    fn is_believed(self, key: Option<&Key>, statement: &Statement) -> bool {
        match key {
            Some(key) => self.is_ours() || self.user == key.user,
            None => self.is_ours() && self.process.is_none_or(|process| process == statement.pid),
        }
    }
}

/// Asks the candidate that told its socket's name and `key` to COMMAND, and believes nobody else.
///
/// # Errors
/// Why there is no answer: it is gone, frozen, or in another network namespace; or another process answers.
pub async fn ask_own(name: &str, key: Option<&Key>) -> io::Result<Statement> {
    let question = format!("{ASKER}{}", Session::random()?.as_str());
    let asked = async {
        let (stream, peer) = reach(name, Some(&question)).await?;
        let text = heard(stream).await?;
        let (statement, proof) = match text.iter().rposition(|&byte| byte == b'\n') {
            Some(end) => (&text[..end], &text[end + 1..]),
            None => (&text[..], &[][..]),
        };
        let proven = key.is_none_or(|key| key.proves(question.as_bytes(), statement, proof));
        let read = if proven { serde_json::from_slice(statement).ok() } else { None };
        let believed = read.filter(|statement| peer.is_believed(key, statement));
        believed.ok_or_else(|| io::Error::other("another process has taken its place"))
    };
    within(PATIENCE, asked).await
}

/// Asks all candidates of this network namespace, at the same time.
pub async fn ask_all(patience: Duration) -> Survey {
    let names = all().unwrap_or_default();
    let (listening, answers) = (Mutex::new(names.len()), Mutex::new(Vec::new()));
    let asked = async {
        let mut queues: BTreeMap<u32, Mutex<Vec<String>>> = BTreeMap::new();
        for name in names {
            match reach(&name, None).await {
                Ok((_, peer)) => lock(queues.entry(peer.user).or_default()).push(name),
                // Bound, but not to listen; or gone.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => *lock(&listening) -= 1,
                Err(_) => {}
            }
        }
        parallel::all(queues.values().flat_map(|queue| (0..AT_ONCE).map(|_| ask_each(queue, &answers)))).await;
    };
    // Who has answered by then has been heard.
    let _ = tokio::time::timeout(patience.min(PATIENCE), asked).await;
    let answers = answers.into_inner().unwrap_or_else(PoisonError::into_inner);
    let silent = lock(&listening).saturating_sub(answers.len());
    Survey { answers, silent }
}

async fn ask_each(queue: &Mutex<Vec<String>>, answers: &Mutex<Vec<Answer>>) {
    while let Some(name) = { lock(queue).pop() } {
        if let Ok(answer) = ask(&name).await {
            lock(answers).push(answer);
        }
    }
}

async fn ask(name: &str) -> io::Result<Answer> {
    let (stream, peer) = reach(name, None).await?;
    let statement = serde_json::from_slice(&heard(stream).await?).map_err(io::Error::other)?;
    Ok(Answer { statement, peer })
}

/// Where too many wait to be accepted, this fails at once instead of waiting with them.
async fn reach(name: &str, question: Option<&str>) -> io::Result<(UnixStream, Peer)> {
    let socket = UnixSocket::new_stream()?;
    if let Some(question) = question {
        socket.bind(path(question))?;
    }
    let stream = socket.connect(path(name)).await?;
    let peer = Peer::of(&stream)?;
    Ok((stream, peer))
}

async fn heard(stream: UnixStream) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    stream.take(MOST).read_to_end(&mut text).await?;
    Ok(text)
}

async fn within<T>(patience: Duration, asked: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(patience, asked).await.map_err(|_| io::Error::from(ErrorKind::TimedOut))?
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::query_socket::Standing;

    #[test]
    fn a_witness_that_is_gone_is_no_witness() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert!(runtime.block_on(ask_own("leaderrun-nobody", None)).is_err());
    }

    #[test]
    fn a_user_who_knows_the_key_is_still_not_the_candidate() {
        let own = nix::unistd::geteuid().as_raw();
        let key = Key::read(&format!("7:{}", Session::random().unwrap().as_str())).unwrap();
        let standing = Standing { role: "leader".into(), obstacle: None, trouble: None, hindrance: None };
        let (shard, owner) = ("db".to_owned(), "me".to_owned());
        let statement =
            Statement { shard, slot_of: None, owner, pid: 5, leadership: None, standing, containment: String::new() };
        let believed = |user, process, key| Peer { user, process }.is_believed(key, &statement);
        // In other PID namespaces it has other numbers, or none.
        for process in [None, Some(5), Some(6)] {
            assert!([0, own, 7].into_iter().all(|user| believed(user, process, Some(&key))));
            assert!([8, 65534].into_iter().filter(|&user| user != own).all(|user| !believed(
                user,
                process,
                Some(&key)
            )));
        }
        assert!(believed(own, Some(5), None) && believed(0, None, None));
        assert!(!believed(own, Some(6), None) && !believed(own + 1, Some(5), None));
    }
}
