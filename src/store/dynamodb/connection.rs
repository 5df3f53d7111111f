//! The SDK's configuration: one attempt for each request, bounded in time.
//!
//! The hazard: the SDK's own retries go on for seconds after the election has given a request up, and forget that the
//! first attempt may have been applied. So retries are off.

use super::{Address, Table};
use crate::store::{StoreError, aws, kept_connection};
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_dynamodb::Client;
use std::sync::Arc;
use std::time::Duration;

impl Table {
    pub async fn open(address: &Address, request_timeout: Duration) -> Result<Self, StoreError> {
        // Only the table's own answers teach it the time; those of the sources of credentials do not.
        let clock = Arc::default();
        let (shared, region) = aws::load(&address.account, request_timeout).await?;
        let bound = kept_connection::bound(request_timeout);
        let timeouts = TimeoutConfig::builder().connect_timeout(bound).operation_timeout(bound).build();
        let mut config = aws_sdk_dynamodb::config::Builder::from(&shared)
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            .http_client(aws::http_client(&clock));
        // The environment may name an endpoint too.
        let named = address.account.endpoint.clone().or_else(|| aws::endpoint(shared.endpoint_url()?));
        let server = match named {
            Some(endpoint) => format!("DynamoDB at {}", endpoint.origin().ascii_serialization()),
            None => format!("DynamoDB ({region})"),
        };
        if let Some(endpoint) = &address.account.endpoint {
            config = config.endpoint_url(endpoint.as_str());
        }
        Ok(Self { client: Client::from_conf(config.build()), name: address.table.clone(), server, bound, clock })
    }
}
