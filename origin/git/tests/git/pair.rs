//! An upstream and its mirror, for tests.

use weir_git::revision::{Revision, resolve};
use weir_upstream::Upstream;

use crate::prelude::*;

/// An upstream on this disk and a mirror of it.
pub(crate) struct Pair {
    dir: tempfile::TempDir,
    pub(crate) git: Git,
    pub(crate) mirror: Mirror,
    pub(crate) upstream: Upstream,
    /// What services follow.
    pub(crate) revisions: HashSet<Revision>,
}

impl Pair {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let git = Git::init(&dir.path().join("up stream"));
        let mirror = Mirror::open(&dir.path().join("mirrors/shop"), DEFAULT_MAX_OBJECT).unwrap();
        let upstream = Upstream::new(format!("file://{}", git.dir.display()));
        let revisions = [Revision::Named("main".to_owned())].into();
        Self { dir, git, mirror, upstream, revisions }
    }

    /// The same with a first commit of a file `a` in the upstream.
    pub(crate) fn of_a_commit() -> (Self, CommitId) {
        let pair = Self::new();
        let first = pair.git.commit_file("a", "1");
        (pair, first)
    }

    pub(crate) fn mirror_dir(&self) -> PathBuf {
        self.dir.path().join("mirrors/shop")
    }

    pub(crate) fn try_poll(&self) -> Result<Poll, MirrorError> {
        self.mirror.poll(&self.upstream, &self.revisions, &FetchProgress::default(), &AtomicBool::new(false))
    }

    #[track_caller]
    pub(crate) fn poll(&self) -> Poll {
        self.try_poll().unwrap()
    }

    /// Polls, and checks that the mirror has exactly the upstream's branches and tags.
    #[track_caller]
    pub(crate) fn follow(&self) {
        let poll = self.poll();
        assert!(matches!(poll, Poll::Changed { .. }), "{poll:?}");
        self.assert_equal();
        assert!(matches!(self.poll(), Poll::Unchanged { .. }));
    }

    #[track_caller]
    pub(crate) fn assert_equal(&self) {
        let format = "--format=%(objectname) %(refname)";
        let of = |git: &Git| git.line(["for-each-ref", format, "refs/heads", "refs/tags"]);
        assert_eq!(of(&Git::at(self.mirror_dir())), of(&self.git));
    }

    pub(crate) fn resolve(&self, revision: &str) -> Result<CommitId, RevisionError> {
        let repo = self.mirror.repository().unwrap().to_thread_local();
        resolve(&repo, &revision.parse::<Revision>().unwrap())
    }

    /// All files of the mirror with their modification times.
    pub(crate) fn files(&self) -> Vec<(PathBuf, SystemTime)> {
        fn visit(dir: &Path, into: &mut Vec<(PathBuf, SystemTime)>) {
            for entry in fs::read_dir(dir).unwrap() {
                let entry = entry.unwrap();
                into.push((entry.path(), entry.metadata().unwrap().modified().unwrap()));
                if entry.file_type().unwrap().is_dir() {
                    visit(&entry.path(), into);
                }
            }
        }
        let mut files = Vec::new();
        visit(&self.mirror_dir(), &mut files);
        files.sort();
        files
    }
}
