//! Offers the tar of the release on disk as the dictionary of a delta, and rebuilds it when an edge sends one.

use std::io::Read;

use tokio::task::spawn_blocking;
use weir_protocol::digest::Sha256;
use weir_release::{ReleaseName, TarRecord};

use super::poller::Poller;
use crate::fetch::Dictionary;

/// A dictionary that can be rebuilt.
pub(super) struct OfferedDictionary {
    pub(super) sha256: Sha256,
    size: u64,
    release: ReleaseName,
}

impl Poller {
    /// The tar of the current release. `None`: none, or one that this agent does not rebuild.
    pub(super) fn dictionary(&self) -> Option<OfferedDictionary> {
        let release = self.directory.state().release?;
        let TarRecord { sha256, size, .. } = release.tar.filter(TarRecord::can_be_rebuilt)?;
        Some(OfferedDictionary { sha256, size, release: release.directory })
    }

    /// Rebuilds a dictionary. `None`: the files on disk were changed.
    pub(super) async fn rebuild(&self, offered: OfferedDictionary) -> Option<Dictionary> {
        let directory = self.directory.clone();
        let rebuilt = spawn_blocking(move || {
            let OfferedDictionary { sha256, size, release } = offered;
            let mut tar = Vec::new();
            let read = directory.open_tar(release, size).and_then(|mut rebuilt| rebuilt.read_to_end(&mut tar));
            read.inspect_err(
                |error| tracing::debug!(digest = %release.digest(), %error, "the tar of the release cannot be rebuilt"),
            )
            .ok()?;
            (Sha256::of(&tar) == sha256).then_some(Dictionary { sha256, tar })
        });
        rebuilt.await.ok().flatten()
    }
}
