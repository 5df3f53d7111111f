//! Several requests at once. The caller polls them itself: there are no tasks, so dropping the caller drops them all.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

#[cfg(any(feature = "bucket", feature = "nats", feature = "etcd"))]
pub use listed::answers;

/// The answer of the first future to end. The others are dropped. Without any future it never ends.
pub async fn first<T>(futures: impl IntoIterator<Item = impl Future<Output = T> + Send>) -> T {
    let mut waiting: Vec<Pin<Box<_>>> = futures.into_iter().map(Box::pin).collect();
    poll_fn(|context| {
        let ready = waiting.iter_mut().find_map(|future| match future.as_mut().poll(context) {
            Poll::Ready(answer) => Some(answer),
            Poll::Pending => None,
        });
        ready.map_or(Poll::Pending, Poll::Ready)
    })
    .await
}

/// The answers of all, in their order.
pub async fn all<T>(futures: impl IntoIterator<Item = impl Future<Output = T> + Send>) -> Vec<T> {
    let mut asked: Vec<(Option<Pin<Box<_>>>, Option<T>)> =
        futures.into_iter().map(|future| (Some(Box::pin(future)), None)).collect();
    poll_fn(|context| {
        for (waiting, answer) in &mut asked {
            if let Some(future) = waiting
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                (*waiting, *answer) = (None, Some(ready));
            }
        }
        if asked.iter().all(|(waiting, _)| waiting.is_none()) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    asked.into_iter().filter_map(|(_, answer)| answer).collect()
}

#[cfg(any(feature = "bucket", feature = "nats", feature = "etcd"))]
mod listed {
    use super::super::StoreError;
    use futures_util::stream::{FuturesUnordered, StreamExt};

    /// The most requests under way at once: enough to make up for a slow network, and few enough that each is answered
    /// within its time.
    const AT_ONCE: usize = 64;

    /// The answers of all, in any order. The first failure ends it. Lists need this: thousands of shards would take
    /// thousands of round trips, one after another.
    ///
    /// # Errors
    /// The first.
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
}
