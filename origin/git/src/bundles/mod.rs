//! Git bundles of a mirror, in the store: whoever has none, or a damaged one, makes it from them, and asks the upstream
//! only for what is newer. See `docs/decisions/0030-mirrors-move-as-bundles.md`.

mod due;
mod lfs;
mod requests;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufRead, Read};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use bytes::{Buf, Bytes};
use weir_model::stored_mirror::{Bundle, MirrorManifest, Part};
use weir_upstream::Upstream;

use self::due::{Changes, due};
use self::lfs::StoredLfs;
use crate::mirror::{BundleHeader, FetchMemory, MaintenanceError, MirrorError};
use crate::mirror_handle::MirrorHandle;

pub use self::due::INCREMENTAL_INTERVAL;
pub use self::lfs::take_stored_lfs;
pub use self::requests::{
    BundleError, BundleRequest, Bundled, HydrateRequest, ReadPart, StoredLfsRequest, WrittenBundle,
};

impl MirrorHandle {
    /// Writes a bundle of the mirror, if one is due. `require_room` fails if the disk has no room for so many bytes.
    pub fn write_bundle(
        &self,
        request: &BundleRequest<'_>,
        max_refs: usize,
        require_room: &dyn Fn(u64) -> Result<(), String>,
        stop: &AtomicBool,
    ) -> Result<Bundled, BundleError> {
        let BundleRequest { stored, read, now, at_once, max_mirror, .. } = *request;
        let mirror = self.get()?;
        if mirror.is_shallow() || mirror.is_empty()? {
            return Ok(Bundled::UpToDate);
        }
        let header = |bundle: &Bundle| read_header(bundle, read, max_refs);
        let now_at = mirror.header_on(None)?;
        let (mut bundles, mut changes) = (stored.bundles.clone(), Changes::default());
        match bundles.last().map(header) {
            Some(Ok(last)) => {
                changes.moved = !last.has_same_refs(&now_at);
                changes.rewritten = changes.moved && mirror.is_rewritten(&last, &now_at, stop)?;
            }
            // What cannot be read is of no use to others either.
            Some(Err(_)) => bundles.clear(),
            None => {}
        }
        let lfs = StoredLfs::compare(&self.lfs_objects(), request).map_err(BundleError::Failed)?;
        changes.moved |= lfs.has_new();
        let Some(next) = due(&bundles, changes, now, at_once) else {
            return Ok(if changes.moved { Bundled::NotYet } else { Bundled::UpToDate });
        };
        let bytes = mirror.size()?.bytes;
        if bytes > max_mirror {
            return Err(BundleError::TooLarge { bytes, limit: max_mirror });
        }
        bundles.truncate(next.base);
        let base = bundles.last().map(header).transpose().map_err(BundleError::Failed)?;
        // The pack is on disk before it is stored.
        let needed = if next.base == 0 { bytes } else { 0 };
        require_room(needed).map_err(BundleError::Failed)?;
        let header = mirror.header_on(base.as_ref())?;
        let pack = mirror.pack(&header, stop)?;
        let parts = write_parts(&header.to_bytes(), &pack, request).map_err(BundleError::Failed)?;
        let bundle = Bundle { made_at: now, rank: next.rank, parts };
        let bytes = bundle.size();
        bundles.push(bundle);
        let (lfs, lfs_bytes) = lfs.store(request, next.base == 0).map_err(BundleError::Failed)?;
        let stored = MirrorManifest { bundles, lfs };
        Ok(Bundled::Written(WrittenBundle { stored, is_full: next.base == 0, bytes: bytes + lfs_bytes }))
    }

    /// Makes the mirror from stored bundles, or takes in newer ones. Returns how many.
    pub fn hydrate(
        &self,
        request: &HydrateRequest<'_>,
        upstream: &Upstream,
        memory: &FetchMemory,
        stop: &AtomicBool,
    ) -> Result<usize, BundleError> {
        let HydrateRequest { config, stored, read, update, on_mirror_replaced } = *request;
        let ready = self.for_poll(Instant::now())?;
        ready.replaced.inspect(|damage| on_mirror_replaced(damage));
        let mirror = ready.mirror;
        let is_empty = mirror.is_empty()?;
        if !is_empty && !update {
            return Ok(0);
        }
        let header = |bundle: &Bundle| read_header(bundle, read, upstream.limits.max_refs).map_err(BundleError::Failed);
        let mut first = 0;
        if !is_empty {
            for (number, bundle) in stored.bundles.iter().enumerate().rev() {
                if mirror.has_all(&header(bundle)?)? {
                    first = number + 1;
                    break;
                }
            }
        }
        let missing = &stored.bundles[first..];
        for (number, bundle) in missing.iter().enumerate() {
            let header = header(bundle)?;
            let mut pack = PartReader::new(&bundle.parts[1..], read);
            let applied = mirror.apply(&header, &mut pack, upstream, memory, stop);
            applied.map_err(|error| match (error, pack.failure.take()) {
                (error, _) if error.is_interrupted() => BundleError::Interrupted,
                (_, Some(failure)) => BundleError::Failed(failure),
                (error, None) => BundleError::failed(&error),
            })?;
            let (number, of, bytes) = (number + 1, missing.len(), bundle.size());
            tracing::info!(repository = %config.name, number, of, bytes, "added a stored bundle to the mirror");
        }
        Ok(missing.len())
    }
}

/// Reads the header of a bundle, which is its first part.
fn read_header(bundle: &Bundle, read: ReadPart<'_>, max_refs: usize) -> Result<BundleHeader, String> {
    let part = bundle.parts.first().ok_or("a stored bundle has no parts")?;
    let parsed = BundleHeader::parse(&read(part)?, max_refs);
    parsed.map_err(|error| format!("a stored bundle cannot be used: {error}"))
}

/// Stores a header, and a pack in parts.
fn write_parts(header: &[u8], mut pack: &File, request: &BundleRequest<'_>) -> Result<Vec<Part>, String> {
    let write = |bytes: Vec<u8>| {
        let size = bytes.len() as u64;
        Ok::<_, String>(Part { digest: (request.write)(bytes.into())?, size })
    };
    let mut parts = vec![write(header.to_vec())?];
    loop {
        let mut bytes = Vec::new();
        let read = Read::by_ref(&mut pack).take(request.max_part).read_to_end(&mut bytes);
        if read.map_err(|error| format!("the packed mirror cannot be read: {error}"))? == 0 {
            return Ok(parts);
        }
        parts.push(write(bytes)?);
    }
}

/// Parts in a row, each read when it is needed.
struct PartReader<'a> {
    rest: std::slice::Iter<'a, Part>,
    read: ReadPart<'a>,
    current: Bytes,
    /// Why a part could not be read.
    failure: RefCell<Option<String>>,
}

impl<'a> PartReader<'a> {
    fn new(parts: &'a [Part], read: ReadPart<'a>) -> Self {
        Self { rest: parts.iter(), read, current: Bytes::new(), failure: RefCell::new(None) }
    }
}

impl BufRead for PartReader<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        while self.current.is_empty()
            && let Some(part) = self.rest.next()
        {
            self.current = (self.read)(part).map_err(|error| {
                *self.failure.borrow_mut() = Some(error);
                io::Error::other("a part of a bundle cannot be read")
            })?;
        }
        Ok(&self.current)
    }

    fn consume(&mut self, bytes: usize) {
        self.current.advance(bytes);
    }
}

impl Read for PartReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let bytes = self.fill_buf()?;
        let length = bytes.len().min(into.len());
        into[..length].copy_from_slice(&bytes[..length]);
        self.consume(length);
        Ok(length)
    }
}

impl From<MirrorError> for BundleError {
    fn from(error: MirrorError) -> Self {
        if error.is_interrupted() { Self::Interrupted } else { Self::failed(&error) }
    }
}

impl From<MaintenanceError> for BundleError {
    fn from(error: MaintenanceError) -> Self {
        match error {
            MaintenanceError::Interrupted => Self::Interrupted,
            other => Self::failed(&other),
        }
    }
}
