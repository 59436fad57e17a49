//! The paths of the operators' API.

use weir_protocol::name::{AssignmentName, EdgeName, IssuerName, NodeName, RepositoryName, ServiceName};
use weir_protocol::route::RouteError;
use weir_protocol::routes;

use crate::webhook::{Provider, UnknownProvider};

routes! {
    /// A parsed path.
    pub(super) enum Route {
        /// All repositories.
        Repositories = ["repositories"] "repositories",
        /// One repository.
        Repository(repository: RepositoryName) = ["repositories" / repository] "repository",
        /// Polls its upstream soon.
        Refresh(repository: RepositoryName) = ["repositories" / repository / "refresh"] "refresh",
        /// Accepts its readable state after damage.
        Confirm(repository: RepositoryName) = ["repositories" / repository / "confirm"] "confirm",
        /// Reports changed refs.
        Webhook(provider: Provider, repository: RepositoryName) = ["webhooks" / provider / repository] "webhook",
        /// All services.
        Services = ["services"] "services",
        /// One service.
        Service(service: ServiceName) = ["services" / service] "service",
        /// Its publications.
        History(service: ServiceName) = ["services" / service / "history"] "history",
        /// Compares two versions.
        Diff(service: ServiceName) = ["services" / service / "diff"] "diff",
        /// Returns to a retained version.
        Rollback(service: ServiceName) = ["services" / service / "rollback"] "rollback",
        /// Pins and unpins it.
        Pin(service: ServiceName) = ["services" / service / "pin"] "pin",
        /// Lists its next tarball.
        DryRun(service: ServiceName) = ["services" / service / "dry-run"] "dry_run",
        /// All agents with an entry.
        Agents = ["agents"] "agents",
        /// One of them.
        Agent(agent: NodeName) = ["agents" / agent] "agent",
        /// All assignments.
        Assignments = ["assignments"] "assignments",
        /// What a change would begin and end.
        AssignmentDryRun = ["assignments" / "dry-run"] "assignment_dry_run",
        /// One assignment.
        Assignment(assignment: AssignmentName) = ["assignments" / assignment] "assignment",
        /// All issuers.
        Issuers = ["issuers"] "issuers",
        /// One issuer.
        Issuer(issuer: IssuerName) = ["issuers" / issuer] "issuer",
        /// Registers several agents, assignments and issuers.
        Batch = ["batch"] "batch",
        /// What agents run.
        FleetRows = ["fleet" / "rows"] "fleet_rows",
        /// The agents that edges have reported.
        FleetAgents = ["fleet" / "agents"] "fleet_agents",
        /// Forgets one of them.
        FleetAgent(agent: NodeName) = ["fleet" / "agents" / agent] "fleet_agent",
        /// Counts of rows.
        FleetSummary = ["fleet" / "summary"] "fleet_summary",
        /// Forgets an edge.
        Edge(edge: EdgeName) = ["edges" / edge] "edge",
    }
}

impl From<UnknownProvider> for RouteError {
    fn from(_: UnknownProvider) -> Self {
        Self::Unknown
    }
}

impl Route {
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
            | Route::AssignmentDryRun
            | Route::Batch => "POST",
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
            path in "/v1/(services|repositories|webhooks|agents|assignments|issuers|batch|fleet|edges)(/([a-z0-9._-]{0,20}|refresh|confirm|rows|agents|summary|dry-run|history|diff|rollback|pin)){0,4}"
        ) {
            if let Ok(route) = Route::parse(&path) {
                prop_assert_eq!(route.to_string(), path);
            }
        }
    }
}
