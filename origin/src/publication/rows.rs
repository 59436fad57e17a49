//! The rows that descriptors stand in.

use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use redb::TableDefinition;
use weir_shared::descriptor::{Descriptor, DescriptorError};

/// Service and digest.
pub(super) type VersionKey = (&'static str, &'static [u8; 32]);
/// Unix milliseconds and a descriptor's bytes.
pub(super) type VersionValue = (u64, &'static [u8]);

/// Service → the bytes of its descriptor.
pub(super) const CURRENT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("current_v1");
/// Service → the last generation ever published. Stays when the service goes.
pub(super) const GENERATION: TableDefinition<'_, &str, u64> = TableDefinition::new("generation_v1");
/// Service, digest → when it was superseded (Unix milliseconds), and its last descriptor's bytes.
pub(super) const SUPERSEDED: TableDefinition<'_, VersionKey, VersionValue> = TableDefinition::new("history_v1");

/// Reads a descriptor's row: that of this service.
pub(super) fn parse(service: &str, bytes: &[u8]) -> Result<Descriptor, RowError> {
    let descriptor = Descriptor::parse(Bytes::copy_from_slice(bytes))?;
    if descriptor.publication().service.as_str() == service { Ok(descriptor) } else { Err(RowError::AnothersRow) }
}

/// Reads a superseded version's row: that of this service and digest.
pub(super) fn parse_superseded(service: &str, digest: &[u8; 32], bytes: &[u8]) -> Result<Descriptor, RowError> {
    let descriptor = parse(service, bytes)?;
    if descriptor.publication().digest.as_bytes() == digest { Ok(descriptor) } else { Err(RowError::AnotherVersions) }
}

/// A row that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RowError {
    #[error(transparent)]
    Descriptor(#[from] DescriptorError),
    #[error("it is the descriptor of another service")]
    AnothersRow,
    #[error("it is the descriptor of another version")]
    AnotherVersions,
}

pub(super) fn unix_milliseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
