//! Pins: services that stay at a release that `weir-agent rollback` chose, until `weir-agent unpin`.
//!
//! A pin is the file `root/.pins/<service>` with a digest. The command line writes it, the running agent reads the
//! directory every second. So it works without a listener, and survives restarts of both.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tempfile::NamedTempFile;
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use crate::error::{ReleaseError, disk};
use crate::modes::Modes;
use crate::tree::{make_directory, read_file, remove_tree, sync_directory};

const PINS: &str = ".pins";

/// The most bytes of a pin that are read.
const MAX_PIN_BYTES: u64 = 128;

/// The release at which a service stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// The digest of its tarball.
    pub digest: TarballDigest,
    /// When it was pinned.
    pub since: SystemTime,
}

/// The pin of each service, or why it cannot be read.
pub type Pins = BTreeMap<ServiceName, Result<Pin, String>>;

/// All pins of a root.
///
/// # Errors
/// Their directory cannot be read: that there are none would be a guess, and would switch back to what somebody has left.
pub fn read_pins(root: &Path) -> io::Result<Pins> {
    let mut pins = Pins::new();
    let path = root.join(PINS);
    let entries = match fs::read_dir(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(pins),
        Err(error) => return Err(io::Error::new(error.kind(), format!("{}: {error}", path.display()))),
        Ok(entries) => entries,
    };
    for entry in entries {
        let entry = entry?;
        // Temporary files begin with a dot, names of services do not.
        let Some(service) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if let Some(pin) = read_pin(&entry.path()).map_err(|error| error.to_string()).transpose() {
            pins.insert(service, pin);
        }
    }
    Ok(pins)
}

pub(crate) fn pin_of(root: &Path, service: &str) -> io::Result<Option<Pin>> {
    read_pin(&root.join(PINS).join(service))
}

fn read_pin(path: &Path) -> io::Result<Option<Pin>> {
    let invalid = |why: &dyn std::fmt::Display| {
        let message = format!("the pin {} cannot be read: {why}; `weir-agent unpin` removes it", path.display());
        io::Error::new(io::ErrorKind::InvalidData, message)
    };
    let (bytes, since) = match read_file(path, MAX_PIN_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read.map_err(|error| invalid(&error))?,
    };
    let digest = String::from_utf8_lossy(&bytes).trim().parse().map_err(|error| invalid(&error))?;
    Ok(Some(Pin { digest, since }))
}

/// Pins a service, durably.
pub fn write_pin(root: &Path, service: &ServiceName, digest: TarballDigest, modes: Modes) -> Result<(), ReleaseError> {
    let (directory, path) = pin_path(root, service);
    make_directory(&directory, modes.directory())?;
    let write = || {
        let mut file = NamedTempFile::with_prefix_in(".new-", &directory)?;
        rustix::fs::fchmod(file.as_file(), modes.file(false))?;
        writeln!(file, "{digest}")?;
        file.as_file().sync_all()?;
        file.persist(&path).map_err(|error| error.error)
    };
    write().map_err(disk("write", &path))?;
    sync_directory(&directory)
}

/// Removes a pin; returns whether there was one.
pub fn remove_pin(root: &Path, service: &ServiceName) -> Result<bool, ReleaseError> {
    let (directory, path) = pin_path(root, service);
    if fs::symlink_metadata(&path).is_err() {
        return Ok(false);
    }
    remove_tree(&path)?;
    sync_directory(&directory)?;
    Ok(true)
}

fn pin_path(root: &Path, service: &ServiceName) -> (PathBuf, PathBuf) {
    let directory = root.join(PINS);
    let path = directory.join(service.as_str());
    (directory, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_files() {
        let dir = tempfile::tempdir().unwrap();
        let (shop, other): (ServiceName, ServiceName) = ("shop".parse().unwrap(), "other".parse().unwrap());
        assert!(read_pins(dir.path()).unwrap().is_empty());
        assert!(!remove_pin(dir.path(), &shop).unwrap());
        let digests = [b"1", b"2"].map(|bytes| TarballDigest::of(bytes));
        for digest in digests {
            write_pin(dir.path(), &shop, digest, Modes::default()).unwrap();
        }
        let pins = read_pins(dir.path()).unwrap();
        assert_eq!((pins.len(), pins[&shop].as_ref().unwrap().digest), (1, digests[1]));
        fs::write(dir.path().join(".pins/other"), "by hand").unwrap();
        assert!(pin_of(dir.path(), "other").unwrap_err().to_string().contains("other cannot be read"));
        let pins = read_pins(dir.path()).unwrap();
        assert!(pins[&shop].is_ok() && pins[&other].is_err());
        assert!(remove_pin(dir.path(), &shop).unwrap());
        assert_eq!(pin_of(dir.path(), "shop").unwrap(), None);
    }
}
