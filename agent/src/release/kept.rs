//! What is on disk of a service, for the command line. Reads only, and works beside a running agent.

use std::path::Path;

use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use super::error::ReleaseError;
use super::prune::releases;
use super::state_file::read_state;
use super::switch::read_link;

/// The releases on disk, by digest.
pub(crate) struct KeptReleases {
    pub(crate) current: Option<TarballDigest>,
    /// The newest earlier release that is still there.
    pub(crate) previous: Option<TarballDigest>,
    /// All of them, newest first.
    pub(crate) digests: Vec<TarballDigest>,
}

impl KeptReleases {
    pub(crate) fn read(root: &Path, service: &ServiceName) -> Result<Self, ReleaseError> {
        let path = root.join(service.as_str());
        let current = read_link(&path)?.map(|name| name.digest());
        let mut kept = releases(&path)?;
        kept.sort_unstable_by_key(|(made, _)| std::cmp::Reverse(*made));
        let mut digests: Vec<_> = kept.into_iter().map(|(_, name)| name.digest()).collect();
        let mut seen = std::collections::HashSet::new();
        digests.retain(|digest| seen.insert(*digest));
        let state = read_state(&path)?;
        let mut earlier = state.previous.iter().chain(&state.earlier).map(|record| record.directory.digest());
        let previous = earlier.find(|digest| Some(*digest) != current && digests.contains(digest));
        Ok(Self { current, previous, digests })
    }
}
