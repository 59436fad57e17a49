//! The last lists of versions on disk, a file for each service: for a start while no origin answers.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use weir_protocol::name::ServiceName;
use weir_runtime::bounds::Bound;
use weir_runtime::directory_lock::DirectoryLock;
use weir_runtime::durable_file;

/// The most files. Further lists are in memory only.
const MAX_FILES: usize = 10_000;

/// The longest list with a file, in bytes: those of a few versions have some kilobytes.
const MAX_FILE_BYTES: usize = 1 << 20;

/// The folder of the files.
#[derive(Debug)]
pub(crate) struct ListFiles {
    folder: PathBuf,
    services: Mutex<BTreeSet<ServiceName>>,
    /// Held while a file may be written.
    _lock: DirectoryLock,
}

impl ListFiles {
    /// Opens the folder below `dir`, and deletes files of services that are not known. Blocks.
    pub(crate) fn open(dir: &Path, lock: DirectoryLock, is_known: impl Fn(&ServiceName) -> bool) -> Self {
        let folder = dir.join("versions");
        let mut services = BTreeSet::new();
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            match entry.file_name().to_str().and_then(|name| name.parse().ok()) {
                Some(service) if is_known(&service) => drop(services.insert(service)),
                // Also what a crash left half written.
                _ => drop(fs::remove_file(entry.path())),
            }
        }
        Self { folder, services: Mutex::new(services), _lock: lock }
    }

    pub(super) fn has(&self, service: &ServiceName) -> bool {
        self.services().contains(service)
    }

    /// The last list of a service, and when it was written. Blocks.
    pub(super) fn read(&self, service: &ServiceName) -> io::Result<(Bytes, SystemTime)> {
        let path = self.folder.join(service.as_str());
        Ok((fs::read(&path)?.into(), fs::metadata(&path)?.modified()?))
    }

    /// Replaces the list of a service. Blocks.
    pub(super) fn write(&self, service: &ServiceName, list: &[u8]) {
        let is_full = |services: &BTreeSet<_>| services.len() >= MAX_FILES && !services.contains(service);
        if list.len() > MAX_FILE_BYTES || is_full(&self.services()) {
            return;
        }
        let written = || -> io::Result<()> {
            fs::create_dir_all(&self.folder)?;
            durable_file::replace(&self.folder.join(service.as_str()), list)
        };
        match written() {
            Ok(()) => drop(self.services().insert(service.clone())),
            Err(error) => tracing::warn!(%service, %error, "a list of versions cannot be written"),
        }
    }

    /// Deletes the list of a service. Blocks.
    pub(super) fn remove(&self, service: &ServiceName) {
        if self.services().remove(service) {
            let _ = fs::remove_file(self.folder.join(service.as_str()));
        }
    }

    pub(super) fn bound(&self) -> Bound {
        ("version_list_files", self.services().len() as u64, MAX_FILES as u64)
    }

    fn services(&self) -> MutexGuard<'_, BTreeSet<ServiceName>> {
        self.services.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
