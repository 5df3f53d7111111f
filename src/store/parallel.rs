//! Several requests at once. The caller polls them itself: there are no tasks, so dropping the caller drops them all.

use super::StoreError;
use futures_util::stream::{self, TryStreamExt};
use futures_util::stream::{FuturesUnordered, StreamExt};
use std::future::{Future, pending};

/// The answers of all, in their order.
pub use futures_util::future::join_all as all;
/// The same, or the first failure, which ends it.
pub use futures_util::future::try_join_all as try_all;

/// The most requests under way at once: enough to make up for a slow network, and few enough that each is answered
/// within its time.
const AT_ONCE: usize = 64;
/// Observations that may run at once before each needs a connection of its own.
pub const FEW: usize = 16;

/// The answer of the first future to end. The others are dropped. Without any future it never ends.
pub async fn first<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> T {
    match futures.into_iter().collect::<FuturesUnordered<_>>().next().await {
        Some(answer) => answer,
        None => pending().await,
    }
}

/// The first failure ends it.
pub async fn answers<T>(
    questions: impl IntoIterator<Item = impl Future<Output = Result<T, StoreError>>>,
) -> Result<Vec<T>, StoreError> {
    stream::iter(questions).buffered(AT_ONCE).try_collect().await
}
