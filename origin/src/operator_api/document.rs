//! The representation of an object for operators: document, author and state.

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;
use serde_json::{Value, json};
use weir_protocol::conditional;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_runtime::admin;
use weir_runtime::serve::Body;
use weir_source::ServiceConfig;
use weir_upstream::{DefinedBy, RepositoryConfig};

use super::permissions::Permissions;
use super::problems;
use crate::catalog::{Defined, Outcome, Snapshot, version};
use crate::plans::DefinedPlan;
use crate::status;

pub(super) struct Document {
    shown: Value,
    /// The versions of document and state; `If-Match` compares the first.
    etag: String,
}

impl Document {
    /// `None`: no repository has this name.
    pub(super) fn repository(snapshot: &Snapshot, name: &RepositoryName) -> Option<Self> {
        let defined = snapshot.definitions.repositories.get(name)?;
        Some(Self::of_repository(snapshot, name, defined))
    }

    pub(super) fn of_repository(
        snapshot: &Snapshot,
        name: &RepositoryName,
        defined: &Defined<RepositoryConfig>,
    ) -> Self {
        Self::new(defined, status::state_of_repository(snapshot, name))
    }

    /// `None`: no service has this name.
    pub(super) fn service(snapshot: &Snapshot, name: &ServiceName) -> Option<Self> {
        let defined = snapshot.definitions.services.get(name)?;
        Some(Self::of_service(snapshot, name, defined))
    }

    pub(super) fn of_service(snapshot: &Snapshot, name: &ServiceName, defined: &Defined<ServiceConfig>) -> Self {
        Self::new(defined, status::state_of_service(snapshot, name, &defined.document))
    }

    /// An agent, an assignment or an issuer.
    pub(super) fn of_entry(entry: &impl Serialize, by: DefinedBy) -> Self {
        let version = version(entry);
        let mut shown = serde_json::to_value(entry).expect("an entry is made of texts and lists");
        shown["defined_by"] = by.as_str().into();
        shown["version"] = version.as_str().into();
        Self { shown, etag: format!("\"{version}\"") }
    }

    /// Of a repository: without the services that the operator does not see.
    pub(super) fn limited_to(mut self, may: &Permissions) -> Self {
        may.limit_repository(&mut self.shown);
        self
    }

    /// With what a change of it matches nothing.
    pub(super) fn with_warnings(mut self, warnings: Vec<String>) -> Self {
        self.shown["warnings"] = warnings.into();
        self
    }

    /// A plan of rollouts.
    pub(super) fn of_plan(defined: &DefinedPlan, state: Value) -> Self {
        Self::with_state(&defined.plan, defined.by, Some(state))
    }

    fn new<T: Serialize>(defined: &Defined<T>, state: Option<Value>) -> Self {
        Self::with_state(&defined.document, defined.by, state)
    }

    fn with_state(document: &impl Serialize, by: DefinedBy, state: Option<Value>) -> Self {
        let (of_document, of_state) = (version(document), version(&state));
        let mut shown = serde_json::to_value(document).expect("a document is made of texts, numbers and lists");
        shown["defined_by"] = by.as_str().into();
        shown["version"] = of_document.as_str().into();
        shown["status"] = state.into();
        Self { shown, etag: format!("\"{of_document}.{of_state}\"") }
    }

    /// As an element of a listing.
    pub(super) fn into_value(self) -> Value {
        self.shown
    }

    /// As an answer.
    pub(super) fn answer(self, status: StatusCode, headers: &HeaderMap) -> Response<Body> {
        let known = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|value| value.to_str().ok());
        let mut response = if status == StatusCode::OK
            && known.into_iter().any(|value| conditional::if_none_match_tag(value, &self.etag))
        {
            let mut response = Response::new(Body::Empty);
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            response
        } else {
            let mut response = admin::json(&self.shown);
            *response.status_mut() = status;
            response
        };
        let etag = HeaderValue::try_from(self.etag).expect("hexadecimal digits in quotes are a header value");
        response.headers_mut().insert(header::ETAG, etag);
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        response
    }
}

/// A page of a listing.
pub(super) fn listing(
    kind: &str,
    documents: impl Iterator<Item = Document>,
    next_page: Option<&String>,
) -> Response<Body> {
    let documents: Vec<Value> = documents.map(Document::into_value).collect();
    uncached(&json!({ kind: documents, "next_page": next_page }))
}

/// Answers with the document of a repository.
pub(super) fn repository(
    at: &Snapshot,
    name: &RepositoryName,
    status: StatusCode,
    head: &Parts,
) -> Result<Response<Body>, Problem> {
    let document = Document::repository(at, name).ok_or_else(|| problems::no_such_repository(name))?;
    Ok(document.answer(status, &head.headers))
}

/// Answers with the document of a service.
pub(super) fn service(
    at: &Snapshot,
    name: &ServiceName,
    status: StatusCode,
    head: &Parts,
) -> Result<Response<Body>, Problem> {
    let document = Document::service(at, name).ok_or_else(|| problems::no_such_service(name))?;
    Ok(document.answer(status, &head.headers))
}

/// An answer that is true now.
pub(super) fn uncached(document: &impl Serialize) -> Response<Body> {
    let mut response = admin::json(document);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

pub(super) fn no_content() -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = StatusCode::NO_CONTENT;
    response
}

pub(super) fn status_of(outcome: Outcome) -> StatusCode {
    if outcome == Outcome::Created { StatusCode::CREATED } else { StatusCode::OK }
}
