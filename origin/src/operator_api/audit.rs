//! The audit log of operators' changes: who, what, and the result.

use std::time::SystemTime;

use http::{Method, Response, StatusCode};
use serde::Deserialize;
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_protocol::name::NodeName;
use weir_protocol::plain_text::make_plain;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use super::OperatorApi;
use super::access::Caller;
use super::route::Route;
use crate::catalog::{LONGEST_REASON, version};

/// What a line says besides who, what and the result.
#[derive(Debug, Default)]
pub(super) struct Facts {
    /// Why the operator wants it.
    given_reason: Option<String>,
    /// The version of the object before the request, or the digest of its tarball, as far as this origin answers.
    pub(super) before: Option<String>,
    /// The same after it.
    pub(super) after: Option<String>,
    /// How many documents a batch has stored. Each has a line of its own.
    pub(super) documents: Option<usize>,
}

impl Facts {
    /// Reads the body of a request, also of one that is refused for it.
    pub(super) fn read(&mut self, route: &Route, body: &[u8]) {
        #[derive(Deserialize)]
        struct Stated {
            reason: String,
        }
        if matches!(route, Route::Rollback(_) | Route::Pin(_) | Route::Stage(_) | Route::Rollout(_) | Route::Freeze(_))
        {
            let stated = serde_json::from_slice::<Stated>(body).ok();
            self.given_reason = stated.map(|stated| {
                let mut reason: String = stated.reason.chars().take(LONGEST_REASON).collect();
                make_plain(&mut reason, LONGEST_REASON);
                reason
            });
        }
    }
}

/// Logs one line with the status and the reason of a refusal.
pub(super) fn log(
    by: &Caller,
    method: &Method,
    route: &Route,
    (facts, answer): (&Facts, &Result<Response<Body>, Problem>),
) {
    let (status, reason) = end(answer);
    let Facts { given_reason, before, after, documents } = facts;
    let role = by.may.role.as_str();
    let (by, forwarded_by) = (by.name.as_str(), by.forwarded_by().map(NodeName::as_str));
    tracing::info!(
        by, role, forwarded_by, %method, path = %route, status = status.as_u16(), reason, given_reason, before, after, documents,
        "operator request"
    );
}

/// Logs one line for a document that a batch has stored: what it was before, and its outcome and version after.
pub(super) fn log_part(by: &Caller, (kind, name): (&str, &str), before: Option<&str>, (outcome, after): (&str, &str)) {
    let (by, role) = (by.name.as_str(), by.may.role.as_str());
    tracing::info!(by, role, kind, name, outcome, before, after, "operator request: a document of a batch");
}

impl OperatorApi {
    /// The version of the document of an object, or the digest that a service is at where the request is about versions.
    pub(super) fn version_of(&self, route: &Route) -> Option<String> {
        let definitions = &self.catalog.snapshot().definitions;
        match route {
            Route::Rollback(name) | Route::Pin(name) | Route::Stage(name) | Route::Rollout(name) => {
                Some(self.catalog.service(name)?.current()?.publication().digest.to_string())
            }
            Route::Service(name) => Some(version(&definitions.services.get(name)?.document)),
            Route::Repository(name) => Some(version(&definitions.repositories.get(name)?.document)),
            Route::Agent(name) => Some(version(&self.fleet.get::<Agent>(name)?.0)),
            Route::Assignment(name) => Some(version(&self.fleet.get::<Assignment>(name)?.0)),
            Route::Plan(name) => Some(version(&self.plans.all().get(name)?.plan)),
            Route::Freeze(name) => Some(version(&self.freezes.get(name, SystemTime::now())?)),
            Route::Issuer(name) => Some(version(&self.fleet.get::<Issuer>(name)?.0)),
            _ => None,
        }
    }
}

fn end(answer: &Result<Response<Body>, Problem>) -> (StatusCode, Option<String>) {
    match answer {
        Ok(response) => (response.status(), None),
        Err(problem) => (problem.status(), Some(problem.detail().chars().take(LONGEST_REASON).collect())),
    }
}

#[cfg(test)]
mod tests {
    use super::super::problems;
    use super::*;

    #[test]
    fn a_refusal_is_logged_with_its_reason() {
        let refused = end(&Err(problems::no_such_service(&"shop".parse().unwrap())));
        assert_eq!(refused, (StatusCode::NOT_FOUND, Some("There is no service `shop` here.".to_owned())));
        assert_eq!(end(&Ok(Response::new(Body::Empty))), (StatusCode::OK, None));
        let (_, long) = end(&Err(Problem::malformed("x".repeat(1 << 20))));
        assert_eq!(long.unwrap().len(), LONGEST_REASON);
    }
}
