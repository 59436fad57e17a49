//! Lists the refs of an upstream, selects those to mirror, and validates them: their number, valid names, no duplicates.

use std::collections::{BTreeSet, HashSet};

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
use crate::source::git::revision::DEFAULT_BRANCH_REF;

/// The longest part of a name to show.
const MAX_SHOWN_CHARS: usize = 100;

/// The name of the symbolic ref that points to the default branch.
const HEAD: &[u8] = b"HEAD";

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
    let prefixes = MIRRORED.into_iter().chain(further_refs.iter().map(String::as_str)).chain(["HEAD"]);
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
    let mirrored_name = |name: &BStr| match &**name {
        HEAD => Some(BString::from(DEFAULT_BRANCH_REF)),
        _ if MIRRORED.iter().any(|prefix| name.starts_with(prefix.as_bytes())) => Some(name.to_owned()),
        _ => name.to_str().is_ok_and(|name| further_refs.contains(name)).then(|| name.to_owned()),
    };
    let mapping = |listed: &Ref| {
        let local = Some(mirrored_name(listed.unpack().0)?);
        Some(Mapping { remote: Source::Ref(listed.clone()), local, spec_index: SpecIndex::Implicit(0) })
    };
    map.mappings = map.remote_refs.iter().filter_map(mapping).collect();
    Ok(map)
}

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
