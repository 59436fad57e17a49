//! A release that is on disk already, before an edge is asked for it.

use weir_release::ReleaseName;

use super::follower::Follower;

impl Follower {
    /// The release that the check refused, or a kept one that the last row offers and that nobody has changed: after a `git revert`
    /// or a rollback nothing is fetched.
    pub(super) async fn unpacked(&self) -> Option<ReleaseName> {
        if let Some(veto) = &self.veto {
            return Some(veto.release).filter(|name| self.directory.release_path(*name).is_dir());
        }
        let (offered, _) = self.row?;
        if self.directory.state().release.is_some_and(|release| release.directory.digest() == offered) {
            return None;
        }
        let found = self.on_disk(move |directory| directory.kept(offered)).await;
        found.unwrap_or_else(|error| {
            tracing::warn!(service = %self.poller.service, %error, "a kept release cannot be read: it is fetched");
            None
        })
    }
}
