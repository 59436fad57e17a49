//! What is on disk of a service, for the command line. Reads only, and works beside a running agent.

use std::path::Path;

use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use crate::error::ReleaseError;
use crate::prune::releases;
use crate::state_file::read_state;
use crate::switch::read_link;

/// The releases on disk, by digest.
pub struct KeptReleases {
    /// The one that readers find.
    pub current: Option<TarballDigest>,
    /// The newest earlier release that is still there.
    pub previous: Option<TarballDigest>,
    /// All of them, newest first.
    pub digests: Vec<TarballDigest>,
}

impl KeptReleases {
    /// Looks at the directory of a service.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn read(root: &Path, service: &ServiceName) -> Result<Self, ReleaseError> {
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
