//! An agent for which a version was staged, and is no longer: the version in force is older than what it has.

use weir_protocol::descriptor::{Descriptor, MAX_DESCRIPTOR_BYTES, Publication};
use weir_protocol::route::Route;

use super::error::PollError;
use super::poller::Poller;
use super::request::{EdgePoll, PollResult};
use super::response_status::succeeded;
use crate::edge_client::Protocol;
use crate::fetch::TarballHeaders;
use crate::verify::SignedPublication;

impl Poller {
    /// An edge offers an older generation than was seen. The release stays in any case. That is right if it is staged for other
    /// agents, and otherwise an error.
    pub(super) async fn regressed(
        &self,
        poll: EdgePoll<'_>,
        seen: u64,
        offered: u64,
    ) -> Result<(PollResult, Protocol), PollError> {
        if let Some(waiting) = self.staged_for_others(poll).await {
            return Ok(waiting);
        }
        self.service_metrics.generation_regressions.inc();
        tracing::warn!(
            service = %self.service,
            edge = %poll.edge.url(),
            generation = offered,
            highest_generation = seen,
            "an edge offered an older generation than was seen; its response is rejected"
        );
        Err(PollError::Regressed { seen, offered })
    }

    /// The version in force if exactly the release of this machine is staged beside it.
    async fn staged_for_others(&self, poll: EdgePoll<'_>) -> Option<(PollResult, Protocol)> {
        let EdgePoll { edge, local, request_id } = poll;
        let keys = if local.pinned { None } else { Some(self.keys().ok()?) }?;
        let route = Route::Service(self.service.clone());
        let response = edge.document(&route, None, self.fetch_timeout, Some(request_id)).await.ok()?;
        let protocol = response.protocol;
        let mut body = succeeded(edge, response).await.ok()?.body;
        let in_force = Descriptor::parse(body.read(MAX_DESCRIPTOR_BYTES).await.ok()??.into()).ok()?;
        let (staged, publication) = (in_force.fields().staged.as_ref()?, in_force.publication());
        let named = match keys {
            None => {
                let later = staged.later_than(publication)?;
                (later.publication().generation, later.publication().digest)
            }
            // Nothing beside an envelope is proved.
            Some(keys) => {
                let descriptor = staged.descriptor.get().as_bytes();
                let signed = SignedPublication::verify(descriptor, &self.service, keys.keys()).ok()?;
                (signed.generation, signed.digest)
            }
        };
        let is_held = publication.service == self.service && named == (local.highest_generation, local.digest?);
        let Publication { digest, generation, commit, revision_id, version, .. } = publication.clone();
        let answer =
            TarballHeaders { digest: Some(digest), generation, commit, revision_id: Some(revision_id), version };
        is_held.then_some((PollResult::Staged(answer), protocol))
    }
}
