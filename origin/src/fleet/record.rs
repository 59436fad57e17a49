//! The record of a kind: its documents with their revision, as compressed JSON.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use weir_protocol::access_list::{Entries, MAX_KIND_BYTES};
use weir_store::{Expect, MAX_RECORD_BYTES, Record, RecordError};

use super::error::FleetError;
use super::fleet_entry::FleetEntry;

/// Keys of issuers hardly get smaller, everything else does.
const ZSTD_LEVEL: i32 = 9;

/// The largest JSON of a record.
const MAX_JSON_BYTES: usize = MAX_KIND_BYTES + 1024;

#[derive(Serialize, Deserialize)]
struct Document<T> {
    revision: u64,
    documents: Vec<T>,
}

/// What is stored of a kind.
#[derive(Debug)]
pub(super) struct Stored<T> {
    pub(super) revision: u64,
    pub(super) documents: Vec<T>,
    /// The state that a write replaces.
    pub(super) expect: Expect,
}

impl<T: FleetEntry> Stored<T> {
    /// Reads what an engine returned.
    pub(super) fn of(read: Result<Option<Record>, RecordError>) -> Result<Self, FleetError> {
        let record = match read.map_err(|error| FleetError::Unreadable(error.to_string()))? {
            None => return Ok(Self { revision: 0, documents: Vec::new(), expect: Expect::Absent }),
            Some(record) => record,
        };
        if let Some(damage) = &record.recovered {
            tracing::warn!(record = %T::key(), damage, "a record is damaged: its previous copy is used until the next change");
        }
        let unreadable =
            |error: String| FleetError::Unreadable(format!("The record {} cannot be read: {error}", T::key()));
        let json =
            zstd::bulk::decompress(&record.bytes, MAX_JSON_BYTES).map_err(|error| unreadable(error.to_string()))?;
        let Document { revision, documents } =
            serde_json::from_slice(&json).map_err(|error| unreadable(error.to_string()))?;
        Ok(Self { revision, documents, expect: Expect::Version(record.version) })
    }
}

/// The bytes of a record with the documents of `entries`.
pub(super) fn encode<T: FleetEntry>(entries: &Entries<T>) -> Result<Bytes, FleetError> {
    let document = Document { revision: entries.revision(), documents: entries.documents().collect() };
    let json = serde_json::to_vec(&document).expect("plain data");
    let too_large = |bytes: usize, limit: usize| {
        FleetError::Full(format!("All {} together would have {bytes} bytes, more than {limit}", T::KIND))
    };
    if json.len() > MAX_KIND_BYTES {
        return Err(too_large(json.len(), MAX_KIND_BYTES));
    }
    let bytes = zstd::bulk::compress(&json, ZSTD_LEVEL).map_err(|error| FleetError::Unreadable(error.to_string()))?;
    if bytes.len() > MAX_RECORD_BYTES { Err(too_large(bytes.len(), MAX_RECORD_BYTES)) } else { Ok(bytes.into()) }
}
