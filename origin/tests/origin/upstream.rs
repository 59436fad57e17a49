//! An upstream: a bare repository, and a work tree that pushes to it.

use std::os::unix::fs::symlink;
use std::sync::LazyLock;

use crate::git_fixture::write_repository;
use crate::prelude::*;

/// A bare repository and a work tree. Everything goes when it is dropped.
pub(crate) struct Upstream {
    dir: tempfile::TempDir,
}

impl Upstream {
    /// An empty repository whose default branch is `main`.
    pub(crate) fn empty() -> Self {
        Self::of_format("sha1")
    }

    /// The same with ids of a format of one's choice. Both have the same objects, so that a push moves a ref and copies
    /// nothing.
    pub(crate) fn of_format(format: &str) -> Self {
        let upstream = Self { dir: tempfile::tempdir().unwrap() };
        write_repository(&upstream.work().join(".git"), false, format);
        upstream.git(&["config", "remote.origin.url", "../bare.git"]);
        write_repository(&upstream.bare(), true, format);
        fs::remove_dir_all(upstream.bare().join("objects")).unwrap();
        symlink("../work/.git/objects", upstream.bare().join("objects")).unwrap();
        upstream
    }

    /// A repository with two folders, `deploy` and `docs`: a copy of one that is made once.
    pub(crate) fn small() -> Self {
        static SMALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
            let upstream = Upstream::empty();
            upstream.push("deploy/app.yaml", b"replicas: 1\n");
            upstream.push("docs/readme.md", b"words\n");
            archive(upstream.dir.path())
        });
        let dir = tempfile::tempdir().unwrap();
        tar::Archive::new(SMALL.as_slice()).unpack(dir.path()).unwrap();
        Self { dir }
    }

    pub(crate) fn bare(&self) -> PathBuf {
        self.dir.path().join("bare.git")
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.bare().display())
    }

    /// Writes a file, commits and pushes it; the commit's id.
    pub(crate) fn push(&self, file: &str, contents: &[u8]) -> String {
        let path = self.work().join(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
        self.git(&["add", "--all"]);
        self.git(&["commit", "--quiet", "--message", file]);
        self.push_head()
    }

    /// What `git push --force origin HEAD` comes to; the commit's id.
    pub(crate) fn push_head(&self) -> String {
        let commit = Git::at(self.work()).head().to_string();
        let head = fs::read_to_string(self.work().join(".git/HEAD")).unwrap();
        let moved = self.bare().join(head.strip_prefix("ref: ").unwrap().trim());
        fs::create_dir_all(moved.parent().unwrap()).unwrap();
        fs::write(moved.with_extension("lock"), format!("{commit}\n")).unwrap();
        fs::rename(moved.with_extension("lock"), moved).unwrap();
        commit
    }

    /// Pushes a commit whose `folder` is a tree that has one name twice; the commit's id.
    pub(crate) fn push_tree_with_a_name_twice(&self, folder: &str) -> String {
        let work = Git::at(self.work());
        let file = work.blob(b"x");
        let bad = work.raw_tree(&[("100644", b"same", &file), ("100644", b"same", &file)]);
        let commit = work.commit_tree(&[("40000", folder.as_bytes(), &bad)]);
        self.git(&["push", "--quiet", "--force", "origin", &format!("{commit}:refs/heads/main")]);
        commit.to_string()
    }

    /// Runs git in the work tree.
    pub(crate) fn git(&self, args: &[&str]) -> String {
        git(&self.work(), args)
    }

    /// Takes the upstream away, as an outage does; [`Upstream::give_back`] ends it.
    pub(crate) fn take_away(&self) {
        fs::rename(self.bare(), self.dir.path().join("away")).unwrap();
    }

    pub(crate) fn give_back(&self) {
        fs::rename(self.dir.path().join("away"), self.bare()).unwrap();
    }

    /// Writes an object as it is; its id.
    pub(crate) fn hash_object(&self, kind: &str, object: &str) -> String {
        let work = Git::at(self.work());
        let id = work.feed(["hash-object", "-t", kind, "-w", "--stdin"], object.as_bytes());
        String::from_utf8(id).unwrap().trim().to_owned()
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }
}

fn git(dir: &Path, args: &[&str]) -> String {
    let output = git_command(dir).args(args).output().unwrap();
    assert!(output.status.success(), "git {args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Everything below a directory, to be unpacked elsewhere.
pub(crate) fn archive(dir: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    archive.follow_symlinks(false);
    archive.append_dir_all(".", dir).unwrap();
    archive.into_inner().unwrap()
}
