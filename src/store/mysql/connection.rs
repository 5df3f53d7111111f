//! One connection to the server.
//!
//! The hazards:
//!
//! - A connection may be dead without any sign of it. So one request uses a connection at a time, and owns it: when the
//!   request is given up, the connection is closed, and nothing waits for its answer any more.
//! - A statement that no request waits for may go on in the server, behind a row that is locked. So the server must
//!   give up too: each connection begins with timeouts of the server's.
//! - The session may not be ours alone: a proxy gives a statement another one, with other settings. Nothing here relies
//!   on a setting, except that statements are committed, and every answer says whether they are ([`Trouble`]).

use super::address::{Address, Place, PublicKey};
use super::failure::{Site, Trouble};
use super::proof::{self, CACHING};
use super::wire::{self, Garbled, Greeting, Head, Line, LoginAnswer, Row, capability, status};
use crate::store::allowance::{Allowance, Counted, MOST};
use crate::store::rows::LIST_PAGE;
use crate::store::socket::{Socket, reach};
use crate::store::tls_mode::TlsMode;
use crate::store::{ErrorKind, StoreError};
use rustls::pki_types::ServerName;
use std::io;
use std::os::fd::OwnedFd;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

/// The server ends a session that was silent for so many seconds: our host may be gone without a sign. A session that
/// takes the leader lock sets a shorter time (`statement`).
const IDLE: u64 = 120;
/// A request has fewer statements, and an answer fewer rows. A server that counts on without an end is not heard to its
/// end: what is short in a packet takes more memory here.
const MOST_OUTCOMES: usize = 100;
const MOST_ROWS: usize = 2 * LIST_PAGE;
/// A login has fewer steps.
const MOST_STEPS: usize = 8;

const NEEDED: u32 = capability::LONG_PASSWORD
    | capability::CONNECT_WITH_DB
    | capability::PROTOCOL_41
    | capability::TRANSACTIONS
    | capability::SECURE_CONNECTION
    | capability::MULTI_STATEMENTS
    | capability::MULTI_RESULTS;
/// Those that a server, or a proxy before it, may be without.
const WANTED: u32 = capability::PLUGIN_AUTH | capability::CONNECT_ATTRS;

trait Bytes: AsyncRead + AsyncWrite + Send + Sync + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Sync + Unpin> Bytes for S {}

/// The answer to one of the statements of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// How many rows it changed.
    pub changed: u64,
    pub rows: Vec<Row>,
}

pub struct Connection {
    pipe: Pipe,
    /// Another descriptor of its socket.
    pub descriptor: OwnedFd,
    /// The server's number for this session.
    pub id: i64,
    /// Which server it is: another one after a failover.
    pub server: String,
    /// The server is a node of a Galera cluster.
    pub is_galera: bool,
    pub encrypted: bool,
}

/// What a connection needs to know in addition to the place.
pub struct Login<'a> {
    pub address: &'a Address,
    pub site: &'a Site,
    pub tls: Option<&'a TlsConnector>,
    /// After how many seconds the server gives up a statement that waits.
    pub patience: u64,
    pub deadline: Instant,
}

impl Connection {
    /// Connects, logs in, and asks what is on the other side.
    ///
    /// # Errors
    /// In one line. No request was sent.
    pub async fn begin(login: &Login<'_>, place: &Place) -> Result<Self, StoreError> {
        let Login { site, .. } = login;
        let unreachable = |error| site.unconnected(&Trouble::Lost(error));
        let (socket, name) = match place {
            Place::Tcp { name, port } => {
                let stream = reach(name, *port, login.deadline).await.map_err(unreachable)?;
                (Socket::Tcp(stream), Some(name.as_str()))
            }
            Place::Unix(path) => (Socket::Unix(UnixStream::connect(path).await.map_err(unreachable)?), None),
        };
        let descriptor = socket.prepare().and_then(|()| socket.descriptor()).map_err(unreachable)?;
        let allowance = Allowance::of(MOST);
        let mut pipe = Pipe::new(Box::new(Counted::new(socket, &allowance)), &allowance, site);
        let encrypted = log_in(login, &mut pipe, name).await?;
        let mut connection = Self { pipe, descriptor, id: 0, server: String::new(), is_galera: false, encrypted };
        connection.greet(login).await?;
        Ok(connection)
    }

    /// Sets the session up, and asks whether the server accepts writes.
    async fn greet(&mut self, login: &Login<'_>) -> Result<(), StoreError> {
        let (site, patience) = (login.site, login.patience);
        // The comments are statements for MariaDB alone, and for MySQL 8 alone.
        let statements = format!(
            "SET SESSION autocommit = 1, time_zone = '+00:00', sql_mode = 'STRICT_ALL_TABLES', \
             innodb_lock_wait_timeout = {patience}, lock_wait_timeout = {patience}, wait_timeout = {IDLE} \
             /*M!100000 , max_statement_time = {patience} */; \
             SELECT @@global.read_only, CONNECTION_ID(), {IS_GALERA}; SELECT {SERVER}"
        );
        let mut outcomes = Vec::new();
        let asked = self.ask(&statements, &mut outcomes).await;
        asked.map_err(|trouble| {
            StoreError::not_applied(format!("cannot use {}: {}", site.server, site.unanswered(&trouble, false).message))
        })?;
        let row = |index| outcomes.get(index).and_then(|outcome: &Outcome| outcome.rows.first());
        let read = || Some((row(1)?.words(0)?, row(1)?.number(1)?, row(1)?.flag(2)?, row(2)?.words(0)?));
        let (read_only, id, is_galera, server) = read().ok_or_else(|| site.unconnected(&Trouble::Garbled))?;
        if !["0", "OFF"].contains(&read_only.as_str()) {
            return Err(StoreError::not_applied(format!(
                "{} does not accept writes: it is a replica, or read-only by its settings",
                site.server
            )));
        }
        (self.id, self.is_galera, self.server) = (id, is_galera, server);
        if is_galera {
            // A look must show what another node has confirmed.
            let asked = self.ask("SET SESSION wsrep_sync_wait = 1", &mut Vec::new()).await;
            asked.map_err(|trouble| StoreError { kind: ErrorKind::NotApplied, ..site.unanswered(&trouble, false) })?;
        }
        Ok(())
    }

    /// Sends statements, in one round trip. Each is committed by itself, and the first failure ends the rest. Puts the
    /// answers of those before it into `outcomes`, as they come: none of them if one may not be committed.
    pub async fn ask(&mut self, statements: &str, outcomes: &mut Vec<Outcome>) -> Result<(), Trouble> {
        self.pipe.ask(statements).await?;
        loop {
            let status = self.pipe.outcome(outcomes).await?;
            if status & status::IN_TRANSACTION != 0 || status & status::AUTOCOMMIT == 0 {
                outcomes.clear();
                return Err(Trouble::Uncommitted);
            }
            if status & status::MORE_RESULTS == 0 {
                return Ok(());
            }
        }
    }

    /// As [`Connection::ask`], but a transaction may be open.
    pub async fn ask_within_transaction(
        &mut self,
        statements: &str,
        outcomes: &mut Vec<Outcome>,
    ) -> Result<(), Trouble> {
        self.pipe.ask(statements).await?;
        while self.pipe.outcome(outcomes).await? & status::MORE_RESULTS != 0 {}
        Ok(())
    }

    /// Returns when the other side has closed the connection, or sends something that was not asked for.
    pub async fn ended(&mut self) {
        let _ = self.pipe.stream.read_u8().await;
    }
}

/// Which server it is. MySQL has a number for each server; MariaDB shows its place.
pub const SERVER: &str =
    "CONCAT(/*!80000 @@server_uuid, */ /*M!100000 @@server_id, ' ', @@hostname, ':', @@port, @@datadir, */ '')";

/// Some builds of MariaDB do not know this variable.
const IS_GALERA: &str = "(0 /*M!100000 + EXISTS (SELECT 1 FROM information_schema.global_variables \
    WHERE variable_name = 'wsrep_on' AND variable_value = 'ON') */)";

/// The packets of a connection.
struct Pipe {
    stream: BufReader<Box<dyn Bytes>>,
    allowance: Allowance,
    /// `MySQL at 10.0.0.5:3306`.
    server: String,
    /// The number of the next packet.
    sequence: u8,
}

impl Pipe {
    fn new(stream: Box<dyn Bytes>, allowance: &Allowance, site: &Site) -> Self {
        let (allowance, server) = (allowance.clone(), site.server.clone());
        Self { stream: BufReader::new(stream), allowance, server, sequence: 0 }
    }

    fn trouble(&self, error: io::Error) -> Trouble {
        if self.allowance.is_exceeded() {
            Trouble::TooMuch(self.allowance.complaint(&self.server, "MySQL"))
        } else {
            Trouble::Lost(error)
        }
    }

    async fn send(&mut self, packet: &[u8]) -> Result<(), Trouble> {
        let length = u32::try_from(packet.len()).ok().filter(|length| length >> 24 == 0);
        let [low, middle, high, _] = length.ok_or(Trouble::Garbled)?.to_le_bytes();
        let whole = [&[low, middle, high, self.sequence], packet].concat();
        self.sequence = self.sequence.wrapping_add(1);
        let sent = async {
            self.stream.write_all(&whole).await?;
            self.stream.flush().await
        };
        let sent = sent.await;
        sent.map_err(|error| self.trouble(error))
    }

    async fn ask(&mut self, statements: &str) -> Result<(), Trouble> {
        self.allowance.begin_again();
        self.sequence = 0;
        self.send(&wire::query(statements)).await
    }

    async fn packet(&mut self) -> Result<Vec<u8>, Trouble> {
        let mut packet = Vec::new();
        let read = async {
            let mut head = [0; 4];
            self.stream.read_exact(&mut head).await?;
            let [low, middle, high, sequence] = head;
            let length = u32::from_le_bytes([low, middle, high, 0]);
            // No more memory than has arrived.
            let read = (&mut self.stream).take(u64::from(length)).read_to_end(&mut packet).await?;
            if read < length as usize {
                return Err(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            Ok(sequence)
        };
        let sequence = read.await;
        let sequence = sequence.map_err(|error| self.trouble(error))?;
        // A server that ends the session says so without being asked, and counts from anywhere.
        if sequence != self.sequence && packet.first() != Some(&255) {
            return Err(Trouble::Garbled);
        }
        self.sequence = sequence.wrapping_add(1);
        Ok(packet)
    }

    /// Reads the answer to one statement. Returns the status after it.
    async fn outcome(&mut self, outcomes: &mut Vec<Outcome>) -> Result<u16, Trouble> {
        if outcomes.len() >= MOST_OUTCOMES {
            return Err(Trouble::Garbled);
        }
        let columns = match Head::read(&self.packet().await?)? {
            Head::Done { changed, status } => {
                outcomes.push(Outcome { changed, rows: Vec::new() });
                return Ok(status);
            }
            Head::Failed(complaint) => return Err(Trouble::Complaint(complaint)),
            Head::Columns(columns) => columns,
        };
        for _ in 0..columns {
            self.packet().await?;
        }
        if !wire::is_end(&self.packet().await?) {
            return Err(Trouble::Garbled);
        }
        let mut rows = Vec::new();
        loop {
            match Line::read(&self.packet().await?, columns)? {
                Line::Row(row) if rows.len() < MOST_ROWS => rows.push(row),
                Line::Row(_) => return Err(Trouble::Garbled),
                Line::Failed(complaint) => return Err(Trouble::Complaint(complaint)),
                Line::End { status } => {
                    outcomes.push(Outcome { changed: 0, rows });
                    return Ok(status);
                }
            }
        }
    }
}

impl From<Garbled> for Trouble {
    fn from(_: Garbled) -> Self {
        Self::Garbled
    }
}

/// Logs in. Returns whether the connection is encrypted.
async fn log_in(login: &Login<'_>, pipe: &mut Pipe, name: Option<&str>) -> Result<bool, StoreError> {
    let Login { address, site, .. } = login;
    let unconnected = |trouble: Trouble| site.unconnected(&trouble);
    let first = pipe.packet().await.map_err(unconnected)?;
    if let Ok(LoginAnswer::Refused(complaint)) = LoginAnswer::read(&first) {
        return Err(unconnected(Trouble::Complaint(complaint)));
    }
    let greeting = Greeting::read(&first).map_err(|garbled| unconnected(garbled.into()))?;
    let missing = NEEDED & !greeting.capabilities & !capability::LONG_PASSWORD;
    if missing != 0 {
        return Err(StoreError::misconfigured(format!(
            "{} lacks a capability that leaderrun needs ({missing:#x}): it is too old, or a proxy that does not take \
             several statements at once",
            site.server
        )));
    }
    let mut capabilities = NEEDED | (WANTED & greeting.capabilities);
    // As the clients do: traffic that does not leave this machine needs no TLS.
    let tls = login.tls.zip(name);
    let offered = greeting.capabilities & capability::SSL != 0;
    let encrypted = match tls {
        Some((tls, name)) if offered => {
            capabilities |= capability::SSL;
            encrypt(login, pipe, tls, name, capabilities).await?;
            true
        }
        Some(_) if address.tls_mode != TlsMode::Prefer => {
            return Err(StoreError::misconfigured(format!(
                "{} does not speak TLS: turn TLS on, or do without it with ssl-mode=PREFERRED",
                site.server
            )));
        }
        Some(_) | None => false,
    };
    let (password, user) = (address.password(), &site.user);
    let unknown = |plugin: &str| {
        StoreError::misconfigured(format!(
            "{} wants user {user} to show who it is in a way that leaderrun does not know ({}): use \
             caching_sha2_password or mysql_native_password",
            site.server,
            crate::store::error::in_short(plugin)
        ))
    };
    let mut scramble = greeting.scramble;
    // Nothing forbids to begin with another one than the server's: it then asks for the one of the user.
    let known = proof::proof(&greeting.plugin, password.expose(), &scramble).is_some();
    let mut plugin = if known { greeting.plugin } else { proof::NATIVE.to_owned() };
    let proof = proof::proof(&plugin, password.expose(), &scramble).unwrap_or_default();
    let hello = wire::login(capabilities, user, &proof, &address.database, &plugin);
    pipe.send(&hello).await.map_err(unconnected)?;
    for _ in 0..MOST_STEPS {
        let packet = pipe.packet().await.map_err(unconnected)?;
        match LoginAnswer::read(&packet).map_err(|garbled| unconnected(garbled.into()))? {
            LoginAnswer::Welcome => return Ok(encrypted),
            LoginAnswer::Refused(complaint) => return Err(unconnected(Trouble::Complaint(complaint))),
            LoginAnswer::Switch { plugin: other, scramble: fresh } => {
                let proof = proof::proof(&other, password.expose(), &fresh).ok_or_else(|| unknown(&other))?;
                (plugin, scramble) = (other, fresh);
                pipe.send(&proof).await.map_err(unconnected)?;
            }
            // The server knows the password from an earlier login.
            LoginAnswer::More(words) if plugin == CACHING && words == [3] => {}
            // It has to see the password itself.
            LoginAnswer::More(words) if plugin == CACHING && words == [4] => {
                let secret = if encrypted || name.is_none() {
                    [password.expose().as_bytes(), &[0]].concat()
                } else {
                    sealed(login, pipe, password.expose(), &scramble).await?
                };
                pipe.send(&secret).await.map_err(unconnected)?;
            }
            LoginAnswer::More(_) => return Err(unconnected(Trouble::Garbled)),
        }
    }
    Err(unconnected(Trouble::Garbled))
}

async fn encrypt(
    login: &Login<'_>,
    pipe: &mut Pipe,
    tls: &TlsConnector,
    name: &str,
    capabilities: u32,
) -> Result<(), StoreError> {
    let site = login.site;
    pipe.send(&wire::request_for_tls(capabilities)).await.map_err(|trouble| site.unconnected(&trouble))?;
    let name = ServerName::try_from(name.to_owned())
        .map_err(|_| StoreError::misconfigured(format!("{name} is not a valid name for TLS")))?;
    // What was sent in the clear before the handshake is not to be taken for something that was encrypted.
    if !pipe.stream.buffer().is_empty() {
        return Err(site.unconnected(&Trouble::Garbled));
    }
    let nothing: Box<dyn Bytes> = Box::new(tokio::io::empty());
    let plain = std::mem::replace(&mut pipe.stream, BufReader::new(nothing)).into_inner();
    let secured = tls.connect(name, plain).await;
    let secured = secured.map_err(|error| site.unconnected(&pipe.trouble(error)))?;
    pipe.stream = BufReader::new(Box::new(secured));
    Ok(())
}

/// The password, sealed with the server's public key.
async fn sealed(login: &Login<'_>, pipe: &mut Pipe, password: &str, scramble: &[u8]) -> Result<Vec<u8>, StoreError> {
    const SEND_KEY: &[u8] = &[2];
    let (site, server) = (login.site, &login.site.server);
    let unconnected = |trouble: Trouble| site.unconnected(&trouble);
    let key = match &login.address.public_key {
        PublicKey::Unknown => {
            return Err(StoreError::misconfigured(format!(
                "{server} has to see the password of user {}, and the connection is not encrypted: set \
                 ssl-mode=REQUIRED, or server-public-key-path=FILE",
                site.user
            )));
        }
        PublicKey::File(file) => std::fs::read(file)
            .map_err(|error| StoreError::misconfigured(format!("{} cannot be read: {error}", file.display())))?,
        PublicKey::FromServer => {
            pipe.send(SEND_KEY).await.map_err(unconnected)?;
            let packet = pipe.packet().await.map_err(unconnected)?;
            match LoginAnswer::read(&packet) {
                Ok(LoginAnswer::More(key)) => key,
                _ => return Err(unconnected(Trouble::Garbled)),
            }
        }
    };
    proof::sealed(password, scramble, &key).ok_or_else(|| {
        StoreError::misconfigured(format!("the public key of {server} cannot be used: it is no RSA key in PEM"))
    })
}
