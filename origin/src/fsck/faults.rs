//! What is wrong with what was seen.

use std::collections::BTreeSet;
use std::path::Path;

use weir_shared::descriptor::Representation;

use super::look::{STATE, Seen, Unsound};
use super::report::{Fault, Found, Outcome};
use crate::blob_store::Bytes;
use crate::data_dir::DataDir;
use crate::publication::Version;

/// Everything that is not as it should be, the databases first.
pub(super) fn faults(seen: &Seen, data_dir: &DataDir) -> Vec<Found> {
    let mut found = Faults::default();
    for (database, unsound) in &seen.unsound {
        match unsound {
            Unsound::Repairable => found.add(Fault::Database, *database, "it contradicts itself, and no row is lost"),
            Unsound::Damaged(cause) => found.add(Fault::Database, *database, format!("it cannot be read: {cause}")),
        }
    }
    for (of, cause) in &seen.refused_definitions {
        found.add(Fault::RefusedDefinition, of, format!("what an operator wrote is refused: {cause}"));
    }
    in_state(seen, &mut found);
    in_store(seen, data_dir, &mut found);
    for version in &seen.state.versions {
        for form in missing(version, seen) {
            let of = if version.is_current { "the current version" } else { "a superseded version" };
            found.add(Fault::MissingForm, object_of(version, form), format!("{of} cannot be had in this form"));
        }
    }
    found.0
}

#[derive(Default)]
struct Faults(Vec<Found>);

impl Faults {
    fn add(&mut self, fault: Fault, object: impl Into<String>, detail: impl Into<String>) {
        let (object, detail) = (object.into(), detail.into());
        self.0.push(Found { fault, object, detail, outcome: Outcome::Left, remark: None });
    }
}

fn in_state(seen: &Seen, found: &mut Faults) {
    for row in &seen.state.unreadable {
        found.add(Fault::UnreadableRow, &row.of, format!("its row cannot be read: {}", row.cause));
    }
    for (service, generation) in &seen.state.behind {
        let detail = format!("generation {generation} was published, and could be given out once more");
        found.add(Fault::GenerationBehind, format!("service {service}"), detail);
    }
    for (service, digest) in &seen.state.unsigned {
        let detail = "it does not bear the signatures of the keys that it was signed with";
        found.add(Fault::WrongSignature, format!("{service} {digest}"), detail);
    }
    if seen.state.has_wrong_index {
        found.add(Fault::WrongIndex, STATE, "what it says of who names which blob is not what the versions name");
    }
}

fn in_store(seen: &Seen, data_dir: &DataDir, found: &mut Faults) {
    let named: BTreeSet<_> =
        seen.state.versions.iter().flat_map(|version| &version.forms).map(|form| form.digest).collect();
    // What cannot be read may name any of them.
    let names_are_read = !seen.unsound.iter().any(|(name, how)| *name == STATE && matches!(how, Unsound::Damaged(_)));
    for (digest, blob) in &seen.blobs {
        match &blob.bytes {
            Bytes::Sound => {}
            Bytes::Damaged => found.add(Fault::DamagedBlob, digest.to_string(), "its bytes are not those of its name"),
            Bytes::Unreadable(cause) => {
                found.add(Fault::UnreadableBlob, digest.to_string(), format!("it cannot be read: {cause}"));
            }
        }
        // What is beside a damaged blob goes with it.
        let is_sound = blob.bytes == Bytes::Sound;
        if is_sound && blob.has_wrong_pieces {
            found.add(Fault::WrongPieces, digest.to_string(), "its piece list is not that of its bytes");
        }
        if is_sound && blob.has_wrong_fragments {
            found.add(Fault::WrongFragments, digest.to_string(), "its list of fragments is not as it was written");
        }
        if names_are_read && is_sound && !named.contains(digest) && !seen.state.lingering.contains(digest) {
            found.add(Fault::Unnamed, digest.to_string(), "no version names it; the origin's sweeps will remove it");
        }
    }
    let shown = |path: &Path| data_dir.redact(&path.display().to_string());
    for path in &seen.listed.left_over {
        found.add(Fault::LeftOver, shown(path), "what a killed process left; the origin removes it");
    }
    for path in &seen.listed.foreign {
        found.add(Fault::Foreign, shown(path), "it is none of the origin's files, and stays");
    }
}

/// The forms of a version that cannot be had.
pub(super) fn missing<'v>(version: &'v Version, seen: &Seen) -> Vec<&'v Representation> {
    let is_there = |form: &&Representation| {
        let blob = seen.blobs.get(&form.digest);
        blob.is_some_and(|blob| match blob.bytes {
            Bytes::Sound => blob.size == form.size,
            Bytes::Damaged => false,
            // It may be whole, and nobody may know its size.
            Bytes::Unreadable(_) => true,
        })
    };
    version.forms.iter().filter(|form| !is_there(form)).collect()
}

/// A form of a version, as it is called.
pub(super) fn object_of(version: &Version, form: &Representation) -> String {
    format!("{} {} {}", version.service, version.digest, form.encoding)
}
