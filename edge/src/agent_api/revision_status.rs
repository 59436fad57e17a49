//! Adds the revision status to a descriptor: the revision as of which the content is current. Pure.

use std::time::SystemTime;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::catalog::RevisionStatus;

/// Hexadecimal digits of the added part's hash in the entity tag.
const TAG_DIGITS: usize = 16;

#[derive(Serialize)]
struct Document<'a> {
    revision_id: &'a str,
    #[serde(serialize_with = "rfc3339")]
    upstream_unreachable_since: Option<SystemTime>,
}

fn rfc3339<S: Serializer>(since: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match since {
        Some(since) => serializer.collect_str(&humantime::format_rfc3339_seconds(*since)),
        None => serializer.serialize_none(),
    }
}

/// Inserts `"seen"` as the first field of a descriptor, and extends its entity tag. All other bytes stay as the origin
/// wrote them.
pub(super) fn with_revision_status(descriptor: &Bytes, tag: &str, seen: &RevisionStatus) -> (Bytes, String) {
    let document = Document {
        revision_id: seen.revision_id.as_str(),
        upstream_unreachable_since: seen.upstream_unreachable_since,
    };
    let document = serde_json::to_vec(&document).expect("text and a time");
    // A parsed descriptor is an object with at least one field.
    let fields = descriptor.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1);
    let whole = [b"{\"seen\":", &document[..], b",", &descriptor[fields..]].concat();
    let added = blake3::hash(&document).to_hex();
    (whole.into(), format!("\"{}+{}\"", tag.trim_matches('"'), &added[..TAG_DIGITS]))
}
