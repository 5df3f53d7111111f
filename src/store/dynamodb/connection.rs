//! The SDK's configuration: one attempt for each request, bounded in time, and a look at the date of every answer.
//!
//! The hazards: the SDK reads an answer to its end, however long it is. So the body of an answer has a limit, also for
//! the sources of credentials. The SDK's own retries go on for seconds after the election has given a request up, and
//! may apply a write twice. So retries are off. And the SDK's TLS client loads the root certificates when it is made,
//! which takes 7 ms and some MiB that a plain `http://` endpoint never needs. So the first request for `https://` makes
//! that client.

use super::Address;
use super::clock::Clock;
use crate::store::StoreError;
use crate::store::allowance::{MOST, TooLong};
use crate::time::BootInstant;
use aws_config::environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider};
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader, Region};
use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::config::Credentials;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore};
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};
use url::{Host, Url};

/// The shortest timeout for the instance metadata service, enough for a second attempt.
const LEAST_METADATA_TIMEOUT: Duration = Duration::from_secs(3);

/// Sees every request of a client leave and every answer arrive.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    shared: Arc<Watched>,
}

#[derive(Debug, Default)]
struct Watched {
    clock: Mutex<Clock>,
    endpoint: OnceLock<String>,
}

impl Watch {
    /// The server's clock, as far as the answers up to now show it.
    pub fn clock(&self) -> Clock {
        self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Where requests go, without path or query; empty before the first.
    pub fn endpoint(&self) -> &str {
        self.shared.endpoint.get().map_or("", String::as_str)
    }
}

/// When the request left, for the date of its answer.
#[derive(Debug)]
struct Sent(BootInstant);

impl Storable for Sent {
    type Storer = StoreReplace<Self>;
}

impl Intercept for Watch {
    fn name(&self) -> &'static str {
        "Watch"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.shared.endpoint.get_or_init(|| origin(context.request().uri()));
        bag.interceptor_state().store_put(Sent(BootInstant::now()));
        Ok(())
    }

    fn read_after_transmit(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let received = BootInstant::now();
        let date = context.response().headers().get("date").and_then(|date| httpdate::parse_http_date(date).ok());
        let date = date.and_then(|date| date.duration_since(UNIX_EPOCH).ok());
        if let (Some(date), Some(Sent(sent))) = (date, bag.load::<Sent>()) {
            let mut clock = self.shared.clock.lock().unwrap_or_else(PoisonError::into_inner);
            clock.sample(date.as_secs(), *sent, received);
        }
        Ok(())
    }
}

/// Scheme, host and port of a URL, without any other part.
fn origin(uri: &str) -> String {
    Url::parse(uri).map_or_else(|_| "its endpoint".to_owned(), |url| url.origin().ascii_serialization())
}

/// The SDK's client for an address, and the server's name in messages.
pub async fn connect(
    http: SharedHttpClient,
    address: &Address,
    request_timeout: Duration,
    watch: &Watch,
) -> Result<(Client, String), StoreError> {
    let endpoint = address.endpoint.as_deref().map(parse_endpoint).transpose()?;
    find_profile(address).await?;
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http.clone());
    if let Some(profile) = &address.profile {
        loader = loader.profile_name(profile);
    }
    if endpoint.as_ref().is_some_and(is_loopback) {
        loader = undemanding(loader, address, http);
    } else if let Some(region) = &address.region {
        loader = loader.region(Region::new(region.clone()));
    }
    // Everything here is local, except the region of an EC2 instance, which is asked for last.
    let shared = tokio::time::timeout(request_timeout.max(LEAST_METADATA_TIMEOUT), loader.load()).await;
    let no_region = "no AWS region for DynamoDB: say dynamodb://TABLE?region=REGION, or set AWS_REGION";
    let shared = shared.map_err(|_| StoreError::misconfigured(no_region))?;
    let Some(region) = shared.region().cloned() else {
        return Err(StoreError::misconfigured(no_region));
    };
    // Callers bound it too, but their messages can say less.
    let bound = request_timeout - request_timeout / 20;
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(bound)
        .operation_attempt_timeout(bound)
        .operation_timeout(bound)
        .build();
    let mut config = aws_sdk_dynamodb::config::Builder::from(&shared)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .interceptor(watch.clone());
    let server = match &endpoint {
        Some(endpoint) => format!("DynamoDB at {}", endpoint.origin().ascii_serialization()),
        None => format!("DynamoDB ({region})"),
    };
    if let Some(endpoint) = &address.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Ok((Client::from_conf(config.build()), server))
}

/// The SDK passes over a profile that does not exist, and then tells of the last place where it looked for credentials.
async fn find_profile(address: &Address) -> Result<(), StoreError> {
    let named = || std::env::var("AWS_PROFILE").ok().filter(|_| std::env::var_os("AWS_ACCESS_KEY_ID").is_none());
    let Some(name) = address.profile.clone().or_else(named).filter(|name| !name.is_empty() && name != "default") else {
        return Ok(());
    };
    let (fs, env, files) = Default::default();
    // The SDK says what is wrong with a file that cannot be read.
    let Ok(profiles) = aws_config::profile::load(&fs, &env, &files, None).await else { return Ok(()) };
    if profiles.get_profile(&name).is_some() {
        return Ok(());
    }
    let mut known: Vec<_> = profiles.profiles().collect();
    known.sort_unstable();
    let known = if known.is_empty() { "none at all".to_owned() } else { format!("only {}", known.join(", ")) };
    Err(StoreError::misconfigured(format!(
        "no AWS profile is called {name:?}; the configuration files of the AWS CLI have {known}: correct profile=NAME in \
         the URL, or AWS_PROFILE"
    )))
}

/// DynamoDB Local and similar servers on this machine check nothing. So a user without a region or credentials need not
/// invent them, and nothing is looked up over the network.
fn undemanding(loader: ConfigLoader, address: &Address, http: SharedHttpClient) -> ConfigLoader {
    let mut region_of_profile = ProfileFileRegionProvider::builder();
    let mut profile = ProfileFileCredentialsProvider::builder().configure(
        &ProviderConfig::without_region().with_region(address.region.clone().map(Region::new)).with_http_client(http),
    );
    if let Some(name) = &address.profile {
        region_of_profile = region_of_profile.profile_name(name);
        profile = profile.profile_name(name);
    }
    loader
        .region(
            RegionProviderChain::first_try(address.region.clone().map(Region::new))
                .or_else(EnvironmentVariableRegionProvider::new())
                .or_else(region_of_profile.build())
                .or_else("us-east-1"),
        )
        .credentials_provider(
            CredentialsProviderChain::first_try("Environment", EnvironmentVariableCredentialsProvider::new())
                .or_else("Profile", profile.build())
                .or_else("Loopback", Credentials::new("leaderrun", "leaderrun", None, None, "Loopback")),
        )
}

fn parse_endpoint(endpoint: &str) -> Result<Url, StoreError> {
    let url = Url::parse(endpoint).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host());
    url.ok_or_else(|| {
        StoreError::misconfigured("the endpoint of DynamoDB is not a URL: write endpoint=http://HOST:PORT")
    })
}

fn is_loopback(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Makes the client with root certificates only for a request that needs them.
#[derive(Debug)]
pub struct BySchemeClient {
    plain: SharedHttpClient,
    tls: SharedHttpClient,
}

impl Default for BySchemeClient {
    fn default() -> Self {
        let builder = || aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
        let rootless = TlsContext::builder().with_trust_store(TrustStore::empty()).build();
        let plain = rootless.map_or_else(|_| builder(), |context| builder().tls_context(context));
        Self { plain: plain.build_https(), tls: builder().build_https() }
    }
}

impl HttpClient for BySchemeClient {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        SharedHttpConnector::new(ByScheme {
            plain: self.plain.http_connector(settings, components),
            tls: self.tls.clone(),
            settings: settings.clone(),
            components: components.clone(),
        })
    }
}

#[derive(Debug)]
struct ByScheme {
    plain: SharedHttpConnector,
    tls: SharedHttpClient,
    settings: HttpConnectorSettings,
    components: RuntimeComponents,
}

impl HttpConnector for ByScheme {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let answer = if request.uri().starts_with("http://") {
            self.plain.call(request)
        } else {
            // The SDK's client keeps the connector and its connections for the next request.
            self.tls.http_connector(&self.settings, &self.components).call(request)
        };
        HttpConnectorFuture::new(async move { Ok(answer.await?.map(bounded)) })
    }
}

/// A body that fails when it becomes too long. The HTTP client bounds the headers.
fn bounded(body: SdkBody) -> SdkBody {
    SdkBody::from_body_1_x(
        Limited::new(body, MOST).map_err(|error| if error.is::<LengthLimitError>() { TooLong.into() } else { error }),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_shows_nothing_but_scheme_host_and_port() {
        assert_eq!(origin("http://user:secret@127.0.0.1:8000/path?token=x"), "http://127.0.0.1:8000");
        assert_eq!(origin("https://dynamodb.eu-west-1.amazonaws.com/"), "https://dynamodb.eu-west-1.amazonaws.com");
    }

    #[test]
    fn an_endpoint_is_a_url_with_a_host() {
        for bad in ["", "localhost:8000", "ftp://x", "http://", "/tmp/socket"] {
            assert!(parse_endpoint(bad).is_err(), "{bad}");
        }
        for (good, loopback) in
            [("http://localhost:8000", true), ("http://[::1]:8000", true), ("https://10.0.0.5", false)]
        {
            assert_eq!(parse_endpoint(good).is_ok_and(|url| is_loopback(&url)), loopback, "{good}");
        }
    }
}
