//! What `--version` prints.

use crate::guard::contain::{Contain, Containment};
use crate::store::BUILT_IN;
use std::fmt::Write as _;

/// Three lines, and one for each kill method that does not work here.
pub fn text(program: &str) -> String {
    let commit = option_env!("SOURCE_COMMIT").map(|commit| format!(" (commit {commit})")).unwrap_or_default();
    let (version, stores) = (env!("CARGO_PKG_VERSION"), BUILT_IN.join(", "));
    let mut text = format!("{program} {version}{commit}\nstores: {stores}\n");
    let methods = [Contain::Walk, Contain::Cgroup, Contain::Pidns].map(|way| (way.into_str(), Containment::find(way)));
    let usable: Vec<&str> = methods.iter().filter(|(_, found)| found.is_ok()).map(|(name, _)| *name).collect();
    let _ = writeln!(text, "kill methods on this host: {}", usable.join(", "));
    for why in methods.into_iter().filter_map(|(_, found)| found.err()) {
        let _ = writeln!(text, "  {why}");
    }
    text
}
