//! The files and the disk of this machine.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use bytesize::ByteSize;
use rustix::fs::{Access, access};
use weir_runtime::doctor::{Finding, Findings};
use weir_runtime::writable_directory;

use crate::check;
use crate::config::Config;

/// Free space below this is a warning: two releases and a tarball are on disk at a time.
const LITTLE_SPACE: ByteSize = ByteSize::gib(1);

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new("this machine");
    findings.files(&check::files(config));
    disk(&mut findings, &config.root);
    findings.found
}

fn disk(findings: &mut Findings, root: &Path) {
    let shown = root.display();
    if let Err(error) = writable_directory::check(root) {
        let advice = "Give the user of the agent the directory, mount the volume writable, or name another `root`.";
        return findings.fail("disk", error, advice);
    }
    if !root.is_dir() {
        return findings.ok("disk", format!("{shown} does not exist yet, and can be created"));
    }
    if let Err(error) = try_links(root) {
        let advice = "Use a file system that has symlinks and atomic renames.";
        return findings.fail("disk", format!("{shown}: a symlink cannot be replaced: {error}"), advice);
    }
    match foreign(root) {
        Ok(None) => {}
        Ok(Some(foreign)) => {
            let advice = "Change the owner, or set `group_write` and run all agents of the root with one group.";
            return findings.fail("disk", format!("{foreign} belongs to another user and cannot be written"), advice);
        }
        Err(error) => return findings.fail("disk", format!("{shown} cannot be listed: {error}"), "Correct its mode."),
    }
    let purpose = "the current, the previous and the next release fit, and a tarball";
    findings.free_space(root, "is writable, has symlinks", LITTLE_SPACE, purpose);
}

/// Replaces a symlink as a switch does.
fn try_links(root: &Path) -> io::Result<()> {
    let dir = tempfile::Builder::new().prefix(".doctor-").tempdir_in(root)?;
    let (link, new) = (dir.path().join("link"), dir.path().join("new"));
    symlink("one", &link)?;
    symlink("two", &new)?;
    fs::rename(&new, &link)?;
    if fs::read_link(&link)? == Path::new("two") { Ok(()) } else { Err(io::Error::other("the old one stays")) }
}

/// A directory of a service that this user cannot write.
fn foreign(root: &Path) -> io::Result<Option<String>> {
    for entry in fs::read_dir(root)? {
        let (path, metadata) = {
            let entry = entry?;
            (entry.path(), entry.metadata()?)
        };
        let own = metadata.uid() == rustix::process::geteuid().as_raw();
        if metadata.is_dir() && !own && access(&path, Access::WRITE_OK).is_err() {
            return Ok(Some(path.display().to_string()));
        }
    }
    Ok(None)
}
