//! Whether what a pack holds can be read in the memory that there is: no object is too large, nor are the deltas that lead to
//! one. Whoever reads an object has all of them at a time.

use gix::ObjectId;
use gix::odb::pack::data;
use gix::odb::pack::data::decode::header::ResolvedBase;
use gix::odb::pack::data::entry::Header;
use gix::zlib::Inflate;

use super::attempt::Attempt;
use super::{DELTAS_OF_AN_OBJECT, MirrorError};

/// The deltas that lead to an object, itself counted.
#[derive(Clone, Copy, Default)]
struct Line {
    bytes: u64,
    deltas: u64,
}

/// What there is to hold of a pack.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Weight {
    /// The bytes of the largest object or delta.
    largest: u64,
    /// How many deltas lead to one object, at the most.
    deltas: u64,
}

/// How many deltas the git program puts in a line, whatever it is told.
const MAX_DELTAS: u64 = 4095;

impl Weight {
    /// What gix holds while it resolves all of it, at the most: an object is held until the last delta against it is resolved,
    /// and there are siblings beside each of a line. Its buffer may be a larger one's. The next object, its delta, and what
    /// grows come on top.
    pub(super) fn held(self) -> u64 {
        if self.deltas > MAX_DELTAS { u64::MAX } else { self.largest.saturating_mul(self.deltas + 3) }
    }
}

/// Looks at the head of each entry. `named`: where the object is that has a name.
pub(super) fn check(
    pack: &data::File,
    offsets: &[u64],
    named: impl Fn(ObjectId) -> Option<u64>,
    attempt: &Attempt,
) -> gix::Result<Result<Weight, MirrorError>> {
    let max_object = attempt.upstream.max_object;
    let max_line = max_object.saturating_mul(DELTAS_OF_AN_OBJECT);
    let place = |offset: u64| {
        let place = offsets.binary_search(&offset);
        place.map_err(|_| gix::error::message("a delta is told against what is no object").corrupted_error())
    };
    // One that was begun has a line without end: a pack in which that is its own base has none either.
    let begun = Line { bytes: u64::MAX, deltas: 0 };
    let mut lines: Vec<Option<Line>> = vec![None; offsets.len()];
    let (mut inflate, mut deltas, mut weight) = (Inflate::default(), Vec::new(), Weight::default());
    for first in 0..offsets.len() {
        if let Err(error) = attempt.goes_on() {
            return Ok(Err(error));
        }
        let mut at = first;
        while lines[at].is_none() {
            let entry = pack.entry(offsets[at])?;
            let size = object_size(pack, &entry, &mut inflate)?;
            if size > max_object {
                return Ok(Err(MirrorError::ObjectTooLarge { limit: max_object }));
            }
            weight.largest = weight.largest.max(size).max(entry.decompressed_size);
            let base = match entry.header {
                Header::OfsDelta { base_distance } => entry.checked_base_pack_offset(base_distance),
                Header::RefDelta { base_id } => named(base_id),
                _ => {
                    lines[at] = Some(Line::default());
                    break;
                }
            };
            lines[at] = Some(begun);
            deltas.push((at, entry.decompressed_size));
            at = place(base.unwrap_or_default())?;
        }
        let mut line = lines[at].unwrap_or_default();
        for (at, delta) in deltas.drain(..).rev() {
            line = Line { bytes: line.bytes.saturating_add(delta), deltas: line.deltas + 1 };
            lines[at] = Some(line);
        }
        if line.bytes > max_line {
            return Ok(Err(MirrorError::DeltasTooLarge { limit: max_line }));
        }
        weight.deltas = weight.deltas.max(line.deltas);
    }
    Ok(Ok(weight))
}

/// Whether an entry alone is too large, whatever the others are: the bytes of an object, or of a delta.
pub(super) fn check_entry(header: Header, size: u64, max_object: u64) -> Result<(), MirrorError> {
    let max_line = max_object.saturating_mul(DELTAS_OF_AN_OBJECT);
    match header.is_delta() {
        false if size > max_object => Err(MirrorError::ObjectTooLarge { limit: max_object }),
        true if size > max_line => Err(MirrorError::DeltasTooLarge { limit: max_line }),
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
