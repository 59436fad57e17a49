//! Lists of repositories and services, as far as the operator sees them.

use http::Response;
use http::request::Parts;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_protocol::query;
use weir_runtime::serve::Body;
use weir_source::ServiceConfig;

use super::OperatorApi;
use super::document::{Document, listing};
use super::page::Page;
use super::permissions::Permissions;
use crate::catalog::Defined;

impl OperatorApi {
    pub(super) fn repositories(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let page = Page::<RepositoryName>::parse(head.uri.query(), "`limit` and `page`", |_, _| Ok(false))?;
        let snapshot = self.catalog.snapshot();
        let seen = may.repositories_seen(&snapshot.definitions);
        let wanted = |name: &RepositoryName, _: &_| seen.as_ref().is_none_or(|seen| seen.contains(name));
        let (shown, next) = page.of(&snapshot.definitions.repositories, wanted);
        let documents = shown.into_iter().map(|(name, each)| Document::of_repository(&snapshot, name, each));
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
