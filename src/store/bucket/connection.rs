//! The HTTP client under the library `object_store`, which learns the server's time from the date of every answer; and
//! the library's three clients.
//!
//! The hazards:
//!
//! - The library repeats a request by itself, for minutes, after the election has given it up. So its retries are off.
//! - An answer may have no end, and a server may accept a connection and stay silent. So each exchange is read as a
//!   whole here, within bounds on its time and length.
//! - The library has errors of its own for `409`, `404` and `412`, and drops what the server said with other failures.
//!   So those others become errors here, with the server's code and words ([`Refusal`]).
//! - Google's and Azure's credentials come over the same client. The dates of those servers say nothing of the bucket's
//!   clock.

use super::Objects;
use super::address::{Address, Kind};
use super::failure::Refusal;
use crate::store::allowance::MOST;
use crate::store::aws::{self, Account};
use crate::store::expiry;
use crate::store::server_clock::Clock;
use crate::store::url::TlsFiles;
use crate::store::{StoreError, kept_connection, tls};
use crate::time::BootInstant;
use aws_credential_types::provider::ProvideCredentials;
use bytes::Bytes;
use http::header::DATE;
use http_body_util::{BodyExt, Limited};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Network;
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
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use url::Url;

const MOST_HEADERS: usize = 64 << 10;
/// How long before the end of credentials new ones are requested.
const CREDENTIALS_AHEAD: Duration = Duration::from_mins(2);
/// The region of servers that have none, such as MinIO.
const ANY_REGION: &str = "us-east-1";

/// The account of Azurite, Microsoft's emulator, and its published key.
const EMULATED: &str = "devstoreaccount1";
const EMULATORS_KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl Objects {
    /// Sends nothing, except for the region of an EC2 instance.
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        let endpoint = address.endpoint.as_ref();
        let host = match (address.kind, endpoint) {
            // S3's credentials come over another client.
            (Kind::S3, _) => "",
            (_, Some(endpoint)) => endpoint.host_str().unwrap_or_default(),
            (Kind::Gcs, None) => "storage.googleapis.com",
            (Kind::Azure, None) => ".blob.core.windows.net",
        };
        let wire = Wire::new(request_timeout, host, &address.tls)?;
        let is_local = endpoint.is_some_and(aws::is_loopback);
        let server = named(address.kind, endpoint);
        match address.kind {
            Kind::S3 => s3(address, request_timeout, wire).await,
            Kind::Gcs => {
                let mut builder = GoogleCloudStorageBuilder::from_env()
                    .with_bucket_name(&address.bucket)
                    .with_retry(no_retries())
                    .with_http_connector(wire.clone());
                if let Some(endpoint) = endpoint {
                    builder = builder.with_base_url(&origin(endpoint));
                }
                if is_local {
                    builder = builder.with_skip_signature(true);
                }
                Self::new(address, builder.build(), wire, server)
            }
            Kind::Azure => {
                let mut builder = MicrosoftAzureBuilder::from_env()
                    .with_account(&address.account)
                    .with_container_name(&address.bucket)
                    .with_retry(no_retries())
                    .with_http_connector(wire.clone());
                if let Some(endpoint) = endpoint {
                    let base = endpoint.as_str().trim_end_matches('/').to_owned();
                    builder = builder.with_endpoint(base).with_allow_http(true);
                }
                let has_key = builder.get_config_value(&AzureConfigKey::AccessKey).is_some();
                if is_local && address.account == EMULATED && !has_key {
                    builder = builder.with_access_key(EMULATORS_KEY);
                }
                Self::new(address, builder.build(), wire, server)
            }
        }
    }
}

async fn s3(address: &Address, request_timeout: Duration, wire: Wire) -> Result<Objects, StoreError> {
    let Address { mut region, profile, mut endpoint, .. } = address.clone();
    // As the SDK's own client for S3 does.
    endpoint = endpoint.or_else(|| aws::endpoint(&variable(["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"])?));
    if endpoint.is_some() && region.is_none() {
        region = variable(["AWS_REGION", "AWS_DEFAULT_REGION"]).or_else(|| Some(ANY_REGION.to_owned()));
    }
    let mut account = Account { region, profile, endpoint };
    let (_, region) = aws::load(&account, request_timeout).await?;
    account.region = Some(region.to_string());
    let server = match &account.endpoint {
        Some(endpoint) => named(Kind::S3, Some(endpoint)),
        None => format!("S3 ({region})"),
    };
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&address.bucket)
        .with_region(region.to_string())
        // Not every server knows the request that deletes many objects.
        .with_disable_bulk_delete(true)
        .with_virtual_hosted_style_request(!address.path_style)
        .with_credentials(Arc::new(Credentials {
            known: tokio::sync::Mutex::default(),
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
    Objects::new(address, builder.build(), wire, server)
}

fn variable(names: [&str; 2]) -> Option<String> {
    names.into_iter().filter_map(|name| std::env::var(name).ok()).find(|text| !text.is_empty())
}

fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

fn named(kind: Kind, endpoint: Option<&Url>) -> String {
    endpoint.map_or_else(|| kind.name().to_owned(), |endpoint| format!("{} at {}", kind.name(), origin(endpoint)))
}

fn no_retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: 0, retry_timeout: Duration::ZERO }
}

/// Credentials from the SDK's chain, which the library asks for with each request.
///
/// The hazard: credentials may be replaced before the end that they name, and a chain reads a file only once. So each
/// chain is asked once, and after an answer that refuses the credentials, the next request asks a new one.
#[derive(Debug)]
struct Credentials {
    known: tokio::sync::Mutex<Option<aws_credential_types::Credentials>>,
    /// An answer has refused the credentials that are known.
    refused: Arc<AtomicBool>,
    account: Account,
    server: String,
    request_timeout: Duration,
}

impl Credentials {
    async fn find(&self) -> Result<aws_credential_types::Credentials, StoreError> {
        let (shared, _) = aws::load(&self.account, self.request_timeout).await?;
        let chain = shared.credentials_provider().expect("the SDK's defaults have one");
        chain.provide_credentials().await.map_err(|error| aws::no_credentials(&self.server, &error))
    }
}

#[async_trait::async_trait]
impl CredentialProvider for Credentials {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let mut known = self.known.lock().await;
        known.take_if(|_| self.refused.swap(false, Ordering::Relaxed));
        let ends = known.as_ref().map(aws_credential_types::Credentials::expiry);
        let last = |ahead| ends.is_some_and(|ends| ends.is_none_or(|ends| SystemTime::now() + ahead < ends));
        if !last(CREDENTIALS_AHEAD) {
            match self.find().await {
                Ok(found) => *known = Some(found),
                // The known ones may have some minutes left.
                Err(_) if last(Duration::ZERO) => {}
                Err(error) => return Err(object_store::Error::Generic { store: "S3", source: error.into() }),
            }
        }
        let known = known.as_ref().expect("they were found");
        Ok(Arc::new(AwsCredential {
            key_id: known.access_key_id().to_owned(),
            secret_key: known.secret_access_key().to_owned(),
            token: known.session_token().map(str::to_owned),
        }))
    }
}

/// The HTTP client, which learns the time and bounds every exchange.
#[derive(Clone, Debug)]
pub struct Wire {
    client: Client<HttpsConnector<Network>, HttpRequestBody>,
    bound: Duration,
    /// The dates of hosts count whose names end with this.
    host: String,
    pub clock: Arc<Mutex<Clock>>,
    /// An answer has refused the credentials that are known.
    refused: Arc<AtomicBool>,
}

impl HttpConnector for Wire {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

impl Wire {
    fn new(request_timeout: Duration, host: &str, files: &TlsFiles) -> Result<Self, StoreError> {
        tls::install_provider();
        let tls = match tls::client_config(files) {
            // A host without authorities still reaches a server without TLS.
            Err(_) if *files == TlsFiles::default() => {
                ClientConfig::builder().with_root_certificates(RootCertStore::empty()).with_no_client_auth()
            }
            config => config?,
        };
        let mut network = Network::new();
        network.enforce_http(false);
        network.set_nodelay(true);
        let connector =
            HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http().enable_http1().wrap_connector(network);
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .http1_max_buf_size(MOST_HEADERS)
            .build(connector);
        let bound = kept_connection::bound(request_timeout);
        Ok(Self { client, bound, host: host.to_owned(), clock: Arc::default(), refused: Arc::default() })
    }

    async fn exchange(&self, request: HttpRequest) -> Result<http::Response<Bytes>, HttpError> {
        let is_the_buckets = request.uri().host().is_some_and(|host| host.ends_with(&self.host));
        let sent = BootInstant::now();
        let answer = self.client.request(request).await.map_err(|error| {
            // Without a connection, nothing was sent.
            let kind = if error.is_connect() { HttpErrorKind::Connect } else { HttpErrorKind::Unknown };
            HttpError::new(kind, error)
        })?;
        let date = answer.headers().get(DATE).and_then(|date| expiry::date(date.to_str().ok()?));
        if let Some(date) = date.filter(|_| is_the_buckets) {
            self.clock.lock().sample(date, sent, BootInstant::now());
        }
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, MOST).collect().await;
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Unknown, error))?;
        Ok(http::Response::from_parts(head, body.to_bytes()))
    }
}

#[async_trait::async_trait]
impl HttpService for Wire {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let late = |_| HttpError::new_boxed(HttpErrorKind::Timeout, "no answer in time".into());
        let answer = tokio::time::timeout(self.bound, self.exchange(request)).await.map_err(late)??;
        if !answer.status().is_success() {
            let code = answer.headers().get("x-ms-error-code").and_then(|code| code.to_str().ok());
            let refusal = Refusal::read(answer.status().as_u16(), code, answer.body());
            if refusal.is_of_credentials() {
                self.refused.store(true, Ordering::Relaxed);
            }
            if !refusal.is_a_condition() {
                return Err(HttpError::new(HttpErrorKind::Unknown, refusal));
            }
        }
        Ok(answer.map(Into::into))
    }
}
