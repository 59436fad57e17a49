//! Which rule of freshness a service has.

use std::sync::Arc;

use http::HeaderValue;
use weir_shared::name::ServiceName;
use weir_shared::name_glob::NameGlob;

use super::freshness::Parameters;

/// A rule of freshness, with what is said of it in answers.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The rule.
    pub(crate) parameters: Parameters,
    /// The rule as `Cache-Control` tells it.
    pub(crate) cache_control: HeaderValue,
}

/// The rules of an edge: the first whose pattern matches a service is its own.
#[derive(Debug)]
pub(crate) struct Rules {
    of_some: Vec<(NameGlob, Arc<Rule>)>,
    of_all_others: Arc<Rule>,
}

impl Rule {
    fn new(parameters: Parameters, private: bool) -> Arc<Self> {
        let lifetime = parameters.cache_control();
        let cache_control = if private { format!("private, {lifetime}") } else { lifetime };
        let cache_control = HeaderValue::try_from(cache_control).expect("words and numbers");
        Arc::new(Self { parameters, cache_control })
    }
}

impl Rules {
    /// `of_some` in the order in which they are tried. `private`: answers are for the one who proved itself, and no shared
    /// cache may keep them.
    pub(crate) fn new(
        of_some: impl IntoIterator<Item = (NameGlob, Parameters)>,
        of_all_others: Parameters,
        private: bool,
    ) -> Self {
        let of_some = of_some.into_iter().map(|(services, parameters)| (services, Rule::new(parameters, private)));
        Self { of_some: of_some.collect(), of_all_others: Rule::new(of_all_others, private) }
    }

    /// The rule of a service.
    pub(crate) fn of(&self, service: &ServiceName) -> &Arc<Rule> {
        let own = self.of_some.iter().find(|(services, _)| services.matches(service.as_str()));
        own.map_or(&self.of_all_others, |(_, rule)| rule)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_first_that_matches_is_a_service_s_own() {
        let parameters = |fresh| Parameters {
            fresh: Duration::from_secs(fresh),
            stale_while_revalidate: Duration::from_secs(60),
            wait: Duration::from_secs(2),
            stale_if_error: None,
        };
        let rules = [("shop-prod", 1), ("shop-*", 2)].map(|(glob, fresh)| (glob.parse().unwrap(), parameters(fresh)));
        let rules = Rules::new(rules, parameters(3), false);
        for (service, fresh) in [("shop-prod", 1), ("shop-test", 2), ("docs", 3)] {
            let rule = rules.of(&service.parse().unwrap());
            assert_eq!(rule.parameters, parameters(fresh), "{service}");
            assert!(rule.cache_control.to_str().unwrap().starts_with(&format!("max-age={fresh}, ")), "{service}");
        }
    }
}
