//! Which path a member gets. A path that leads elsewhere is refused, never repaired.

use super::bounds::MAX_PATH_BYTES;
use super::error::{ArchiveError, shown};
use super::layout::Layout;

/// The prefix of names that delete files of other layers of a container image.
const WHITEOUT: &[u8] = b".wh.";

/// The paths of an archive's members.
pub(super) struct Paths<'a> {
    layout: &'a Layout,
    /// The folder that all members are in, once a member named it.
    top: Option<Vec<u8>>,
}

impl<'a> Paths<'a> {
    pub(super) fn new(layout: &'a Layout) -> Self {
        Self { layout, top: None }
    }

    /// The path of a member, without slashes at its ends. Empty: the top folder itself.
    pub(super) fn place(&mut self, raw: &[u8], is_directory: bool) -> Result<Vec<u8>, ArchiveError> {
        let path = normalize(raw).map_err(|fault| ArchiveError::member(raw, fault))?;
        if *self.layout == Layout::OfImage && path.split(|byte| *byte == b'/').any(|name| name.starts_with(WHITEOUT)) {
            let fault = "deletes a file of another layer: a container image is not a set of files to publish";
            return Err(ArchiveError::member(raw, fault));
        }
        if *self.layout != Layout::StripTop || path.is_empty() && is_directory {
            return Ok(path);
        }
        let slash = path.iter().position(|byte| *byte == b'/');
        let (top, below) = match slash {
            Some(at) => (&path[..at], &path[at + 1..]),
            None if is_directory => (&path[..], &path[..0]),
            None => return Err(outside(raw)),
        };
        if self.top.get_or_insert_with(|| top.to_vec()) != top {
            return Err(outside(raw));
        }
        Ok(below.to_vec())
    }

    /// The path of the member that a hard link names.
    pub(super) fn linked(&self, raw: &[u8]) -> Option<Vec<u8>> {
        let path = normalize(raw).ok()?;
        match (self.layout, &self.top) {
            (Layout::StripTop, Some(top)) => path.strip_prefix(&top[..])?.strip_prefix(b"/").map(<[u8]>::to_vec),
            _ => Some(path),
        }
    }
}

fn outside(raw: &[u8]) -> ArchiveError {
    ArchiveError::OutsideFolder(shown(raw))
}

/// Removes `.` and doubled slashes.
fn normalize(raw: &[u8]) -> Result<Vec<u8>, &'static str> {
    if raw.len() > MAX_PATH_BYTES {
        return Err("has a path of more than 4095 bytes");
    }
    if raw.contains(&0) {
        return Err("has a NUL in its path");
    }
    let names: Vec<&[u8]> = raw.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").collect();
    if raw.starts_with(b"/") || names.contains(&&b".."[..]) {
        return Err("leads out of it");
    }
    Ok(names.join(&b'/'))
}
