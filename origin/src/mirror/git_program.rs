//! The git program: `git upload-pack`, which serves a repository on this machine, and `git repack`. Its environment is
//! pinned.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use crate::outside_program::{pinned, run};

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

/// The oldest version that joins packs geometrically and writes an index over all of them.
const OLDEST: (u32, u32) = (2, 34);

/// `git repack` of a bare repository: everything anew, or the small packs joined. Hooks, filters and configuration of
/// anybody play no part; one thread, and so much memory and no more, because somebody publishes meanwhile.
pub(super) fn repack(repository: &Path, full: bool) -> Command {
    let mut command = pinned("git");
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null"), ("GIT_TERMINAL_PROMPT", "0")]);
    command.env("GIT_DIR", repository);
    for setting in ["core.hooksPath=/dev/null", "gc.auto=0", "pack.threads=1", "pack.windowMemory=64m"] {
        command.args(["-c", setting]);
    }
    command.args(["repack", "-d", "-q", "-n", "--no-write-bitmap-index"]);
    command.args(if full { &["-a"][..] } else { &["--geometric=2", "--write-midx"] });
    command
}

/// Whether the program is there and new enough; what is the matter when not. Blocks.
pub(crate) fn check() -> Result<(), String> {
    let ended = run(
        pinned("git").arg("--version"),
        b"",
        &std::env::temp_dir(),
        Duration::from_secs(30),
        &AtomicBool::new(false),
    );
    let said = ended.map_err(|error| error.to_string())?.output;
    match version(&said) {
        Some(version) if version >= OLDEST => Ok(()),
        Some((major, minor)) => {
            Err(format!("its version is {major}.{minor}, and {}.{} is the oldest that will do", OLDEST.0, OLDEST.1))
        }
        None => Err(format!("its version cannot be read: `{}`", said.trim().chars().take(80).collect::<String>())),
    }
}

/// The version in `git version 2.47.3`.
fn version(said: &str) -> Option<(u32, u32)> {
    let mut numbers = said.strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.trim().parse().ok()?))
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
    fn a_version_is_read_whatever_follows_it() {
        for (said, expected) in [
            ("git version 2.47.3\n", Some((2, 47))),
            ("git version 2.39.5 (Apple Git-154)\n", Some((2, 39))),
            ("git version 3.0\n", Some((3, 0))),
            ("git version 2.51.0.rc1.4.gabc\n", Some((2, 51))),
            ("hub version 2", None),
            ("", None),
        ] {
            assert_eq!(version(said), expected, "{said}");
        }
        assert_eq!(check(), Ok(()), "the tests need git");
    }

    #[test]
    fn complaints_come_without_the_path() {
        let said = "warning: x\nfatal: '/srv/x' does not appear to be a git repository\n";
        assert_eq!(in_plain_words(said, "/srv/x").unwrap(), "there is no Git repository at this path");
        let said = "fatal: bad object in '/srv/x'";
        assert_eq!(in_plain_words(said, "/srv/x").unwrap(), "git: bad object in 'the repository'");
        assert_eq!(in_plain_words("", "/srv/x"), None);
    }
}
