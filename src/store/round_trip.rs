//! How long a store takes to answer, for `leaderctl store check`.

use super::StoreError;
use crate::time::BootInstant;
use std::time::Duration;

const QUESTIONS: usize = 5;

/// Asks some times, one question after another. The last answer, and the median time that one took.
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
