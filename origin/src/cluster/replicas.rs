//! The read-only copies of what other members own. They are read again on use, so that every origin answers as the owner
//! would: nothing has to follow the other members, and what nobody uses costs nothing.

use std::sync::Arc;
use std::time::Duration;

use weir_ownership::Claim;
use weir_protocol::name::RepositoryName;
use weir_publish::{PublishError, Publisher};
use weir_store::Version;

use super::{Cluster, Owner, owner};
use crate::catalog::Editor;
use crate::shared_read::SharedRead;

/// The greatest age of a copy that is used. It is read once for all that wait for it.
pub(crate) const MAX_AGE: Duration = Duration::from_secs(1);

/// The records cannot be read now; the log has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the records of the cluster cannot be read")]
pub(crate) struct Unreadable;

/// Clones are cheap.
#[derive(Clone)]
pub(crate) struct Replicas {
    cluster: Cluster,
    publisher: Arc<Publisher>,
    editor: Editor,
    read_of_all: Arc<SharedRead<(), Unreadable>>,
}

impl Replicas {
    pub(crate) fn new(cluster: Cluster, publisher: Arc<Publisher>, editor: Editor) -> Self {
        Self { cluster, publisher, editor, read_of_all: Arc::default() }
    }

    /// The owner of a repository, by its record as it was at most a second ago. While the record cannot be read, a living
    /// owner that is known counts. `None`: the repository has no record.
    pub(crate) async fn owner(&self, repository: &RepositoryName) -> Result<Option<Owner>, Unreadable> {
        let known = || {
            let claim = self.claim(repository);
            let owner = owner(&self.cluster.view(), repository, claim.as_ref());
            (claim.is_some() || owner == Owner::Me).then_some(owner)
        };
        match known() {
            // Any name may be requested: what is not known is looked up for all such names together.
            None => self.refresh_all().await?,
            Some(Owner::Me) => return Ok(Some(Owner::Me)),
            Some(owner) => match self.read(repository, MAX_AGE).await {
                Err(Unreadable) if owner == Owner::Nobody => return Err(Unreadable),
                _ => {}
            },
        }
        Ok(known())
    }

    /// The claim in the record that this origin knows.
    pub(crate) fn claim(&self, repository: &RepositoryName) -> Option<Claim> {
        self.publisher.repositories.claim(repository)
    }

    /// The version of the record that this origin knows.
    pub(crate) fn version(&self, repository: &RepositoryName) -> Option<Version> {
        self.publisher.repositories.record_version(repository)
    }

    /// Reads the copy of a repository again, after another member changed it.
    pub(crate) async fn read_again(&self, repository: &RepositoryName) -> Result<(), Unreadable> {
        self.read(repository, Duration::ZERO).await
    }

    /// Brings the copy of a repository up to date.
    pub(crate) async fn refresh(&self, repository: &RepositoryName) -> Result<(), Unreadable> {
        if self.publisher.repositories.knows(repository) {
            self.read(repository, MAX_AGE).await
        } else {
            // Any name may be requested: those that have no record are looked up together, and cost no memory.
            self.refresh_all().await
        }
    }

    /// Reads all that has changed, and finds new repositories: for operators, who see what they have just changed elsewhere.
    pub(crate) async fn read_all_again(&self) -> Result<(), Unreadable> {
        self.read_all(Duration::ZERO).await
    }

    /// Brings all copies up to date, and finds new repositories.
    pub(crate) async fn refresh_all(&self) -> Result<(), Unreadable> {
        self.read_all(MAX_AGE).await
    }

    async fn read_all(&self, max_age: Duration) -> Result<(), Unreadable> {
        let read = async { self.publisher.ownership.refresh_all().await.map_err(|error| unreadable(&error)) };
        self.read_of_all.run(max_age, read).await?;
        self.apply().await
    }

    async fn read(&self, repository: &RepositoryName, max_age: Duration) -> Result<(), Unreadable> {
        self.publisher.ownership.refresh(repository, max_age).await.map_err(|error| unreadable(&error))?;
        if self.publisher.repositories.is_applied(repository) { Ok(()) } else { self.apply().await }
    }

    /// Waits until the catalog shows what was read.
    async fn apply(&self) -> Result<(), Unreadable> {
        if self.editor.apply_reloads().await { Ok(()) } else { Err(Unreadable) }
    }
}

fn unreadable(error: &PublishError) -> Unreadable {
    tracing::warn!(%error, "the state of another member cannot be read");
    Unreadable
}
