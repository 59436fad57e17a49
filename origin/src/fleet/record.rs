//! The records of a kind, as compressed JSON. `cluster/<kind>.<shard>` is a shard: 2 hexadecimal digits. `cluster/<kind>` says
//! that there are shards; origins of 0.1 stored all documents there, and cannot read what it says now.

use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use weir_protocol::access_list::{Entry, MAX_KIND_BYTES, MAX_SHARD_BYTES, SHARDS, Shard, Table};
use weir_store::{MAX_RECORD_BYTES, Record, RecordError, RecordKey};

use super::error::FleetError;

/// Keys of issuers hardly get smaller, everything else does at any level.
const ZSTD_LEVEL: i32 = 3;

/// Names, revisions and brackets beside the documents.
const MAX_JSON_BYTES: usize = MAX_SHARD_BYTES + (1 << 20);

/// What records have.
pub(crate) trait Storable: Entry<Name: Send + Sync> + DeserializeOwned + Send + Sync + 'static {}

impl<T: Entry<Name: Send + Sync> + DeserializeOwned + Send + Sync + 'static> Storable for T {}

/// What `cluster/<kind>` says.
#[derive(Debug)]
pub(super) enum Whole<T> {
    /// All documents, with their revision: no origin has made shards of them yet.
    Documents(u64, Vec<T>),
    /// The documents are in shards.
    InShards,
}

#[derive(Serialize, Deserialize)]
struct WholeDocument<T> {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shards: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(default = "Option::default", skip_serializing_if = "Option::is_none")]
    documents: Option<Vec<T>>,
}

/// The record of a kind.
pub(super) fn whole_key<T: Storable>() -> RecordKey {
    format!("cluster/{}", T::KIND).parse().expect("the kinds are names")
}

/// What the keys of all shards begin with.
pub(super) fn shards_prefix<T: Storable>() -> String {
    format!("{}.", whole_key::<T>())
}

/// The record of a shard.
pub(super) fn shard_key<T: Storable>(index: usize) -> RecordKey {
    format!("{}{index:02x}", shards_prefix::<T>()).parse().expect("digits may follow a dot")
}

/// The record that an engine returned.
pub(super) fn read(key: &RecordKey, read: Result<Option<Record>, RecordError>) -> Result<Option<Record>, FleetError> {
    let record = read.map_err(|error| FleetError::Unreadable(error.to_string()))?;
    if let Some(damage) = record.as_ref().and_then(|record| record.recovered.as_ref()) {
        tracing::warn!(record = %key, damage, "a record is damaged: its previous copy is used until the next change");
    }
    Ok(record)
}

pub(super) fn decode_whole<T: Storable>(record: &Record) -> Result<Whole<T>, FleetError> {
    let key = whole_key::<T>();
    let document: WholeDocument<T> =
        serde_json::from_slice(&json(&key, record)?).map_err(|error| unreadable(&key, &error))?;
    match document {
        WholeDocument { revision: Some(revision), documents: Some(documents), .. } => {
            Ok(Whole::Documents(revision, documents))
        }
        WholeDocument { shards: Some(SHARDS), .. } => Ok(Whole::InShards),
        _ => Err(unreadable(&key, &"it was written by a later version")),
    }
}

pub(super) fn decode_shard<T: Storable>(index: usize, record: &Record) -> Result<Shard<T>, FleetError> {
    let key = shard_key::<T>(index);
    Shard::parse(index, &json(&key, record)?).map_err(|error| unreadable(&key, &error))
}

/// The bytes of a record with all documents.
pub(super) fn encode_whole<T: Storable>(table: &Table<T>) -> Result<Bytes, FleetError> {
    let documents = Some(table.documents().collect());
    let document = WholeDocument { shards: None, revision: Some(table.revision()), documents };
    encode(&document, MAX_KIND_BYTES, &format!("All {} together", T::KIND))
}

/// The bytes of a record that says that there are shards.
pub(super) fn encode_in_shards() -> Result<Bytes, FleetError> {
    let document = WholeDocument::<()> { shards: Some(SHARDS), revision: None, documents: None };
    encode(&document, MAX_KIND_BYTES, "")
}

/// The bytes of the record of a shard.
pub(super) fn encode_shard<T: Storable>(shard: &Shard<T>) -> Result<Bytes, FleetError> {
    let what = format!("One of {SHARDS} shards of the {}", T::KIND);
    compressed(&shard.json(), MAX_SHARD_BYTES, &what)
}

fn encode(document: &impl Serialize, limit: usize, what: &str) -> Result<Bytes, FleetError> {
    compressed(&serde_json::to_vec(document).expect("plain data"), limit, what)
}

fn compressed(json: &[u8], limit: usize, what: &str) -> Result<Bytes, FleetError> {
    let too_large = |bytes: usize, limit: usize| {
        FleetError::Full(format!("{what} would have {bytes} bytes, more than {limit}: remove some"))
    };
    if json.len() > limit {
        return Err(too_large(json.len(), limit));
    }
    let bytes = zstd::bulk::compress(json, ZSTD_LEVEL).map_err(|error| FleetError::Unreadable(error.to_string()))?;
    if bytes.len() > MAX_RECORD_BYTES { Err(too_large(bytes.len(), MAX_RECORD_BYTES)) } else { Ok(bytes.into()) }
}

fn json(key: &RecordKey, record: &Record) -> Result<Vec<u8>, FleetError> {
    zstd::bulk::decompress(&record.bytes, MAX_JSON_BYTES).map_err(|error| unreadable(key, &error))
}

fn unreadable(key: &RecordKey, error: &dyn std::fmt::Display) -> FleetError {
    FleetError::Unreadable(format!("The record {key} cannot be read: {error}"))
}
