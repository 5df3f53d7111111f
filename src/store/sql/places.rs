//! The servers that a URL names: where each of them listens, and which of them is asked.

use crate::store::StoreError;
use crate::store::error::{unanswered, worst};
use crate::store::socket::{Socket, reach};
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::net::UnixStream;
use tokio::time::Instant;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    Tcp { name: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { name, port } if name.contains(':') => write!(f, "[{name}]:{port}"),
            Self::Tcp { name, port } => write!(f, "{name}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Place {
    /// The name for TLS. As in the servers' own clients, traffic that does not leave this machine needs none.
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        if let Self::Tcp { name, .. } = self { Some(name) } else { None }
    }

    /// Whether it is on another machine.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.name()
            .is_some_and(|name| name != "localhost" && !name.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback()))
    }

    pub async fn reach(&self, deadline: Instant) -> io::Result<Socket> {
        let socket = match self {
            Self::Tcp { name, port } => Socket::Tcp(reach(name, *port, deadline).await?),
            Self::Unix(path) => Socket::Unix(UnixStream::connect(path).await?),
        };
        socket.prepare()?;
        Ok(socket)
    }
}

/// As messages name them: `PostgreSQL at one:5432,two:5432`.
pub fn named(kind: &str, places: &[Place]) -> String {
    let places: Vec<String> = places.iter().map(ToString::to_string).collect();
    format!("{kind} at {}", places.join(","))
}

/// The places of one store, at least one.
pub struct Places {
    kind: &'static str,
    all: Vec<Place>,
    /// The one that worked last.
    preferred: AtomicUsize,
}

/// One attempt to find a server that accepts writes: each place is tried once.
pub struct Round<'a> {
    places: &'a Places,
    first: usize,
    tried: usize,
    deadline: Instant,
    failures: Vec<StoreError>,
}

impl Places {
    pub fn new(kind: &'static str, all: &[Place]) -> Self {
        Self { kind, all: all.to_vec(), preferred: AtomicUsize::new(0) }
    }

    pub fn round(&self, deadline: Instant) -> Round<'_> {
        let first = self.preferred.load(Ordering::Relaxed);
        Round { places: self, first, tried: 0, deadline, failures: Vec::new() }
    }
}

impl<'a> Round<'a> {
    /// The next place, what messages call it, and until when the attempt may take.
    pub fn next(&mut self) -> Option<(&'a Place, String, Instant)> {
        let Places { kind, all, .. } = self.places;
        let left = u32::try_from(all.len() - self.tried).ok().filter(|left| *left > 0)?;
        let place = &all[(self.first + self.tried) % all.len()];
        self.tried += 1;
        // A host that is silent must leave time for the others.
        let share = self.deadline.saturating_duration_since(Instant::now()) / left;
        Some((place, named(kind, std::slice::from_ref(place)), Instant::now() + share))
    }

    pub fn failed(&mut self, failure: StoreError) {
        self.failures.push(failure);
    }

    /// There was no answer in time. `reached`: a connection was made.
    pub fn was_silent(&mut self, server: &str, reached: bool) {
        self.failures.push(unanswered(server, reached, self.places.kind));
    }

    /// The place that was tried last works.
    pub fn worked(self) {
        self.prefer(self.tried - 1);
    }

    /// None of them works.
    pub fn over(self) -> StoreError {
        // The next attempt begins elsewhere: this one may have spent its time on the first host.
        self.prefer(1);
        worst(&self.failures)
    }

    fn prefer(&self, offset: usize) {
        let Places { all, preferred, .. } = self.places;
        preferred.store((self.first + offset) % all.len(), Ordering::Relaxed);
    }
}
