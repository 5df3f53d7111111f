//! Requests to the API server, over connections that are given up as soon as they are silent.
//!
//! The hazards:
//!
//! - The library's client keeps idle connections, and all of them may hang. So a client that is silent with a request
//!   unanswered is dropped with its connections (`kept_connection`). The next one reads the kubeconfig again, and so
//!   finds tokens and certificates that were replaced.
//! - The library repeats a request that the server turned away, for longer than the election waits. So its retries are
//!   off, and `Retry-After` is obeyed here, within the time of the request.
//! - The library bounds neither the time of a request nor the length of an answer. This module does.
//! - A program that logs in (`exec` of a kubeconfig) may hang. It runs on a thread of its own, one at a time.
//! - The connection of a watch may hang, and a standby would not hear of a release. So the server is asked to say once
//!   a minute that it is there, and to end the watch after some minutes.

use super::address::Address;
use super::document::{self, KIND};
use super::failure::{self, Refusal};
use crate::lease::show;
use crate::store::allowance::{self, MOST};
use crate::store::kept_connection::{self, Kept, Pending};
use crate::store::server_clock::Clock;
use crate::store::{ErrorKind, StoreError, expiry, tls};
use crate::time::BootInstant;
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{self, BoxStream, StreamExt};
use http::Response;
use http::header::{DATE, RETRY_AFTER};
use http_body_util::{BodyExt, Limited};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{DeleteParams, ListParams, PostParams, WatchEvent, WatchParams};
use kube::client::{ClientBuilder, DynBody};
use kube::config::{Config, KubeConfigOptions, Kubeconfig};
use kube::core::Status;
use parking_lot::Mutex;
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::{sleep, timeout};
use tower::BoxError;
use tower::util::MapFutureLayer;

const PAGE: u32 = 500;
const WATCH_SECONDS: u32 = 240;
/// After this silence a watch ends: the server says once a minute that it is there.
const SILENCE: Duration = Duration::from_secs(90);
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount/token";

pub struct Objects {
    pub(super) address: Address,
    bound: Duration,
    shared: Kept<Connection>,
    /// Locked while a client is made.
    making: Arc<tokio::sync::Mutex<()>>,
    pub(super) clock: Arc<Mutex<Clock>>,
    /// This process was allowed to update a Lease before. So a later denial comes from a server that has just started
    /// and does not know the rights yet.
    may_update: AtomicBool,
    /// The uid of the marker; empty if it was not seen yet.
    pub(super) incarnation: Mutex<String>,
}

pub struct Connection {
    pub leases: kube::Api<Lease>,
    pub namespace: String,
    /// `kubernetes at HOST:PORT`.
    pub server: String,
    pending: Pending,
}

pub type States = BoxStream<'static, Result<Option<Lease>, StoreError>>;

impl Objects {
    pub fn open(address: &Address, request_timeout: Duration) -> Self {
        tls::install_provider();
        Self {
            address: address.clone(),
            bound: kept_connection::bound(request_timeout),
            shared: Kept::default(),
            making: Arc::default(),
            clock: Arc::default(),
            may_update: AtomicBool::new(false),
            incarnation: Mutex::default(),
        }
    }

    pub(super) fn namespace(&self) -> String {
        self.shared
            .get()
            .map_or_else(|| self.address.to_string(), |at| format!("namespace {} of {}", at.namespace, at.server))
    }

    async fn connection(&self) -> Result<Arc<Connection>, StoreError> {
        let making = Arc::clone(&self.making).lock_owned().await;
        self.shared.drop_if(|kept| kept.pending.is_silent(kept_connection::patience(self.bound)));
        if let Some(connection) = self.shared.get() {
            return Ok(connection);
        }
        let (address, bound, clock) = (self.address.clone(), self.bound, Arc::clone(&self.clock));
        let made = tokio::task::spawn_blocking(move || {
            let _making = making;
            Handle::current().block_on(connect(&address, bound, clock))
        });
        let made = made.await.map_err(|error| StoreError::not_applied(format!("no client for kubernetes: {error}")))?;
        let connection = Arc::new(made?);
        self.shared.keep_unless(&connection, |_| false);
        Ok(connection)
    }

    /// Sends a request; once more if the connection broke or the login was refused; and again when the server asks for
    /// that (`Retry-After`).
    pub(super) async fn ask<A, F>(&self, verb: &str, send: impl Fn(Arc<Connection>) -> F) -> Result<A, Refusal>
    where
        F: Future<Output = kube::Result<A>>,
    {
        let began = BootInstant::now();
        let mut times = 0;
        let mut in_doubt = false;
        let attempts = async {
            loop {
                let connection = self.connection().await?;
                times += 1;
                let asked = connection.pending.begin(kept_connection::patience(self.bound), |is_silent| {
                    if is_silent {
                        self.shared.forget(&connection);
                    }
                });
                let mut refusal = match send(Arc::clone(&connection)).await {
                    Ok(answer) => {
                        asked.answered();
                        self.may_update.fetch_or(verb == "update", Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(error) => failure::refusal(&connection, verb, &error),
                };
                if refusal.code.is_some() {
                    asked.answered();
                }
                if refusal.code == Some(403) && verb == "update" && self.may_update.load(Ordering::Relaxed) {
                    refusal.error.kind = ErrorKind::NotApplied;
                }
                refusal.sent_twice = times > 1;
                in_doubt |= refusal.error.kind == ErrorKind::Unknown;
                let left = self.bound.saturating_sub(BootInstant::now().since(began));
                match refusal.retry_after {
                    Some(pause) if pause < left => sleep(pause).await,
                    // Without an answer, or without a login.
                    None if times == 1 && refusal.code.is_none_or(|code| code == 401) => {
                        self.shared.forget(&connection);
                    }
                    _ => return Err(refusal),
                }
            }
        };
        let answer = timeout(self.bound, attempts).await.unwrap_or_else(|_| {
            let unanswered = format!("{} did not answer within {}", self.namespace(), show(self.bound));
            Err(match times {
                0 => StoreError::not_applied("the login of the kubeconfig is not ready within the time").into(),
                _ => StoreError::unknown(unanswered).into(),
            })
        });
        answer.map_err(|mut refusal: Refusal| {
            if in_doubt {
                // The first copy may have been applied, whatever happened to the last one.
                refusal.error.kind = ErrorKind::Unknown;
            }
            refusal
        })
    }

    pub(super) async fn get_lease(&self, name: &str) -> Result<Option<Lease>, StoreError> {
        match self.ask("get", |to| async move { to.leases.get(name).await }).await {
            Err(refusal) if refusal.is_absence => Ok(None),
            answer => Ok(Some(answer?)),
        }
    }

    /// None: something else stands there. `write` is the name of this write.
    pub(super) async fn write(&self, lease: &Lease, write: &str) -> Result<Option<Lease>, StoreError> {
        let name = lease.metadata.name.as_deref().unwrap_or_default();
        let is_new = lease.metadata.uid.is_none();
        let params = &PostParams::default();
        let written = if is_new {
            self.ask("create", |to| async move { to.leases.create(params, lease).await }).await
        } else {
            self.ask("update", |to| async move { to.leases.replace(name, params, lease).await }).await
        };
        match written {
            // What stands there may be the first copy.
            Err(refusal) if refusal.code == Some(409) && refusal.sent_twice => {
                Ok(self.get_lease(name).await?.filter(|stands| document::is_of(stands, write)))
            }
            Err(refusal) if refusal.code == Some(409) || (!is_new && refusal.is_absence) => Ok(None),
            written => Ok(Some(written?)),
        }
    }

    pub(super) async fn delete(&self, name: &str) -> Result<(), StoreError> {
        let params = &DeleteParams::default();
        match self.ask("delete", |to| async move { to.leases.delete(name, params).await }).await {
            Err(refusal) if !refusal.is_absence => Err(refusal.error),
            _ => Ok(()),
        }
    }

    /// Lists Leases of kinds such as `shard,led`.
    pub(super) async fn leases(&self, kinds: &str) -> Result<Vec<Lease>, StoreError> {
        let mut params = ListParams::default().labels(&format!("{KIND} in ({kinds})")).limit(PAGE);
        let mut all = Vec::new();
        loop {
            let listing = &params;
            let page = self.ask("list", |to| async move { to.leases.list(listing).await }).await?;
            all.extend(page.items);
            allowance::listed(all.len(), &self.namespace())?;
            params.continue_token = page.metadata.continue_.filter(|next| !next.is_empty());
            if params.continue_token.is_none() {
                return Ok(all);
            }
        }
    }

    /// The states of a Lease, from the one that stands. A watch begins at the version of a list, because that of a
    /// Lease that nobody wrote for a while is too old.
    pub(super) async fn states(&self, name: &str) -> Result<States, StoreError> {
        let fields = format!("metadata.name={name}");
        let listing = &ListParams::default().fields(&fields);
        let page = self.ask("list", |to| async move { to.leases.list(listing).await }).await?;
        let params = &WatchParams::default().fields(&fields).timeout(WATCH_SECONDS);
        let version = page.metadata.resource_version.as_deref().unwrap_or_default();
        let begin = |to: Arc<Connection>| async move {
            let events = to.leases.watch(params, version).await?.boxed();
            Ok(stream::unfold((to, events), |(to, mut events)| async {
                let state = next_state(&to, &mut events).await;
                Some((state, (to, events)))
            }))
        };
        let later = self.ask("watch", begin).await?;
        let stands = page.items.into_iter().next();
        Ok(stream::once(std::future::ready(Ok(stands))).chain(later).boxed())
    }
}

async fn next_state(
    to: &Connection,
    events: &mut BoxStream<'static, kube::Result<WatchEvent<Lease>>>,
) -> Result<Option<Lease>, StoreError> {
    loop {
        let ended = match timeout(SILENCE, events.next()).await {
            Ok(Some(Ok(WatchEvent::Added(lease) | WatchEvent::Modified(lease)))) => return Ok(Some(lease)),
            Ok(Some(Ok(WatchEvent::Deleted(_)))) => return Ok(None),
            Ok(Some(Ok(WatchEvent::Bookmark(_)))) => continue,
            Ok(Some(Ok(WatchEvent::Error(status)))) => kube::Error::Api(status),
            Ok(Some(Err(error))) => error,
            Ok(None) => return Err(StoreError::unknown(format!("{} ended a watch", to.server))),
            Err(_) => return Err(StoreError::unknown(format!("{} sent no event for {}", to.server, show(SILENCE)))),
        };
        return Err(failure::refusal(to, "watch", &ended).error);
    }
}

async fn connect(address: &Address, bound: Duration, clock: Arc<Mutex<Clock>>) -> Result<Connection, StoreError> {
    let mut config = configuration(address).await?;
    config.default_retry = false;
    config.connect_timeout = Some(bound);
    if config.proxy_url.is_some() {
        return Err(StoreError::misconfigured(
            "the kubeconfig or HTTPS_PROXY names a proxy, and kubernetes: does not support one: name the API server \
             itself",
        ));
    }
    let server = config.cluster_url.authority().map(|at| format!("kubernetes at {at}")).unwrap_or_default();
    let namespace = address.namespace.clone().unwrap_or_else(|| config.default_namespace.trim().to_owned());
    let hears = MapFutureLayer::new(move |answer| hear(Arc::clone(&clock), BootInstant::now(), answer));
    let client = ClientBuilder::try_from(config).map_err(|error| failure::no_login(&server, &error))?;
    let leases = kube::Api::namespaced(client.with_layer(&hears).build(), &namespace);
    Ok(Connection { leases, namespace, server, pending: Pending::default() })
}

/// Reads from an answer what the library does not pass on: its date and `Retry-After`.
async fn hear(
    clock: Arc<Mutex<Clock>>,
    sent: BootInstant,
    answer: BoxFuture<'static, Result<Response<Box<DynBody>>, BoxError>>,
) -> Result<Response<Limited<Box<DynBody>>>, BoxError> {
    let (head, body) = answer.await?.into_parts();
    let body = Limited::new(body, MOST);
    let header = |name| head.headers.get(name)?.to_str().ok();
    if let Some(date) = header(DATE).and_then(expiry::date) {
        clock.lock().sample(date, sent, BootInstant::now());
    }
    if head.status.is_success() {
        return Ok(Response::from_parts(head, body));
    }
    let mut status: Status = serde_json::from_slice(&body.collect().boxed().await?.to_bytes()).unwrap_or_default();
    status.code = head.status.as_u16();
    if let Some(seconds) = header(RETRY_AFTER).and_then(|seconds| seconds.parse::<u32>().ok()) {
        status.details = serde_json::from_value(json!({ "retryAfterSeconds": seconds })).ok();
    }
    Err(kube::Error::Api(status.boxed()).into())
}

/// What the URL names, then what `KUBECONFIG` names, then the account of the pod, then `~/.kube/config`.
async fn configuration(address: &Address) -> Result<Config, StoreError> {
    let Address { context, kubeconfig, .. } = address;
    let is_chosen = context.is_some() || kubeconfig.is_some() || std::env::var_os("KUBECONFIG").is_some();
    let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() && Path::new(TOKEN).exists();
    if is_pod && !is_chosen {
        return Config::incluster().map_err(|error| failure::unconfigured(&error));
    }
    let file = kubeconfig.as_ref().map_or_else(Kubeconfig::read, Kubeconfig::read_from);
    let options = KubeConfigOptions { context: context.clone(), ..KubeConfigOptions::default() };
    let config = async { Config::from_custom_kubeconfig(file?, &options).await };
    config.await.map_err(|error| failure::unconfigured(&error))
}
