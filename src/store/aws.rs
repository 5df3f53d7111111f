//! What the stores on AWS share: the SDK's chain of credentials and regions, and its HTTP client, which learns the
//! server's time from the date of every answer.
//!
//! The hazard: the SDK reads an answer to its end, however long it is. So each body has a limit, also those of the
//! sources of credentials.

use super::allowance::MOST;
use super::error::innermost;
use super::server_clock::Clock;
use super::{StoreError, expiry};
use crate::time::BootInstant;
use aws_config::environment::{EnvironmentVariableCredentialsProvider, EnvironmentVariableRegionProvider};
use aws_config::meta::credentials::CredentialsProviderChain;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::{ProfileFileCredentialsProvider, ProfileFileRegionProvider};
use aws_config::provider_config::ProviderConfig;
use aws_config::{BehaviorVersion, ConfigLoader, Region, SdkConfig};
use aws_credential_types::Credentials;
use aws_credential_types::provider::error::CredentialsError;
use aws_smithy_http_client::tls::Provider;
use aws_smithy_http_client::tls::rustls_provider::CryptoMode;
use aws_smithy_runtime_api::client::http::{
    HttpClient, HttpConnector, HttpConnectorFuture, HttpConnectorSettings, SharedHttpClient, SharedHttpConnector,
};
use aws_smithy_runtime_api::client::orchestrator::HttpRequest;
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::body::SdkBody;
use http_body_util::Limited;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use url::{Host, Url};

/// The shortest timeout for the instance metadata service, enough for a second attempt.
const LEAST_METADATA_TIMEOUT: Duration = Duration::from_secs(3);

/// What a store URL says about the account. The AWS SDK finds the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    pub region: Option<String>,
    pub profile: Option<String>,
    pub endpoint: Option<Url>,
}

pub async fn load(account: &Account, request_timeout: Duration) -> Result<(SdkConfig, Region), StoreError> {
    find_profile(account).await?;
    let http = http_client(&Arc::default());
    let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http.clone());
    if let Some(profile) = &account.profile {
        loader = loader.profile_name(profile);
    }
    if account.endpoint.as_ref().is_some_and(is_loopback) {
        loader = for_loopback(loader, account, http);
    } else if let Some(region) = &account.region {
        loader = loader.region(Region::new(region.clone()));
    }
    // All this is local, except the region of an EC2 instance, which the SDK asks for last.
    let shared = tokio::time::timeout(request_timeout.max(LEAST_METADATA_TIMEOUT), loader.load()).await.ok();
    let with_region = shared.and_then(|shared| shared.region().cloned().map(|region| (shared, region)));
    with_region.ok_or_else(|| {
        StoreError::misconfigured("no AWS region: write region=REGION in the store URL, or set AWS_REGION")
    })
}

/// The SDK skips a profile that does not exist, and may then use another account.
async fn find_profile(account: &Account) -> Result<(), StoreError> {
    let named = || std::env::var("AWS_PROFILE").ok().filter(|_| std::env::var_os("AWS_ACCESS_KEY_ID").is_none());
    let Some(name) = account.profile.clone().or_else(named).filter(|name| !name.is_empty() && name != "default") else {
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

/// Servers on this machine check neither credentials nor region, so users need not provide them.
fn for_loopback(loader: ConfigLoader, account: &Account, http: SharedHttpClient) -> ConfigLoader {
    let mut region_of_profile = ProfileFileRegionProvider::builder();
    let mut profile = ProfileFileCredentialsProvider::builder().configure(
        &ProviderConfig::without_region().with_region(account.region.clone().map(Region::new)).with_http_client(http),
    );
    if let Some(name) = &account.profile {
        region_of_profile = region_of_profile.profile_name(name);
        profile = profile.profile_name(name);
    }
    loader
        .region(
            RegionProviderChain::first_try(account.region.clone().map(Region::new))
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

pub fn no_credentials(server: &str, error: &CredentialsError) -> StoreError {
    let message = format!("no AWS credentials for {server}");
    let why = innermost(error);
    match error {
        CredentialsError::CredentialsNotLoaded(_) | CredentialsError::InvalidConfiguration(_) => {
            StoreError::misconfigured(format!(
                "{message} ({why}): set AWS_PROFILE or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give the host a \
                 role"
            ))
        }
        _ => StoreError::not_applied(format!("{message}: their source failed: {why}")),
    }
}

/// None if it is not a URL with a host.
pub fn endpoint(text: &str) -> Option<Url> {
    Url::parse(text).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host())
}

pub fn is_loopback(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// Bounds the answers, and learns the server's clock from them.
#[derive(Debug)]
pub struct Bounded<N> {
    network: N,
    clock: Arc<Mutex<Clock>>,
}

pub fn http_client(clock: &Arc<Mutex<Clock>>) -> SharedHttpClient {
    let builder = aws_smithy_http_client::Builder::new().tls_provider(Provider::Rustls(CryptoMode::Ring));
    SharedHttpClient::new(Bounded { network: builder.build_https(), clock: Arc::clone(clock) })
}

impl HttpClient for Bounded<SharedHttpClient> {
    fn http_connector(&self, settings: &HttpConnectorSettings, components: &RuntimeComponents) -> SharedHttpConnector {
        let network = self.network.http_connector(settings, components);
        SharedHttpConnector::new(Bounded { network, clock: Arc::clone(&self.clock) })
    }
}

impl HttpConnector for Bounded<SharedHttpConnector> {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let sent = BootInstant::now();
        let (answer, clock) = (self.network.call(request), Arc::clone(&self.clock));
        HttpConnectorFuture::new(async move {
            let answer = answer.await?;
            if let Some(date) = answer.headers().get("date").and_then(expiry::date) {
                clock.lock().sample(date, sent, BootInstant::now());
            }
            // The HTTP client bounds the headers.
            Ok(answer.map(|body| SdkBody::from_body_1_x(Limited::new(body, MOST))))
        })
    }
}
