//! A way to a server in memory that does what a story says.

#![allow(dead_code, reason = "each test compiles all of it and uses some")]

use crate::memory::{Step, Way};
use leaderrun::internals::store::StoreError;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

pub enum Fate {
    Refused,
    Denied,
    Lost,
    /// Lost, and the caller waits for the answer.
    Hangs,
    /// Applied, and the answer is lost.
    Unheard,
    /// The same, and the caller waits for the answer.
    UnheardHangs,
    /// The caller gives up. It is applied when the story delivers it.
    Late,
    /// A copy stays on the way: it is applied again when the story delivers it.
    Copied,
    Twice,
    /// Something happens at the server just before.
    After(Box<dyn FnOnce() + Send>),
}

type Matches = fn(&Step) -> bool;
type Held = Box<dyn Fn() + Send>;

#[derive(Clone)]
pub struct Line {
    /// What each request takes.
    moment: fn(),
    plans: Arc<Mutex<VecDeque<(Matches, Fate)>>>,
    held: Arc<Mutex<Vec<Held>>>,
    steps: Arc<Mutex<Vec<Step>>>,
}

impl Line {
    pub fn where_each(moment: fn()) -> Self {
        Self { moment, plans: Arc::default(), held: Arc::default(), steps: Arc::default() }
    }

    /// The next request of this kind meets this fate.
    pub fn next(&self, matches: Matches, fate: Fate) {
        self.plans.lock().unwrap().push_back((matches, fate));
    }

    pub fn deliver(&self) {
        let held = std::mem::take(&mut *self.held.lock().unwrap());
        assert!(!held.is_empty(), "nothing was held");
        for late in held {
            late();
        }
    }

    /// What was asked since this was called last.
    pub fn steps(&self) -> Vec<Step> {
        std::mem::take(&mut self.steps.lock().unwrap())
    }
}

impl Way for Line {
    async fn carry<A: Send + 'static>(
        &self,
        step: Step,
        serve: impl Fn() -> A + Send + Sync + 'static,
    ) -> Result<A, StoreError> {
        let fate = {
            let mut plans = self.plans.lock().unwrap();
            let met = plans.front().is_some_and(|(matches, _)| matches(&step));
            if met { plans.pop_front().map(|(_, fate)| fate) } else { None }
        };
        self.steps.lock().unwrap().push(step);
        (self.moment)();
        let unheard = || Err(StoreError::unknown("no answer"));
        match fate {
            None => Ok(serve()),
            Some(Fate::Refused) => Err(StoreError::not_applied("connection refused")),
            Some(Fate::Denied) => Err(StoreError::denied("not yours")),
            Some(Fate::Lost) => unheard(),
            Some(Fate::Hangs) => std::future::pending().await,
            Some(Fate::Unheard) => {
                serve();
                unheard()
            }
            Some(Fate::UnheardHangs) => {
                serve();
                std::future::pending().await
            }
            Some(Fate::Late) => {
                self.held.lock().unwrap().push(Box::new(move || drop(serve())));
                unheard()
            }
            Some(Fate::Copied) => {
                let answer = serve();
                self.held.lock().unwrap().push(Box::new(move || drop(serve())));
                Ok(answer)
            }
            Some(Fate::Twice) => {
                serve();
                Ok(serve())
            }
            Some(Fate::After(act)) => {
                act();
                Ok(serve())
            }
        }
    }
}
