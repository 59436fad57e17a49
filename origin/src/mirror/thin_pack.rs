//! Makes a thin pack whole: what its deltas are told against and is not in it is put in, right before the first of them.
//!
//! That moves all that follows, and a delta says in its own head how far its base is behind it, so heads change in length too.
//! Where entries are then is kept as a list of how far they moved, from where on: a step for each entry at the most.

use std::collections::HashMap;

use gix::error::ErrorExt;
use gix::objs::Find;
use gix::odb::pack::data::entry::Header;
use gix::odb::pack::data::input::Entry;
use gix::zlib::Compression;
use gix::{ObjectId, error::message};

/// The entries of a pack, each told against one of the same pack; but those that are told against what is nowhere, or comes
/// later in the pack, stay as they are.
pub(super) struct Completed<I, F> {
    entries: I,
    objects: F,
    /// Where the objects that were put in are.
    put_in: HashMap<ObjectId, u64>,
    moved: Moved,
    /// The one that an object was put in for.
    next: Option<Entry>,
    buffer: Vec<u8>,
}

/// How far entries moved.
#[derive(Default)]
struct Moved {
    /// From where on, as the pack came, and how far: in the order of offsets.
    steps: Vec<(u64, i64)>,
    /// How far the next one will have moved.
    by: i64,
}

impl Moved {
    /// An entry moves as far as all that follows, until that changes. Where it is then.
    fn place(&mut self, offset: u64) -> Option<u64> {
        if self.steps.last().map_or(0, |(_, by)| *by) != self.by {
            self.steps.push((offset, self.by));
        }
        offset.checked_add_signed(self.by)
    }

    /// Where an entry is that was at an offset.
    fn place_of(&self, offset: u64) -> Option<u64> {
        let after = self.steps.partition_point(|(from, _)| *from <= offset);
        let by = after.checked_sub(1).map_or(0, |at| self.steps[at].1);
        offset.checked_add_signed(by)
    }

    /// What follows moves by so much more.
    fn grows(&mut self, before: u64, now: u64) {
        // No pack has as many bytes as half of a u64.
        self.by = self.by.saturating_add_unsigned(now).saturating_sub_unsigned(before);
    }
}

impl<I, F> Completed<I, F>
where
    I: Iterator<Item = gix::Result<Entry>>,
    F: Find,
{
    pub(super) fn new(entries: I, objects: F) -> Self {
        let (put_in, moved) = (HashMap::new(), Moved::default());
        Self { entries, objects, put_in, moved, next: None, buffer: Vec::new() }
    }

    /// What comes in the place of an entry.
    fn complete(&mut self, mut entry: Entry) -> gix::Result<Entry> {
        let offset = entry.pack_offset;
        match entry.header {
            Header::RefDelta { base_id } => match self.put_in.get(&base_id) {
                Some(base) => {
                    let base = *base;
                    self.tell_against(&mut entry, base)?;
                }
                None => {
                    if let Some(base) = self.put_in(base_id, offset)? {
                        let at = base.pack_offset;
                        self.tell_against(&mut entry, at)?;
                        self.next = Some(entry);
                        return Ok(base);
                    }
                    entry.pack_offset = self.moved.place(offset).ok_or_else(|| nowhere(offset))?;
                }
            },
            Header::OfsDelta { base_distance } => {
                let base = Header::verified_base_pack_offset(offset, base_distance);
                let base = base.and_then(|base| self.moved.place_of(base)).ok_or_else(|| nowhere(offset))?;
                self.tell_against(&mut entry, base)?;
            }
            _ => entry.pack_offset = self.moved.place(offset).ok_or_else(|| nowhere(offset))?,
        }
        Ok(entry)
    }

    /// An object, as an entry before the one that is next; if it is anywhere.
    fn put_in(&mut self, id: ObjectId, before: u64) -> gix::Result<Option<Entry>> {
        let Some(object) = self.objects.try_find(&id, &mut self.buffer)? else { return Ok(None) };
        let mut entry = Entry::from_data_obj(&object, 0, Compression::BEST_SPEED)?;
        // Nothing that came is there, so it takes no step.
        entry.pack_offset = before.checked_add_signed(self.moved.by).ok_or_else(|| nowhere(before))?;
        self.put_in.insert(id, entry.pack_offset);
        self.moved.grows(0, entry.bytes_in_pack());
        Ok(Some(entry))
    }

    /// Lets a delta say that its base is at that place.
    fn tell_against(&mut self, entry: &mut Entry, base: u64) -> gix::Result<()> {
        let offset = entry.pack_offset;
        entry.pack_offset = self.moved.place(offset).ok_or_else(|| nowhere(offset))?;
        let distance = entry.pack_offset.checked_sub(base).filter(|distance| *distance > 0);
        let header = Header::OfsDelta { base_distance: distance.ok_or_else(|| nowhere(offset))? };
        if header == entry.header {
            return Ok(());
        }
        let before = entry.bytes_in_pack();
        entry.header = header;
        entry.header_size = u16::try_from(header.size(entry.decompressed_size)).map_err(ErrorExt::raise)?;
        entry.crc32 = Some(entry.compute_crc32());
        self.moved.grows(before, entry.bytes_in_pack());
        Ok(())
    }
}

impl<I, F> Iterator for Completed<I, F>
where
    I: Iterator<Item = gix::Result<Entry>>,
    F: Find,
{
    type Item = gix::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.next.take() {
            return Some(Ok(entry));
        }
        let entry = self.entries.next()?;
        Some(entry.and_then(|entry| self.complete(entry)))
    }
}

fn nowhere(offset: u64) -> gix::Error {
    message!("the delta at offset {offset} of the pack is told against what is not before it").corrupted_error()
}

#[cfg(test)]
mod tests {
    use gix::objs::{Data, Kind};
    use gix::odb::pack::data::input::LookupRefDeltaObjectsIter;
    use proptest::prelude::*;

    use super::*;

    /// Objects that are there: those whose ids end in an even number, of different sizes.
    struct Even;

    impl Find for Even {
        fn try_find<'b>(&self, id: &gix::oid, buffer: &'b mut Vec<u8>) -> gix::Result<Option<Data<'b>>> {
            let last = *id.as_bytes().last().unwrap();
            buffer.clear();
            buffer.resize(usize::from(last) * 50, last);
            Ok(last.is_multiple_of(2).then_some(Data { kind: Kind::Blob, object_hash: id.kind(), data: buffer }))
        }
    }

    fn id(number: u8) -> ObjectId {
        ObjectId::from_bytes_or_panic(&[number; 20])
    }

    /// A pack of such entries, as it comes.
    fn pack(kinds: &[(u8, usize, usize)]) -> Vec<Entry> {
        let (mut at, mut offsets, mut entries) = (12, Vec::new(), Vec::new());
        for (kind, base, bytes) in kinds {
            let header = match kind {
                0..3 if !offsets.is_empty() => Header::OfsDelta { base_distance: at - offsets[base % offsets.len()] },
                3..7 => Header::RefDelta { base_id: id(1 + (base % 9) as u8) },
                _ => Header::Blob,
            };
            let mut entry = Entry {
                header,
                header_size: header.size(*bytes as u64) as u16,
                pack_offset: at,
                compressed: Some(vec![*kind; *bytes]),
                compressed_size: *bytes as u64,
                crc32: None,
                decompressed_size: *bytes as u64,
                trailer: None,
            };
            entry.crc32 = Some(entry.compute_crc32());
            offsets.push(at);
            at += entry.bytes_in_pack();
            entries.push(entry);
        }
        entries
    }

    proptest! {
        /// It does what gix has for this, which takes the square of the time (and takes a delta against the null id for one
        /// against something else).
        #[test]
        fn a_pack_is_made_whole_as_gix_does(
            kinds in prop::collection::vec((0..9_u8, any::<usize>(), 0..200_usize), 1..60),
        ) {
            let entries = pack(&kinds);
            let ours = Completed::new(entries.iter().cloned().map(Ok), Even);
            let theirs = LookupRefDeltaObjectsIter::new(entries.iter().cloned().map(Ok), Even, Compression::BEST_SPEED);
            let mut at = 12;
            for (our, their) in ours.map(Result::unwrap).zip(theirs.map(Result::unwrap)) {
                prop_assert_eq!(our.pack_offset, at);
                at += our.bytes_in_pack();
                prop_assert_eq!(our, their);
            }
        }
    }

    #[test]
    fn what_is_told_against_nothing_before_it_is_refused() {
        for distance in [1_000, u64::MAX, 0] {
            let mut entries = pack(&[(9, 0, 5)]);
            entries[0].header = Header::OfsDelta { base_distance: distance };
            assert!(Completed::new(entries.into_iter().map(Ok), Even).next().unwrap().is_err(), "{distance}");
        }
    }
}
