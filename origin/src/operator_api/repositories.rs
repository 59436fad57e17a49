//! `PUT` and dry run of a repository, which check its document alike.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use serde_json::json;
use weir_protocol::name::RepositoryName;
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;
use weir_upstream::RepositoryConfig;

use super::conditions::precondition;
use super::document::{repository, status_of, uncached};
use super::validation::{self, ParsedDocument};
use super::{OperatorApi, read};
use crate::catalog::{AppliedEdit, Edit, Precondition};

impl OperatorApi {
    pub(super) async fn put_repository(
        &self,
        name: &RepositoryName,
        head: &Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem> {
        let (edit, precondition) = self.read_repository_document(name, head, body).await?;
        if let Some(members) = &self.members {
            members.claim(name, &self.catalog).await?;
        }
        let AppliedEdit { outcome, snapshot } = self.editor.edit(edit, precondition).await?;
        repository(&snapshot, name, status_of(outcome), head)
    }

    /// Says what the `PUT` of a document would do, or why it would be refused.
    pub(super) async fn dry_run_repository(
        &self,
        name: &RepositoryName,
        head: &Parts,
        body: Bytes,
    ) -> Result<Response<Body>, Problem> {
        let (edit, precondition) = self.read_repository_document(name, head, body).await?;
        let outcome = edit.check(&precondition, &self.catalog.snapshot().definitions)?;
        Ok(uncached(&json!({ "repository": name, "outcome": outcome.into_str() })))
    }

    async fn read_repository_document(
        &self,
        name: &RepositoryName,
        head: &Parts,
        body: Bytes,
    ) -> Result<(Edit, Precondition), Problem> {
        let mut precondition = precondition(&head.headers)?;
        let (secrets_dir, upstreams) = (self.secrets_dir.clone(), self.upstreams.clone());
        let more =
            move |document: &RepositoryConfig| validation::not_permitted(document, secrets_dir.as_deref(), &upstreams);
        let ParsedDocument { document, based_on } = read("repository", name.to_string(), body, more).await?;
        precondition.based_on = based_on;
        Ok((Edit::PutRepository(document.into()), precondition))
    }
}
