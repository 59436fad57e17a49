//! What the edge adds to a descriptor for readers: up to which revision the content is right. Pure.

use std::time::SystemTime;

use bytes::Bytes;
use serde::{Serialize, Serializer};

use crate::catalog::Seen;

/// Hexadecimal digits of what was added, in the entity tag.
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

/// A descriptor, whose entity tag is `tag`, with `"seen"` as its first field, and the tag of that. Every other byte stays as
/// the origin wrote it.
pub(super) fn with_seen(descriptor: &Bytes, tag: &str, seen: &Seen) -> (Bytes, String) {
    let document = Document {
        revision_id: seen.revision_id.as_str(),
        upstream_unreachable_since: seen.upstream_unreachable_since,
    };
    let document = serde_json::to_vec(&document).expect("text and a time");
    // What was read as a descriptor is an object with a publication in it.
    let fields = descriptor.iter().position(|byte| *byte == b'{').map_or(0, |brace| brace + 1);
    let whole = [b"{\"seen\":", &document[..], b",", &descriptor[fields..]].concat();
    let added = blake3::hash(&document).to_hex();
    (whole.into(), format!("\"{}+{}\"", tag.trim_matches('"'), &added[..TAG_DIGITS]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn every_byte_of_the_origin_s_stays_and_the_tag_changes_with_what_is_added() {
        let descriptor = Bytes::from_static(b" {\"publication\" : {\"a\":1 },\n\"revision\":2} ");
        let seen = |since| Seen { revision_id: "sha1:aa".parse().unwrap(), upstream_unreachable_since: since };
        let (whole, tag) = with_seen(&descriptor, "\"7.1\"", &seen(None));
        let expected: &[u8] = b"{\"seen\":{\"revision_id\":\"sha1:aa\",\"upstream_unreachable_since\":null},\
            \"publication\" : {\"a\":1 },\n\"revision\":2} ";
        assert_eq!(whole, expected);
        assert!(tag.starts_with("\"7.1+") && tag.ends_with('"'), "{tag}");
        let (whole, other) = with_seen(&descriptor, "\"7.1\"", &seen(Some(UNIX_EPOCH + Duration::from_secs(1))));
        let read: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        assert_eq!(read["seen"]["upstream_unreachable_since"], "1970-01-01T00:00:01Z");
        assert_ne!(tag, other);
    }
}
