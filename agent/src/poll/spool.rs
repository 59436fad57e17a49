//! Frames that have arrived of a tarball, in an unnamed file.

use std::fs::File;
use std::io::{self, BufReader, Seek};
use std::path::Path;

use crate::fetch::{FetchError, Missing, Plan};

/// Missing frames, of which the first `written` parts are in an unnamed file without gaps.
pub(super) struct Spool {
    pub(super) missing: Vec<Missing>,
    pub(super) written: usize,
    pub(super) file: tokio::fs::File,
}

impl Spool {
    pub(super) fn new(plan: &Plan, incoming: &Path) -> Result<Self, FetchError> {
        let file = tempfile::tempfile_in(incoming).map_err(FetchError::disk(incoming))?.into();
        Ok(Self { missing: plan.missing.clone(), written: 0, file })
    }

    /// The file, from its start.
    pub(super) async fn reader(&self) -> io::Result<BufReader<File>> {
        let mut file = self.file.try_clone().await?.into_std().await;
        file.rewind()?;
        Ok(BufReader::new(file))
    }
}
