//! Repositories, and lists of them and of services, as far as the operator sees them.

use http::request::Parts;
use http::{Response, StatusCode};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_protocol::query;
use weir_runtime::serve::Body;
use weir_source::ServiceConfig;

use super::OperatorApi;
use super::document::{Document, listing};
use super::page::Page;
use super::permissions::Permissions;
use super::problems;
use crate::catalog::Defined;

impl OperatorApi {
    pub(super) fn read_repository(
        &self,
        name: &RepositoryName,
        head: &Parts,
        may: &Permissions,
    ) -> Result<Response<Body>, Problem> {
        let document = Document::repository(&self.catalog.snapshot(), name);
        let document = document.ok_or_else(|| problems::no_such_repository(name))?;
        Ok(document.limited_to(may).answer(StatusCode::OK, &head.headers))
    }

    pub(super) fn repositories(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let page = Page::<RepositoryName>::parse(head.uri.query(), "`limit` and `page`", |_, _| Ok(false))?;
        let snapshot = self.catalog.snapshot();
        let seen = may.repositories_seen(&snapshot.definitions);
        let wanted = |name: &RepositoryName, _: &_| seen.as_ref().is_none_or(|seen| seen.contains(name));
        let (shown, next) = page.of(&snapshot.definitions.repositories, wanted);
        let documents =
            shown.into_iter().map(|(name, each)| Document::of_repository(&snapshot, name, each).limited_to(may));
        Ok(listing("repositories", documents, next.as_ref()))
    }

    pub(super) fn services(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let mut of: Option<RepositoryName> = None;
        let page = Page::<ServiceName>::parse(head.uri.query(), "`limit`, `page` and `repository`", |key, value| {
            if key == "repository" {
                of = Some(query::parsed(key, value)?);
            }
            Ok(key == "repository")
        })?;
        let snapshot = self.catalog.snapshot();
        let wanted = |name: &ServiceName, each: &Defined<ServiceConfig>| {
            may.sees(name) && of.as_ref().is_none_or(|of| each.document.repository() == of)
        };
        let (shown, next) = page.of(&snapshot.definitions.services, wanted);
        let documents = shown.into_iter().map(|(name, each)| Document::of_service(&snapshot, name, each));
        Ok(listing("services", documents, next.as_ref()))
    }
}
