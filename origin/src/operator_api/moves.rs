//! The name of a service has to be its repository's before the service is defined there. A service that moves is released by
//! the owner of its old repository, which then passes the request on.

use bytes::Bytes;
use http::Response;
use http::request::Parts;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::problem::Problem;
use weir_runtime::serve::Body;

use super::OperatorApi;
use super::access::Caller;
use super::forward::{Members, OUTCOME_UNKNOWN};
use super::problems::not_published;
use crate::catalog::{AppliedEdit, Edit, EditError, Precondition};

/// A `PUT` of a service.
pub(super) struct ServicePut<'r> {
    pub(super) service: &'r ServiceName,
    /// The repository that the document names.
    pub(super) to: RepositoryName,
    pub(super) edit: Edit,
    pub(super) precondition: Precondition,
    pub(super) head: &'r Parts,
    pub(super) body: Bytes,
    /// The operator.
    pub(super) by: &'r Caller,
}

/// Who has carried out an edit.
pub(super) enum EditedBy {
    Me(AppliedEdit),
    /// The owner of the new repository, with its answer.
    Other(Response<Body>),
}

impl OperatorApi {
    /// Carries out the `PUT` of a service in a cluster.
    pub(super) async fn put_in_cluster(&self, members: &Members, put: ServicePut<'_>) -> Result<EditedBy, Problem> {
        let at = self.catalog.snapshot();
        let from = put.edit.moves_from(&put.precondition, &at.definitions)?;
        let Some(from) = from.filter(|from| at.owns(from)) else { return self.define(members, put).await };
        let (moving, service, to) = (members.names.edit(&from, put.service, true), put.service, put.to.clone());
        let moved = self.move_from(members, &from, put).await;
        drop(moving);
        let is_moved = match &moved {
            Ok(EditedBy::Me(_)) => {
                members.announce(&to).await;
                true
            }
            Ok(EditedBy::Other(answer)) => answer.status().is_success(),
            Err(_) => false,
        };
        if is_moved {
            let _ = members.replicas.read_again(&to).await;
            members.names.forget(&from, service).await;
        } else if members.names.take(&from, service).await.is_ok()
            && let Some(worker) = self.catalog.repository(&from)
        {
            // It has taken the service back, because the new repository has not.
            worker.resolve_all();
        }
        moved
    }

    async fn move_from(
        &self,
        members: &Members,
        from: &RepositoryName,
        put: ServicePut<'_>,
    ) -> Result<EditedBy, Problem> {
        members.names.pass_on(from, vec![(put.service.clone(), put.to.clone())]).await.map_err(not_published)?;
        let at = || self.catalog.snapshot();
        let Some(owner) = members.destination(&put.to, at, false, false).await? else {
            return self.define(members, put).await;
        };
        let request = (put.head.clone(), Body::from(put.body));
        members.send(&owner, Some(put.by), request, OUTCOME_UNKNOWN).await.map(EditedBy::Other)
    }

    /// Takes the name, and defines the service here.
    async fn define(&self, members: &Members, put: ServicePut<'_>) -> Result<EditedBy, Problem> {
        let edits = members.names.edit(&put.to, put.service, false);
        if self.catalog.snapshot().owns(&put.to) {
            members.names.take(&put.to, put.service).await.map_err(not_published)?;
        }
        let edited = self.editor.edit(put.edit, put.precondition).await;
        // Any other edit may still be made.
        if let Err(EditError::Refused(_)) = &edited {
            drop(edits);
            members.names.give_back(&put.to, put.service).await;
        }
        Ok(EditedBy::Me(edited?))
    }

    /// Deletes in a cluster: the names are free when it is acknowledged.
    pub(super) async fn delete_in_cluster(
        &self,
        members: &Members,
        edit: Edit,
        precondition: Precondition,
    ) -> Result<(), Problem> {
        // The old repository of a moved service may still store it.
        members.replicas.read_all_again().await?;
        let deleted = edit.deletes(&self.catalog.snapshot().definitions);
        self.editor.edit(edit, precondition).await?;
        if let Some((repository, services)) = deleted {
            members.names.free(&repository, services).await;
        }
        Ok(())
    }
}
