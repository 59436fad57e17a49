//! What is staged of a service, or was and was aborted.

use serde::Serialize;
use weir_protocol::commit_id::CommitId;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_protocol::revision_id::RevisionId;
use weir_protocol::staged::Audience;
use weir_rollout::State;

use super::queries::Queries;
use crate::error::PublishError;
use crate::request::Author;
use crate::stored::history_line::Time;
use crate::stored::row::{Row, from_unix, parsed};

/// A staged version, and the one that everybody else gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rollout {
    /// The version in force.
    pub from: RolloutVersion,
    /// The staged one.
    pub to: RolloutVersion,
    /// Whether it is still staged.
    pub state: RolloutState,
    /// Who gets it.
    #[serde(flatten)]
    pub audience: Option<Audience>,
    /// Since when the state is this one.
    pub since: Time,
    /// Who did that, and why.
    #[serde(flatten)]
    pub author: Author,
    /// Where its plan stands. `None`: an operator staged it.
    #[serde(skip)]
    pub by_plan: Option<State>,
    /// The repository of the service.
    #[serde(skip)]
    pub repository: RepositoryName,
}

/// Whether a version is staged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RolloutState {
    /// Some agents get it.
    Running,
    /// It was aborted, and is not published by itself.
    Aborted,
}

/// A version of a rollout.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RolloutVersion {
    /// Its generation.
    pub generation: Generation,
    /// The digest of its tarball.
    pub digest: TarballDigest,
    /// The commit of `revision_id`; `None` if that is no commit.
    pub commit: Option<CommitId>,
    /// The revision that it was built from.
    pub revision_id: RevisionId,
}

impl Queries {
    /// What is staged of a service, or was and was aborted. `None`: nothing since the last publication.
    ///
    /// # Errors
    /// The state cannot be read.
    pub async fn rollout(
        &self,
        repository: &RepositoryName,
        service: &ServiceName,
    ) -> Result<Option<Rollout>, PublishError> {
        let row = self.repositories.row(repository, service).await?;
        row.as_ref().map_or(Ok(None), |row| of_row(row, repository))
    }
}

fn of_row(row: &Row, repository: &RepositoryName) -> Result<Option<Rollout>, PublishError> {
    let Some(from) = row.current.as_ref().map(parsed).transpose()?.as_ref().map(RolloutVersion::of) else {
        return Ok(None);
    };
    if let Some(staged) = &row.staged
        && let Some(version) = row.version(&staged.digest)
    {
        let (state, audience) = (RolloutState::Running, staged.audience.clone());
        let (since, author) = (from_unix(staged.since).into(), staged.author.clone());
        let (to, by_plan) = (RolloutVersion::of(&parsed(version)?), staged.rollout.clone());
        return Ok(Some(Rollout { from, to, state, audience, since, author, by_plan, repository: repository.clone() }));
    }
    Ok(row.aborted.as_ref().map(|aborted| Rollout {
        from,
        to: RolloutVersion {
            generation: aborted.generation,
            digest: aborted.digest,
            commit: aborted.revision_id.commit(),
            revision_id: aborted.revision_id.clone(),
        },
        state: RolloutState::Aborted,
        audience: None,
        since: from_unix(aborted.at).into(),
        author: aborted.author.clone(),
        by_plan: aborted.rollout.clone(),
        repository: repository.clone(),
    }))
}

impl RolloutVersion {
    fn of(descriptor: &Descriptor) -> Self {
        let publication = descriptor.publication();
        Self {
            generation: publication.generation,
            digest: publication.digest,
            commit: publication.commit.clone(),
            revision_id: publication.revision_id.clone(),
        }
    }
}
