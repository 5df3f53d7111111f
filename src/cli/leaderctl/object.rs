//! What the verbs print with `--json`.

use serde::Serialize;

/// An object with these members, in this order. Members are added, never renamed or removed.
macro_rules! object {
    ($($(#[$about:meta])* $name:ident $(: $value:expr)?),* $(,)?) => {{
        #[derive(serde::Serialize)]
        struct Object<$($name),*> {
            $($(#[$about])* $name: $name),*
        }
        Object { $($name $(: $value)?),* }
    }};
}
pub(super) use object;

pub fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it is plain data")
}
