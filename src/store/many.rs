//! Many questions at a time: a list of thousands of shards would else take thousands of round trips.

use super::StoreError;
use futures_util::stream::{FuturesUnordered, StreamExt};

/// So many requests are under way at once: enough that a slow network does not count, few enough that each is answered
/// within its time.
const AT_ONCE: usize = 64;

/// The answers, in no order. The first failure ends it.
pub async fn answers<T>(
    questions: impl IntoIterator<Item = impl Future<Output = Result<T, StoreError>>>,
) -> Result<Vec<T>, StoreError> {
    let mut questions = questions.into_iter();
    let mut asked: FuturesUnordered<_> = questions.by_ref().take(AT_ONCE).collect();
    let mut answers = Vec::new();
    while let Some(answer) = asked.next().await {
        answers.push(answer?);
        asked.extend(questions.next());
    }
    Ok(answers)
}
