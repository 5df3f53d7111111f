//! The verbs of leaderctl.

use super::prelude::*;

/// Every verb that asks a store. All but `serve` end where it is away.
pub const ASKING: &[&[&str]] = &[
    &["status", "shard"],
    &["list"],
    &["watch", "shard"],
    &["wait", "shard", "--free"],
    &["verify", "shard", "--term", "7"],
    &["why", "shard"],
    &["history", "shard"],
    &["jobs", "shard"],
    &["jobs", "shard", "--clear", "id"],
    &["serve", "--listen", "127.0.0.1:0"],
    &["selftest", "--only", "stop"],
    &["store", "check"],
    &["pause", "shard", "--wait"],
    &["pause", "--prefix", "sh"],
    &["resume", "shard"],
    &["step-down", "shard"],
    &["step-down", "--host", "web1"],
    &["resume", "--host", "web1"],
    &["balance"],
    &["revoke", "shard", "--term", "1"],
    &["forget", "shard"],
    &["store", "init"],
];

/// The default store of root is the machine's, and not that of a test.
pub fn forget_in_default_store(shard: &str) {
    if nix::unistd::geteuid().is_root() {
        leaderctl().args(["--store", "file:", "forget", shard]).said().ended(0);
    }
}
