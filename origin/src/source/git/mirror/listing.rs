//! Validates a listing of refs: their number, valid names, no duplicates.

use std::collections::HashSet;

use gix::bstr::{BStr, ByteSlice};
use gix::remote::fetch::RefMap;

use super::MirrorError;

/// The longest part of a name to show.
const MAX_SHOWN_CHARS: usize = 100;

/// Checks the refs to mirror.
pub(super) fn check(refs: &RefMap, limit: usize) -> Result<(), MirrorError> {
    if refs.remote_refs.len() > limit {
        return Err(MirrorError::TooManyRefs { limit });
    }
    let mirrored = refs.mappings.iter().filter_map(|mapping| mapping.local.as_ref());
    // gix would take the first of two.
    let listed = refs.remote_refs.iter().map(|listed| listed.unpack().0);
    check_names(mirrored.map(|name| name.as_bstr()), listed)
}

fn check_names<'a>(
    mut mirrored: impl Iterator<Item = &'a BStr>,
    mut listed: impl Iterator<Item = &'a BStr>,
) -> Result<(), MirrorError> {
    let mut known = HashSet::new();
    let (what, name) = if let Some(name) = mirrored.find(|name| gix::validate::reference::name(name).is_err()) {
        ("it lists a ref with an invalid name", name)
    } else if let Some(name) = listed.find(|name| !known.insert(*name)) {
        ("it lists a ref twice", name)
    } else {
        return Ok(());
    };
    Err(MirrorError::Upstream { step: "list refs", cause: format!("{what}: `{}`", display_name(name)) })
}

/// A ref's name for messages.
pub(super) fn display_name(name: &BStr) -> String {
    name.to_str_lossy().escape_debug().take(MAX_SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_be_valid_and_unique() {
        let check = |names: &[&str]| {
            let names = || names.iter().map(|name| BStr::new(*name));
            check_names(names(), names()).map_err(|error| error.to_string())
        };
        check(&["refs/heads/main", "refs/heads/ümlaut", "refs/tags/v1", "refs/weir/HEAD"]).unwrap();
        assert!(
            check(&["refs/heads/a", "refs/heads/b", "refs/heads/a"]).unwrap_err().contains("twice: `refs/heads/a`")
        );
    }
}
