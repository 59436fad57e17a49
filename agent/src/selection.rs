//! Which services an agent asks its edges for.

use weir_protocol::event::Cursor;
use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;
use weir_protocol::route::Route;

use crate::config::{Config, ServiceList};

/// The most patterns that edges take in a request.
const MAX_PATTERNS: usize = 256;

/// The longest list of patterns in a URL, in bytes.
const MAX_LIST_BYTES: usize = 8 << 10;

/// What is asked for, and what is taken of the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Names and patterns. `None`: what is assigned.
    patterns: Option<Vec<NameGlob>>,
    allow: Vec<NameGlob>,
}

impl Selection {
    /// `None`: the list is too long for one request, so each service is polled by itself.
    pub(crate) fn of(config: &Config) -> Option<Self> {
        let patterns: Option<Vec<NameGlob>> = match config.list {
            ServiceList::Assigned => None,
            ServiceList::Listed => Some(config.services.iter().map(|service| service.name.clone()).collect()),
        };
        let fits = patterns.as_ref().is_none_or(|patterns| {
            let bytes: usize = patterns.iter().map(|pattern| pattern.as_str().len() + 1).sum();
            patterns.len() <= MAX_PATTERNS && bytes <= MAX_LIST_BYTES
        });
        fits.then(|| Self { patterns, allow: config.allow.clone() })
    }

    /// Path and query of a request.
    pub(crate) fn target(&self, route: &Route, since: Option<&Cursor>) -> String {
        let list = self.patterns.as_ref().map(|patterns| {
            let patterns: Vec<_> = patterns.iter().map(NameGlob::as_str).collect();
            format!("services={}", patterns.join(","))
        });
        let pairs: Vec<_> = list.into_iter().chain(since.map(|cursor| format!("since={cursor}"))).collect();
        if pairs.is_empty() { route.to_string() } else { format!("{route}?{}", pairs.join("&")) }
    }

    /// Whether a service of an answer is followed. An edge may say more than it was asked for.
    pub(crate) fn takes(&self, service: &ServiceName) -> bool {
        let any = |patterns: &[NameGlob]| patterns.iter().any(|pattern| pattern.matches(service.as_str()));
        self.patterns.as_deref().is_none_or(any) && (self.allow.is_empty() || any(&self.allow))
    }

    /// Whether `allow` excludes a service that is assigned. One that only matches a pattern of this agent is nobody's mistake.
    pub(crate) fn refuses(&self, service: &ServiceName) -> bool {
        self.patterns.is_none() && !self.takes(service)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(names: &[&str], allow: &[&str]) -> Config {
        let mut config = Config::new(Vec::new(), "ca.pem", "root");
        config.services = names.iter().map(|name| crate::config::ServiceConfig::of(name.parse().unwrap())).collect();
        config.allow = allow.iter().map(|glob| glob.parse().unwrap()).collect();
        config
    }

    #[test]
    fn a_list_is_asked_for_by_its_patterns_and_what_is_assigned_without() {
        let listed = Selection::of(&config(&["docs", "shop-*"], &["*-prod", "docs"])).unwrap();
        let since: Cursor = "a1".parse().unwrap();
        assert_eq!(listed.target(&Route::AgentServices, None), "/v1/agents/self/services?services=docs,shop-*");
        assert_eq!(
            listed.target(&Route::AgentEvents, Some(&since)),
            "/v1/agents/self/events?services=docs,shop-*&since=a1"
        );
        let takes = |selection: &Selection, name: &str| selection.takes(&name.parse().unwrap());
        assert!(takes(&listed, "docs") && takes(&listed, "shop-prod"));
        assert!(!takes(&listed, "shop-test") && !takes(&listed, "bank-prod"));
        let assigned =
            Selection::of(&Config { list: ServiceList::Assigned, ..config(&["docs"], &["shop-*"]) }).unwrap();
        assert_eq!(assigned.target(&Route::AgentServices, None), "/v1/agents/self/services");
        assert_eq!(assigned.target(&Route::AgentEvents, Some(&since)), "/v1/agents/self/events?since=a1");
        assert!(takes(&assigned, "shop-test") && !takes(&assigned, "docs"));
        let many: Vec<_> = (0..=MAX_PATTERNS).map(|n| format!("s{n}")).collect();
        assert_eq!(Selection::of(&config(&many.iter().map(String::as_str).collect::<Vec<_>>(), &[])), None);
    }
}
