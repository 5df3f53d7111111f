//! Requests to the API server, over connections that are given up as soon as they are silent.
//!
//! The hazards:
//!
//! - The library's client keeps idle connections, and all of them may hang. So a client that is silent with a request
//!   unanswered is dropped with all of them: see `kept_connection`. The next one reads the kubeconfig again, and so finds
//!   tokens and certificates that were replaced.
//! - The library repeats a request that the server turned away, for longer than the election waits. So its retries are
//!   off. What the server asks for (`Retry-After`) is kept here, within the time of the request.
//! - Its requests have no bound on their time, and its answers none on their length. Both are here.
//! - A program that logs in (`exec` of a kubeconfig) may hang. It runs on a thread of its own, one at a time.

use super::address::Address;
use super::document::{KIND, Lease};
use super::failure::{self, Refusal, Verb};
use crate::lease::show;
use crate::store::allowance::{self, MOST, MOST_LISTED};
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::server_clock::Clock;
use crate::store::{ErrorKind, StoreError, expiry, tls};
use crate::time::BootInstant;
use http::header::{ACCEPT, CONTENT_TYPE, DATE, RETRY_AFTER};
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use kube::client::{Body, Client, ClientBuilder};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use parking_lot::Mutex;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};

/// How many objects a page of a list has at most.
const PAGE: usize = 500;
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

pub struct Api {
    address: Address,
    request_timeout: Duration,
    shared: Kept<Connection>,
    /// Locked while a client is made.
    making: Arc<tokio::sync::Mutex<()>>,
    clock: Mutex<Clock>,
    /// This process was let update a Lease. A server that starts does not know the rights yet, and denies all.
    may_update: AtomicBool,
}

pub struct Connection {
    client: Client,
    pub namespace: String,
    /// `HOST:PORT`.
    pub server: String,
    pending: Pending,
}

/// What a conditional write came to.
pub enum Written {
    Done(Box<Lease>),
    /// Something else stands there. If it was sent twice, that may be the first copy.
    Refused {
        sent_twice: bool,
    },
}

/// A request.
#[derive(Clone, Copy)]
struct Ask<'a> {
    verb: Verb,
    path: &'a str,
    body: &'a [u8],
}

#[derive(Deserialize)]
struct Page {
    metadata: PageMetadata,
    items: Vec<Lease>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMetadata {
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

impl Api {
    pub fn open(address: &Address, request_timeout: Duration) -> Self {
        tls::install_provider();
        Self {
            address: address.clone(),
            request_timeout,
            shared: Kept::default(),
            making: Arc::default(),
            clock: Mutex::default(),
            may_update: AtomicBool::new(false),
        }
    }

    /// The server's clock, as far as the answers up to now show it.
    pub fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }

    /// The namespace, as far as it is known yet.
    pub fn place(&self) -> String {
        match self.shared.get() {
            Some(connection) => format!("namespace {} of kubernetes at {}", connection.namespace, connection.server),
            None => self.address.to_string(),
        }
    }

    pub fn bound(&self) -> Duration {
        kept_connection::bound(self.request_timeout)
    }

    /// The shared connection, or a new one.
    pub async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        let patience = kept_connection::patience(self.bound());
        let kept = || {
            self.shared.drop_if(|kept| kept.pending.is_silent(patience));
            self.shared.get()
        };
        if let Some(connection) = kept() {
            return Ok(connection);
        }
        let making = Arc::clone(&self.making).lock_owned().await;
        if let Some(connection) = kept() {
            return Ok(connection);
        }
        let (address, bound) = (self.address.clone(), self.bound());
        let made = tokio::task::spawn_blocking(move || {
            let _making = making;
            Handle::current().block_on(connect(&address, bound))
        });
        let made = made.await.map_err(|error| StoreError::not_applied(format!("no client for kubernetes: {error}")))?;
        let connection = Arc::new(made?);
        self.shared.keep_unless(&connection, |_| false);
        Ok(connection)
    }

    /// Sends a request. Sends it once more if the connection broke or the login was refused, and again when the server
    /// asks for that.
    async fn ask(&self, ask: Ask<'_>) -> Result<Vec<u8>, Refusal> {
        let began = BootInstant::now();
        let mut sent = 0;
        let mut in_doubt = false;
        let attempts = async {
            loop {
                let connection = self.connection().await?;
                sent += 1;
                let refusal = match self.send(&connection, ask).await {
                    Ok(answer) => return Ok(answer),
                    Err(refusal) => refusal,
                };
                let left = self.bound().saturating_sub(BootInstant::now().since(began));
                let is_first = sent == 1;
                in_doubt |= refusal.error.kind == ErrorKind::Unknown;
                match refusal.retry_after {
                    Some(pause) if pause < left => sleep(pause).await,
                    None if is_first && (refusal.has_broken || refusal.status == Some(StatusCode::UNAUTHORIZED)) => {
                        self.shared.forget(&connection);
                    }
                    _ => return Err(Refusal { sent_twice: !is_first, ..refusal }),
                }
            }
        };
        let answer = timeout(self.bound(), attempts).await.unwrap_or_else(|_| {
            let place = self.place();
            Err(StoreError::unknown(format!("{place} did not answer within {}", show(self.bound()))).into())
        });
        answer.map_err(|refusal| {
            // The first copy may have been applied, whatever happened to the last one.
            let kind = if in_doubt { ErrorKind::Unknown } else { refusal.error.kind };
            Refusal { error: StoreError { kind, ..refusal.error }, ..refusal }
        })
    }

    async fn send(&self, connection: &Arc<Connection>, ask: Ask<'_>) -> Result<Vec<u8>, Refusal> {
        let patience = kept_connection::patience(self.bound());
        let asked = connection.pending.begin(patience, |is_silent| {
            if is_silent {
                self.shared.forget(connection);
            }
        });
        let response = self.exchange(connection, ask).await?;
        let (status, retry_after) = (response.status(), retry_after(response.headers()));
        let body = Limited::new(response.into_body(), MOST).collect().await;
        let body = body.map_err(|error| failure::broken(connection, ask.verb, &*error))?.to_bytes();
        asked.answered();
        if status.is_success() {
            self.may_update.fetch_or(ask.verb == Verb::Update, Ordering::Relaxed);
            return Ok(body.to_vec());
        }
        let mut refusal = failure::refused(connection, ask.verb, status, &body);
        let is_update = ask.verb == Verb::Update && self.may_update.load(Ordering::Relaxed);
        if status == StatusCode::FORBIDDEN && is_update {
            refusal.error.kind = ErrorKind::NotApplied;
        }
        Err(Refusal { retry_after, ..refusal })
    }

    /// Sends a request, and reads what comes before the body.
    async fn exchange(&self, connection: &Connection, ask: Ask<'_>) -> Result<Response<Body>, Refusal> {
        let request = Request::builder()
            .method(ask.verb.method())
            .uri(ask.path)
            .header(ACCEPT, "application/json")
            .header(CONTENT_TYPE, "application/json")
            .body(Body::from(ask.body.to_vec()));
        let request = request.map_err(|error| StoreError::not_applied(format!("no request: {error}")))?;
        let sent = BootInstant::now();
        let response = connection.client.send(request).await;
        let response = response.map_err(|error| failure::broken(connection, ask.verb, &error))?;
        let date = response.headers().get(DATE).and_then(|date| expiry::date(date.to_str().ok()?));
        if let Some(date) = date {
            self.clock.lock().sample(date, sent, BootInstant::now());
        }
        Ok(response)
    }

    async fn leases(&self) -> Result<String, StoreError> {
        let connection = timeout(self.bound(), self.connection()).await;
        let connection = connection
            .map_err(|_| StoreError::not_applied("the login of the kubeconfig is not ready within the time"))??;
        Ok(format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", connection.namespace))
    }

    /// Reads a Lease as it stands. None if there is none.
    pub async fn get(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        let path = format!("{}/{name}", self.leases().await?);
        match self.ask(Ask { verb: Verb::Get, path: &path, body: b"" }).await {
            Ok(answer) => self.read(&answer).map(Some),
            Err(refusal) if refusal.is_absence => Ok(None),
            Err(refusal) => Err(refusal.error),
        }
    }

    /// Writes a Lease over the one whose uid and resourceVersion it names; creates it if it names none.
    pub async fn write(&self, lease: &Lease) -> Result<Written, StoreError> {
        let leases = self.leases().await?;
        let body = serde_json::to_vec(lease).expect("it is plain data");
        let (verb, path) = if lease.metadata.uid.is_empty() {
            (Verb::Create, leases)
        } else {
            (Verb::Update, format!("{leases}/{}", lease.metadata.name))
        };
        match self.ask(Ask { verb, path: &path, body: &body }).await {
            Ok(answer) => self.read(&answer).map(|lease| Written::Done(Box::new(lease))),
            Err(refusal) if refusal.status == Some(StatusCode::CONFLICT) => {
                Ok(Written::Refused { sent_twice: refusal.sent_twice })
            }
            Err(refusal) if verb == Verb::Update && refusal.is_absence => Ok(Written::Refused { sent_twice: false }),
            Err(refusal) => Err(refusal.error),
        }
    }

    /// Deletes a Lease, whatever is in it. Does no harm if it is gone.
    pub async fn delete(&self, name: &str) -> Result<(), StoreError> {
        let path = format!("{}/{name}", self.leases().await?);
        match self.ask(Ask { verb: Verb::Delete, path: &path, body: b"" }).await {
            Err(refusal) if !refusal.is_absence => Err(refusal.error),
            _ => Ok(()),
        }
    }

    /// All Leases of ours of these kinds, such as `shard,led`.
    pub async fn list(&self, kinds: &str) -> Result<Vec<Lease>, StoreError> {
        let selector = format!("labelSelector={KIND}%20in%20({kinds})");
        let mut all = Vec::new();
        let mut next = String::new();
        loop {
            let page = self.page(&format!("{selector}&limit={PAGE}&continue={next}")).await?;
            all.extend(page.items);
            if all.len() > MOST_LISTED {
                return Err(allowance::too_long(&self.place()));
            }
            next = page.metadata.next;
            if next.is_empty() {
                return Ok(all);
            }
        }
    }

    /// A Lease as it stands, and the version of all Leases from which on a watch misses nothing. (That of one that nobody
    /// wrote for a while is too old for a watch.)
    pub async fn get_for_watch(&self, name: &str) -> Result<(Option<Lease>, String), StoreError> {
        let page = self.page(&format!("fieldSelector=metadata.name={name}")).await?;
        Ok((page.items.into_iter().next(), page.metadata.resource_version))
    }

    async fn page(&self, query: &str) -> Result<Page, StoreError> {
        let path = format!("{}?{query}", self.leases().await?);
        let answer = self.ask(Ask { verb: Verb::List, path: &path, body: b"" }).await;
        self.read(&answer.map_err(|refusal| refusal.error)?)
    }

    /// Begins a watch.
    pub async fn watch(&self, query: &str) -> Result<(Arc<Connection>, Body), Refusal> {
        let path = format!("{}?watch=true&{query}", self.leases().await?);
        let connection = self.connection().await?;
        let ask = Ask { verb: Verb::Watch, path: &path, body: b"" };
        let begun = timeout(self.bound(), self.exchange(&connection, ask)).await;
        let response = begun.map_err(|_| {
            self.shared.forget(&connection);
            StoreError::unknown(format!("{} begins no watch within {}", self.place(), show(self.bound())))
        })??;
        if response.status().is_success() {
            return Ok((connection, response.into_body()));
        }
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST).collect().await;
        let body = body.map_err(|error| failure::broken(&connection, ask.verb, &*error))?.to_bytes();
        Err(failure::refused(&connection, ask.verb, status, &body))
    }

    /// What the server says of itself, or of a question.
    pub async fn question(&self, path: &str, body: Option<Value>) -> Result<Value, StoreError> {
        let verb = if body.is_some() { Verb::Create } else { Verb::Get };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let answer = self.ask(Ask { verb, path, body: body.as_bytes() }).await;
        self.read(&answer.map_err(|refusal| refusal.error)?)
    }

    fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, StoreError> {
        serde_json::from_slice(body).map_err(|error| {
            StoreError::unknown(format!("{} answers with something else than expected: {error}", self.place()))
        })
    }
}

/// For how long the server asks to wait: it says whole seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.parse().ok()?;
    Some(Duration::from_secs(seconds))
}

async fn connect(address: &Address, bound: Duration) -> Result<Connection, StoreError> {
    let mut config = configuration(address).await?;
    config.default_retry = false;
    config.connect_timeout = Some(bound);
    if config.proxy_url.is_some() {
        return Err(StoreError::misconfigured(
            "the kubeconfig or HTTPS_PROXY names a proxy, and kubernetes: takes none: name the API server itself",
        ));
    }
    let server = config.cluster_url.authority().map(ToString::to_string).unwrap_or_default();
    let namespace = address.namespace.clone().unwrap_or_else(|| config.default_namespace.trim().to_owned());
    let client = ClientBuilder::try_from(config).map_err(|error| failure::no_login(&server, &error))?.build();
    Ok(Connection { client, namespace, server, pending: Pending::default() })
}

/// What the URL names, then what `KUBECONFIG` names, then the account of the pod, then `~/.kube/config`.
async fn configuration(address: &Address) -> Result<Config, StoreError> {
    let Address { context, kubeconfig, .. } = address;
    let is_chosen = context.is_some() || kubeconfig.is_some() || std::env::var_os("KUBECONFIG").is_some();
    let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(TOKEN).exists();
    if is_pod && !is_chosen {
        return Config::incluster().map_err(|error| failure::unconfigured(&error));
    }
    let file = match kubeconfig {
        Some(file) => Kubeconfig::read_from(file),
        None => Kubeconfig::read(),
    };
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = match file {
        Ok(file) => Config::from_custom_kubeconfig(file, &options).await,
        Err(error) => Err(error),
    };
    config.map_err(|error| failure::unconfigured(&error))
}
