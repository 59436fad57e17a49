//! The messages of etcd's API that are used, with the field numbers of `etcdserverpb/rpc.proto` and `mvccpb/kv.proto`.

use bytes::Bytes;
use prost::Message;

/// A method of etcd, by the type of its request.
pub(crate) trait Request: Message {
    /// The path of the method.
    const PATH: &'static str;
    type Response: Message + Default;
}

/// Reads a key, or the keys from `key` up to `range_end`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) range_end: Bytes,
    #[prost(bool, tag = "8")]
    pub(crate) keys_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RangeResponse {
    #[prost(message, repeated, tag = "2")]
    pub(crate) kvs: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct KeyValue {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    /// The revision of the store at the last write of this key.
    #[prost(int64, tag = "3")]
    pub(crate) mod_revision: i64,
    #[prost(bytes = "bytes", tag = "5")]
    pub(crate) value: Bytes,
}

/// Writes if all comparisons hold.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) success: Vec<RequestOp>,
}

/// Whether a key has a `mod_revision`. Both default values matter: the comparison is `EQUAL`, and a key that does not exist
/// has the `mod_revision` 0.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Compare {
    #[prost(int32, tag = "2")]
    pub(crate) target: i32,
    #[prost(bytes = "bytes", tag = "3")]
    pub(crate) key: Bytes,
    /// One of several values; it is sent even if it is 0.
    #[prost(int64, optional, tag = "6")]
    pub(crate) mod_revision: Option<i64>,
}

/// The target of a comparison of `mod_revision`.
pub(crate) const TARGET_MOD: i32 = 2;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct RequestOp {
    #[prost(message, optional, tag = "2")]
    pub(crate) put: Option<PutRequest>,
    #[prost(message, optional, tag = "3")]
    pub(crate) delete: Option<DeleteRangeRequest>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PutRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TxnResponse {
    #[prost(message, optional, tag = "1")]
    pub(crate) header: Option<ResponseHeader>,
    #[prost(bool, tag = "2")]
    pub(crate) succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ResponseHeader {
    /// The revision of the store, after the request.
    #[prost(int64, tag = "3")]
    pub(crate) revision: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DeleteRangeRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
}

impl Request for RangeRequest {
    const PATH: &'static str = "/etcdserverpb.KV/Range";
    type Response = RangeResponse;
}

impl Request for TxnRequest {
    const PATH: &'static str = "/etcdserverpb.KV/Txn";
    type Response = TxnResponse;
}
