//! The paths of the operators' API.

use std::fmt;

use weir_protocol::name::{AssignmentName, IssuerName, NodeName, RepositoryName, ServiceName};
use weir_protocol::route::RouteError;

use crate::webhook::Provider;

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// `/v1/repositories`: all repositories.
    Repositories,
    /// `/v1/repositories/{name}`: one repository.
    Repository(RepositoryName),
    /// `/v1/repositories/{name}/refresh`: polls its upstream soon.
    Refresh(RepositoryName),
    /// `/v1/repositories/{name}/confirm`: accepts its readable state after damage.
    Confirm(RepositoryName),
    /// `/v1/webhooks/{provider}/{repository}`: reports changed refs.
    Webhook(Provider, RepositoryName),
    /// `/v1/services`: all services.
    Services,
    /// `/v1/services/{name}`: one service.
    Service(ServiceName),
    /// `/v1/services/{name}/history`: its publications.
    History(ServiceName),
    /// `/v1/services/{name}/diff`: compares two versions.
    Diff(ServiceName),
    /// `/v1/services/{name}/rollback`: returns to a retained version.
    Rollback(ServiceName),
    /// `/v1/services/{name}/pin`: pins and unpins it.
    Pin(ServiceName),
    /// `/v1/services/{name}/dry-run`: lists its next tarball.
    DryRun(ServiceName),
    /// `/v1/agents`: all agents with an entry.
    Agents,
    /// `/v1/agents/{name}`: one of them.
    Agent(NodeName),
    /// `/v1/assignments`: all assignments.
    Assignments,
    /// `/v1/assignments/{name}`: one assignment.
    Assignment(AssignmentName),
    /// `/v1/assignments/dry-run`: what a change would begin and end.
    AssignmentDryRun,
    /// `/v1/issuers`: all issuers.
    Issuers,
    /// `/v1/issuers/{name}`: one issuer.
    Issuer(IssuerName),
    /// `/v1/fleet/rows`: what agents run.
    FleetRows,
    /// `/v1/fleet/agents`: the agents that edges have reported.
    FleetAgents,
    /// `/v1/fleet/agents/{name}`: forgets one of them.
    FleetAgent(NodeName),
    /// `/v1/fleet/summary`: counts of rows.
    FleetSummary,
    /// `/v1/edges/{name}`: forgets an edge.
    Edge(NodeName),
}

impl Route {
    /// Parses the path of a URL without its query. Names need no percent-encoding, so none is decoded.
    pub(super) fn parse(path: &str) -> Result<Self, RouteError> {
        fn name<T: std::str::FromStr<Err: fmt::Display>>(text: &str) -> Result<T, RouteError> {
            text.parse().map_err(|error: T::Err| RouteError::Malformed(error.to_string()))
        }
        let rest = path.strip_prefix("/v1/").ok_or(RouteError::Unknown)?;
        let segments: Vec<&str> = rest.splitn(5, '/').collect();
        match segments[..] {
            ["repositories"] => Ok(Route::Repositories),
            ["repositories", repository] => Ok(Route::Repository(name(repository)?)),
            ["repositories", repository, "refresh"] => Ok(Route::Refresh(name(repository)?)),
            ["repositories", repository, "confirm"] => Ok(Route::Confirm(name(repository)?)),
            ["webhooks", provider, repository] => {
                Ok(Route::Webhook(provider.parse().map_err(|_| RouteError::Unknown)?, name(repository)?))
            }
            ["services"] => Ok(Route::Services),
            ["services", service, "history"] => Ok(Route::History(name(service)?)),
            ["services", service, "diff"] => Ok(Route::Diff(name(service)?)),
            ["services", service, "rollback"] => Ok(Route::Rollback(name(service)?)),
            ["services", service, "pin"] => Ok(Route::Pin(name(service)?)),
            ["services", service, "dry-run"] => Ok(Route::DryRun(name(service)?)),
            ["services", service] => Ok(Route::Service(name(service)?)),
            ["agents"] => Ok(Route::Agents),
            ["agents", agent] => Ok(Route::Agent(name(agent)?)),
            ["assignments"] => Ok(Route::Assignments),
            ["assignments", "dry-run"] => Ok(Route::AssignmentDryRun),
            ["assignments", assignment] => Ok(Route::Assignment(name(assignment)?)),
            ["issuers"] => Ok(Route::Issuers),
            ["issuers", issuer] => Ok(Route::Issuer(name(issuer)?)),
            ["fleet", "rows"] => Ok(Route::FleetRows),
            ["fleet", "agents"] => Ok(Route::FleetAgents),
            ["fleet", "agents", agent] => Ok(Route::FleetAgent(name(agent)?)),
            ["fleet", "summary"] => Ok(Route::FleetSummary),
            ["edges", edge] => Ok(Route::Edge(name(edge)?)),
            _ => Err(RouteError::Unknown),
        }
    }

    /// Whether a path is a webhook, whose senders are not operators.
    pub(super) fn is_of_webhooks(path: &str) -> bool {
        path.starts_with("/v1/webhooks/")
    }

    /// The allowed methods, for `Allow`.
    pub(super) fn methods(&self) -> &'static str {
        match self {
            Route::Repositories
            | Route::Services
            | Route::History(_)
            | Route::Diff(_)
            | Route::Agents
            | Route::Assignments
            | Route::Issuers
            | Route::FleetRows
            | Route::FleetAgents
            | Route::FleetSummary => "GET, HEAD",
            Route::FleetAgent(_) | Route::Edge(_) => "DELETE",
            Route::Pin(_) => "PUT, DELETE",
            Route::Repository(_) | Route::Service(_) | Route::Agent(_) | Route::Assignment(_) | Route::Issuer(_) => {
                "GET, HEAD, PUT, DELETE"
            }
            Route::Refresh(_)
            | Route::Confirm(_)
            | Route::Webhook(..)
            | Route::DryRun(_)
            | Route::Rollback(_)
            | Route::AssignmentDryRun => "POST",
        }
    }

    /// The value of a metric label: one for each variant, never a name.
    pub(super) fn label(&self) -> &'static str {
        match self {
            Route::Repositories => "repositories",
            Route::Repository(_) => "repository",
            Route::Refresh(_) => "refresh",
            Route::Confirm(_) => "confirm",
            Route::Webhook(..) => "webhook",
            Route::Services => "services",
            Route::Service(_) => "service",
            Route::History(_) => "history",
            Route::Diff(_) => "diff",
            Route::Rollback(_) => "rollback",
            Route::Pin(_) => "pin",
            Route::DryRun(_) => "dry_run",
            Route::Agents => "agents",
            Route::Agent(_) => "agent",
            Route::Assignments => "assignments",
            Route::Assignment(_) => "assignment",
            Route::AssignmentDryRun => "assignment_dry_run",
            Route::Issuers => "issuers",
            Route::Issuer(_) => "issuer",
            Route::FleetRows => "fleet_rows",
            Route::FleetAgents => "fleet_agents",
            Route::FleetAgent(_) => "fleet_agent",
            Route::FleetSummary => "fleet_summary",
            Route::Edge(_) => "edge",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Repositories => f.write_str("/v1/repositories"),
            Route::Repository(name) => write!(f, "/v1/repositories/{name}"),
            Route::Refresh(name) => write!(f, "/v1/repositories/{name}/refresh"),
            Route::Confirm(name) => write!(f, "/v1/repositories/{name}/confirm"),
            Route::Webhook(provider, name) => write!(f, "/v1/webhooks/{provider}/{name}"),
            Route::Services => f.write_str("/v1/services"),
            Route::Service(name) => write!(f, "/v1/services/{name}"),
            Route::History(name) => write!(f, "/v1/services/{name}/history"),
            Route::Diff(name) => write!(f, "/v1/services/{name}/diff"),
            Route::Rollback(name) => write!(f, "/v1/services/{name}/rollback"),
            Route::Pin(name) => write!(f, "/v1/services/{name}/pin"),
            Route::DryRun(name) => write!(f, "/v1/services/{name}/dry-run"),
            Route::Agents => f.write_str("/v1/agents"),
            Route::Agent(name) => write!(f, "/v1/agents/{name}"),
            Route::Assignments => f.write_str("/v1/assignments"),
            Route::Assignment(name) => write!(f, "/v1/assignments/{name}"),
            Route::AssignmentDryRun => f.write_str("/v1/assignments/dry-run"),
            Route::Issuers => f.write_str("/v1/issuers"),
            Route::Issuer(name) => write!(f, "/v1/issuers/{name}"),
            Route::FleetRows => f.write_str("/v1/fleet/rows"),
            Route::FleetAgents => f.write_str("/v1/fleet/agents"),
            Route::FleetAgent(name) => write!(f, "/v1/fleet/agents/{name}"),
            Route::FleetSummary => f.write_str("/v1/fleet/summary"),
            Route::Edge(name) => write!(f, "/v1/edges/{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn wrong_shapes_are_unknown_and_wrong_names_are_malformed() {
        for path in
            ["", "/", "/v1", "/v1/", "/v1/repositories/", "/v1/services/", "/v2/services", "/v1/services/a/b/c/d/e"]
        {
            let read = Route::parse(path);
            assert!(read.is_err(), "{path}: {read:?}");
        }
        for path in ["/v1/services/a/refresh", "/v1/repositories/a/refresh/", "/v1/repositories/a/tarball"] {
            assert_eq!(Route::parse(path), Err(RouteError::Unknown), "{path}");
        }
        for path in ["/v1/services/A", "/v1/repositories/..", "/v1/repositories/../refresh"] {
            assert!(matches!(Route::parse(path), Err(RouteError::Malformed(_))), "{path}");
        }
    }

    proptest! {
        #[test]
        fn paths_round_trip(
            path in "/v1/(services|repositories|webhooks|agents|assignments|issuers|fleet|edges)(/([a-z0-9._-]{0,20}|refresh|confirm|rows|agents|summary|dry-run|history|diff|rollback|pin)){0,4}"
        ) {
            if let Ok(route) = Route::parse(&path) {
                prop_assert_eq!(route.to_string(), path);
            }
        }
    }
}
