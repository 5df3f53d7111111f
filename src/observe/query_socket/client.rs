//! Asks the candidates of this host.
//!
//! The hazard: any user of this host can bind any number of names, and then claim to be a candidate, say nothing, or
//! never stop talking. So an answer is shown with the process and the user that listen, as the kernel names them
//! (`SO_PEERCRED`, unix(7)). Its length and its time are limited, and silent sockets of one user do not delay those of
//! another. Only the look at who listens is sequential: it never waits for the other side.

use super::{ASKER, Key, PATIENCE, Statement, all, path};
use crate::lease::Session;
use crate::store::parallel;
use futures_util::stream::{self, StreamExt};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, ErrorKind};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::{UnixSocket, UnixStream};

/// No statement with its proof has more bytes.
const MOST: u64 = 16 * 1024;
/// Of one user, because descriptors are few.
const AT_ONCE: usize = 32;

#[derive(Debug)]
pub struct Answer {
    pub statement: Statement,
    peer: Peer,
}

#[derive(Clone, Copy, Debug)]
struct Peer {
    user: u32,
    /// None if it is outside our PID namespace.
    process: Option<u32>,
}

#[derive(Debug, Default)]
pub struct Survey {
    pub answers: Vec<Answer>,
    pub others: Vec<Answer>,
    /// Sockets of those asked about whose listener gave no answer, or none that a candidate would give.
    pub silent: usize,
    /// The processes behind them, of this user or of root, as far as the kernel names them.
    pub silent_processes: BTreeSet<u32>,
    pub silent_others: usize,
}

impl Answer {
    /// None if the process is outside our PID namespace.
    pub fn pid(&self) -> Option<u32> {
        self.peer.process
    }

    /// The process that answered, as the kernel names it, or else as it names itself.
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

    fn is_ours(self) -> bool {
        [0, nix::unistd::geteuid().as_raw()].contains(&self.user)
    }
}

/// Asks the candidate that gave COMMAND the socket's name and `key`, and believes nobody else.
pub async fn ask_own(name: &str, key: &Key) -> io::Result<Statement> {
    let question = format!("{ASKER}{}", Session::random()?.as_str());
    let asked = async {
        let (stream, peer) = reach(name, Some(&question)).await?;
        let text = read_answer(stream).await?;
        let end = text.iter().rposition(|&byte| byte == b'\n').unwrap_or(text.len());
        let (statement, proof) = (&text[..end], text.get(end + 1..).unwrap_or_default());
        let believed = (peer.is_ours() || peer.user == key.user) && key.proves(question.as_bytes(), statement, proof);
        let read = if believed { serde_json::from_slice(statement).ok() } else { None };
        read.ok_or_else(|| io::Error::other("another process has taken its place"))
    };
    tokio::time::timeout(PATIENCE, asked).await?
}

/// Asks all candidates of this network namespace at the same time, but those whose names begin with one of `beginnings`
/// first.
pub async fn ask_all(beginnings: &[String], patience: Duration) -> Survey {
    let is_meant = |name: &str| beginnings.iter().any(|beginning| name.starts_with(beginning));
    let (mut names, others): (Vec<_>, Vec<_>) = all().unwrap_or_default().into_iter().partition(|name| is_meant(name));
    names.extend(others);
    let mut listening = Vec::new();
    let answers = Mutex::default();
    let asked = async {
        let mut names_of: BTreeMap<u32, Vec<String>> = BTreeMap::new();
        for name in names {
            let process = match reach(&name, None).await {
                Ok((_, peer)) => {
                    names_of.entry(peer.user).or_default().push(name.clone());
                    peer.process.filter(|_| peer.is_ours())
                }
                // Bound but not listening, or gone.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(_) => None,
            };
            listening.push((name, process));
        }
        let of_a_user = |names| stream::iter(names).for_each_concurrent(AT_ONCE, |name| ask(name, &answers));
        parallel::all(names_of.into_values().map(of_a_user)).await;
    };
    // After a timeout, answers that have arrived count.
    let _ = tokio::time::timeout(patience.min(PATIENCE), asked).await;
    let mut survey = Survey::default();
    let answers = answers.into_inner();
    for (name, process) in listening.into_iter().filter(|(name, _)| !answers.contains_key(name)) {
        if is_meant(&name) {
            survey.silent += 1;
            survey.silent_processes.extend(process);
        } else {
            survey.silent_others += 1;
        }
    }
    for (name, answer) in answers {
        survey.silent_processes.retain(|process| answer.peer.process != Some(*process));
        if is_meant(&name) { survey.answers.push(answer) } else { survey.others.push(answer) }
    }
    survey
}

async fn ask(name: String, answers: &Mutex<BTreeMap<String, Answer>>) {
    let Ok((stream, peer)) = reach(&name, None).await else { return };
    let Ok(text) = read_answer(stream).await else { return };
    if let Ok(statement) = serde_json::from_slice(&text) {
        answers.lock().insert(name, Answer { statement, peer });
    }
}

/// Fails at once if the queue of the socket is full.
async fn reach(name: &str, question: Option<&str>) -> io::Result<(UnixStream, Peer)> {
    let socket = UnixSocket::new_stream()?;
    if let Some(question) = question {
        socket.bind(path(question))?;
    }
    let stream = socket.connect(path(name)).await?;
    let peer = Peer::of(&stream)?;
    Ok((stream, peer))
}

async fn read_answer(stream: UnixStream) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    stream.take(MOST).read_to_end(&mut text).await?;
    Ok(text)
}
