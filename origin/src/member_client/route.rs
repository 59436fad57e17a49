//! The requests of origins to each other, on `listen`.

use std::fmt;

use http::{HeaderName, Method};
use weir_protocol::name::RepositoryName;
use weir_protocol::route::RouteError;

/// All paths that only origins may request.
const PREFIX: &str = "/v1/members/";

/// Before the path and query of a request that another member passes on.
const FORWARDED: &str = "operator";

/// The operator of a forwarded request. Webhooks have none.
pub(crate) const CALLER: HeaderName = HeaderName::from_static("weir-caller");

/// The role of that operator. The origin that sends it has decided by it already: the receiver logs it. One of an earlier
/// version sends none.
pub(crate) const CALLER_ROLE: HeaderName = HeaderName::from_static("weir-caller-role");

/// What shows that the origin that passes a request of an operator on is a member: see [`crate::cluster::Secrets`].
pub(crate) const SECRET: HeaderName = HeaderName::from_static("weir-member-secret");

/// The cluster of the origin that requests.
pub(crate) const CLUSTER: HeaderName = HeaderName::from_static("weir-cluster");

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Route<'p> {
    /// `/v1/members/ask/{repository}`: whether this origin is ready to own a repository.
    Ask(RepositoryName),
    /// `/v1/members/tell/{repository}`: the repository was released for this origin.
    Tell(RepositoryName),
    /// `/v1/members/changed/{repository}`: another member changed what this origin has to know at once.
    Changed(RepositoryName),
    /// `/v1/members/lists`: another member changed freezes or plans.
    Lists,
    /// `/v1/members/operator/…`: a request to the operators' listener of another member, about what this one owns. With
    /// the path and query there.
    Forwarded(&'p str),
}

impl<'p> Route<'p> {
    /// `None`: the path is one of those that edges may request too.
    pub(crate) fn parse(path_and_query: &'p str) -> Option<Result<Self, RouteError>> {
        let rest = path_and_query.strip_prefix(PREFIX)?;
        let (kind, _) = rest.split_once('/').unwrap_or((rest, ""));
        let repository = |name: &str| name.parse().map_err(|error| RouteError::Malformed(format!("{error}")));
        let below = &rest[kind.len()..];
        Some(match (kind, below.strip_prefix('/')) {
            ("ask", Some(name)) => repository(name).map(Route::Ask),
            ("tell", Some(name)) => repository(name).map(Route::Tell),
            ("changed", Some(name)) => repository(name).map(Route::Changed),
            ("lists", None) => Ok(Route::Lists),
            (FORWARDED, Some(_)) => Ok(Route::Forwarded(below)),
            _ => Err(RouteError::Unknown),
        })
    }

    /// Whether the path may be requested so.
    pub(crate) fn takes(&self, method: &Method) -> bool {
        matches!(self, Route::Forwarded(_)) || *method == Method::POST
    }
}

impl fmt::Display for Route<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Ask(repository) => write!(f, "{PREFIX}ask/{repository}"),
            Route::Tell(repository) => write!(f, "{PREFIX}tell/{repository}"),
            Route::Changed(repository) => write!(f, "{PREFIX}changed/{repository}"),
            Route::Lists => write!(f, "{PREFIX}lists"),
            Route::Forwarded(path) => write!(f, "{PREFIX}{FORWARDED}{path}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_round_trip() {
        let repository: RepositoryName = "shop".parse().unwrap();
        for route in [
            Route::Ask(repository.clone()),
            Route::Tell(repository.clone()),
            Route::Changed(repository),
            Route::Lists,
            Route::Forwarded("/v1/services/shop/diff?from=a&to=b"),
            Route::Forwarded("/"),
        ] {
            assert_eq!(Route::parse(&route.to_string()), Some(Ok(route.clone())));
        }
        for path in ["/v1/services/shop", "/v1/events", "/", "/v1/members"] {
            assert_eq!(Route::parse(path), None, "{path}");
        }
        for path in [
            "/v1/members/",
            "/v1/members/ask",
            "/v1/members/none/shop",
            "/v1/members/operator",
            "/v1/members/operators/v1",
        ] {
            assert_eq!(Route::parse(path), Some(Err(RouteError::Unknown)), "{path}");
        }
        for path in ["/v1/members/ask/", "/v1/members/tell/A", "/v1/members/ask/a/b", "/v1/members/ask/a?b"] {
            assert!(matches!(Route::parse(path), Some(Err(RouteError::Malformed(_)))), "{path}");
        }
    }
}
