//! An upstream repository to push to: a bare repository and a work tree, driven by the git program.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail};

/// A bare repository `<name>.git` below a root, and a work tree that pushes to it.
#[derive(Debug)]
pub struct GitRepository {
    bare: PathBuf,
    work: PathBuf,
}

impl GitRepository {
    /// Creates an empty `<root>/<name>.git` with `main` as its default branch.
    ///
    /// # Errors
    /// The git program is missing or fails.
    pub fn create(root: &Path, name: &str) -> anyhow::Result<Self> {
        let bare = root.join(format!("{name}.git"));
        let work = root.join(format!("{name}.work"));
        git(root, ["init", "--quiet", "--bare", "--initial-branch=main", path(&bare)?])?;
        git(root, ["init", "--quiet", "--initial-branch=main", path(&work)?])?;
        git(&work, ["remote", "add", "origin", path(&bare)?])?;
        Ok(Self { bare, work })
    }

    /// The bare repository.
    pub fn bare(&self) -> &Path {
        &self.bare
    }

    /// The work tree.
    pub fn work(&self) -> &Path {
        &self.work
    }

    /// Writes a file in the work tree.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, file: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
        let path = self.work.join(file);
        fs::create_dir_all(path.parent().context("a file has a parent")?)?;
        Ok(fs::write(path, contents)?)
    }

    /// Writes an executable file in the work tree.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write_executable(&self, file: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
        self.write(&file, contents)?;
        Ok(fs::set_permissions(self.work.join(file), fs::Permissions::from_mode(0o755))?)
    }

    /// Writes a symlink in the work tree.
    ///
    /// # Errors
    /// The symlink cannot be created.
    pub fn link(&self, file: impl AsRef<Path>, target: impl AsRef<Path>) -> anyhow::Result<()> {
        let path = self.work.join(file);
        fs::create_dir_all(path.parent().context("a link has a parent")?)?;
        Ok(symlink(target, path)?)
    }

    /// Commits the whole work tree and force-pushes the branch; returns the commit id.
    ///
    /// # Errors
    /// There is nothing to commit, or git fails.
    pub fn commit_and_push(&self, message: &str) -> anyhow::Result<String> {
        git(&self.work, ["add", "--all"])?;
        git(&self.work, ["commit", "--quiet", "--message", message])?;
        git(&self.work, ["push", "--quiet", "--force", "origin", "HEAD"])?;
        self.git(["rev-parse", "HEAD"])
    }

    /// Runs git in the work tree; returns its trimmed output.
    ///
    /// # Errors
    /// git exits with another status than 0.
    pub fn git<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> anyhow::Result<String> {
        git(&self.work, args)
    }

    /// Unpacks `git archive` of a folder at a revision into `target`: the expected contents of an agent's directory.
    ///
    /// # Errors
    /// git or tar exits with another status than 0.
    pub fn archive(&self, revision: &str, folder: &str, target: &Path) -> anyhow::Result<()> {
        fs::create_dir_all(target)?;
        let mut archive = git_command(&self.work)
            .args(["archive", "--format=tar", &format!("{revision}:{folder}")])
            .stdout(Stdio::piped())
            .spawn()?;
        let unpacked = Command::new("tar")
            .arg("-xpf-")
            .arg("-C")
            .arg(target)
            .stdin(archive.stdout.take().context("stdout is piped")?)
            .status()?;
        if !archive.wait()?.success() || !unpacked.success() {
            bail!("git archive | tar failed for {revision}:{folder}");
        }
        Ok(())
    }
}

fn path(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("the path is UTF-8")
}

/// The git program without the caller's configuration and environment.
pub fn git_command(dir: &Path) -> Command {
    let mut command = Command::new("git");
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/nonexistent")
        .env("LC_ALL", "C")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_TERMINAL_PROMPT", "0");
    for who in ["AUTHOR", "COMMITTER"] {
        command.env(format!("GIT_{who}_NAME"), "Weir").env(format!("GIT_{who}_EMAIL"), "weir@example.org");
    }
    command
}

fn git(dir: &Path, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> anyhow::Result<String> {
    let mut command = git_command(dir);
    command.args(args);
    let output = command.output().context("cannot run git")?;
    if !output.status.success() {
        bail!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
