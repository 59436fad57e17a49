//! Whether what a pack holds can be read in the memory that there is: no object is too large, nor are the deltas that lead to
//! one. Whoever reads an object has all of them at a time.

use gix::odb::pack::data::decode::header::ResolvedBase;
use gix::odb::pack::data::entry::Header;
use gix::odb::pack::{data, index};
use gix::zlib::Inflate;

use super::attempt::Attempt;
use super::{DELTAS_OF_AN_OBJECT, MirrorError};

/// An entry that was begun, and whose base is looked at first: a pack in which that is the entry itself has no end.
const BEGUN: u64 = u64::MAX;

/// Looks at the head of each entry.
pub(super) fn check(pack: &data::File, index: &index::File, attempt: &Attempt) -> gix::Result<Result<(), MirrorError>> {
    let max_object = attempt.upstream.max_object;
    let max_line = max_object.saturating_mul(DELTAS_OF_AN_OBJECT);
    let offsets = index.sorted_offsets();
    let place = |offset: u64| {
        let place = offsets.binary_search(&offset);
        place.map_err(|_| gix::error::message("a delta is told against what is no object").corrupted_error())
    };
    let mut lines: Vec<Option<u64>> = vec![None; offsets.len()];
    let (mut inflate, mut deltas) = (Inflate::default(), Vec::new());
    for first in 0..offsets.len() {
        if let Err(error) = attempt.goes_on() {
            return Ok(Err(error));
        }
        let mut at = first;
        while lines[at].is_none() {
            let entry = pack.entry(offsets[at])?;
            if object_size(pack, &entry, &mut inflate)? > max_object {
                return Ok(Err(MirrorError::ObjectTooLarge { limit: max_object }));
            }
            let base = match entry.header {
                Header::OfsDelta { base_distance } => entry.checked_base_pack_offset(base_distance),
                Header::RefDelta { base_id } => index.lookup(base_id).map(|base| index.pack_offset_at_index(base)),
                _ => {
                    lines[at] = Some(0);
                    break;
                }
            };
            lines[at] = Some(BEGUN);
            deltas.push((at, entry.decompressed_size));
            at = place(base.unwrap_or_default())?;
        }
        let mut line = lines[at].unwrap_or_default();
        for (at, delta) in deltas.drain(..).rev() {
            line = line.saturating_add(delta);
            lines[at] = Some(line);
        }
        if line > max_line {
            return Ok(Err(MirrorError::DeltasTooLarge { limit: max_line }));
        }
    }
    Ok(Ok(()))
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
