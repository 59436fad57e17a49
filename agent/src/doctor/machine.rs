//! The files and the disk of this machine.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use bytesize::ByteSize;
use rustix::fs::{Access, access, statvfs};
use weir_runtime::writable_directory;

use super::{Finding, Findings};
use crate::check;
use crate::config::Config;

/// Free space below this is a warning: two releases and a tarball are on disk at a time.
const LITTLE_SPACE: ByteSize = ByteSize::gib(1);

pub(super) fn check(config: &Config) -> Vec<Finding> {
    let mut findings = Findings::new("this machine");
    let files = check::files(config);
    for error in &files.errors {
        findings.fail("configuration", error, "Correct the file, or the key that names it.");
    }
    for missing in &files.missing {
        findings.warn("configuration", missing, "Put the token there: it is read for each request.");
    }
    for warning in &files.warnings {
        findings.warn("configuration", warning, "Take the permissions away from other users.");
    }
    if findings.found.is_empty() {
        findings.ok("configuration", "all files that it names can be used");
    }
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
    match statvfs(root) {
        Ok(of) => {
            let free = ByteSize::b(of.f_bavail.saturating_mul(of.f_frsize));
            let message = format!("{shown} is writable, has symlinks, and {free} are free");
            if of.f_files > 0 && of.f_favail == 0 {
                findings.fail(
                    "disk",
                    format!("{shown}: no inode is free"),
                    "Remove files, or use a larger file system.",
                );
            } else if free < LITTLE_SPACE {
                let advice = "Make sure that the current, the previous and the next release fit, and a tarball.";
                findings.warn("disk", message, advice);
            } else {
                findings.ok("disk", message);
            }
        }
        Err(error) => findings.warn("disk", format!("the free space of {shown} is unknown: {error}"), "Look at `df`."),
    }
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
