//! Limits on what a hostile upstream may send. The configured ones are fields of
//! [`UpstreamsConfig`](weir_upstream::UpstreamsConfig), the fixed ones are the constants of this module.
//!
//! | what | limit | checked in | error |
//! |---|---|---|---|
//! | listing of refs | `max_refs`, [`BYTES_PER_REF`], [`LISTING_OVERHEAD`] | `git_session.rs`, `listing.rs` | `TooManyRefs` |
//! | bytes before the pack | [`BYTES_BEFORE_PACK`] | `git_session.rs` | `UpstreamError::Protocol` |
//! | pack and index | `max_pack`, `max_mirror` | `git_session.rs`, `quarantine.rs` | `PackTooLarge`, `MirrorTooLarge` |
//! | objects of a pack | `max_objects` | `indexing.rs`, `quarantine.rs` | `TooManyObjects` |
//! | one object | `max_object`, [`ENTRY_OVERHEAD`] | `indexing.rs`, `memory_estimate.rs` | `ObjectTooLarge` |
//! | deltas of one object | `max_object` × [`DELTA_CHAIN_FACTOR`] | `memory_estimate.rs` | `DeltasTooLarge` |
//! | memory of a git process | [`address_space`] | `quarantine.rs` | `ObjectTooLarge`, `CheckTooLarge` |
//! | memory of all fetches | twice the largest [`address_space`] | `memory.rs` | none: they wait |
//! | tags on tags | [`MAX_TAG_DEPTH`] | `peeling.rs` | `NotFollowed` |
//! | silence | `stall_timeout` | `http/session.rs` | `Stalled` |

/// The average length of a ref in a listing, in bytes.
pub(super) const BYTES_PER_REF: u64 = 256;

/// The bytes of a listing besides its refs.
pub(super) const LISTING_OVERHEAD: u64 = 64 << 10;

/// The bytes of a fetch response before its pack: a line for each common commit, all of which gix keeps in memory.
pub(super) const BYTES_BEFORE_PACK: u64 = 4 << 20;

/// The bytes by which a compressed entry may exceed its object. Incompressible data grows a little.
pub(super) const ENTRY_OVERHEAD: u64 = 64 << 10;

/// The deltas of one object may have together this many times the bytes of the largest object. A reader holds all of them
/// in memory.
pub(super) const DELTA_CHAIN_FACTOR: u64 = 3;

/// The memory to read one object, in multiples of the largest: its base, its result and its deltas.
pub(super) const OBJECTS_IN_MEMORY: u64 = 2 + DELTA_CHAIN_FACTOR;

/// The longest delta chain that the git program writes, whatever its settings.
pub(super) const MAX_CHAIN_LENGTH: u64 = 4095;

/// The longest chain of tags on tags. Real ones have two or three, and each ref is peeled in full.
pub(super) const MAX_TAG_DEPTH: usize = 32;

/// The memory for an object of any size while its pack is indexed, by gix or by the git program, in bytes.
const MEMORY_PER_OBJECT: u64 = 400;

/// The memory for each byte of an index while its objects are checked. An index has 28 bytes for each object.
const MEMORY_PER_INDEX_BYTE: u64 = 8;

/// The memory of `git index-pack` and `git rev-list` for themselves and their caches of deltas and packs, in bytes.
const GIT_BASE_MEMORY: u64 = 256 << 20;

/// The longest delta chain of one object, in bytes.
pub(super) fn max_delta_chain(max_object: u64) -> u64 {
    max_object.saturating_mul(DELTA_CHAIN_FACTOR)
}

/// The memory to read one object, in bytes.
pub(super) fn object_memory(max_object: u64) -> u64 {
    max_object.saturating_mul(OBJECTS_IN_MEMORY)
}

/// The address space for a git process, in bytes. `index_bytes`: all indices that it reads; `objects`: those of the pack
/// that it indexes.
pub(super) fn address_space(index_bytes: u64, objects: u64, max_object: u64) -> u64 {
    let indices = index_bytes.saturating_mul(MEMORY_PER_INDEX_BYTE);
    let objects = objects.saturating_mul(MEMORY_PER_OBJECT);
    GIT_BASE_MEMORY.saturating_add(indices).saturating_add(objects).saturating_add(object_memory(max_object))
}
