//! Parses `If-Match` and `If-None-Match` of an edit.

use http::{HeaderMap, header};
use weir_protocol::conditional::opaque_tags;
use weir_protocol::problem::Problem;

use crate::catalog::{Matches, Precondition};

/// Parses the headers. Only the part of a tag before the dot counts: the rest is the version of the state, which
/// edits do not change.
pub(super) fn precondition(headers: &HeaderMap) -> Result<Precondition, Problem> {
    let mut precondition = Precondition::default();
    for value in headers.get_all(header::IF_MATCH) {
        let value = value.to_str().map_err(|_| Problem::malformed("`If-Match` is not a list of entity tags."))?.trim();
        if value == "*" {
            precondition.matches = Some(Matches::Any);
            continue;
        }
        let tags: Vec<&str> = opaque_tags(value).collect();
        if tags.is_empty() {
            return Err(Problem::malformed(
                "`If-Match` is not a list of entity tags: send the `ETag` unchanged, with its quotes.",
            ));
        }
        let versions = tags.into_iter().map(|tag| tag.split('.').next().unwrap_or(tag).to_owned());
        match precondition.matches.get_or_insert(Matches::Versions(Vec::new())) {
            Matches::Any => {}
            Matches::Versions(all) => all.extend(versions),
        }
    }
    for value in headers.get_all(header::IF_NONE_MATCH) {
        if value.as_bytes().trim_ascii() != b"*" {
            return Err(Problem::malformed(
                "`If-None-Match` of an edit can only be `*`: the object must not exist yet.",
            ));
        }
        precondition.is_new = true;
    }
    Ok(precondition)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &'static str, value: &str) -> Result<Precondition, Problem> {
        let mut headers = HeaderMap::new();
        headers.append(name, value.parse().unwrap());
        precondition(&headers)
    }

    #[test]
    fn the_document_s_part_of_a_tag_counts() {
        let versions = |read: Precondition| match read.matches {
            Some(Matches::Versions(versions)) => versions,
            other => panic!("{other:?}"),
        };
        assert_eq!(versions(read("if-match", "\"0a.1b\", \"2c\"").unwrap()), ["0a", "2c"]);
        assert_eq!(read("if-match", " * ").unwrap().matches, Some(Matches::Any));
        assert!(read("if-none-match", "*").unwrap().is_new);
        assert_eq!(precondition(&HeaderMap::new()).unwrap(), Precondition::default());
        for (name, value) in [("if-match", "0a"), ("if-match", ""), ("if-none-match", "\"0a\"")] {
            assert!(read(name, value).is_err(), "{name}: {value}");
        }
    }
}
