//! The time that a request may take.

use super::StoreError;
use crate::lease::show;
use std::time::Duration;

/// Bounds a request. A request that is cut off may have been applied, or may be applied later.
pub(crate) async fn within<T>(
    timeout: Duration,
    request: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match tokio::time::timeout(timeout, request).await {
        Ok(answer) => answer,
        Err(_) => Err(StoreError::unknown(format!("the store did not answer within {}", show(timeout)))),
    }
}
