//! `weir-origin fsck`: whether everything that an origin keeps is whole, byte for byte; and mending what Git still provides.
//!
//! First all is looked at and nothing is changed: `look` reads both databases and the blobs, `faults` says what is wrong
//! with that. Then `mend` mends, by the parts that publish and heal in a running origin, and all is looked at once more:
//! what is mended is what is not found again.

mod faults;
mod forms;
mod look;
mod mend;
mod report;
mod set_aside;

use anyhow::{Context, ensure};

use crate::config::Config;
use crate::data_dir::DataDir;
pub use report::{Fault, Found, Outcome, Report};

/// How it is done.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// What can be mended is.
    pub mend: bool,
    /// Blobs that are read at a time.
    pub threads: usize,
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of blobs that were read.
    pub read: u64,
    /// All that have to be.
    pub all: u64,
}

/// Looks at all that the data directory of a configuration holds, and mends what can be mended.
///
/// # Errors
/// An origin runs on the directory, it is none, a database cannot be read at all, or the disk refuses. Nothing of what
/// was found is known then; what was mended till then is.
pub fn run(config: &Config, options: Options, progress: &(dyn Fn(Progress) + Sync)) -> anyhow::Result<Report> {
    let root = &config.data_dir;
    // It would be made, and an empty one is whole.
    ensure!(root.is_dir(), "data_dir = \"{}\" is not there: nothing was ever published from it", root.display());
    let (data_dir, _) = DataDir::open(root)?;
    let seen = look::look(config, &data_dir, options.threads, progress)?;
    let mut report = Report::new(&seen, &data_dir);
    if options.mend && report.found.iter().any(|found| found.fault.can_be_mended()) {
        let lost = mend::mend(config, &data_dir, &seen).context("what was found cannot be mended")?;
        let after = look::look_again(config, &data_dir, &seen, options.threads)?;
        report.conclude(&Report::new(&after, &data_dir), &lost);
    }
    Ok(report)
}
