//! What the verbs print with `--json`.

use serde::Serialize;

/// An object with these members, in this order. Members are added, never renamed or removed. leaderctl(1),
/// leaderrun-formats(5) and `openapi.yaml` say what each one means, and when it is null.
macro_rules! object {
    ($($(#[$attribute:meta])* $name:ident $(: $value:expr)?),* $(,)?) => {{
        #[derive(serde::Serialize)]
        struct Object<$($name),*> {
            $($(#[$attribute])* $name: $name),*
        }
        Object { $($name $(: $value)?),* }
    }};
}
pub(super) use object;

pub fn as_json(value: &impl Serialize) -> String {
    serde_json::to_string(value).expect("it is plain data")
}
