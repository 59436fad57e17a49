//! An upstream with a prepared history.

use crate::prelude::*;

/// Packs before a repack, those after a geometric one, and that of the last fetch.
pub(crate) const MOST_PACKS: usize = 16 + 12;

/// A bare upstream with a prepared history, so that a push only updates a ref.
pub(crate) struct Prepared {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) commits: Vec<String>,
}

impl Prepared {
    /// Creates commits, each with its number in `deploy/number`: in a line, or without parents.
    pub(crate) fn new(commits: usize, in_a_line: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let git = Git::init(&dir.path().join("upstream"));
        let mut stream = String::new();
        for number in 0..commits {
            let text = number.to_string();
            let branch = if in_a_line { "refs/heads/all".to_owned() } else { format!("refs/made/{number}") };
            stream += &format!("commit {branch}\ncommitter A <a@b> {} +0000\ndata 1\nx\n", 1_700_000_000 + number);
            stream += &format!("M 100644 inline deploy/number\ndata {}\n{text}\n", text.len());
        }
        git.feed(["fast-import", "--quiet"], stream.as_bytes());
        let commits: Vec<String> = if in_a_line {
            git.line(["rev-list", "--reverse", "refs/heads/all"]).lines().map(str::to_owned).collect()
        } else {
            (0..commits).map(|number| git.line(["rev-parse", &format!("refs/made/{number}")])).collect()
        };
        let prepared = Self { dir, commits };
        prepared.push(0);
        fs::remove_file(prepared.git_dir().join("refs/heads/all")).ok();
        prepared
    }

    pub(crate) fn git_dir(&self) -> PathBuf {
        self.dir.path().join("upstream/.git")
    }

    pub(crate) fn url(&self) -> String {
        format!("file://{}", self.git_dir().display())
    }

    /// Does the same as a (forced) push.
    pub(crate) fn push(&self, number: usize) {
        let main = self.git_dir().join("refs/heads/main");
        let beside = main.with_extension("lock");
        fs::write(&beside, format!("{}\n", self.commits[number])).unwrap();
        fs::rename(beside, main).unwrap();
    }
}
