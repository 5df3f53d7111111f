//! The time that a request may take, and the time that it took.

use super::StoreError;
use crate::lease::show;
use crate::time::BootInstant;
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

const QUESTIONS: usize = 5;

/// Sends the same question several times, one after another, for `leaderctl store check`. Returns the last answer, and
/// the median time of one.
pub async fn measure<T, F>(mut ask: impl FnMut() -> F) -> Result<(T, Duration), StoreError>
where
    F: Future<Output = Result<T, StoreError>>,
{
    let mut times = [Duration::ZERO; QUESTIONS];
    let mut last = None;
    for time in &mut times {
        let sent = BootInstant::now();
        last = Some(ask().await?);
        *time = BootInstant::now().since(sent);
    }
    times.sort_unstable();
    Ok((last.expect("it was asked"), times[QUESTIONS / 2]))
}
