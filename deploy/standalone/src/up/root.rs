//! The root of `weir up`: one process uses it, and says there where it serves.

use std::fs::{self, TryLockError};
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use weir_runtime::file_lock::FileLock;

use super::compose::Roles;

/// The file that a running process has locked. It says which process, and where it serves.
const LOCK: &str = "lock";

/// The folder, as long as this process uses it.
pub(super) struct Root {
    pub(super) path: PathBuf,
    lock: FileLock,
}

impl Root {
    /// Creates the folder if missing, and locks it.
    ///
    /// # Errors
    /// Another process uses it, or it cannot be written.
    pub(super) fn take(path: &Path) -> anyhow::Result<Self> {
        let create = || {
            fs::create_dir_all(path)?;
            // It is often inside a checkout: hide it from `git status`.
            fs::write(path.join(".gitignore"), "*\n")?;
            path.canonicalize()
        };
        let path = create().with_context(|| format!("cannot write to {}", path.display()))?;
        let file = path.join(LOCK);
        let lock = match FileLock::try_take(&file) {
            Ok(lock) => lock,
            Err(TryLockError::WouldBlock) => bail!(
                "`weir up` runs already in {}: {}. Stop it, or name another folder with --root",
                path.display(),
                fs::read_to_string(&file).unwrap_or_default().trim()
            ),
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", file.display()));
            }
        };
        let root = Self { path, lock };
        root.say("it is starting").with_context(|| format!("cannot write to {}", file.display()))?;
        Ok(root)
    }

    /// Tells a second `weir up` where this one serves.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn say_addresses(&self, roles: &Roles) -> io::Result<()> {
        self.say(&format!("origin https://{}, edge https://{}", roles.origin.address(), roles.edge.address()))
    }

    fn say(&self, what: &str) -> io::Result<()> {
        let mut file = self.lock.as_file();
        file.set_len(0)?;
        file.rewind()?;
        file.write_all(format!("process {}, {what}\n", std::process::id()).as_bytes())
    }
}
