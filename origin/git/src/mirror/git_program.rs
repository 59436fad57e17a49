//! Commands of the git program, with a fixed environment: `upload-pack` for local upstreams, `index-pack` and
//! `rev-list` for received packs, `repack` for maintenance, `pack-objects` for bundles.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use weir_upstream::UpstreamError;
use weir_upstream::outside_program::{Bounds, pinned, pinned_within, run};

use super::{MirrorError, shallow};

/// Serves a local repository, bare or with a working tree.
pub(super) fn upload_pack(path: &[u8]) -> Command {
    let mut command = pinned("git");
    command.envs(ENVIRONMENT).envs([("GIT_PROTOCOL", "version=2"), ("GIT_NO_LAZY_FETCH", "1")]);
    command.args([
        // The operator configured this repository, which may belong to another user (a mounted volume).
        "-c",
        "safe.directory=*",
        // Objects of a partial clone are not fetched from elsewhere.
        "-c",
        "protocol.allow=never",
        "upload-pack",
        "--",
    ]);
    command.arg(OsStr::from_bytes(path));
    command
}

/// The environment: no system or user configuration, no prompts.
const ENVIRONMENT: [(&str, &str); 4] = [
    ("GIT_CONFIG_NOSYSTEM", "1"),
    ("GIT_CONFIG_GLOBAL", "/dev/null"),
    ("GIT_ATTR_NOSYSTEM", "1"),
    ("GIT_TERMINAL_PROMPT", "0"),
];

/// The oldest supported version: it has geometric repacks with a multi-pack index.
const MIN_VERSION: (u32, u32) = (2, 34);

/// `git repack` of a bare repository, full or geometric. It ignores hooks, and uses one thread and little memory,
/// because builds run meanwhile.
pub(super) fn repack(repository: &Path, full: bool) -> Command {
    let mut command = pinned("git");
    command.envs(ENVIRONMENT).env("GIT_DIR", repository);
    for setting in ["core.hooksPath=/dev/null", "gc.auto=0", "pack.threads=1", "pack.windowMemory=64m"] {
        command.args(["-c", setting]);
    }
    command.args(["repack", "-d", "-q", "-n", "--no-write-bitmap-index"]);
    command.args(if full { &["-a"][..] } else { &["--geometric=2", "--write-midx"] });
    command
}

/// `git index-pack` into an object directory in front of a repository's. It completes thin packs. One thread, because
/// several fetches run at once.
pub(super) fn index_pack(repository: &Path, objects: &Path, bounds: Bounds) -> Command {
    let mut command = with_objects(repository, objects, bounds);
    // Whole objects are kept in memory, so that the memory limit applies to them.
    for setting in ["core.bigFileThreshold=1048576g", "pack.writeReverseIndex=false"] {
        command.args(["-c", setting]);
    }
    command.args(["index-pack", "--stdin", "--fix-thin", "--threads=1", "-v"]);
    command
}

/// `git rev-list` over objects that the given tips reach and refs do not. Fails if one is missing.
pub(super) fn check_connectivity(repository: &Path, objects: &Path, bounds: Bounds) -> Command {
    let mut command = with_objects(repository, objects, bounds);
    command.args(["rev-list", "--objects", "--stdin", "--quiet", "--progress=Checking objects", "--not", "--all"]);
    command
}

/// `git rev-list` over objects that the given commits reach, except those with a leading `^`. Fails if one is missing.
pub(super) fn check_reachable(repository: &Path) -> Command {
    let mut command = pinned("git");
    command.envs(ENVIRONMENT).env("GIT_NO_REPLACE_OBJECTS", "1").env("GIT_DIR", repository);
    command.args(["-c", "core.hooksPath=/dev/null", "rev-list", "--objects", "--stdin", "--quiet"]);
    command
}

/// `git pack-objects` of all that the given tips reach and those with a leading `^` do not. The same care as
/// [`repack`].
pub(super) fn pack_objects(repository: &Path) -> Command {
    let mut command = pinned("git");
    command.envs(ENVIRONMENT).env("GIT_NO_REPLACE_OBJECTS", "1").env("GIT_DIR", repository);
    for setting in ["core.hooksPath=/dev/null", "pack.threads=1", "pack.windowMemory=64m"] {
        command.args(["-c", setting]);
    }
    command.args(["pack-objects", "--revs", "--thin", "--delta-base-offset", "--stdout", "-q"]);
    command
}

/// `git rev-list` that prints a commit if the given tips reach one that those with a leading `^` do not.
pub(super) fn find_unreachable(repository: &Path) -> Command {
    let mut command = pinned("git");
    command.envs(ENVIRONMENT).env("GIT_NO_REPLACE_OBJECTS", "1").env("GIT_DIR", repository);
    command.args(["-c", "core.hooksPath=/dev/null", "rev-list", "--max-count=1", "--stdin"]);
    command
}

fn with_objects(repository: &Path, objects: &Path, bounds: Bounds) -> Command {
    let mut command = pinned_within("git", bounds);
    command.envs(ENVIRONMENT).env("GIT_NO_REPLACE_OBJECTS", "1");
    command.envs([("GIT_DIR", repository), ("GIT_OBJECT_DIRECTORY", objects)]);
    command.env("GIT_SHALLOW_FILE", objects.join(shallow::FILE));
    for setting in ["core.hooksPath=/dev/null", "core.packedGitWindowSize=16m", "core.packedGitLimit=64m"] {
        command.args(["-c", setting]);
    }
    command
}

/// Checks that the program is installed and new enough. Returns what is wrong. Blocks.
pub fn check() -> Result<(), String> {
    let result = run(
        pinned("git").arg("--version"),
        b"",
        &std::env::temp_dir(),
        Duration::from_secs(30),
        &AtomicBool::new(false),
    );
    let output = result.map_err(|error| error.to_string())?.output;
    match version(&output) {
        Some(version) if version >= MIN_VERSION => Ok(()),
        Some((major, minor)) => {
            Err(format!("its version is {major}.{minor}, but at least {}.{} is needed", MIN_VERSION.0, MIN_VERSION.1))
        }
        None => Err(format!("its version cannot be read: `{}`", output.trim().chars().take(80).collect::<String>())),
    }
}

/// The version in `git version 2.47.3`.
fn version(output: &str) -> Option<(u32, u32)> {
    let mut numbers = output.strip_prefix("git version ")?.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.trim().parse().ok()?))
}

/// Whether the program ran out of memory.
pub(super) fn is_out_of_memory(stderr: &str) -> bool {
    ["Out of memory", "out of memory", "Cannot allocate memory"].iter().any(|words| stderr.contains(words))
}

/// Classifies an error message of the program. The path does not appear in the result.
pub(super) fn classify_stderr(step: &'static str, stderr: &str, path: &[u8]) -> Option<MirrorError> {
    let line = stderr.lines().find_map(|line| line.strip_prefix("fatal: "))?;
    for cause in ["No space left on device", "Disk quota exceeded", "Read-only file system"] {
        if line.contains(cause) {
            return Some(MirrorError::Local { what: "be written", cause: cause.to_owned() });
        }
    }
    if line.contains("does not appear to be a git repository") {
        let cause = "there is no Git repository at this path".to_owned();
        return Some(UpstreamError::NotFound { step, cause }.into());
    }
    let line = line.replace(&*String::from_utf8_lossy(path), "the repository");
    let shown: String = line.chars().filter(|c| !c.is_control()).take(400).collect();
    Some(UpstreamError::Protocol { step, cause: format!("git: {shown}") }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_parsed_with_any_suffix() {
        for (stderr, expected) in [
            ("git version 2.47.3\n", Some((2, 47))),
            ("git version 2.39.5 (Apple Git-154)\n", Some((2, 39))),
            ("git version 3.0\n", Some((3, 0))),
            ("git version 2.51.0.rc1.4.gabc\n", Some((2, 51))),
            ("hub version 2", None),
            ("", None),
        ] {
            assert_eq!(version(stderr), expected, "{stderr}");
        }
        assert_eq!(check(), Ok(()), "the tests need git");
    }

    #[test]
    fn a_full_disk_is_a_local_error() {
        let error = classify_stderr("fetch", "fatal: unable to create '/srv/x': No space left on device\n", b"/srv");
        assert_eq!(error.unwrap().to_string(), "the mirror cannot be written: No space left on device");
    }

    #[test]
    fn errors_do_not_contain_the_path() {
        let text = |stderr: &str| classify_stderr("fetch", stderr, b"/srv/x").map(|error| error.to_string());
        let stderr = "warning: x\nfatal: '/srv/x' does not appear to be a git repository\n";
        assert!(text(stderr).unwrap().ends_with("there is no Git repository at this path"));
        assert!(text("fatal: bad object in '/srv/x'").unwrap().ends_with("git: bad object in 'the repository'"));
        assert_eq!(text(""), None);
    }
}
