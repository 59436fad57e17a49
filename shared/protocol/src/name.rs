//! Names of services, repositories and nodes, valid by construction.

use crate::text_type::{checked_text, truncated};

/// The longest name, in bytes.
pub const MAX_NAME_LENGTH: usize = 100;

/// The text is not a valid name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a {kind} name: 1 to 100 of `a-z`, `0-9`, `.`, `_`, `-`, the first a letter or a digit")]
pub struct NameError {
    kind: &'static str,
    text: String,
}

/// A valid name is safe as a path component, a URL segment and a metric label.
fn is_valid(text: &str) -> bool {
    let head = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let tail = |b: u8| head(b) || matches!(b, b'.' | b'_' | b'-');
    text.len() <= MAX_NAME_LENGTH && text.bytes().next().is_some_and(head) && text.bytes().all(tail)
}

checked_text! {
    /// The name of a service, which agents follow.
    ServiceName, is_valid, NameError, |text| NameError { kind: "service", text: truncated(text) }
}
checked_text! {
    /// The name of a repository in an origin's configuration.
    RepositoryName, is_valid, NameError, |text| NameError { kind: "repository", text: truncated(text) }
}
checked_text! {
    /// The name of a node: an origin, an edge, an agent or an operator.
    NodeName, is_valid, NameError, |text| NameError { kind: "node", text: truncated(text) }
}
checked_text! {
    /// The name of an assignment, in operators' requests and configuration.
    AssignmentName, is_valid, NameError, |text| NameError { kind: "valid assignment", text: truncated(text) }
}
checked_text! {
    /// The name of an issuer's entry, in operators' requests and configuration.
    IssuerName, is_valid, NameError, |text| NameError { kind: "valid issuer", text: truncated(text) }
}
checked_text! {
    /// The id of a cluster of origins, which share their documents. An origin without others is a cluster.
    ClusterId, is_valid, NameError, |text| NameError { kind: "cluster", text: truncated(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_safe_as_path_components_and_url_segments() {
        for good in ["a", "0", "shop-prod", "a.b_c-d", &"x".repeat(100)] {
            assert!(good.parse::<ServiceName>().is_ok(), "{good}");
        }
        for bad in ["", ".", "..", ".a", "-a", "_a", "A", "a/b", "a b", "ä", "a\0", "a%2f", &"x".repeat(101)] {
            assert!(bad.parse::<ServiceName>().is_err(), "{bad}");
        }
    }
}
