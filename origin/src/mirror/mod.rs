//! wip
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Where a repository is mirrored from.
#[derive(Debug, Clone)]
pub struct Upstream {
    /// `https://`, `http://` (loopback), `git://`, `file://` or a local path.
    pub url: String,
    /// PEM file with the certificates trusted for `https://`; absent: the public roots.
    pub ca: Option<PathBuf>,
    /// The user name for an upstream that asks for one.
    pub username: Option<String>,
    /// The file that holds the password or token; read again at each poll.
    pub password_file: Option<PathBuf>,
    /// How long a read may stall before the poll fails.
    pub stall_timeout: Duration,
}
impl Upstream {
    /// wip
    pub fn new(url: impl Into<String>) -> Self {
        Self { url: url.into(), ca: None, username: None, password_file: None, stall_timeout: Duration::from_secs(30) }
    }
    /// wip
    pub fn redacted_url(&self) -> String {
        self.url.clone()
    }
}
/// A bare repository on disk.
pub struct Mirror {
    dir: PathBuf,
}
/// What a poll found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Poll {
    /// Nothing moved.
    Unchanged {
        /// Refs mirrored.
        refs: usize,
    },
    /// Something moved and the mirror has it.
    Changed {
        /// Refs mirrored.
        refs: usize,
    },
}
/// wip
#[derive(Debug, Clone, Default)]
pub struct FetchProgress(Arc<()>);
/// wip
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FetchSnapshot {
    /// wip
    pub phase: &'static str,
    /// wip
    pub done: u64,
    /// wip
    pub total: Option<u64>,
    /// wip
    pub bytes: u64,
}
impl FetchProgress {
    /// wip
    pub fn snapshot(&self) -> FetchSnapshot {
        FetchSnapshot { phase: "connecting", done: 0, total: None, bytes: 0 }
    }
}
/// wip
#[derive(Debug, thiserror::Error)]
pub enum MirrorError {
    /// wip
    #[error("wip")]
    Wip,
}
impl MirrorError {
    /// wip
    pub fn is_timeout(&self) -> bool {
        false
    }
    /// wip
    pub fn step(&self) -> &'static str {
        "connect"
    }
}
impl Mirror {
    /// wip
    pub fn open(dir: &Path) -> Result<Mirror, MirrorError> {
        Ok(Self { dir: dir.to_owned() })
    }
    /// wip
    pub fn poll(
        &self,
        _upstream: &Upstream,
        _progress: &FetchProgress,
        _interrupt: &AtomicBool,
    ) -> Result<Poll, MirrorError> {
        Err(MirrorError::Wip)
    }
    /// wip
    pub fn repository(&self) -> Result<gix::ThreadSafeRepository, MirrorError> {
        gix::ThreadSafeRepository::open(&self.dir).map_err(|_| MirrorError::Wip)
    }
}
