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
    /// An edge, as answers and paths name it: by the identity of its certificate, or by `identity~name` where its name is another
    /// one, because an identity may stand for several edges.
    EdgeName, is_valid_edge, NameError, |text| NameError { kind: "valid edge", text: truncated(text) }
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
    /// The name of a plan of rollouts, in operators' requests and configuration.
    RolloutName, is_valid, NameError, |text| NameError { kind: "rollout", text: truncated(text) }
}
checked_text! {
    /// The name of a freeze, in operators' requests.
    FreezeName, is_valid, NameError, |text| NameError { kind: "freeze", text: truncated(text) }
}
checked_text! {
    /// The name of a stage of such a plan.
    StageName, is_valid, NameError, |text| NameError { kind: "stage", text: truncated(text) }
}
checked_text! {
    /// The id of a cluster of origins, which share their documents. An origin without others is a cluster.
    ClusterId, is_valid, NameError, |text| NameError { kind: "cluster", text: truncated(text) }
}

fn is_valid_edge(text: &str) -> bool {
    match text.split_once('~') {
        Some((identity, name)) => is_valid(identity) && is_valid(name) && identity != name,
        None => is_valid(text),
    }
}

impl EdgeName {
    /// The edge with this identity, and with this name if it has one.
    pub fn of(identity: &NodeName, name: Option<&NodeName>) -> Self {
        match name.filter(|name| *name != identity) {
            Some(name) => Self(format!("{identity}~{name}").into()),
            None => Self(identity.0.clone()),
        }
    }

    /// Its identity, which other edges may have too.
    pub fn identity(&self) -> &str {
        self.as_str().split_once('~').map_or(self.as_str(), |(identity, _)| identity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_named_by_its_identity_alone_or_with_its_name() {
        let [pool, node]: [NodeName; 2] = ["pool", "node-1"].map(|name| name.parse().unwrap());
        let names = [None, Some(&pool), Some(&node)].map(|name| EdgeName::of(&pool, name).to_string());
        assert_eq!(names, ["pool", "pool", "pool~node-1"]);
        assert!(names.iter().all(|name| name.parse::<EdgeName>().unwrap().identity() == "pool"));
        for bad in ["", "~", "pool~", "~node-1", "pool~pool", "pool~a~b", "pool~A", "pool/a"] {
            assert!(bad.parse::<EdgeName>().is_err(), "{bad}");
        }
    }

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
