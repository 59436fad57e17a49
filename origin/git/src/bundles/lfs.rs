//! The LFS objects of a stored mirror. They are stored with the next bundle, and taken when a build needs them.

use std::collections::HashSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::requests::{BundleRequest, StoredLfsRequest};
use crate::lfs::{LfsFile, LfsObjects, LfsWriteError, Pointer};
use weir_model::stored_mirror::{Part, StoredLfsObject};

/// The stored objects, and the mirror's that are not stored yet.
pub(super) struct StoredLfs {
    objects: LfsObjects,
    page: Option<Part>,
    stored: Vec<StoredLfsObject>,
    local: HashSet<String>,
    new: Vec<Pointer>,
}

impl StoredLfs {
    pub(super) fn compare(objects: &LfsObjects, request: &BundleRequest<'_>) -> Result<Self, String> {
        let page = request.stored.lfs.clone();
        // A list that cannot be read is written again.
        let read = page.as_ref().and_then(|page| serde_json::from_slice(&(request.read)(page).ok()?).ok());
        let stored: Vec<StoredLfsObject> = read.unwrap_or_default();
        let pointers = objects.list().map_err(|error| format!("its LFS objects cannot be listed: {error}"))?;
        let local = pointers.iter().map(|pointer| pointer.oid.to_string()).collect();
        let mut room =
            request.max_mirror.saturating_sub(stored.iter().flat_map(|one| &one.parts).map(|part| part.size).sum());
        let known: HashSet<&str> = stored.iter().map(|one| one.oid.as_str()).collect();
        let is_new = |pointer: &Pointer| !known.contains(pointer.oid.to_string().as_str());
        // What has no room is fetched from the upstream.
        let mut fits = |pointer: &Pointer| room.checked_sub(pointer.size).inspect(|rest| room = *rest).is_some();
        let new = pointers.into_iter().filter(is_new).filter(|pointer| fits(pointer)).collect();
        Ok(Self { objects: objects.clone(), page, stored, local, new })
    }

    pub(super) fn has_new(&self) -> bool {
        !self.new.is_empty()
    }

    /// Stores new objects and the list. Returns the list and the bytes written. A full bundle drops objects that the mirror
    /// does not have any more.
    pub(super) fn store(mut self, request: &BundleRequest<'_>, is_full: bool) -> Result<(Option<Part>, u64), String> {
        let before = self.stored.len();
        self.stored.retain(|one| !is_full || self.local.contains(&one.oid));
        if self.new.is_empty() && self.stored.len() == before {
            return Ok((self.page, 0));
        }
        let mut written = 0;
        for pointer in &self.new {
            let mut parts = Vec::new();
            let mut take = |bytes: Vec<u8>| {
                let size = bytes.len() as u64;
                written += size;
                parts.push(Part { digest: (request.write)(bytes.into()).map_err(io::Error::other)?, size });
                Ok(())
            };
            match self.objects.read_in_pieces::<io::Error>(pointer, request.max_part, &mut take) {
                Ok(()) => self.stored.push(StoredLfsObject { oid: pointer.oid.to_string(), parts }),
                // It was corrupt, or has been removed meanwhile.
                Err(error) if matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::NotFound) => {}
                Err(error) => return Err(format!("an LFS object cannot be stored: {error}")),
            }
        }
        let bytes = serde_json::to_vec(&self.stored).map_err(|error| error.to_string())?;
        let size = bytes.len() as u64;
        Ok((Some(Part { digest: (request.write)(bytes.into())?, size }), written + size))
    }
}

/// Takes objects from the stored mirror, and returns how many. The others are left to the upstream.
pub fn take_stored_lfs(objects: &LfsObjects, request: &StoredLfsRequest<'_>, stop: &AtomicBool) -> usize {
    let mut taken = 0;
    for LfsFile { pointer, path } in request.files {
        let oid = pointer.oid.to_string();
        let Some(stored) = request.stored.iter().find(|stored| stored.oid == oid) else { continue };
        if stop.load(Ordering::Relaxed) || pointer.size > request.max_object {
            break;
        }
        let take = || -> Result<(), LfsWriteError> {
            let mut writer = objects.create(pointer)?;
            for part in &stored.parts {
                writer.write(&(request.read)(part).map_err(io::Error::other)?)?;
            }
            writer.commit()
        };
        match take() {
            Ok(()) => taken += 1,
            Err(error) => {
                tracing::warn!(repository = %request.repository, path, %error, "a stored LFS object cannot be used");
            }
        }
    }
    taken
}
