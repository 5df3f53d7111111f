//! The model of one note: a text that is replaced only where the expected one stands.

use super::checker::{Model, Window};

/// The number of a text. Each is written by one call only, so that one that comes back is seen. None: there is no note.
pub type Text = Option<u32>;

#[derive(Clone, Debug)]
pub enum Call {
    Read { text: Text },
    Replace { expected: Text, draft: Text, done: Option<bool> },
}

impl Call {
    /// The same call without an answer. None if such a call shows nothing.
    pub fn unanswered(&self) -> Option<Self> {
        match *self {
            Self::Read { .. } => None,
            Self::Replace { expected, draft, .. } => Some(Self::Replace { expected, draft, done: None }),
        }
    }
}

pub struct Page;

impl Model for Page {
    type State = Text;
    type Call = Call;

    fn start(&self) -> Text {
        None
    }

    fn step(&self, state: &Text, call: &Call, _: Window) -> Option<Text> {
        match *call {
            Call::Read { text, .. } => (text == *state).then_some(*state),
            Call::Replace { expected, draft, done } => {
                let fits = *state == expected;
                if done.is_some_and(|done| done != fits) {
                    return None;
                }
                Some(if fits { draft } else { *state })
            }
        }
    }
}
