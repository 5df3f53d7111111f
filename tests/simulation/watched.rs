//! A value that tasks wait for. Unlike tokio's, it wakes them in the order in which they came: a seed tells one story.

use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};

#[derive(Clone)]
pub struct Watched<T>(Arc<Mutex<(T, Vec<Waker>)>>);

impl<T: Copy> Watched<T> {
    pub fn new(value: T) -> Self {
        Self(Arc::new(Mutex::new((value, Vec::new()))))
    }

    pub fn get(&self) -> T {
        self.0.lock().expect("nobody panicked").0
    }

    /// Answers what it was.
    pub fn set(&self, value: T) -> T {
        let (before, wakers) = {
            let mut inner = self.0.lock().expect("nobody panicked");
            (std::mem::replace(&mut inner.0, value), std::mem::take(&mut inner.1))
        };
        wakers.into_iter().for_each(Waker::wake);
        before
    }

    /// Returns once `fits` is true of it.
    pub async fn wait_for(&self, fits: impl Fn(T) -> bool) -> T {
        std::future::poll_fn(|context| {
            let mut inner = self.0.lock().expect("nobody panicked");
            if fits(inner.0) {
                return Poll::Ready(inner.0);
            }
            if !inner.1.iter().any(|waker| waker.will_wake(context.waker())) {
                inner.1.push(context.waker().clone());
            }
            Poll::Pending
        })
        .await
    }
}
