//! Whether what a pack holds can be read in the memory that there is: no object is too large, nor are the deltas that lead to
//! one. Whoever reads an object has all of them at a time.

use gix::ObjectId;
use gix::odb::pack::data;
use gix::odb::pack::data::decode::header::ResolvedBase;
use gix::odb::pack::data::entry::Header;
use gix::zlib::Inflate;

use super::MirrorError;
use super::limits::{DELTA_CHAIN_FACTOR, MAX_CHAIN_LENGTH};
use super::upstream_session::UpstreamSession;

/// The deltas that lead to an object, itself counted.
#[derive(Clone, Copy, Default)]
struct DeltaChain {
    bytes: u64,
    deltas: u64,
}

/// What there is to hold of a pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryEstimate {
    /// The bytes of the largest object or delta.
    largest: u64,
    /// How many deltas lead to one object, at the most.
    chain_length: u64,
}

impl MemoryEstimate {
    /// What gix holds while it resolves all of it, at the most: an object is held until the last delta against it is resolved,
    /// and there are siblings beside each of a chain. Its buffer may be a larger one's. The next object, its delta, and what
    /// grows come on top.
    pub(super) fn bytes(self) -> u64 {
        if self.chain_length > MAX_CHAIN_LENGTH { u64::MAX } else { self.largest.saturating_mul(self.chain_length + 3) }
    }
}

/// Looks at the head of each entry. `offset_of`: where the object is that has a name.
pub(super) fn check_pack(
    pack: &data::File,
    offsets: &[u64],
    offset_of: impl Fn(ObjectId) -> Option<u64>,
    session: &UpstreamSession,
) -> gix::Result<Result<MemoryEstimate, MirrorError>> {
    let max_object = session.upstream.max_object;
    let max_chain = max_object.saturating_mul(DELTA_CHAIN_FACTOR);
    let index_of = |offset: u64| {
        let index_of = offsets.binary_search(&offset);
        index_of.map_err(|_| gix::error::message("a delta is told against what is no object").corrupted_error())
    };
    // One that was in_progress has a chain without end: a pack in which that is its own base has none either.
    let in_progress = DeltaChain { bytes: u64::MAX, deltas: 0 };
    let mut chains: Vec<Option<DeltaChain>> = vec![None; offsets.len()];
    let (mut inflate, mut deltas, mut estimate) = (Inflate::default(), Vec::new(), MemoryEstimate::default());
    for first in 0..offsets.len() {
        if let Err(error) = session.check_interrupt() {
            return Ok(Err(error));
        }
        let mut at = first;
        while chains[at].is_none() {
            let entry = pack.entry(offsets[at])?;
            let size = object_size(pack, &entry, &mut inflate)?;
            if size > max_object {
                return Ok(Err(MirrorError::ObjectTooLarge { limit: max_object }));
            }
            estimate.largest = estimate.largest.max(size).max(entry.decompressed_size);
            let base = match entry.header {
                Header::OfsDelta { base_distance } => entry.checked_base_pack_offset(base_distance),
                Header::RefDelta { base_id } => offset_of(base_id),
                _ => {
                    chains[at] = Some(DeltaChain::default());
                    break;
                }
            };
            chains[at] = Some(in_progress);
            deltas.push((at, entry.decompressed_size));
            at = index_of(base.unwrap_or_default())?;
        }
        let mut chain = chains[at].unwrap_or_default();
        for (at, delta) in deltas.drain(..).rev() {
            chain = DeltaChain { bytes: chain.bytes.saturating_add(delta), deltas: chain.deltas + 1 };
            chains[at] = Some(chain);
        }
        if chain.bytes > max_chain {
            return Ok(Err(MirrorError::DeltasTooLarge { limit: max_chain }));
        }
        estimate.chain_length = estimate.chain_length.max(chain.deltas);
    }
    Ok(Ok(estimate))
}

/// Whether an entry alone is too large, whatever the others are: the bytes of an object, or of a delta.
pub(super) fn check_entry(header: Header, size: u64, max_object: u64) -> Result<(), MirrorError> {
    let max_chain = max_object.saturating_mul(DELTA_CHAIN_FACTOR);
    match header.is_delta() {
        false if size > max_object => Err(MirrorError::ObjectTooLarge { limit: max_object }),
        true if size > max_chain => Err(MirrorError::DeltasTooLarge { limit: max_chain }),
        _ => Ok(()),
    }
}

/// How large the object of an entry is. What a delta is told against says nothing of it, and is not looked for.
fn object_size(pack: &data::File, entry: &data::Entry, inflate: &mut Inflate) -> gix::Result<u64> {
    let mut entry = entry.clone();
    if entry.header.is_delta() {
        entry.header = Header::RefDelta { base_id: pack.object_hash().null() };
    }
    let base = ResolvedBase::OutOfPack { kind: gix::objs::Kind::Blob, num_deltas: None };
    Ok(pack.decode_header(entry, inflate, &|_| Ok(Some(base.clone())))?.object_size)
}
