//! Watches how much memory the deltas of a pack take while gix resolves them, and will take when their objects are read: it
//! asks for each entry just then.

use std::sync::{Arc, Mutex, PoisonError};

use flate2::Decompress;
use gix::odb::pack::data;

use super::delta_bases::DeltaBases;
use super::{DELTAS_OF_AN_OBJECT, MirrorError, pack_entry};

/// The deltas of a pack while it comes, and then while they are resolved.
#[derive(Clone)]
pub(super) struct Resolving(Arc<Mutex<Watched>>);

struct Watched {
    bases: DeltaBases,
    inflate: Decompress,
    hash: gix::hash::Kind,
    max_object: u64,
    max_held: u64,
    refused: Option<MirrorError>,
}

impl Resolving {
    /// Of a pack of such objects, none larger than `max_object` bytes, of which so many bytes may be held.
    pub(super) fn new(hash: gix::hash::Kind, max_object: u64, max_held: u64) -> Self {
        let (bases, inflate) = (DeltaBases::default(), Decompress::new(true));
        Self(Arc::new(Mutex::new(Watched { bases, inflate, hash, max_object, max_held, refused: None })))
    }

    /// The pack has an entry. They are told in its order.
    pub(super) fn add(&self, entry: &data::input::Entry) {
        if let Some(base) = pack_entry::base(&entry.header, entry.pack_offset) {
            self.with(|watched| watched.bases.add(entry.pack_offset, base));
        }
    }

    /// Gives gix the bytes of an entry when it is resolved, unless too much would be held then, or nobody knows how much.
    pub(super) fn resolver(
        &self,
    ) -> impl for<'p> Fn(data::EntryRange, &'p data::File) -> Option<&'p [u8]> + Send + Clone {
        let watching = self.clone();
        move |range, pack| {
            let offset = range.start;
            let bytes = pack.entry_slice(range)?;
            let allowed =
                watching.with(|watched| watched.check(offset, bytes).map_err(|error| watched.refused = Some(error)));
            allowed.ok().map(|()| bytes)
        }
    }

    /// Why gix was not given an entry.
    pub(super) fn refused(&self) -> Option<MirrorError> {
        self.with(|watched| watched.refused.take())
    }

    fn with<T>(&self, work: impl FnOnce(&mut Watched) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Watched {
    fn check(&mut self, offset: u64, bytes: &[u8]) -> Result<(), MirrorError> {
        let Some(sizes) = pack_entry::sizes(bytes, self.hash, &mut self.inflate) else {
            let cause = "its pack has a delta that does not say how large its object is".to_owned();
            return Err(MirrorError::Upstream { step: "fetch", cause });
        };
        // gix refuses what is larger, before it has any memory for it.
        if sizes.object > self.max_object {
            return Ok(());
        }
        let memory = self.bases.resolve(offset, sizes);
        let max_line = self.max_object.saturating_mul(DELTAS_OF_AN_OBJECT);
        if memory.held > self.max_held {
            Err(MirrorError::DeltaBasesTooLarge { limit: self.max_held })
        } else if memory.line > max_line {
            Err(MirrorError::DeltasTooLarge { limit: max_line })
        } else {
            Ok(())
        }
    }
}
