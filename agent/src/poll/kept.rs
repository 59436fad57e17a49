//! A release that is on disk already, before an edge is asked for it.

use weir_release::ReleaseName;

use super::follower::Follower;
use super::ready::Ready;
use crate::dependencies::Waits;
use crate::hook::Check;

impl Follower {
    /// What a switch to other content waits for.
    pub(super) fn waits(&self) -> Option<Waits> {
        let lacks_labels = self.check.as_ref().is_some_and(Check::lacks_labels);
        let waits = self.services.waits(&self.poller.service, &self.depends_on);
        waits.or(lacks_labels.then_some(Waits::NoLabels))
    }

    /// What a switch to a release on disk records.
    pub(super) fn take_ready(&mut self, name: ReleaseName) -> Ready {
        let ready = self.ready.take_if(|ready| ready.name == name);
        ready.unwrap_or_else(|| {
            let tar = self.directory.state().record_of(name).tar;
            Ready { name, tar, manifest: None, transfer: None }
        })
    }

    /// A kept release that the last row offers and that nobody has changed, so that nothing is fetched after a `git revert` or a
    /// rollback; else the one that waits for others or that the check refused, whatever the row of an edge that lags says.
    pub(super) async fn unpacked(&self) -> Option<ReleaseName> {
        let current = self.directory.state().release.map(|release| release.directory.digest());
        let refused = self.ready.as_ref().map(|ready| ready.name).or(self.veto.as_ref().map(|veto| veto.release));
        let offered = self.row.map(|(digest, _)| digest);
        let other = offered.filter(|offered| ![current, refused.map(|name| name.digest())].contains(&Some(*offered)));
        let kept = match other {
            Some(offered) => tokio::select! {
                () = self.interrupted() => return None,
                found = self.on_disk(move |directory| directory.kept(offered)) => found,
            },
            None => Ok(None),
        };
        let kept = kept.unwrap_or_else(|error| {
            tracing::warn!(service = %self.poller.service, %error, "a kept release cannot be read: it is fetched");
            None
        });
        kept.or_else(|| refused.filter(|name| self.directory.release_path(*name).is_dir()))
    }
}
