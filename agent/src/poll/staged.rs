//! An agent that is offered an older version than it has seen, perhaps because a later one is staged for others.

use weir_protocol::access_list::AccessList;
use weir_protocol::descriptor::{Descriptor, MAX_DESCRIPTOR_BYTES, Publication};
use weir_protocol::route::Route;

use super::error::PollError;
use super::poller::{Poller, headers};
use super::request::{EdgePoll, LocalState, PollResult, Version};
use super::response_status::succeeded;
use crate::edge_client::Protocol;
use crate::fetch::TarballHeaders;
use crate::verify::SignedPublication;

impl Poller {
    /// An edge offers an older generation than was seen. The release stays in any case. That is right if a later version is staged
    /// for other agents, and otherwise an error. `is_refresh`: then the release is fetched, too.
    pub(super) async fn regressed(
        &self,
        poll: EdgePoll<'_>,
        is_refresh: bool,
        seen: u64,
        offered: u64,
    ) -> Result<(PollResult, Protocol), PollError> {
        let Some((kept, protocol)) = self.kept(poll).await else {
            self.service_metrics.generation_regressions.inc();
            tracing::warn!(
                service = %self.service,
                edge = %poll.edge.url(),
                generation = offered,
                highest_generation = seen,
                "an edge offered an older generation than was seen; its response is rejected"
            );
            return Err(PollError::Regressed { seen, offered });
        };
        let release = self.directory.state().release.filter(|_| is_refresh);
        let Some(release) = release else { return Ok((kept, protocol)) };
        let (fetched, protocol) = self.get_tarball(poll, true, Version::Retained(&release.into())).await?;
        let refreshed = match (kept, fetched) {
            (PollResult::Staged(in_force, _), PollResult::Fetched(tarball, held)) => {
                PollResult::Staged(in_force, Some((tarball, held).into()))
            }
            (_, fetched) => fetched,
        };
        Ok((refreshed, protocol))
    }

    /// What the descriptor says, if it gives a reason to keep the release.
    async fn kept(&self, poll: EdgePoll<'_>) -> Option<(PollResult, Protocol)> {
        let EdgePoll { edge, local, request_id } = poll;
        // Of a pinned service nothing is taken.
        let keys = if local.pinned { None } else { self.keys().ok()? };
        let route = Route::Service(self.service.clone());
        let response = edge.document(&route, None, self.fetch_timeout, Some(request_id)).await.ok()?;
        let protocol = response.protocol;
        let mut body = succeeded(edge, response).await.ok()?.body;
        let in_force = Descriptor::parse(body.read(MAX_DESCRIPTOR_BYTES).await.ok()??.into()).ok()?;
        let staged = in_force.fields().staged.as_ref().and_then(|staged| staged.later_than(in_force.publication()));
        let proved = |descriptor: &Descriptor| self.published(descriptor, keys.as_deref());
        let (shown, staged) = (self.published(&in_force, None)?, staged.as_ref().and_then(proved));
        let kept = judge(local, shown, proved(&in_force), staged);
        kept.map(|kept| (kept, protocol))
    }

    /// What a descriptor publishes; with keys what one of them has signed: nothing beside an envelope is proved.
    fn published(&self, descriptor: &Descriptor, keys: Option<&AccessList>) -> Option<TarballHeaders> {
        if let Some(keys) = keys {
            return SignedPublication::verify(descriptor.bytes(), &self.service, keys.keys()).ok().map(headers);
        }
        let Publication { service, digest, generation, commit, revision_id, version, .. } =
            descriptor.publication().clone();
        let published =
            TarballHeaders { digest: Some(digest), generation, commit, revision_id: Some(revision_id), version };
        (service == self.service).then_some(published)
    }
}

/// Whether an agent keeps its release, by a descriptor that shows `shown` in force, and proves this much of what is in force and
/// of what is staged.
fn judge(
    local: LocalState,
    shown: TarballHeaders,
    in_force: Option<TarballHeaders>,
    staged: Option<TarballHeaders>,
) -> Option<PollResult> {
    let is_newest = |it: &TarballHeaders| it.generation == local.highest_generation;
    let is_held = |it: &TarballHeaders| it.digest.is_some() && it.digest == local.digest;
    // It has seen nothing later than these.
    let newest = staged.filter(is_newest);
    if local.pinned {
        return (newest.is_some() || is_newest(&shown)).then_some(PollResult::Held(shown));
    }
    match (newest, in_force) {
        // It is offered the staged version now, or by this edge.
        (_, Some(in_force)) if is_newest(&in_force) && is_held(&in_force) => Some(PollResult::Unchanged(in_force)),
        (Some(newest), _) if is_held(&newest) => Some(PollResult::Staged(shown, None)),
        // It was rolled back to the version in force.
        (Some(_), Some(in_force)) if is_held(&in_force) => Some(PollResult::Staged(shown, None)),
        _ => None,
    }
}
