//! The one outside program: `git upload-pack`, which serves a repository on this machine. Its environment is pinned.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

/// A running `git upload-pack`; killed when dropped.
pub(super) struct UploadPack {
    child: Child,
    path: String,
}

impl UploadPack {
    /// Starts it on a repository (bare, or with a working tree) and returns the socket to talk to it.
    pub(super) fn start(path: &[u8]) -> io::Result<(Self, UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        let theirs = OwnedFd::from(theirs);
        let child = Command::new("git")
            .args(["upload-pack", "--"])
            .arg(OsStr::from_bytes(path))
            // Nothing of the environment decides what is served: not the user's configuration, not a hook's GIT_DIR.
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs([
                ("LC_ALL", "C"),
                ("GIT_PROTOCOL", "version=2"),
                ("GIT_CONFIG_NOSYSTEM", "1"),
                ("GIT_CONFIG_GLOBAL", "/dev/null"),
                ("GIT_TERMINAL_PROMPT", "0"),
                // Whoever runs the origin named this repository, so it may belong to another user (a mounted volume).
                ("GIT_CONFIG_COUNT", "1"),
                ("GIT_CONFIG_KEY_0", "safe.directory"),
                ("GIT_CONFIG_VALUE_0", "*"),
            ])
            .stdin(Stdio::from(theirs.try_clone()?))
            .stdout(Stdio::from(theirs))
            .stderr(Stdio::piped())
            .spawn()?;
        Ok((Self { child, path: String::from_utf8_lossy(path).into_owned() }, ours))
    }

    /// Ends it and says what it complained about, if it did.
    pub(super) fn complaint(mut self) -> Option<String> {
        // It is killed first, so that reading what it said cannot wait for it.
        let _ = self.child.kill();
        let mut said = Vec::new();
        self.child.stderr.take()?.take(4096).read_to_end(&mut said).ok()?;
        in_plain_words(&String::from_utf8_lossy(&said), &self.path)
    }
}

impl Drop for UploadPack {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What Git's complaint comes down to, without the path.
fn in_plain_words(said: &str, path: &str) -> Option<String> {
    let line = said.lines().find_map(|line| line.strip_prefix("fatal: "))?;
    if line.contains("does not appear to be a git repository") {
        return Some("there is no Git repository at this path".to_owned());
    }
    Some(format!("git: {}", line.replace(path, "the repository")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_come_without_the_path() {
        let said = "warning: x\nfatal: '/srv/x' does not appear to be a git repository\n";
        assert_eq!(in_plain_words(said, "/srv/x").unwrap(), "there is no Git repository at this path");
        let said = "fatal: bad object in '/srv/x'";
        assert_eq!(in_plain_words(said, "/srv/x").unwrap(), "git: bad object in 'the repository'");
        assert_eq!(in_plain_words("", "/srv/x"), None);
    }
}
