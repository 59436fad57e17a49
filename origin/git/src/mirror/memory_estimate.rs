//! Checks that the objects of a pack fit into memory, and estimates what their resolution takes. A reader of an object
//! holds its whole delta chain.

use gix::ObjectId;
use gix::odb::pack::data;
use gix::odb::pack::data::decode::header::ResolvedBase;
use gix::odb::pack::data::entry::Header;
use gix::zlib::Inflate;

use super::MirrorError;
use super::git_session::GitSession;
use super::limits::{MAX_CHAIN_LENGTH, max_delta_chain};

/// A delta chain up to an object, which it includes.
#[derive(Clone, Copy, Default)]
struct DeltaChain {
    bytes: u64,
    deltas: u64,
}

/// The memory to resolve a pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct MemoryEstimate {
    /// The size of the largest object or delta, in bytes.
    largest: u64,
    /// The longest chain of deltas.
    chain_length: u64,
}

impl MemoryEstimate {
    /// The maximum that gix needs to resolve the pack. It keeps an object until its last delta is resolved, and one
    /// sibling per chain link. Buffers for the next object, its delta and the result come on top.
    pub(super) fn bytes(self) -> u64 {
        if self.chain_length > MAX_CHAIN_LENGTH { u64::MAX } else { self.largest.saturating_mul(self.chain_length + 3) }
    }
}

/// Reads the header of each entry. `offset_of` finds an object by its id.
pub(super) fn check_pack(
    pack: &data::File,
    offsets: &[u64],
    offset_of: impl Fn(ObjectId) -> Option<u64>,
    session: &GitSession,
) -> gix::Result<Result<MemoryEstimate, MirrorError>> {
    let max_object = session.upstream.limits.max_object.as_u64();
    let max_chain = max_delta_chain(max_object);
    let index_of = |offset: u64| {
        let index = offsets.binary_search(&offset);
        index.map_err(|_| gix::error::message("the base of a delta is not an object").corrupted_error())
    };
    // Marks a chain as unfinished. A pack in which an object is its own base keeps an endless chain.
    let unfinished = DeltaChain { bytes: u64::MAX, deltas: 0 };
    let mut chains: Vec<Option<DeltaChain>> = vec![None; offsets.len()];
    let (mut inflate, mut deltas, mut estimate) = (Inflate::default(), Vec::new(), MemoryEstimate::default());
    for first in 0..offsets.len() {
        if let Err(error) = session.network.check_interrupt() {
            return Ok(Err(error.into()));
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
            chains[at] = Some(unfinished);
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

/// Checks the size of one object or delta, without its chain.
pub(super) fn check_entry(header: Header, size: u64, max_object: u64) -> Result<(), MirrorError> {
    let max_chain = max_delta_chain(max_object);
    match header.is_delta() {
        false if size > max_object => Err(MirrorError::ObjectTooLarge { limit: max_object }),
        true if size > max_chain => Err(MirrorError::DeltasTooLarge { limit: max_chain }),
        _ => Ok(()),
    }
}

/// The size of an entry's object, for which its base is not needed.
fn object_size(pack: &data::File, entry: &data::Entry, inflate: &mut Inflate) -> gix::Result<u64> {
    let mut entry = entry.clone();
    if entry.header.is_delta() {
        entry.header = Header::RefDelta { base_id: pack.object_hash().null() };
    }
    let base = ResolvedBase::OutOfPack { kind: gix::objs::Kind::Blob, num_deltas: None };
    Ok(pack.decode_header(entry, inflate, &|_| Ok(Some(base.clone())))?.object_size)
}
