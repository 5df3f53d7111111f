//! The HTTP client under the library `object_store`, which learns the server's time from the date of every answer; and
//! the library's three clients.
//!
//! The hazards:
//!
//! - The library repeats a request by itself, for minutes, after the election has given it up. So its retries are off.
//! - An answer may have no end, and a server may accept a connection and stay silent. So each exchange is read as a
//!   whole here, within a bound on its time and on its length.
//! - The library makes `409 Conflict`, `404` and `412` errors of its own, and drops what the server said with every
//!   other failure. So those others become errors here, with the server's code and words ([`Refusal`]).
//! - Credentials come over the same client in Google's and Azure's clouds. The dates of those servers say nothing of
//!   the bucket's clock.

use super::address::{Address, Kind};
use super::failure::Refusal;
use super::objects::Objects;
use crate::store::StoreError;
use crate::store::allowance::{MOST, TooLong};
use crate::store::aws::{self, Account};
use crate::store::error::innermost;
use crate::store::expiry;
use crate::store::server_clock::Clock;
use crate::store::tls;
use crate::store::url::TlsFiles;
use crate::time::BootInstant;
use aws_credential_types::provider::error::CredentialsError::{CredentialsNotLoaded, InvalidConfiguration};
use aws_credential_types::provider::{ProvideCredentials, SharedCredentialsProvider};
use bytes::Bytes;
use http::header::DATE;
use http::{StatusCode, Uri};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::connect::HttpConnector as Network;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use object_store::aws::{AmazonS3Builder, AwsCredential};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse, HttpService,
};
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::{BackoffConfig, ClientOptions, CredentialProvider, RetryConfig};
use parking_lot::Mutex;
use rustls::{ClientConfig, RootCertStore};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use url::Url;

/// The most bytes of the headers of an answer.
const MOST_HEADERS: usize = 64 << 10;
/// How long credentials are used that name no end.
const CREDENTIALS_LAST: Duration = Duration::from_mins(10);
/// How long before their end other credentials are asked for.
const CREDENTIALS_AHEAD: Duration = Duration::from_mins(2);
/// The region of servers that have none, such as MinIO.
const ANY_REGION: &str = "us-east-1";

/// The account of Azurite, Microsoft's emulator, and the key that Microsoft publishes for it.
const EMULATED: &str = "devstoreaccount1";
const EMULATORS_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

/// Opens the bucket. Sends nothing, except for the region of an EC2 instance.
pub async fn connect(address: &Address, request_timeout: Duration) -> Result<Objects, StoreError> {
    let kind = address.kind;
    let endpoint = address.endpoint.as_ref();
    let unusable = |error: object_store::Error| {
        StoreError::misconfigured(format!("cannot use {address} in {}: {}", kind.name(), innermost(&error)))
    };
    tls::install_provider();
    let tls = match tls::client_config(&address.tls) {
        // A host without authorities still reaches a server without TLS.
        Err(_) if address.tls == TlsFiles::default() => {
            ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
        }
        config => config?,
    };
    // Callers bound it too, but their messages can say less.
    let wire = |host: Option<String>| Wire::new(request_timeout - request_timeout / 20, host, tls);
    match kind {
        Kind::S3 => s3(address, request_timeout, wire(None), unusable).await,
        Kind::Gcs => {
            let base = endpoint.map(origin);
            let host = endpoint.map_or("storage.googleapis.com", |url| url.host_str().unwrap_or_default());
            let wire = wire(Some(host.to_owned()));
            let mut builder = GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(&address.bucket)
                .with_retry(no_retries())
                .with_http_connector(wire.clone());
            if let Some(base) = &base {
                builder = builder.with_base_url(base);
            }
            if endpoint.is_some_and(aws::is_loopback) {
                builder = builder.with_skip_signature(true);
            }
            Ok(Objects::new(address, builder.build().map_err(unusable)?, wire, named(kind, base.as_deref())))
        }
        Kind::Azure => {
            let base = endpoint.map(|url| url.as_str().trim_end_matches('/').to_owned());
            let usual = format!("{}.blob.core.windows.net", address.account);
            let host = endpoint.map_or(usual.as_str(), |url| url.host_str().unwrap_or_default());
            let wire = wire(Some(host.to_owned()));
            let mut builder = MicrosoftAzureBuilder::from_env()
                .with_account(&address.account)
                .with_container_name(&address.bucket)
                .with_retry(no_retries())
                .with_http_connector(wire.clone());
            if let Some(base) = &base {
                builder = builder.with_endpoint(base.clone()).with_allow_http(true);
            }
            let is_local = endpoint.is_some_and(aws::is_loopback);
            if is_local && address.account == EMULATED && !knows_a_login(&builder) {
                builder = builder.with_access_key(EMULATORS_KEY);
            }
            let server = named(kind, endpoint.map(origin).as_deref());
            Ok(Objects::new(address, builder.build().map_err(unusable)?, wire, server))
        }
    }
}

async fn s3(
    address: &Address,
    request_timeout: Duration,
    wire: Wire,
    unusable: impl Fn(object_store::Error) -> StoreError,
) -> Result<Objects, StoreError> {
    let Address { region, profile, endpoint, .. } = address.clone();
    let mut account = Account { region, profile, endpoint };
    // As the SDK's own client for S3 does.
    let elsewhere = || std::env::var("AWS_ENDPOINT_URL_S3").or_else(|_| std::env::var("AWS_ENDPOINT_URL")).ok();
    if account.endpoint.is_none() {
        account.endpoint = elsewhere().filter(|text| !text.is_empty()).as_deref().and_then(aws::endpoint);
    }
    if account.endpoint.is_some() && account.region.is_none() {
        let named = ["AWS_REGION", "AWS_DEFAULT_REGION"].into_iter().find_map(|name| std::env::var(name).ok());
        account.region = Some(named.filter(|region| !region.is_empty()).unwrap_or_else(|| ANY_REGION.to_owned()));
    }
    let loaded = aws::load(&account, request_timeout).await?;
    let no_region = "no AWS region for S3: say s3://BUCKET/PREFIX?region=REGION, or set AWS_REGION";
    let (shared, region) = loaded.ok_or_else(|| StoreError::misconfigured(no_region))?;
    let server = match &account.endpoint {
        Some(endpoint) => named(Kind::S3, Some(&origin(endpoint))),
        None => format!("S3 ({region})"),
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&address.bucket)
        .with_region(region.to_string())
        // One request for each deletion: that for many is not known everywhere.
        .with_disable_bulk_delete(true)
        .with_virtual_hosted_style_request(!address.path_style)
        .with_credentials(Arc::new(Credentials {
            state: tokio::sync::Mutex::new(State { chain: shared.credentials_provider(), known: None }),
            refused: Arc::clone(&wire.refused),
            account: account.clone(),
            server: server.clone(),
            request_timeout,
        }))
        .with_retry(no_retries())
        .with_http_connector(wire.clone());
    if let Some(endpoint) = &account.endpoint {
        let base = origin(endpoint);
        let path = endpoint.path().trim_end_matches('/');
        let (scheme, host) = base.split_once("://").unwrap_or(("https", &base));
        builder = builder.with_endpoint(if address.path_style {
            format!("{base}{path}")
        } else {
            format!("{scheme}://{}.{host}{path}", address.bucket)
        });
    }
    Ok(Objects::new(address, builder.build().map_err(unusable)?, wire, server))
}

fn knows_a_login(builder: &MicrosoftAzureBuilder) -> bool {
    use AzureConfigKey::{AccessKey, ClientSecret, SasKey, Token};
    [AccessKey, ClientSecret, SasKey, Token].iter().any(|key| builder.get_config_value(key).is_some())
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn named(kind: Kind, origin: Option<&str>) -> String {
    origin.map_or_else(|| kind.name().to_owned(), |origin| format!("{} at {origin}", kind.name()))
}

fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO }
}

/// Credentials from the SDK's chain. The library asks for them with each request.
///
/// The hazard: they may be replaced before the end that they name, or name none, and the chain reads a file only once.
/// So after an answer that refuses them, the next request asks another chain.
struct Credentials {
    state: tokio::sync::Mutex<State>,
    /// An answer has refused the credentials that are known.
    refused: Arc<AtomicBool>,
    account: Account,
    server: String,
    request_timeout: Duration,
}

struct State {
    chain: Option<SharedCredentialsProvider>,
    known: Option<Known>,
}

struct Known {
    credential: Arc<AwsCredential>,
    use_until: SystemTime,
    ends: SystemTime,
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let State { chain, known } = &mut *self.state.lock().await;
        let now = SystemTime::now();
        if self.refused.swap(false, Ordering::Relaxed) {
            *known = None;
            if let Ok(Some((shared, _))) = aws::load(&self.account, self.request_timeout).await {
                *chain = shared.credentials_provider();
            }
        }
        if let Some(known) = known.as_ref().filter(|known| now < known.use_until) {
            return Ok(Arc::clone(&known.credential));
        }
        let none = |why: &str, may_pass| {
            let source = Box::new(aws::no_credentials(&self.server, why, may_pass));
            object_store::Error::Generic { store: "S3", source }
        };
        let chain = chain.as_ref().ok_or_else(|| none("there are none", false))?;
        let found = match chain.provide_credentials().await {
            Ok(found) => found,
            Err(error) => {
                // Those that are known may have some minutes left.
                if let Some(known) = known.as_ref().filter(|known| now < known.ends) {
                    return Ok(Arc::clone(&known.credential));
                }
                let cause = innermost(&error);
                return Err(match error {
                    CredentialsNotLoaded(_) | InvalidConfiguration(_) => none(&cause, false),
                    _ => none(&format!("their source failed: {cause}"), true),
                });
            }
        };
        let credential = Arc::new(AwsCredential {
            key_id: found.access_key_id().to_owned(),
            secret_key: found.secret_access_key().to_owned(),
            token: found.session_token().map(str::to_owned),
        });
        let usual = now + CREDENTIALS_LAST;
        let ends = found.expiry().unwrap_or(usual);
        let use_until = usual.min(ends.checked_sub(CREDENTIALS_AHEAD).unwrap_or(UNIX_EPOCH));
        *known = Some(Known { credential: Arc::clone(&credential), use_until, ends });
        Ok(credential)
    }
}

/// Sees every request leave and every answer arrive.
#[derive(Clone)]
pub struct Wire {
    client: Client<HttpsConnector<Network>, HttpRequestBody>,
    bound: Duration,
    /// The host whose dates count. None: all of them.
    host: Option<String>,
    clock: Arc<Mutex<Clock>>,
    /// An answer has refused the credentials that are known.
    refused: Arc<AtomicBool>,
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

impl HttpConnector for Wire {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl Wire {
    fn new(bound: Duration, host: Option<String>, tls: ClientConfig) -> Self {
        let mut network = Network::new();
        network.enforce_http(false);
        network.set_nodelay(true);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(network);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(MOST_HEADERS)
            .build(connector);
        Self { client, bound, host, clock: Arc::default(), refused: Arc::default() }
    }

    pub fn clock(&self) -> Clock {
        self.clock.lock().clone()
    }

    fn learn(&self, asked: &Uri, answer: &http::HeaderMap, sent: BootInstant) {
        let received = BootInstant::now();
        if self.host.as_ref().is_some_and(|host| asked.host() != Some(host)) {
            return;
        }
        if let Some(date) = answer.get(DATE).and_then(|date| expiry::date(date.to_str().ok()?)) {
            self.clock.lock().sample(date, sent, received);
        }
    }

    async fn exchange(&self, request: HttpRequest) -> Result<(StatusCode, http::HeaderMap, Bytes), HttpError> {
        let (sent, asked) = (BootInstant::now(), request.uri().clone());
        let answer = self.client.request(request).await.map_err(|error| undelivered(&error))?;
        self.learn(&asked, answer.headers(), sent);
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MOST).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                HttpError::new(HttpErrorKind::Decode, TooLong)
            } else {
                HttpError::new(HttpErrorKind::Unknown, io::Error::other(innermost(&*error)))
            }
        })?;
        Ok((head.status, head.headers, body.to_bytes()))
    }
}

/// What was refused by the network was never sent.
fn undelivered(error: &ClientError) -> HttpError {
    let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
    let lost = if error.is_connect() { StoreError::not_applied } else { StoreError::unknown };
    HttpError::new(kind, lost(innermost(error)).because(error))
}

#[async_trait::async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let late = || HttpError::new(HttpErrorKind::Timeout, io::Error::other("no answer in time"));
        let exchanged = tokio::time::timeout(self.bound, self.exchange(request)).await;
        let (status, headers, body) = exchanged.map_err(|_| late())??;
        let refusal = (!status.is_success())
            .then(|| {
                Refusal::read(
                    status.as_u16(),
                    headers.get("x-ms-error-code").and_then(|code| code.to_str().ok()),
                    &body,
                )
            })
            .filter(|refusal| !refusal.is_a_condition());
        if let Some(refusal) = refusal {
            if refusal.is_of_credentials() {
                self.refused.store(true, Ordering::Relaxed);
            }
            return Err(HttpError::new(HttpErrorKind::Unknown, refusal));
        }
        let mut answer = HttpResponse::new(body.into());
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Ok(answer)
    }
}
