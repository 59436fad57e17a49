//! Repositories for tests, made by the git program with a pinned environment.

use std::ffi::OsStr;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use tempfile::TempDir;

use crate::prelude::*;

/// A repository with a working tree.
pub(crate) struct Git {
    pub(crate) dir: PathBuf,
    /// Removes the directory of a repository that was made in one of its own.
    _own: Option<TempDir>,
}

/// The git program in a directory, independent of the machine's and the user's configuration.
pub(crate) fn git_command(dir: &Path) -> Command {
    // By its path: otherwise each start copies the page tables of this process, in which all tests are.
    static GIT: LazyLock<PathBuf> = LazyLock::new(|| {
        let path = std::env::var_os("PATH").unwrap();
        std::env::split_paths(&path).map(|folder| folder.join("git")).find(|file| file.is_file()).unwrap()
    });
    let mut command = Command::new(&*GIT);
    command.current_dir(dir).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path))).envs([
        ("LC_ALL", "C"),
        ("GIT_CONFIG_GLOBAL", "/dev/null"),
        ("GIT_CONFIG_NOSYSTEM", "1"),
        ("GIT_AUTHOR_NAME", "A U Thor"),
        ("GIT_AUTHOR_EMAIL", "author@example.com"),
        ("GIT_AUTHOR_DATE", "1700000000 +0000"),
        ("GIT_COMMITTER_NAME", "C O Mitter"),
        ("GIT_COMMITTER_EMAIL", "committer@example.com"),
        ("GIT_COMMITTER_DATE", "1700000000 +0000"),
    ]);
    command
}

/// Writes an empty repository as `git init` does, without starting it: most tests need one. Nothing in it starts
/// maintenance in the background.
pub(crate) fn write_repository(git_dir: &Path, is_bare: bool, format: &str) {
    for folder in ["objects/info", "objects/pack", "refs/heads", "refs/tags"] {
        fs::create_dir_all(git_dir.join(folder)).unwrap();
    }
    fs::write(git_dir.join("HEAD"), "ref: refs/heads/main\n").unwrap();
    let config = format!(
        "[core]\n\trepositoryformatversion = 1\n\tfilemode = true\n\tbare = {is_bare}\n\
         [extensions]\n\tobjectformat = {format}\n[maintenance]\n\tauto = false\n[receive]\n\tautogc = false\n"
    );
    fs::write(git_dir.join("config"), config).unwrap();
}

impl Git {
    /// An empty repository on branch `main`, in a directory that goes with it.
    pub(crate) fn new() -> Self {
        let own = tempfile::tempdir().unwrap();
        let git = Self::init(own.path());
        Self { _own: Some(own), ..git }
    }

    /// The same in a directory that is there, or is made.
    pub(crate) fn init(dir: &Path) -> Self {
        write_repository(&dir.join(".git"), false, "sha1");
        Self::at(dir)
    }

    /// A repository that is there.
    pub(crate) fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), _own: None }
    }

    /// Runs git and returns what it prints.
    pub(crate) fn run<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> Vec<u8> {
        self.feed(arguments, b"")
    }

    /// Runs git with something on its standard input.
    pub(crate) fn feed<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I, input: &[u8]) -> Vec<u8> {
        let mut command = git_command(&self.dir);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the tests need git");
        let mut stdin = child.stdin.take().unwrap();
        let input = input.to_owned();
        let feeder = std::thread::spawn(move || {
            // Whoever does not read it all has its reasons.
            let _ = stdin.write_all(&input);
        });
        let output = child.wait_with_output().unwrap();
        feeder.join().unwrap();
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Runs git and returns the one line that it prints.
    pub(crate) fn line<I: IntoIterator<Item = S>, S: AsRef<OsStr>>(&self, arguments: I) -> String {
        String::from_utf8(self.run(arguments)).unwrap().trim_end().to_owned()
    }

    pub(crate) fn write(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) {
        let path = self.make_room(path.as_ref());
        fs::write(path, contents).unwrap();
    }

    pub(crate) fn write_executable(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) {
        let path = self.make_room(path.as_ref());
        fs::write(&path, contents).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn link(&self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) {
        symlink(OsStr::from_bytes(target.as_ref()), self.make_room(path.as_ref())).unwrap();
    }

    /// Whether nothing is at a path, and directories only (or nothing) are on the way to it.
    pub(crate) fn is_free(&self, path: &[u8]) -> bool {
        let path = Path::new(OsStr::from_bytes(path));
        let is_directory = |parent: &Path| self.dir.join(parent).symlink_metadata().map_or(true, |data| data.is_dir());
        self.dir.join(path).symlink_metadata().is_err() && path.ancestors().skip(1).all(is_directory)
    }

    /// Commits all that is in the working tree.
    pub(crate) fn commit(&self, message: &str) -> CommitId {
        self.run(["add", "-A", "-f", "."]);
        self.run(["commit", "-q", "--allow-empty", "-m", message]);
        self.head()
    }

    /// Writes a file and commits all that is in the working tree.
    pub(crate) fn commit_file(&self, path: impl AsRef<[u8]>, contents: impl AsRef<[u8]>) -> CommitId {
        self.write(path, contents);
        self.commit("a change")
    }

    /// The commit that is checked out.
    pub(crate) fn head(&self) -> CommitId {
        let repository = gix::open_opts(&self.dir, gix::open::Options::isolated()).unwrap();
        repository.head_id().unwrap().to_string().parse().unwrap()
    }

    /// Commits a tree that holds what no working tree can: entries are `(mode, name, object id)`.
    pub(crate) fn commit_tree(&self, entries: &[(&str, &[u8], &str)]) -> CommitId {
        let tree = self.raw_tree(entries);
        self.line(["commit-tree", "-m", "raw", &tree]).parse().unwrap()
    }

    /// Writes a tree as it stands, without Git's checks.
    pub(crate) fn raw_tree(&self, entries: &[(&str, &[u8], &str)]) -> String {
        let mut raw = Vec::new();
        for (mode, name, id) in entries {
            raw.extend_from_slice(mode.as_bytes());
            raw.push(b' ');
            raw.extend_from_slice(name);
            raw.push(0);
            raw.extend((0..id.len()).step_by(2).map(|at| u8::from_str_radix(&id[at..at + 2], 16).unwrap()));
        }
        let id = self.feed(["hash-object", "-t", "tree", "-w", "--literally", "--stdin"], &raw);
        String::from_utf8(id).unwrap().trim_end().to_owned()
    }

    /// Writes a blob and returns its id.
    pub(crate) fn blob(&self, contents: &[u8]) -> String {
        String::from_utf8(self.feed(["hash-object", "-w", "--stdin"], contents)).unwrap().trim_end().to_owned()
    }

    fn make_room(&self, path: &[u8]) -> PathBuf {
        let path = self.dir.join(OsStr::from_bytes(path));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }
}
