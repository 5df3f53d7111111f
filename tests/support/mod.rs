//! Code that several tests share. Each test uses a part of it.
#![allow(dead_code, unused_imports, unused_macros, reason = "each test compiles all of it and uses some")]

#[cfg(feature = "bucket")]
pub mod bucket;
pub mod claims;
pub mod denied;
#[cfg(feature = "dynamodb")]
pub mod dynamo;
#[cfg(any(feature = "etcd", feature = "kubernetes"))]
pub mod etcd;
pub mod evidence;
pub mod fleet;
pub mod gate;
pub mod http;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
pub mod mixed;
#[cfg(feature = "mysql")]
pub mod mysql;
#[cfg(feature = "nats")]
pub mod nats;
pub mod network;
pub mod note;
#[cfg(feature = "bucket")]
pub mod objects;
pub mod papers;
#[macro_use]
pub mod place;
pub mod ports;
#[cfg(feature = "postgres")]
pub mod postgres;
pub mod prelude;
pub mod process;
pub mod proxy;
pub mod random;
#[cfg(feature = "redis")]
pub mod redis;
pub mod said;
#[macro_use]
pub mod server;
pub mod shell;
pub mod slots;
pub mod squatting;
pub mod verbs;
#[cfg(any(feature = "dynamodb", feature = "bucket"))]
pub mod wire;
pub mod world;
