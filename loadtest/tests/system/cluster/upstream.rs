//! Repositories upstream: many, and cheap to push to.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, ensure};
use weir_loadtest::git_repository::git_command;

/// A bare repository, written by `git fast-import`.
pub(crate) struct Upstream {
    /// That of the repository and of its one service.
    pub(crate) name: String,
    /// The id of its newest commit.
    pub(crate) newest: String,
    bare: PathBuf,
    pushes: u64,
}

impl Upstream {
    /// Creates `<root>/<name>.git` with a first commit.
    pub(crate) fn create(root: &Path, name: &str) -> anyhow::Result<Self> {
        let bare = root.join(format!("{name}.git"));
        let mut init = git_command(root);
        init.args(["init", "--quiet", "--bare", "--template=", "--initial-branch=main"]).arg(&bare);
        ensure!(init.status()?.success(), "git init failed");
        let mut upstream = Self { name: name.to_owned(), newest: String::new(), bare, pushes: 0 };
        upstream.push()?;
        Ok(upstream)
    }

    /// Adds a commit with new contents.
    pub(crate) fn push(&mut self) -> anyhow::Result<()> {
        self.pushes += 1;
        let contents = format!("{} {}", self.name, self.pushes);
        let parent = if self.pushes > 1 { "from refs/heads/main^0\n" } else { "" };
        let script = format!(
            "commit refs/heads/main\nmark :1\ncommitter Weir <weir@example.org> {time} +0000\ndata 0\n{parent}\
             M 100644 inline deploy/version\ndata {length}\n{contents}\nget-mark :1\n",
            time = 1_700_000_000 + self.pushes,
            length = contents.len(),
        );
        let mut import = git_command(&self.bare);
        import.args(["fast-import", "--quiet"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut import = import.spawn()?;
        import.stdin.take().context("it is piped")?.write_all(script.as_bytes())?;
        let output = import.wait_with_output()?;
        ensure!(output.status.success(), "git fast-import failed");
        String::from_utf8(output.stdout)?.trim().clone_into(&mut self.newest);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_is_a_commit_on_the_one_before() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let mut upstream = Upstream::create(dir.path(), "shop")?;
        upstream.push()?;
        let log = git_command(&upstream.bare).args(["log", "--format=%H", "main"]).output()?;
        let commits = String::from_utf8(log.stdout)?;
        assert_eq!((commits.lines().count(), commits.lines().next()), (2, Some(&*upstream.newest)));
        Ok(())
    }
}
