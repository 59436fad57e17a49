//! Trees of shapes that no person makes: deep, wide, and heavy.

use std::fmt::Write;

use weir_origin::tarball::{Filters, Limits, Selection, TarballError};
use weir_shared::commit_id::CommitId;

use crate::git_fixture::Git;
use crate::tar_reading::{build_limited, build_tar, read_tar};

fn everything() -> Selection {
    Selection { folder: "".parse().unwrap(), filters: Filters::default() }
}

/// Commits files of one content, all the same blob.
fn import(git: &Git, paths: impl Iterator<Item = String>) -> CommitId {
    let mut stream = "blob\nmark :1\ndata 1\nx\ncommit refs/heads/main\ncommitter a <a@b> 0 +0000\ndata 0\n".to_owned();
    for path in paths {
        writeln!(stream, "M 100644 :1 {path}").unwrap();
    }
    git.feed(["fast-import", "--quiet"], stream.as_bytes());
    git.line(["rev-parse", "main"]).parse().unwrap()
}

#[test]
fn a_tree_of_a_thousand_levels_takes_no_stack() {
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    let commit = import(&git, std::iter::once(format!("{}f", "d/".repeat(1000))));
    let (built, tar) = build_tar(&git.dir, &commit, &everything(), 2).unwrap();
    assert_eq!(built.entries, 1001);
    assert_eq!(read_tar(&tar).last().unwrap().path.len(), 2001);
}

#[test]
fn a_folder_of_many_files_is_written_and_one_more_than_allowed_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    let commit = import(&git, (0..5_000).map(|number| format!("f{number:05}")));
    let (built, _) = build_tar(&git.dir, &commit, &everything(), 2).unwrap();
    assert_eq!((built.entries, built.size), (5_000, 5_000 * 1024 + 1024));
    let limits = Limits { max_entries: 4_999, ..Limits::default() };
    let error = build_limited(&git.dir, &commit, &everything(), 2, &limits).unwrap_err();
    assert!(matches!(error, TarballError::TooManyEntries { limit: 4_999 }), "{error}");
}

#[test]
fn what_is_left_out_is_listed_up_to_a_bound_however_json_writes_it() {
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    git.write("kept", "x");
    git.commit("kept");
    let link = git.blob(b"/outside");
    // Names of nothing but quotes, each of which JSON writes as two bytes: half as many fit.
    let tree = |count: usize| -> CommitId {
        let names: Vec<String> = (0..count).map(|number| format!("{:\"<240}{number:05}", "")).collect();
        let kept = git.blob(b"x");
        let mut entries: Vec<(&str, &[u8], &str)> =
            names.iter().map(|name| ("120000", name.as_bytes(), link.as_str())).collect();
        entries.push(("100644", b"kept", &kept));
        git.commit_tree(&entries)
    };
    let (built, _) = build_tar(&git.dir, &tree(15_000), &everything(), 1).unwrap();
    let listed = serde_json::to_vec(&built.omitted).unwrap().len();
    assert!(built.omitted.len() == 15_000 && listed < 9 << 20, "{listed}");
    let error = build_tar(&git.dir, &tree(30_000), &everything(), 1).unwrap_err();
    assert!(matches!(error, TarballError::TooManyOmissions), "{error}");
}
