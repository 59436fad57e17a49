//! Lists the refs of an upstream, and selects those to mirror.

use std::collections::{BTreeMap, BTreeSet};

use gix::ObjectId;
use gix::bstr::{BStr, BString, ByteSlice};
use gix::error::{ErrorExt, OptionExt, ResultExt, message};
use gix::protocol::Command;
use gix::protocol::fetch::RefMap;
use gix::protocol::fetch::refmap::init::Context;
use gix::protocol::fetch::refmap::{Mapping, Source, SpecIndex};
use gix::protocol::handshake::Ref;
use gix::protocol::transport::Protocol;
use gix::protocol::transport::client::Capabilities;
use gix::protocol::transport::client::blocking_io::{Transport, TransportV2Ext};

use super::MirrorError;
use super::protocol_session::agent;
use super::refs::Refs;
use crate::revision::DEFAULT_BRANCH_REF;

/// The longest part of a name to show.
const MAX_SHOWN_CHARS: usize = 100;

/// The longest name in bytes, and the longest part of one between slashes: the file system must have room for it and for
/// the ending of a lock.
const MAX_NAME_BYTES: usize = 1024;
const MAX_PART_BYTES: usize = 250;

/// The name of the symbolic ref that points to the default branch.
const HEAD: &str = "HEAD";

/// The namespaces that are mirrored in full.
const MIRRORED: [&str; 2] = ["refs/heads/", "refs/tags/"];

/// Requests the refs to mirror, with version 2 of the protocol. The server may send others too.
pub(super) fn request(
    transport: &mut impl Transport,
    capabilities: &Capabilities,
    further_refs: &BTreeSet<String>,
) -> gix::Result<Vec<Ref>> {
    let mut features = Command::LsRefs.default_features(Protocol::V2, capabilities);
    features.push(agent());
    let prefixes = MIRRORED.into_iter().chain(further_refs.iter().map(String::as_str)).chain([HEAD]);
    let arguments = prefixes.map(|prefix| format!("ref-prefix {prefix}").into());
    let listed = transport.invoke(Command::LsRefs.as_str(), features.into_iter(), Some(arguments), false);
    let mut lines = listed.or_raise(|| message("Could not request the refs"))?;
    let mut refs = Vec::new();
    while let Some(line) = lines.readline() {
        let line = line.map_err(ErrorExt::raise)??;
        let Some(line) = line.as_bstr() else { break };
        refs.push(parse(line.strip_suffix(b"\n").unwrap_or(line))?);
    }
    Ok(refs)
}

/// Parses a line of a listing: an id and a name. Attributes are not requested.
fn parse(line: &[u8]) -> gix::Result<Ref> {
    let (id, name) =
        line.split_once_str(" ").ok_or_raise(|| message!("a line without a name: {:?}", line.as_bstr()))?;
    let object = ObjectId::from_hex(id).or_raise(|| message!("a line without an object id: {:?}", line.as_bstr()))?;
    Ok(Ref::Direct { full_ref_name: name.into(), object })
}

/// Maps the refs to mirror to their names in the mirror: branches, tags, `further_refs`, and `HEAD` under the mirror's
/// own name.
pub(super) fn map(refs: Vec<Ref>, capabilities: &Capabilities, further_refs: &BTreeSet<String>) -> gix::Result<RefMap> {
    let mut map =
        RefMap::from_refs(refs, capabilities, Context { fetch_refspecs: Vec::new(), extra_refspecs: Vec::new() })?;
    let mirrored_name = |name: &BStr| match () {
        () if name == HEAD => Some(BString::from(DEFAULT_BRANCH_REF)),
        () if MIRRORED.iter().any(|prefix| name.starts_with(prefix.as_bytes())) => Some(name.to_owned()),
        () => name.to_str().is_ok_and(|name| further_refs.contains(name)).then(|| name.to_owned()),
    };
    let mapping = |listed: &Ref| {
        let local = Some(mirrored_name(listed.unpack().0)?);
        Some(Mapping { remote: Source::Ref(listed.clone()), local, spec_index: SpecIndex::Implicit(0) })
    };
    map.mappings = map.remote_refs.iter().filter_map(mapping).collect();
    Ok(map)
}

/// Divides the refs to mirror into usable ones, by their names in the mirror, and the others with the reason.
///
/// # Errors
/// There are more than `limit`.
pub(super) fn select(
    refs: &RefMap,
    limit: usize,
    is_followed: impl Fn(&BString) -> bool,
) -> Result<(Refs, BTreeMap<BString, MirrorError>), MirrorError> {
    if refs.remote_refs.len() > limit {
        return Err(MirrorError::TooManyRefs { limit });
    }
    let (mut usable, mut unusable) = (Refs::new(), BTreeMap::new());
    for mapping in &refs.mappings {
        // A `HEAD` without a commit is skipped.
        let (Some(name), Some(id)) = (&mapping.local, mapping.remote.as_id()) else { continue };
        if let Some(reason) = invalid_name(name) {
            unusable.insert(name.clone(), reason);
        } else if usable.insert(name.clone(), id.to_owned()).is_some() {
            unusable.insert(name.clone(), "the upstream lists it twice");
        }
    }
    // Git stores no ref in a folder that is a ref.
    for name in usable.keys() {
        let parents = name.rfind_iter("/").map(|at| BString::from(&name[..at]));
        for parent in parents.filter(|parent| usable.contains_key(parent)) {
            let keeps_parent = is_followed(&parent) || !is_followed(name);
            unusable
                .insert(if keeps_parent { name.clone() } else { parent }, "it is a folder of another ref, or in one");
        }
    }
    usable.retain(|name, _| !unusable.contains_key(name));
    let error = |name: &BString, reason| MirrorError::NotFollowed { reference: display_name(name.as_bstr()), reason };
    Ok((usable, unusable.into_iter().map(|(name, reason)| (name.clone(), error(&name, reason))).collect()))
}

fn invalid_name(name: &BString) -> Option<&'static str> {
    if gix::validate::reference::name(name.as_bstr()).is_err() {
        Some("Git does not permit its name")
    } else if name.len() > MAX_NAME_BYTES || name.split_str("/").any(|part| part.len() > MAX_PART_BYTES) {
        Some("its name is too long for a file")
    } else {
        None
    }
}

/// A ref's name for messages.
pub fn display_name(name: &BStr) -> String {
    let name = if name == DEFAULT_BRANCH_REF { BStr::new(HEAD) } else { name };
    name.to_str_lossy().escape_debug().take(MAX_SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refs_that_cannot_be_stored_are_left_out() {
        let long = format!("refs/heads/{}", "x".repeat(MAX_PART_BYTES + 1));
        let lines = [
            "HEAD",
            "refs/heads/main",
            "refs/heads/ümlaut",
            "refs/tags/v1",
            "refs/notes/x",
            "refs/heads/a b",
            "refs/heads/x.lock",
            "refs/heads/a..b",
            "refs/heads/twice",
            "refs/heads/twice",
            "refs/heads/a",
            "refs/heads/a/b/c",
            "refs/tags/a",
            "refs/tags/a/b",
            &long,
        ];
        let lines = lines.map(|name| parse(format!("{} {name}", "1".repeat(40)).as_bytes()).unwrap());
        let capabilities = Capabilities::from_bytes(b"\0agent=git/1").unwrap().0;
        let map = map(lines.into(), &capabilities, &BTreeSet::new()).unwrap();
        let (usable, unusable) = select(&map, 20, |name| name == "refs/tags/a/b").unwrap();
        let names = |names: &[&str]| names.iter().map(|name| BString::from(*name)).collect::<BTreeSet<_>>();
        let kept =
            ["refs/weir/HEAD", "refs/heads/main", "refs/heads/ümlaut", "refs/tags/v1", "refs/heads/a", "refs/tags/a/b"];
        assert_eq!(usable.into_keys().collect::<BTreeSet<_>>(), names(&kept));
        let left_out = [
            "refs/heads/a b",
            "refs/heads/x.lock",
            "refs/heads/a..b",
            "refs/heads/twice",
            "refs/heads/a/b/c",
            "refs/tags/a",
            &long,
        ];
        assert_eq!(unusable.into_keys().collect::<BTreeSet<_>>(), names(&left_out));
        assert!(select(&map, 14, |_| false).is_err());
    }
}
