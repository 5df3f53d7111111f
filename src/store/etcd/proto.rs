//! The messages of etcd's gRPC interface, as far as the store needs them.
//!
//! Names and field numbers are those of `rpc.proto` and `kv.proto` of etcd 3.4 (`etcdserver/etcdserverpb/rpc.proto`,
//! `mvcc/mvccpb/kv.proto`; since 3.5 in `api/`, unchanged). They are declared by hand, so that a build does not need
//! protoc. A reader skips the fields that are left out here, as protobuf requires.

use prost::Message;

pub type Method = &'static str;

pub const TXN: Method = "/etcdserverpb.KV/Txn";
pub const WATCH: Method = "/etcdserverpb.Watch/Watch";
pub const LEASE_GRANT: Method = "/etcdserverpb.Lease/LeaseGrant";
pub const LEASE_REVOKE: Method = "/etcdserverpb.Lease/LeaseRevoke";
pub const LEASE_KEEP_ALIVE: Method = "/etcdserverpb.Lease/LeaseKeepAlive";
pub const LEASE_TIME_TO_LIVE: Method = "/etcdserverpb.Lease/LeaseTimeToLive";
pub const AUTHENTICATE: Method = "/etcdserverpb.Auth/Authenticate";
pub const STATUS: Method = "/etcdserverpb.Maintenance/Status";

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = ($($how:tt)+),)*
    })*) => {$(
        $(#[$doc])*
        #[derive(Clone, PartialEq, Message)]
        pub struct $name {
            $($(#[$field_doc])* #[prost($($how)+)] pub $field: $type,)*
        }
    )*};
}

messages! {
    ResponseHeader {
        cluster_id: u64 = (uint64, tag = "1"),
        revision: i64 = (int64, tag = "3"),
        /// Of the last entry that the answering member has applied.
        raft_term: u64 = (uint64, tag = "4"),
    }
    KeyValue {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        mod_revision: i64 = (int64, tag = "3"),
        value: Vec<u8> = (bytes = "vec", tag = "5"),
        /// Zero: no lease.
        lease: i64 = (int64, tag = "6"),
    }
    /// And DeleteRangeRequest, which has no limit.
    RangeRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        /// Empty: the one key. Otherwise all keys from that one up to this one, exclusive.
        range_end: Vec<u8> = (bytes = "vec", tag = "2"),
        /// Zero: all.
        limit: i64 = (int64, tag = "3"),
    }
    RangeResponse {
        kvs: Vec<KeyValue> = (message, repeated, tag = "2"),
        /// There are more keys than the limit.
        more: bool = (bool, tag = "3"),
        /// How many keys there are, whatever the limit.
        count: i64 = (int64, tag = "4"),
    }
    PutRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        value: Vec<u8> = (bytes = "vec", tag = "2"),
        lease: i64 = (int64, tag = "3"),
    }
    /// A message whose fields do not matter.
    Nothing {}
    /// One of them.
    RequestOp {
        range: Option<RangeRequest> = (message, optional, tag = "1"),
        put: Option<PutRequest> = (message, optional, tag = "2"),
        delete: Option<RangeRequest> = (message, optional, tag = "3"),
    }
    /// None: the answer to a put or a delete.
    ResponseOp {
        range: Option<RangeResponse> = (message, optional, tag = "1"),
    }
    /// The result compared for is always equality, which is the default.
    Compare {
        /// 2: the revision of the last change.
        target: i32 = (int32, tag = "2"),
        key: Vec<u8> = (bytes = "vec", tag = "3"),
        mod_revision: Option<i64> = (int64, optional, tag = "6"),
    }
    TxnRequest {
        compare: Vec<Compare> = (message, repeated, tag = "1"),
        success: Vec<RequestOp> = (message, repeated, tag = "2"),
        failure: Vec<RequestOp> = (message, repeated, tag = "3"),
    }
    TxnResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        responses: Vec<ResponseOp> = (message, repeated, tag = "3"),
    }
    WatchRequest {
        create_request: Option<WatchCreateRequest> = (message, optional, tag = "1"),
    }
    WatchCreateRequest {
        key: Vec<u8> = (bytes = "vec", tag = "1"),
        filters: Vec<i32> = (int32, repeated, tag = "5"),
        /// Not zero: the number by which answers name this watch.
        watch_id: i64 = (int64, tag = "7"),
    }
    WatchResponse {
        watch_id: i64 = (int64, tag = "2"),
        /// It has begun: what happens from now on is shown.
        created: bool = (bool, tag = "3"),
        canceled: bool = (bool, tag = "4"),
        cancel_reason: String = (string, tag = "6"),
        /// Which events these are does not matter.
        events: Vec<Nothing> = (message, repeated, tag = "11"),
    }
    LeaseGrantRequest {
        ttl_seconds: i64 = (int64, tag = "1"),
        id: i64 = (int64, tag = "2"),
    }
    /// LeaseRevokeRequest, LeaseKeepAliveRequest and LeaseTimeToLiveRequest.
    LeaseRequest {
        id: i64 = (int64, tag = "1"),
    }
    /// LeaseGrantResponse, LeaseKeepAliveResponse and LeaseTimeToLiveResponse.
    LeaseResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        /// Whole seconds, rounded down. If there is no such lease, LeaseKeepAlive tells zero or less, and
        /// LeaseTimeToLive -1.
        ttl_seconds: i64 = (int64, tag = "3"),
        /// LeaseTimeToLive alone tells it.
        granted_seconds: i64 = (int64, tag = "4"),
    }
    AuthenticateRequest {
        name: String = (string, tag = "1"),
        password: String = (string, tag = "2"),
    }
    AuthenticateResponse {
        token: String = (string, tag = "2"),
    }
    StatusResponse {
        header: Option<ResponseHeader> = (message, optional, tag = "1"),
        version: String = (string, tag = "2"),
        /// Zero if the member knows of no leader.
        leader: u64 = (uint64, tag = "4"),
        /// Alarms, since 3.4.
        errors: Vec<String> = (string, repeated, tag = "8"),
    }
}

/// A filter that hides puts.
pub const NO_PUT: i32 = 0;

pub fn get(key: &[u8]) -> RequestOp {
    range(RangeRequest { key: key.to_vec(), ..RangeRequest::default() })
}

pub fn range(request: RangeRequest) -> RequestOp {
    RequestOp { range: Some(request), ..RequestOp::default() }
}

pub fn put(key: &[u8], value: Vec<u8>, lease: i64) -> RequestOp {
    RequestOp { put: Some(PutRequest { key: key.to_vec(), value, lease }), ..RequestOp::default() }
}

pub fn delete(key: &[u8]) -> RequestOp {
    RequestOp { delete: Some(RangeRequest { key: key.to_vec(), ..RangeRequest::default() }), ..RequestOp::default() }
}

/// The key was last changed at that revision; zero: it is absent.
pub fn is_unchanged(key: &[u8], mod_revision: i64) -> Compare {
    Compare { target: 2, key: key.to_vec(), mod_revision: Some(mod_revision) }
}
