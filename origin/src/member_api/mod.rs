//! The requests of other origins of the cluster, on `listen`. Only certificates of origins open them.

use std::time::Duration;

use http::uri::PathAndQuery;
use http::{HeaderValue, Request, Response, StatusCode, Uri};
use weir_ownership::Event;
use weir_protocol::name::{ClusterId, NodeName};
use weir_protocol::problem::Problem;
use weir_protocol::route::RouteError;
use weir_runtime::admin;
use weir_runtime::serve::{Body, RequestBody};

use crate::cluster::{Cluster, Replicas, Unreadable};
use crate::config::OperatorRole;
use crate::member_client::{CALLER, CALLER_ROLE, CLUSTER, Readiness, Route, SECRET};
use crate::operator_api::OperatorApi;

/// `Retry-After` while the store cannot be read.
const SOON: Duration = Duration::from_secs(2);

/// Characters of a role that is not known, in its answer.
const MAX_SHOWN_ROLE: usize = 64;

/// Answers other members. Clones are cheap.
#[derive(Clone)]
pub(crate) struct MemberApi {
    cluster: Cluster,
    replicas: Replicas,
    id: Option<ClusterId>,
    operators: OperatorApi,
}

impl MemberApi {
    pub(crate) fn new(cluster: Cluster, replicas: Replicas, id: Option<ClusterId>, operators: OperatorApi) -> Self {
        Self { cluster, replicas, id, operators }
    }

    /// Answers the request of the member `by`.
    pub(crate) async fn answer(
        &self,
        route: Result<Route<'_>, RouteError>,
        request: Request<RequestBody>,
        by: NodeName,
    ) -> Response<Body> {
        if let Some(problem) = self.refused(&request, &by) {
            return problem.into_response();
        }
        match route {
            Ok(route) if !route.takes(request.method()) => Problem::method_not_allowed("POST").into_response(),
            Ok(Route::Ask(repository)) => {
                let ready = self.cluster.asked(&repository).await;
                admin::json(&serde_json::to_value(Readiness { ready }).unwrap_or_default())
            }
            Ok(Route::Tell(repository)) => {
                self.cluster.send(Event::Told { repository }).await;
                no_content()
            }
            Ok(Route::Changed(repository)) => match self.replicas.read_again(&repository).await {
                Ok(()) => no_content(),
                Err(Unreadable) => unreadable(),
            },
            Ok(Route::Lists) => match self.operators.read_lists_again().await {
                Ok(()) => no_content(),
                Err(problem) => problem.into_response(),
            },
            Ok(Route::Forwarded(path)) => {
                let path = path.to_owned();
                self.forwarded(&path, request, by).await
            }
            Err(error) => Problem::from(error).into_response(),
        }
    }

    /// Whether the origin that requests is of another cluster: its certificate alone does not say that. One of an earlier
    /// version names none.
    fn refused(&self, request: &Request<RequestBody>, by: &NodeName) -> Option<Problem> {
        let (own, named) = self.id.as_ref().zip(request.headers().get(CLUSTER))?;
        if named == own.as_str() {
            return None;
        }
        let named = String::from_utf8_lossy(named.as_bytes());
        let title = "The origin that requests belongs to another cluster";
        let detail = format!(
            "{by} is of the cluster `{named}`, and this origin of `{own}`: one of them advertises a wrong URL, or uses another \
             store than it should (`[cluster]`)."
        );
        tracing::warn!(origin = %by, cluster = %named, "an origin of another cluster took this one for a member");
        Some(Problem::new(StatusCode::MISDIRECTED_REQUEST, "another-cluster", title, detail))
    }

    /// Answers a request as if it came to the operators' listener.
    async fn forwarded(&self, path: &str, mut request: Request<RequestBody>, by: NodeName) -> Response<Body> {
        let Ok(path) = path.parse::<PathAndQuery>() else {
            return Problem::malformed("the forwarded path cannot be read.").into_response();
        };
        *request.uri_mut() = Uri::from(path);
        let (shown, role) = (request.headers_mut().remove(SECRET), request.headers_mut().remove(CALLER_ROLE));
        let caller = match request.headers_mut().remove(CALLER).map(|name| name.to_str().map(str::parse)) {
            None => None,
            Some(Ok(Ok(_))) if !shown.is_some_and(|shown| self.cluster.secrets().admit(&shown)) => {
                return not_a_member(&by);
            }
            Some(Ok(Ok(caller))) => Some(caller),
            Some(_) => return Problem::malformed("`Weir-Caller` is not the name of an operator.").into_response(),
        };
        // A member of the release before states none.
        let known = |role: &HeaderValue| OperatorRole::ALL.into_iter().find(|each| *role == each.as_str());
        let role = match role.map(|role| known(&role).ok_or(role)).transpose() {
            Ok(role) => role,
            Err(unknown) => return unknown_role(&unknown, &by),
        };
        self.operators.forwarded(request, caller.zip(Some(role)), by).await
    }
}

fn unknown_role(role: &HeaderValue, by: &NodeName) -> Response<Body> {
    let role: String = String::from_utf8_lossy(role.as_bytes()).chars().take(MAX_SHOWN_ROLE).collect();
    let detail = format!(
        "Origin `{by}` passes on a request of an operator with the role `{role}`, which this origin does not know: run one release \
         on all origins of the cluster."
    );
    tracing::warn!(origin = %by, role, "a forwarded request of an operator has a role that is not known");
    Problem::new(StatusCode::FORBIDDEN, "unknown-role", "The role of the operator is not known", detail).into_response()
}

fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

fn unreadable() -> Response<Body> {
    let (status, title) = (StatusCode::SERVICE_UNAVAILABLE, "The store cannot be read just now");
    Problem::new(status, "store-unavailable", title, Unreadable.to_string()).retry_after(SOON).into_response()
}

fn not_a_member(by: &NodeName) -> Response<Body> {
    let title = "The origin that requests has not shown that it is a member";
    let detail = format!(
        "{by} states the name of an operator without the secret of this run of the origin, which only members read: it is of \
         an earlier version, or this origin has just started."
    );
    tracing::warn!(origin = %by, "an origin stated the name of an operator, but did not show that it is a member");
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, "not-a-member", title, detail).retry_after(SOON).into_response()
}
