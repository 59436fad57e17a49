//! The requests of the operators' API, in one table.

use http::Method;
use weir_protocol::name::{
    AssignmentName, EdgeName, FreezeName, IssuerName, NodeName, RepositoryName, RolloutName, ServiceName,
};
use weir_protocol::problem::Problem;
use weir_protocol::route::RouteError;
use weir_protocol::routes;

use crate::config::OperatorRole;
use crate::webhook::{Provider, UnknownProvider};

/// Defines the requests of operators, one path a row: its segments, its value of a metric's label, the object whose owner
/// answers, and what may be done with it by whom.
macro_rules! requests {
    ($($(#[$doc:meta])* $variant:ident$(($($field:ident: $type:ty),+))? = [$($segment:tt)/+] $label:literal
        $(about $kind:ident($of:ident))? { $($action:ident $needs:ident),+ },)+) => {
        routes! {
            /// A parsed path.
            pub(super) enum Route {
                $($(#[$doc])* $variant$(($($field: $type),+))? = [$($segment)/+] $label,)+
            }
        }

        impl Route {
            /// What may be done with the object.
            fn actions(&self) -> &'static [(Action, Needs)] {
                match self {
                    $(Route::$variant { .. } => &[$((Action::$action, Needs::$needs)),+],)+
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

        /// All requests of operators and webhooks.
        pub fn operator_requests() -> Vec<OperatorRequest> {
            let mut all = Vec::new();
            $({
                let path: Vec<_> = [$(stringify!($segment)),+].map(segment).into();
                all.extend([$((Action::$action, Needs::$needs)),+].map(|of| OperatorRequest::new(&path, of)));
            })+
            all
        }
    };
}

requests! {
    /// All repositories.
    Repositories = ["repositories"] "repositories" { Read View },
    /// One repository.
    Repository(repository: RepositoryName) = ["repositories" / repository] "repository" about Repository(repository) { Read View, Put Admin, Delete Admin },
    /// Polls its upstream soon.
    Refresh(repository: RepositoryName) = ["repositories" / repository / "refresh"] "refresh" about Repository(repository) { Post Deliver },
    /// Checks a document of it, and stores nothing.
    RepositoryDryRun(repository: RepositoryName) = ["repositories" / repository / "dry-run"] "repository_dry_run" about Repository(repository) { DryRun Admin },
    /// Accepts its readable state after damage.
    Confirm(repository: RepositoryName) = ["repositories" / repository / "confirm"] "confirm" about Repository(repository) { Post Admin },
    /// Reports changed refs.
    Webhook(provider: Provider, repository: RepositoryName) = ["webhooks" / provider / repository] "webhook" about Repository(repository) { Post Signature },
    /// All services.
    Services = ["services"] "services" { Read View },
    /// One service.
    Service(service: ServiceName) = ["services" / service] "service" about Service(service) { Read View, Put Define, Delete Define },
    /// Its publications.
    History(service: ServiceName) = ["services" / service / "history"] "history" about Service(service) { Read View },
    /// Compares two versions.
    Diff(service: ServiceName) = ["services" / service / "diff"] "diff" about Service(service) { Read View },
    /// Returns to a retained version.
    Rollback(service: ServiceName) = ["services" / service / "rollback"] "rollback" about Service(service) { Post Deliver },
    /// Pins and unpins it.
    Pin(service: ServiceName) = ["services" / service / "pin"] "pin" about Service(service) { Put Deliver, Delete Deliver },
    /// Publishes a version for some agents first.
    Stage(service: ServiceName) = ["services" / service / "stage"] "stage" about Service(service) { Post Deliver },
    /// What is staged; promotes, aborts, pauses, resumes or approves it.
    Rollout(service: ServiceName) = ["services" / service / "rollout"] "rollout" about Service(service) { Read View, Post Deliver },
    /// Lists its next tarball.
    DryRun(service: ServiceName) = ["services" / service / "dry-run"] "dry_run" about Service(service) { DryRun Define },
    /// The plans of rollouts.
    Plans = ["rollouts"] "rollouts" { Read View },
    /// One of them.
    Plan(rollout: RolloutName) = ["rollouts" / rollout] "plan" { Read View, Put Admin, Delete Admin },
    /// Checks a document of it, and stores nothing.
    PlanDryRun(rollout: RolloutName) = ["rollouts" / rollout / "dry-run"] "plan_dry_run" { DryRun Admin },
    /// Of which services nothing new is published.
    Freezes = ["freezes"] "freezes" { Read View },
    /// One of these freezes.
    Freeze(freeze: FreezeName) = ["freezes" / freeze] "freeze" { Read View, Put Deliver, Delete Deliver },
    /// All agents with an entry.
    Agents = ["agents"] "agents" { Read ViewAll },
    /// One of them.
    Agent(agent: NodeName) = ["agents" / agent] "agent" { Read ViewAll, Put Admin, Delete Admin },
    /// All assignments.
    Assignments = ["assignments"] "assignments" { Read ViewAll },
    /// What a change would begin and end.
    AssignmentDryRun = ["assignments" / "dry-run"] "assignment_dry_run" { DryRun Admin },
    /// One assignment.
    Assignment(assignment: AssignmentName) = ["assignments" / assignment] "assignment" { Read ViewAll, Put Admin, Delete Admin },
    /// All issuers.
    Issuers = ["issuers"] "issuers" { Read ViewAll },
    /// One issuer.
    Issuer(issuer: IssuerName) = ["issuers" / issuer] "issuer" { Read ViewAll, Put Admin, Delete Admin },
    /// Registers several agents, assignments and issuers.
    Batch = ["batch"] "batch" { Post Admin },
    /// What agents run.
    FleetRows = ["fleet" / "rows"] "fleet_rows" { Read View },
    /// The agents that edges have reported.
    FleetAgents = ["fleet" / "agents"] "fleet_agents" { Read View },
    /// Forgets one of them.
    FleetAgent(agent: NodeName) = ["fleet" / "agents" / agent] "fleet_agent" { Delete Admin },
    /// Counts of rows.
    FleetSummary = ["fleet" / "summary"] "fleet_summary" { Read View },
    /// The edges that have reported.
    Edges = ["edges"] "edges" { Read ViewAll },
    /// Forgets an edge.
    Edge(edge: EdgeName) = ["edges" / edge] "edge" { Delete Admin },
    /// The origins of the cluster.
    Members = ["members"] "members" { Read ViewAll },
    /// What the operator of the request may do.
    Whoami = ["whoami"] "whoami" { Read View },
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

/// What an operator needs for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    /// Its sender is no operator, and proves itself by a signature.
    Signature,
    /// Of services: to see them. Of lists of services: they have what the operator sees.
    View,
    /// To see all services.
    ViewAll,
    Deliver,
    Define,
    Admin,
}

impl Needs {
    /// `None`: no role is enough.
    pub(super) fn role(self) -> Option<OperatorRole> {
        Some(match self {
            Self::Signature => return None,
            Self::View | Self::ViewAll => OperatorRole::View,
            Self::Deliver => OperatorRole::Deliver,
            Self::Define => OperatorRole::Define,
            Self::Admin => OperatorRole::Admin,
        })
    }
}

/// A row of the reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperatorRequest {
    /// `GET, HEAD`.
    pub methods: &'static str,
    /// `/v1/services/{service}`.
    pub path: String,
    /// The least role. `None`: a signature is needed.
    pub role: Option<OperatorRole>,
    /// Operators with `services` are refused.
    pub needs_all_services: bool,
    /// The log has a line of it.
    pub is_audited: bool,
}

impl OperatorRequest {
    fn new(path: &[String], (action, needs): (Action, Needs)) -> Self {
        Self {
            methods: action.methods(),
            path: format!("/v1/{}", path.join("/")),
            role: needs.role(),
            needs_all_services: needs == Needs::ViewAll,
            is_audited: action.changes(),
        }
    }
}

/// A literal, or `{name}`.
fn segment(written: &str) -> String {
    let literal = written.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    literal.map_or_else(|| format!("{{{written}}}"), ToOwned::to_owned)
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

    /// What a request with this method does, and what it needs.
    pub(super) fn action(&self, method: &Method) -> Result<(Action, Needs), Problem> {
        let of_method =
            |(action, _): &&(Action, Needs)| action.methods().split(", ").any(|each| each == method.as_str());
        self.actions().iter().find(of_method).copied().ok_or_else(|| {
            let methods: Vec<_> = self.actions().iter().map(|(action, _)| action.methods()).collect();
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
        assert!(of(pin, Method::PUT).unwrap().0.changes() && of(pin, Method::DELETE).unwrap().0.changes());
        assert!(!of(service, Method::HEAD).unwrap().0.changes());
        assert!(!of("/v1/services/shop/dry-run", Method::POST).unwrap().0.changes());
        let refused = of(service, Method::POST).unwrap_err().into_response::<Vec<u8>>();
        assert_eq!(refused.headers()["allow"], "GET, HEAD, PUT, DELETE");
    }

    proptest! {
        #[test]
        fn paths_round_trip(
            path in "/v1/(services|repositories|webhooks|agents|assignments|issuers|rollouts|freezes|batch|fleet|edges|members|whoami)(/([a-z0-9._-]{0,20}|refresh|confirm|rows|agents|summary|dry-run|history|diff|rollback|pin|stage|rollout)){0,4}"
        ) {
            if let Ok(route) = Route::parse(&path) {
                prop_assert_eq!(route.to_string(), path);
            }
        }
    }
}
