//! `CDN-Loop` (RFC 8586): the edges that a request has passed.

use http::{HeaderMap, HeaderName, HeaderValue};
use weir_protocol::name::NodeName;

/// The header.
pub const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// The identifier of all edges. The parameter `id` names one.
const CDN_ID: &str = "weir";

/// The edges that a request has passed, the first one first. Empty for a request of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CdnLoop {
    /// The members of the header, also those of other networks.
    members: String,
}

impl CdnLoop {
    /// The edges that a request with these headers has passed.
    pub fn of(headers: &HeaderMap) -> Self {
        let lines = headers.get_all(CDN_LOOP).iter().filter_map(|value| value.to_str().ok());
        Self { members: lines.collect::<Vec<_>>().join(", ") }
    }

    /// The members with this edge added.
    pub fn with(&self, edge: &NodeName) -> HeaderValue {
        let separator = if self.members.is_empty() { "" } else { ", " };
        let members = format!("{}{separator}{CDN_ID};id={edge}", self.members);
        HeaderValue::try_from(members).expect("a name, after text that was visible ASCII")
    }

    /// Whether the request has passed this edge.
    pub fn contains(&self, edge: &NodeName) -> bool {
        self.edges().any(|passed| passed == edge.as_str())
    }

    /// The number of edges passed.
    pub fn hops(&self) -> usize {
        self.edges().count()
    }

    fn edges(&self) -> impl Iterator<Item = &str> {
        self.members.split(',').filter_map(|member| {
            let mut parts = member.split(';').map(str::trim);
            let is_weir = parts.next()?.eq_ignore_ascii_case(CDN_ID);
            let id = parts.find_map(|parameter| parameter.strip_prefix("id="))?;
            is_weir.then(|| id.trim_matches('"'))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(lines: &[&'static str]) -> CdnLoop {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(CDN_LOOP, HeaderValue::from_static(line));
        }
        CdnLoop::of(&headers)
    }

    #[test]
    fn edges_are_found_among_other_networks() {
        let edge: NodeName = "edge-1".parse().unwrap();
        for (lines, hops, contains) in [
            (&[][..], 0, false),
            (&["weir;id=edge-1"], 1, true),
            (&["Weir ; v=1; id=\"edge-1\""], 1, true),
            (&["other.example; id=edge-1", "weir"], 0, false),
            (&["weir;id=edge-11, other", "weir;id=edge-2,weir;id=edge-1"], 3, true),
        ] {
            let passed = of(lines);
            assert_eq!((passed.hops(), passed.contains(&edge)), (hops, contains), "{lines:?}");
            let next = passed.with(&edge);
            let mut headers = HeaderMap::new();
            headers.insert(CDN_LOOP, next);
            assert!(CdnLoop::of(&headers).contains(&edge) && CdnLoop::of(&headers).hops() == hops + 1);
        }
        assert_eq!(of(&["a", "b;c"]).with(&edge), "a, b;c, weir;id=edge-1");
    }
}
