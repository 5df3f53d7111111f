//! The SDK's configuration: one attempt for each request, bounded in time, and a look at the date of every answer.
//!
//! The hazard: the SDK's own retries go on for seconds after the election has given a request up, and may apply a write
//! twice. So retries are off.

use super::Address;
use crate::store::StoreError;
use crate::store::aws::{self, Account};
use crate::store::expiry;
use crate::store::server_clock::Clock;
use crate::time::BootInstant;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::Client;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::http::SharedHttpClient;
use aws_smithy_runtime_api::client::interceptors::Intercept;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, BeforeTransmitInterceptorContextRef,
};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_types::config_bag::{ConfigBag, Storable, StoreReplace};
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// Sees every request of a client leave and every answer arrive, and so knows the server's clock.
#[derive(Clone, Debug, Default)]
pub struct Watch(Arc<Mutex<Clock>>);

impl Watch {
    /// The server's clock, as far as the answers up to now show it.
    pub fn clock(&self) -> Clock {
        self.0.lock().clone()
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
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        bag: &mut ConfigBag,
    ) -> Result<(), BoxError> {
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
        let date = context.response().headers().get("date").and_then(expiry::date);
        if let (Some(date), Some(Sent(sent))) = (date, bag.load::<Sent>()) {
            self.0.lock().sample(date, *sent, received);
        }
        Ok(())
    }
}

/// The SDK's client for an address, and the server's name in messages.
pub async fn connect(
    http: SharedHttpClient,
    address: &Address,
    request_timeout: Duration,
    watch: &Watch,
) -> Result<(Client, String), StoreError> {
    let wrong = || StoreError::misconfigured("the endpoint of DynamoDB is not a URL: write endpoint=http://HOST:PORT");
    let endpoint = address.endpoint.as_deref().map(|text| aws::endpoint(text).ok_or_else(wrong)).transpose()?;
    let account = Account { region: address.region.clone(), profile: address.profile.clone(), endpoint };
    let shared = aws::load(http, &account, request_timeout).await?;
    let no_region = "no AWS region for DynamoDB: say dynamodb://TABLE?region=REGION, or set AWS_REGION";
    let shared = shared.ok_or_else(|| StoreError::misconfigured(no_region))?;
    let region = shared.region().cloned().ok_or_else(|| StoreError::misconfigured(no_region))?;
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
    // The environment may name one too.
    let named = account.endpoint.clone().or_else(|| aws::endpoint(shared.endpoint_url()?));
    let server = match named {
        // Scheme, host and port, without any other part.
        Some(endpoint) => format!("DynamoDB at {}", endpoint.origin().ascii_serialization()),
        None => format!("DynamoDB ({region})"),
    };
    if let Some(endpoint) = &address.endpoint {
        config = config.endpoint_url(endpoint);
    }
    Ok((Client::from_conf(config.build()), server))
}
