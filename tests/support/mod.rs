//! What several tests need. Each test uses a part of it.
#![allow(dead_code, reason = "each test compiles all of it and uses some")]

#[cfg(feature = "dynamodb")]
pub mod dynamo;
pub mod fleet;
pub mod proxy;
