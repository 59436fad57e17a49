//! The contents of a revision, of a source of any kind.

use weir_git::tree::{GitFile, GitTree};
use weir_tarball::{Contents, KeyWriter, TarballError, Walk};

use super::archive::{ArchiveTree, SpooledFile};

/// The contents of a revision, of a source of any kind.
#[derive(Clone)]
pub struct Tree<'a>(Kind<'a>);

#[derive(Clone)]
enum Kind<'a> {
    Git(Box<GitTree<'a>>),
    Archive(ArchiveTree<'a>),
}

impl<'a> From<GitTree<'a>> for Tree<'a> {
    fn from(tree: GitTree<'a>) -> Self {
        Self(Kind::Git(tree.into()))
    }
}

impl<'a> From<ArchiveTree<'a>> for Tree<'a> {
    fn from(tree: ArchiveTree<'a>) -> Self {
        Self(Kind::Archive(tree))
    }
}

/// Locates the bytes of a file in its tree.
pub struct TreeFile(File);

enum File {
    Git(GitFile),
    Archive(SpooledFile),
}

impl Contents for Tree<'_> {
    type File = TreeFile;

    fn walk(&self, into: &mut Walk<'_, TreeFile>) -> Result<(), TarballError> {
        match &self.0 {
            Kind::Git(tree) => into.convert(|file| TreeFile(File::Git(file)), |into| tree.walk(into)),
            Kind::Archive(tree) => into.convert(|file| TreeFile(File::Archive(file)), |into| tree.walk(into)),
        }
    }

    fn identify(file: &TreeFile, executable: bool, key: &mut KeyWriter) {
        // Their first fields differ.
        match &file.0 {
            File::Git(file) => GitTree::identify(file, executable, key),
            File::Archive(file) => ArchiveTree::identify(file, executable, key),
        }
    }

    fn read(&self, path: &[u8], file: &TreeFile, buffer: &mut Vec<u8>) -> Result<(), TarballError> {
        match (&self.0, &file.0) {
            (Kind::Git(tree), File::Git(file)) => tree.read(path, file, buffer),
            (Kind::Archive(tree), File::Archive(file)) => tree.read(path, file, buffer),
            (Kind::Git(_), File::Archive(_)) | (Kind::Archive(_), File::Git(_)) => {
                unreachable!("a file is of the tree that walked it")
            }
        }
    }

    fn read_in_pieces(
        &self,
        path: &[u8],
        file: &TreeFile,
        take: &mut dyn FnMut(u64, Vec<u8>) -> Result<(), TarballError>,
    ) -> Result<(), TarballError> {
        match (&self.0, &file.0) {
            (Kind::Git(tree), File::Git(file)) => tree.read_in_pieces(path, file, take),
            (Kind::Archive(tree), File::Archive(file)) => tree.read_in_pieces(path, file, take),
            (Kind::Git(_), File::Archive(_)) | (Kind::Archive(_), File::Git(_)) => {
                unreachable!("a file is of the tree that walked it")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;
    use std::process::Command;
    use std::sync::atomic::AtomicBool;

    use bytes::Bytes;
    use weir_protocol::commit_id::CommitId;
    use weir_protocol::descriptor::OmissionReason;
    use weir_protocol::digest::{ObjectDigest, Sha256};

    use super::*;
    use crate::archive::{Bounds, Layout, SpoolStore};
    use weir_tarball::FolderPath;
    use weir_tarball::{BuildContext, Built, ComposedTree, Filters, FrameSink, Limits, Selection};

    static RUN: AtomicBool = AtomicBool::new(false);

    struct NoFrames;

    impl FrameSink for NoFrames {
        fn put(&self, frame: Bytes) -> std::io::Result<ObjectDigest> {
            Ok(ObjectDigest::of(&frame))
        }
    }

    fn build(contents: &impl Contents, filters: &Filters, limits: &Limits) -> Result<Built, TarballError> {
        let selection = Selection { filters: filters.clone(), ..Selection::default() };
        let context = BuildContext { limits, threads: 2, base: None, interrupt: &RUN };
        weir_tarball::build(contents, &selection, &context, &NoFrames)
    }

    fn git(dir: &Path, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new("git");
        command.args(["-c", "user.name=A", "-c", "user.email=a@example.com"]).args(arguments).current_dir(dir);
        let output = command.env("GIT_CONFIG_GLOBAL", "/dev/null").output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// A repository with one commit of these files. A text that begins with `->` is a symlink.
    fn commit(dir: &Path, files: &[(&str, &str)]) -> (gix::Repository, CommitId) {
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            text.strip_prefix("->").map_or_else(|| fs::write(&path, text), |target| symlink(target, &path)).unwrap();
        }
        for arguments in [&["init", "-q"][..], &["add", "."], &["commit", "-q", "-m", "x"]] {
            git(dir, arguments);
        }
        let commit = String::from_utf8(git(dir, &["rev-parse", "HEAD"])).unwrap().trim().parse().unwrap();
        (gix::open_opts(dir, gix::open::Options::isolated()).unwrap(), commit)
    }

    const CHART: &[(&str, &str)] =
        &[("Chart.yaml", "name: shop"), ("templates/a.yaml", "a"), ("templates/up", "->../Chart.yaml"), ("x", "1")];

    /// Below `prod`.
    const VALUES: &[(&str, &str)] = &[("deep/er.yaml", "b"), ("deep/up", "->../values.yaml"), ("values.yaml", "c: 1")];

    #[test]
    fn composed_contents_are_those_of_one_tree_with_all_files() {
        let dir = tempfile::tempdir().unwrap();
        let below = |to: &str, files: &[(&str, &'static str)]| -> Vec<(String, &'static str)> {
            files.iter().map(|(path, text)| (format!("{to}/{path}"), *text)).collect()
        };
        let outward =
            [("sub/out", "->../../chart/Chart.yaml"), ("out", "->../chart"), ("back", "->../values/values.yaml")];
        let mut chart: Vec<_> = CHART.to_vec();
        chart.push(("templates/out", "->../../values/values.yaml"));
        let values = [below("prod", VALUES), below("prod", &outward), vec![("x".to_owned(), "no")]].concat();
        let values: Vec<(&str, &str)> = values.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        commit(&dir.path().join("chart"), &chart);
        let (repository, values) = commit(&dir.path().join("config"), &values);
        let archive = git(&dir.path().join("chart"), &["archive", "--prefix", "shop/", "HEAD"]);
        let store = SpoolStore::new(dir.path().join("x.artifacts"));
        let max = 1 << 20;
        let bounds = Bounds {
            max_archive: max,
            max_archive_key: "max_chart",
            max_unpacked: max,
            max_file: max,
            max_spools: max,
        };
        let spool = store.add((Sha256::of(&archive), Layout::StripTop), &archive[..], &bounds, &RUN).unwrap();

        let to = ["a-b", "a/chart", "a/values", "a0"].map(|to| to.parse::<FolderPath>().unwrap());
        let (prod, root) = ("prod".parse().unwrap(), FolderPath::default());
        let selection = Selection { folder: prod, ..Selection::default() };
        let of_git = || {
            let repository = repository.clone();
            Tree::from(GitTree { repository, commit: values.clone(), selection: &selection, lfs: None })
        };
        let of_archive = || Tree::from(spool.open(&root).unwrap());
        let parts = vec![(&to[0], of_git()), (&to[1], of_archive()), (&to[2], of_git()), (&to[3], of_archive())];
        let composed = ComposedTree::new(parts);

        let whole =
            [below("a-b", VALUES), below("a/chart", CHART), below("a/values", VALUES), below("a0", CHART)].concat();
        let whole: Vec<(&str, &str)> = whole.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let (repository, whole) = commit(&dir.path().join("whole"), &whole);
        let everything = Selection::default();
        let whole = GitTree { repository, commit: whole, selection: &everything, lfs: None };
        let patterns = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let limits = Limits::default();
        for (include, exclude, omitted) in [
            (&[][..], &[][..], 8),
            (&["a/chart/**", "*.yaml"], &["deep/**", "templates/a.yaml"], 1),
            (&["values.yaml", "x"], &[], 0),
        ] {
            let filters = Filters::new(&patterns(include), &patterns(exclude)).unwrap();
            let (composed, whole) =
                (build(&composed, &filters, &limits).unwrap(), build(&whole, &filters, &limits).unwrap());
            assert_eq!((composed.digest, composed.entries, &composed.zstd), (whole.digest, whole.entries, &whole.zstd));
            assert_eq!(
                (composed.omitted.len(), whole.omitted.len()),
                (omitted, 0),
                "{include:?}: {:?}",
                composed.omitted
            );
            assert!(composed.omitted.iter().all(|each| each.reason == OmissionReason::Symlink));
        }
        // Nothing is left of a part.
        for (include, exclude, empty) in [
            (&[][..], &["a"][..], 1),
            (&[], &["/a0/*"], 3),
            (&[], &["*"], 0),
            (&["a-b", "a/values/values.yaml", "a0"], &[], 1),
        ] {
            let filters = Filters::new(&patterns(include), &patterns(exclude)).unwrap();
            let error = build(&composed, &filters, &limits).unwrap_err();
            let is_it = matches!(&error, TarballError::Part { part, error } if *part == empty && matches!(**error, TarballError::Empty));
            assert!(is_it, "{include:?} {exclude:?}: {error:?}");
        }
        let entries = Limits { max_entries: 20, ..limits };
        let error = build(&composed, &Filters::default(), &entries).unwrap_err();
        assert!(matches!(error, TarballError::TooManyEntries { limit: 20 }), "of all parts together: {error}");
        let none = "none".parse().unwrap();
        let missing = ComposedTree::new(vec![(&to[1], of_archive()), (&to[2], Tree::from(spool.open(&none).unwrap()))]);
        let error = build(&missing, &Filters::default(), &limits).unwrap_err();
        let is_second = matches!(&error, TarballError::Part { part: 1, error } if matches!(**error, TarballError::FolderMissing(_)));
        assert!(is_second, "{error:?}");
    }
}
