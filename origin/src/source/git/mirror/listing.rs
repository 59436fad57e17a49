//! Whether a listing of refs can be followed: as many as are taken, each with a name that a ref may have, and each once.

use std::collections::HashSet;

use gix::bstr::{BStr, ByteSlice};
use gix::remote::fetch::RefMap;

use super::MirrorError;

/// So much of a name is shown.
const SHOWN_CHARACTERS: usize = 100;

/// Looks at the refs that would be mirrored.
pub(super) fn check(refs: &RefMap, limit: usize) -> Result<(), MirrorError> {
    if refs.remote_refs.len() > limit {
        return Err(MirrorError::TooManyRefs { limit });
    }
    let mirrored = refs.mappings.iter().filter_map(|mapping| mapping.local.as_ref());
    // gix takes the first of two.
    let named = refs.remote_refs.iter().map(|named| named.unpack().0);
    check_names(mirrored.map(|name| name.as_bstr()), named)
}

fn check_names<'a>(
    mut mirrored: impl Iterator<Item = &'a BStr>,
    mut named: impl Iterator<Item = &'a BStr>,
) -> Result<(), MirrorError> {
    let mut known = HashSet::new();
    let (what, name) = if let Some(name) = mirrored.find(|name| gix::validate::reference::name(name).is_err()) {
        ("it names a ref as none may be named", name)
    } else if let Some(name) = named.find(|name| !known.insert(*name)) {
        ("it names a ref twice", name)
    } else {
        return Ok(());
    };
    Err(MirrorError::Upstream { step: "list refs", cause: format!("{what}: `{}`", shown(name)) })
}

/// A ref's name for people.
pub(super) fn shown(name: &BStr) -> String {
    name.to_str_lossy().escape_debug().take(SHOWN_CHARACTERS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_valid_and_comes_once() {
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
