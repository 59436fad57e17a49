//! Reads and atomically replaces the file `state`.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use crate::error::{ReleaseError, disk};
use crate::state::State;
use crate::tree::{read_file, remove_file, sync_directory};

const STATE: &str = "state";
const STATE_NEW: &str = ".state.new";

/// The most bytes of a state that are read.
const MAX_STATE_BYTES: u64 = 1 << 20;

/// Reads the state. A damaged file counts as missing, because the symlink is authoritative.
///
/// # Errors
/// The disk fails.
pub(crate) fn read_state(service: &Path) -> Result<State, ReleaseError> {
    let path = service.join(STATE);
    let bytes = match read_file(&path, MAX_STATE_BYTES) {
        Ok((bytes, _)) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(State::default()),
        Err(error) => return Err(disk("read", &path)(error)),
    };
    Ok(State::parse(&bytes).unwrap_or_else(|error| {
        tracing::warn!(path = %path.display(), %error, "only `current` is used; the highest generation is forgotten");
        State::default()
    }))
}

/// Whether there is no file of the state.
pub(crate) fn is_missing(service: &Path) -> bool {
    !service.join(STATE).is_file()
}

/// Writes the state durably.
pub(crate) fn write_state(service: &Path, state: &State) -> Result<(), ReleaseError> {
    replace(&service.join(STATE_NEW), &service.join(STATE), &state.to_bytes())?;
    sync_directory(service)
}

/// Replaces a file atomically, by way of `new` beside it.
pub(crate) fn replace(new: &Path, path: &Path, bytes: &[u8]) -> Result<(), ReleaseError> {
    // Others may write to the directory: nothing that they put there is written to.
    remove_file(new)?;
    let mut file = File::create_new(new).map_err(disk("write", new))?;
    file.write_all(bytes).and_then(|()| file.sync_all()).map_err(disk("write", new))?;
    fs::rename(new, path).map_err(disk("replace", path))
}

/// Removes the temporary file of an earlier process.
pub(crate) fn remove_leftovers(service: &Path) -> Result<(), ReleaseError> {
    remove_file(&service.join(STATE_NEW))
}
