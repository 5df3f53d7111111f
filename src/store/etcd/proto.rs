//! The messages of etcd's gRPC interface, as far as the store needs them.
//!
//! Names and field numbers are those of `rpc.proto` and `kv.proto` of etcd 3.4 (`etcdserver/etcdserverpb/rpc.proto`,
//! `mvcc/mvccpb/kv.proto`; since 3.5 in `api/`, unchanged). They are declared by hand, so that a build does not need
//! protoc. A reader skips the fields that are left out here, as protobuf requires.

use prost::{Message, Oneof};

/// The path of a method.
pub type Method = &'static str;

pub const TXN: Method = "/etcdserverpb.KV/Txn";
pub const WATCH: Method = "/etcdserverpb.Watch/Watch";
pub const LEASE_GRANT: Method = "/etcdserverpb.Lease/LeaseGrant";
pub const LEASE_REVOKE: Method = "/etcdserverpb.Lease/LeaseRevoke";
pub const LEASE_KEEP_ALIVE: Method = "/etcdserverpb.Lease/LeaseKeepAlive";
pub const LEASE_TIME_TO_LIVE: Method = "/etcdserverpb.Lease/LeaseTimeToLive";
pub const AUTHENTICATE: Method = "/etcdserverpb.Auth/Authenticate";
pub const STATUS: Method = "/etcdserverpb.Maintenance/Status";

/// The name of a method for people.
pub fn name_of(method: Method) -> &'static str {
    method.rsplit('/').next().unwrap_or(method)
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseHeader {
    #[prost(uint64, tag = "1")]
    pub cluster_id: u64,
    #[prost(int64, tag = "3")]
    pub revision: i64,
    /// Of the last entry that the answering member has applied.
    #[prost(uint64, tag = "4")]
    pub raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub value: Vec<u8>,
    /// Zero: no lease.
    #[prost(int64, tag = "6")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    /// Empty: the one key. Otherwise all keys from that one up to this one, exclusive.
    #[prost(bytes = "vec", tag = "2")]
    pub range_end: Vec<u8>,
    /// Zero: all.
    #[prost(int64, tag = "3")]
    pub limit: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub kvs: Vec<KeyValue>,
    /// There are more keys than the limit.
    #[prost(bool, tag = "3")]
    pub more: bool,
    /// How many keys there are, whatever the limit.
    #[prost(int64, tag = "4")]
    pub count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
}

/// A message whose fields do not matter, such as the answer to a put.
#[derive(Clone, PartialEq, Message)]
pub struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub struct RequestOp {
    #[prost(oneof = "Operation", tags = "1, 2, 3")]
    pub request: Option<Operation>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Operation {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    DeleteRange(DeleteRangeRequest),
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseOp {
    #[prost(oneof = "Outcome", tags = "1, 2, 3")]
    pub response: Option<Outcome>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Outcome {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(Nothing),
    #[prost(message, tag = "3")]
    DeleteRange(Nothing),
}

/// The result compared for is always equality, which is the default.
#[derive(Clone, PartialEq, Message)]
pub struct Compare {
    /// 2: the revision of the last change.
    #[prost(int32, tag = "2")]
    pub target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub key: Vec<u8>,
    #[prost(oneof = "Compared", tags = "6")]
    pub compared: Option<Compared>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Compared {
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub success: Vec<RequestOp>,
    #[prost(message, repeated, tag = "3")]
    pub failure: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    pub responses: Vec<ResponseOp>,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchRequest {
    #[prost(message, optional, tag = "1")]
    pub create_request: Option<WatchCreateRequest>,
}

/// A filter that hides puts.
pub const NO_PUT: i32 = 0;

#[derive(Clone, PartialEq, Message)]
pub struct WatchCreateRequest {
    #[prost(bytes = "vec", tag = "1")]
    pub key: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub start_revision: i64,
    #[prost(int32, repeated, tag = "5")]
    pub filters: Vec<i32>,
    /// Not zero: the number by which answers name this watch.
    #[prost(int64, tag = "7")]
    pub watch_id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct WatchResponse {
    #[prost(int64, tag = "2")]
    pub watch_id: i64,
    #[prost(bool, tag = "4")]
    pub canceled: bool,
    /// Not zero if the revision to start at no longer exists.
    #[prost(int64, tag = "5")]
    pub compact_revision: i64,
    #[prost(string, tag = "6")]
    pub cancel_reason: String,
    /// Which events these are does not matter.
    #[prost(message, repeated, tag = "11")]
    pub events: Vec<Nothing>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    pub ttl_seconds: i64,
    #[prost(int64, tag = "2")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseGrantResponse {
    #[prost(int64, tag = "3")]
    pub ttl_seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseRevokeRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseKeepAliveResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    /// Zero or less if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl_seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseTimeToLiveRequest {
    #[prost(int64, tag = "1")]
    pub id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LeaseTimeToLiveResponse {
    /// Whole seconds, rounded down. -1 if there is no such lease.
    #[prost(int64, tag = "3")]
    pub ttl_seconds: i64,
    #[prost(int64, tag = "4")]
    pub granted_seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateRequest {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub password: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct AuthenticateResponse {
    #[prost(string, tag = "2")]
    pub token: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StatusResponse {
    #[prost(message, optional, tag = "1")]
    pub header: Option<ResponseHeader>,
    #[prost(string, tag = "2")]
    pub version: String,
    /// Zero if the member knows of no leader.
    #[prost(uint64, tag = "4")]
    pub leader: u64,
    /// Alarms, since 3.4.
    #[prost(string, repeated, tag = "8")]
    pub errors: Vec<String>,
    #[prost(bool, tag = "10")]
    pub is_learner: bool,
}

pub fn get(key: &[u8]) -> RequestOp {
    range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() })
}

pub fn range(request: RangeRequest) -> RequestOp {
    RequestOp { request: Some(Operation::Range(request)) }
}

pub fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    RequestOp { request: Some(Operation::Put(PutRequest { key: key.to_vec(), value, lease })) }
}

pub fn delete(key: &[u8]) -> RequestOp {
    RequestOp { request: Some(Operation::DeleteRange(DeleteRangeRequest { key: key.to_vec() })) }
}

/// The key was last changed at that revision; zero: it is absent.
pub fn is_unchanged(key: &[u8], mod_revision: i64) -> Compare {
    Compare { target: 2, key: key.to_vec(), compared: Some(Compared::ModRevision(mod_revision)) }
}

impl TxnResponse {
    /// What each of the gets found, in their order.
    pub fn ranges(self) -> impl Iterator<Item = RangeResponse> {
        self.responses.into_iter().filter_map(|operation| match operation.response {
            Some(Outcome::Range(range)) => Some(range),
            Some(Outcome::Put(_) | Outcome::DeleteRange(_)) | None => None,
        })
    }
}
