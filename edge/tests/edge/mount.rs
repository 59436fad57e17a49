//! A file system of its own for a test that needs a full or a read-only one.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A file system of its own, until it is dropped.
pub(crate) struct Mount(PathBuf);

impl Mount {
    /// A `tmpfs` with mount options. `None` where nobody may mount: only root may, and not in every container.
    ///
    /// # Panics
    /// When it cannot be mounted and `CI` is set: there a test that did not run must not look like one that passed.
    pub(crate) fn tmpfs(at: &Path, options: &str) -> Option<Self> {
        fs::create_dir_all(at).unwrap();
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", options, "tmpfs"]).arg(at).output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(at.to_owned())),
            other => {
                assert!(std::env::var_os("CI").is_none(), "no file system can be mounted here: {other:?}");
                eprintln!("SKIPPED: no file system can be mounted here ({other:?}); run as root to test full disks");
                None
            }
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}
