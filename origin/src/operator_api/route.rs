//! The requests of the operators' API, in one table.

use http::Method;
use weir_protocol::name::{AssignmentName, EdgeName, IssuerName, NodeName, RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_protocol::route::RouteError;
use weir_protocol::routes;

use crate::webhook::{Provider, UnknownProvider};

/// Defines the requests of operators, one path a row: its segments, its value of a metric's label, the object whose owner
/// answers, and what may be done with it.
macro_rules! requests {
    ($($(#[$doc:meta])* $variant:ident$(($($field:ident: $type:ty),+))? = [$($segment:tt)/+] $label:literal
        $(about $kind:ident($of:ident))? { $($action:ident),+ },)+) => {
        routes! {
            /// A parsed path.
            pub(super) enum Route {
                $($(#[$doc])* $variant$(($($field: $type),+))? = [$($segment)/+] $label,)+
            }
        }

        impl Route {
            /// What may be done with the object.
            fn actions(&self) -> &'static [Action] {
                match self {
                    $(Route::$variant { .. } => &[$(Action::$action),+],)+
                }
            }

            /// The object that the path names.
            #[expect(unused_variables, reason = "not every name in a path decides which origin answers")]
            pub(super) fn subject(&self) -> Subject {
                match self {
                    $(Route::$variant$(($($field),+))? => {
                        None$(.or_else(|| Some(Subject::$kind($of.clone()))))?.unwrap_or(Subject::Any)
                    })+
                }
            }
        }
    };
}

requests! {
    /// All repositories.
    Repositories = ["repositories"] "repositories" { Read },
    /// One repository.
    Repository(repository: RepositoryName) = ["repositories" / repository] "repository" about Repository(repository) { Read, Put, Delete },
    /// Polls its upstream soon.
    Refresh(repository: RepositoryName) = ["repositories" / repository / "refresh"] "refresh" about Repository(repository) { Post },
    /// Accepts its readable state after damage.
    Confirm(repository: RepositoryName) = ["repositories" / repository / "confirm"] "confirm" about Repository(repository) { Post },
    /// Reports changed refs.
    Webhook(provider: Provider, repository: RepositoryName) = ["webhooks" / provider / repository] "webhook" about Repository(repository) { Post },
    /// All services.
    Services = ["services"] "services" { Read },
    /// One service.
    Service(service: ServiceName) = ["services" / service] "service" about Service(service) { Read, Put, Delete },
    /// Its publications.
    History(service: ServiceName) = ["services" / service / "history"] "history" about Service(service) { Read },
    /// Compares two versions.
    Diff(service: ServiceName) = ["services" / service / "diff"] "diff" about Service(service) { Read },
    /// Returns to a retained version.
    Rollback(service: ServiceName) = ["services" / service / "rollback"] "rollback" about Service(service) { Post },
    /// Pins and unpins it.
    Pin(service: ServiceName) = ["services" / service / "pin"] "pin" about Service(service) { Put, Delete },
    /// Lists its next tarball.
    DryRun(service: ServiceName) = ["services" / service / "dry-run"] "dry_run" about Service(service) { DryRun },
    /// All agents with an entry.
    Agents = ["agents"] "agents" { Read },
    /// One of them.
    Agent(agent: NodeName) = ["agents" / agent] "agent" { Read, Put, Delete },
    /// All assignments.
    Assignments = ["assignments"] "assignments" { Read },
    /// What a change would begin and end.
    AssignmentDryRun = ["assignments" / "dry-run"] "assignment_dry_run" { DryRun },
    /// One assignment.
    Assignment(assignment: AssignmentName) = ["assignments" / assignment] "assignment" { Read, Put, Delete },
    /// All issuers.
    Issuers = ["issuers"] "issuers" { Read },
    /// One issuer.
    Issuer(issuer: IssuerName) = ["issuers" / issuer] "issuer" { Read, Put, Delete },
    /// Registers several agents, assignments and issuers.
    Batch = ["batch"] "batch" { Post },
    /// What agents run.
    FleetRows = ["fleet" / "rows"] "fleet_rows" { Read },
    /// The agents that edges have reported.
    FleetAgents = ["fleet" / "agents"] "fleet_agents" { Read },
    /// Forgets one of them.
    FleetAgent(agent: NodeName) = ["fleet" / "agents" / agent] "fleet_agent" { Delete },
    /// Counts of rows.
    FleetSummary = ["fleet" / "summary"] "fleet_summary" { Read },
    /// The edges that have reported.
    Edges = ["edges"] "edges" { Read },
    /// Forgets an edge.
    Edge(edge: EdgeName) = ["edges" / edge] "edge" { Delete },
    /// The origins of the cluster.
    Members = ["members"] "members" { Read },
    /// What the operator of the request may do.
    Whoami = ["whoami"] "whoami" { Read },
}

/// What a request does with the object of its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// `GET` and `HEAD`.
    Read,
    /// A `POST` that changes nothing.
    DryRun,
    Post,
    Put,
    Delete,
}

impl Action {
    /// The methods, for `Allow`.
    fn methods(self) -> &'static str {
        match self {
            Self::Read => "GET, HEAD",
            Self::DryRun | Self::Post => "POST",
            Self::Put => "PUT",
            Self::Delete => "DELETE",
        }
    }

    /// Whether a request changes something or triggers work. Such requests are audited.
    pub(super) fn changes(self) -> bool {
        !matches!(self, Self::Read | Self::DryRun)
    }
}

/// The object of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// No single repository: any origin answers.
    Any,
    Repository(RepositoryName),
    /// The repository of this service.
    Service(ServiceName),
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

    /// What a request with this method does.
    pub(super) fn action(&self, method: &Method) -> Result<Action, Problem> {
        let of_method = |action: &&Action| action.methods().split(", ").any(|each| each == method.as_str());
        self.actions().iter().find(of_method).copied().ok_or_else(|| {
            let methods: Vec<_> = self.actions().iter().map(|action| action.methods()).collect();
            Problem::method_not_allowed(&methods.join(", "))
        })
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

    #[test]
    fn the_table_says_which_methods_a_path_has_and_what_changes_something() {
        let of = |path: &str, method: Method| Route::parse(path).unwrap().action(&method);
        let (pin, service) = ("/v1/services/shop/pin", "/v1/services/shop");
        assert!(of(pin, Method::PUT).unwrap().changes() && of(pin, Method::DELETE).unwrap().changes());
        assert!(!of(service, Method::HEAD).unwrap().changes());
        assert!(!of("/v1/services/shop/dry-run", Method::POST).unwrap().changes());
        let refused = of(service, Method::POST).unwrap_err().into_response::<Vec<u8>>();
        assert_eq!(refused.headers()["allow"], "GET, HEAD, PUT, DELETE");
    }

    proptest! {
        #[test]
        fn paths_round_trip(
            path in "/v1/(services|repositories|webhooks|agents|assignments|issuers|batch|fleet|edges|members|whoami)(/([a-z0-9._-]{0,20}|refresh|confirm|rows|agents|summary|dry-run|history|diff|rollback|pin)){0,4}"
        ) {
            if let Ok(route) = Route::parse(&path) {
                prop_assert_eq!(route.to_string(), path);
            }
        }
    }
}
