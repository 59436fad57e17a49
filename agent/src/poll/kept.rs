//! A release that is on disk already, before an edge is asked for it.

use weir_release::ReleaseName;

use super::follower::Follower;

impl Follower {
    /// The release that the check refused, or a kept one that the last row offers and that nobody has changed: after a `git revert`
    /// or a rollback nothing is fetched.
    pub(super) async fn unpacked(&self) -> Option<ReleaseName> {
        let offered = self.row.map(|(digest, _)| digest);
        let refused = self.veto.as_ref().map(|veto| veto.release);
        if let Some(name) = refused.filter(|name| offered.is_none_or(|offered| offered == name.digest())) {
            return Some(name).filter(|name| self.directory.release_path(*name).is_dir());
        }
        let offered = offered?;
        if self.directory.state().release.is_some_and(|release| release.directory.digest() == offered) {
            return None;
        }
        let found = tokio::select! {
            () = self.interrupted() => return None,
            found = self.on_disk(move |directory| directory.kept(offered)) => found,
        };
        found.unwrap_or_else(|error| {
            tracing::warn!(service = %self.poller.service, %error, "a kept release cannot be read: it is fetched");
            None
        })
    }
}
