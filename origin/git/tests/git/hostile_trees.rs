//! Hostile trees: deep, wide, large, with odd modes and names, truncated, or random bytes.

use std::io::Write;

use gix::objs::tree::{Entry, EntryKind};
use gix::objs::{Tree, Write as _};
use proptest::prelude::*;

use crate::prelude::*;
use crate::tar_reading::{build_limited, git_archive};

fn everything() -> Selection {
    Selection::default()
}

#[test]
fn a_tree_of_thousands_of_levels_needs_no_stack() {
    let levels = long_or(10_000_u64, 3_000);
    let git = Git::new();
    let repo = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
    let entry = |mode: EntryKind, id| Entry { mode: mode.into(), filename: "d".into(), oid: id };
    let mut entry_below = entry(EntryKind::Blob, repo.write_blob("deep").unwrap().detach());
    for _ in 0..levels {
        let tree = repo.write_object(Tree { entries: vec![entry_below] }).unwrap().detach();
        entry_below = entry(EntryKind::Tree, tree);
    }
    let commit = git.line(["commit-tree", "-m", "deep", &entry_below.oid.to_string()]).parse().unwrap();
    let (built, tar) = build_tar(&git.dir, &commit, &everything(), 2).unwrap();
    assert_eq!(built.entries, levels);
    assert_eq!(read_tar(&tar).last().unwrap().path.len() as u64, 2 * levels - 1);
    let limits = Limits { max_tarball_bytes: levels * levels / 2, ..Limits::default() };
    let error = build_limited(&git.dir, &commit, &everything(), 2, &limits).unwrap_err();
    assert!(matches!(error, TarballError::TooLarge { .. }), "paths count: {error}");
}

#[test]
fn a_folder_over_the_limit_of_files_is_refused() {
    let files = long_or(100_000_usize, 20_000);
    let git = Git::new();
    let empty = git.blob(b"");
    let names: Vec<String> = (0..files).map(|number| format!("f{number:06}")).collect();
    let entries: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), empty.as_str())).collect();
    let commit = git.commit_tree(&entries);
    let (built, _) = build_tar(&git.dir, &commit, &everything(), 2).unwrap();
    assert_eq!((built.entries, built.size), (files as u64, files as u64 * 512 + 1024));
    let limits = Limits { max_entries: files - 1, ..Limits::default() };
    let error = build_limited(&git.dir, &commit, &everything(), 2, &limits).unwrap_err();
    assert!(matches!(error, TarballError::TooManyEntries { limit } if limit == files - 1), "{error}");
}

/// The tree below a large one is missing: reading it would report that.
#[test]
fn entries_are_counted_before_a_tree_is_walked() {
    let git = Git::new();
    let (blob, missing) = (git.blob(b"x"), "4242424242424242424242424242424242424242");
    let names: Vec<String> = (0..100).map(|number| format!("f{number:03}")).collect();
    let mut entries: Vec<_> = names.iter().map(|name| ("100644", name.as_bytes(), blob.as_str())).collect();
    let large = git.raw_tree(&entries);
    entries.insert(0, ("40000", b"d", missing));
    let limits = Limits { max_entries: 100, ..Limits::default() };
    let error = build_limited(&git.dir, &git.commit_tree(&entries), &everything(), 1, &limits).unwrap_err();
    assert!(matches!(error, TarballError::TooManyEntries { limit: 100 }), "{error}");

    // The same for a tree that only a symlink leads to.
    let limits = Limits { max_entries: 99, ..Limits::default() };
    let through = git.blob(b"left-out/d/../../f");
    let commit = git.commit_tree(&[
        ("100644", b"f", blob.as_str()),
        ("120000", b"l", through.as_str()),
        ("40000", b"left-out", large.as_str()),
    ]);
    let filters = Filters::new(&[], &["left-out".to_owned()]).unwrap();
    let selection = Selection { filters, ..everything() };
    let error = build_limited(&git.dir, &commit, &selection, 1, &limits).unwrap_err();
    assert!(matches!(error, TarballError::TooManyEntries { limit: 99 }), "{error}");
}

#[test]
fn the_attribute_files_of_a_path_are_limited_together() {
    let git = Git::new();
    let rules = "*.md text\n".repeat(60_000);
    git.write("a/.gitattributes", &rules);
    git.write("a/f", "x");
    git.write("b/.gitattributes", &rules);
    build_tar(&git.dir, &git.commit("two files side by side"), &everything(), 1).unwrap();
    git.write("a/d/f", "x");
    let commit = git.commit_file("a/d/.gitattributes", &rules);
    for folder in ["", "a/d"] {
        let selection = Selection { folder: folder.parse().unwrap(), ..everything() };
        let error = build_tar(&git.dir, &commit, &selection, 1).unwrap_err().to_string();
        assert!(error.contains("`a/d/.gitattributes` has 600000 bytes"), "{error}");
    }
}

/// Git uses one bit of a file's mode; the others stem from old programs.
#[test]
fn odd_modes_mean_the_same_as_in_git() {
    let git = Git::new();
    let blob = git.blob(b"x");
    let below = git.raw_tree(&[("100664", b"x", &blob)]);
    let commit = git.commit_tree(&[
        ("100444", b"a", &blob),
        ("100600", b"b", &blob),
        ("100640", b"c", &blob),
        ("100664", b"d", &blob),
        ("100775", b"e", &blob),
        ("100700", b"f", &blob),
        ("40755", b"g", &below),
        ("040000", b"h", &below),
        ("120777", b"i", &blob),
        ("130000", b"j", &blob),
    ]);
    let (built, tar) = build_tar(&git.dir, &commit, &everything(), 2).unwrap();
    let mut theirs = git_archive(&git, &commit, "");
    // Git takes other modes for submodules, and writes an empty directory for them.
    assert_eq!(theirs.pop().unwrap().path, "j/");
    assert_eq!(read_tar(&tar), theirs);
    let omitted: Vec<_> = built.omitted.iter().map(|omission| (omission.path.as_str(), omission.reason)).collect();
    assert_eq!(omitted, [("j", OmissionReason::Submodule)]);
}

#[test]
fn names_are_kept_unless_they_are_invalid_everywhere() {
    let git = Git::new();
    let blob = git.blob(b"x");
    let mut kept: Vec<&[u8]> = vec![
        b"README",
        b"readme",
        "caf\u{e9}".as_bytes(),
        "cafe\u{301}".as_bytes(),
        b" ",
        b"dot.",
        b"space ",
        b"...",
        b"-rf",
        b"~",
        b"a\\b",
        b"CON",
        b"aux.txt",
        b"a:b",
        b"a*?\"<>|",
        b"bell\x07\x1b[31m",
        b"line\nbreak\r",
        b"\x7f",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        b".git ",
        b".git.",
        b".git::$INDEX_ALLOCATION",
        b"git~1",
        ".g\u{200c}it".as_bytes(),
        b".gitmodules",
    ];
    let longest = [b'n'; 255];
    kept.push(&longest);
    let too_long = [b'n'; 256];
    let left_out: [&[u8]; 7] = [b".", b"..", b".git", b".GIT", b".gIt", b"a/b", &too_long];
    let mut names = [&kept[..], &left_out].concat();
    names.sort_unstable();
    let entries: Vec<_> = names.iter().map(|name| ("100644", *name, blob.as_str())).collect();
    let (built, tar) = build_tar(&git.dir, &git.commit_tree(&entries), &everything(), 2).unwrap();
    kept.sort_unstable();
    let escaped: Vec<_> = kept.iter().map(|name| name.escape_ascii().to_string()).collect();
    assert_eq!(read_tar(&tar).into_iter().map(|entry| entry.path).collect::<Vec<_>>(), escaped);
    assert_eq!(built.omitted.len(), left_out.len());
    assert!(built.omitted.iter().all(|omission| omission.reason == OmissionReason::UnsafeName));
}

#[test]
fn an_object_of_the_wrong_type_is_named_in_the_error() {
    let git = Git::new();
    let blob = git.blob(b"x");
    let tree = git.raw_tree(&[("100644", b"x", &blob)]);
    for (mode, id) in [("100644", &tree), ("100755", &tree), ("120000", &tree), ("40000", &blob)] {
        let commit = git.commit_tree(&[(mode, b"wrong", id)]);
        let error = build_tar(&git.dir, &commit, &everything(), 2).unwrap_err().to_string();
        assert!(error.contains(id.as_str()), "{mode}: {error}");
    }
    let attributes = git.commit_tree(&[("100644", b".gitattributes", &tree), ("100644", b"f", &blob)]);
    let error = build_tar(&git.dir, &attributes, &everything(), 2).unwrap_err().to_string();
    assert!(error.contains(&tree), "{error}");
}

/// A blob with a large declared size and no contents: reading it would report a corrupt object.
#[test]
fn a_file_over_the_limit_is_refused_by_its_header() {
    let git = Git::new();
    let small = git.blob(b"x");
    let id = "4242424242424242424242424242424242424242";
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(b"blob 5000000000\0and so on").unwrap();
    std::fs::create_dir_all(git.dir.join(".git/objects/42")).unwrap();
    std::fs::write(git.dir.join(".git/objects/42").join(&id[2..]), encoder.finish().unwrap()).unwrap();
    let commit = git.commit_tree(&[("100644", b"large", id), ("100644", b"small", &small)]);
    let error = build_tar(&git.dir, &commit, &everything(), 2).unwrap_err();
    let limit = Limits::default().max_file_bytes;
    let named = matches!(&error, TarballError::FileTooLarge { path, size: 5_000_000_000, limit: l } if path == "large" && *l == limit);
    assert!(named, "{error}");
}

/// Truncated at every byte: an error that names the tree, or one entry less.
#[test]
fn a_truncated_tree_is_refused_or_shorter() {
    let git = Git::new();
    let repo = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
    let blob = repo.write_blob("x").unwrap().detach();
    let mut raw = Vec::new();
    for name in ["one", "three", "two"] {
        raw.extend_from_slice(format!("100644 {name}\0").as_bytes());
        raw.extend_from_slice(blob.as_slice());
    }
    let entry = raw.len() / 3;
    let mut whole = 0;
    for length in 1..raw.len() {
        let tree = repo.write_buf(gix::object::Kind::Tree, &raw[..length]).unwrap();
        let commit = git.line(["commit-tree", "-m", "cut", &tree.to_string()]).parse().unwrap();
        match build_tar(&git.dir, &commit, &everything(), 1) {
            Ok((built, _)) => whole += built.entries,
            Err(error) => assert!(error.to_string().contains(&tree.to_string()), "cut to {length}: {error}"),
        }
    }
    assert!(entry > 20 && whole == 1 + 2, "{whole}");
}

proptest! {
    #![proptest_config(crate::random_cases(12))]
    /// Random changes of trees give an error, or a tarball that any agent may unpack.
    #[test]
    fn a_random_tree_breaks_nothing(
        names in proptest::collection::btree_set("[a-c.]{0,3}|.git|x/y", 0..6),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let git = Git::new();
        let repo = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
        let blob = repo.write_blob("x").unwrap().detach();
        let mut raw = Vec::new();
        for (name, mode) in names.iter().zip(["100644", "120000", "100755", "160000"].iter().cycle()) {
            raw.extend_from_slice(format!("{mode} {name}\0").as_bytes());
            raw.extend_from_slice(blob.as_slice());
        }
        for (at, byte) in changes {
            if !raw.is_empty() {
                let at = at.index(raw.len());
                raw[at] = byte;
            }
        }
        let tree = repo.write_buf(gix::object::Kind::Tree, &raw).unwrap();
        let commit = git.line(["commit-tree", "-m", "any", &tree.to_string()]).parse().unwrap();
        if let Ok((_, tar)) = build_tar(&git.dir, &commit, &everything(), 1) {
            let paths: Vec<_> = read_tar(&tar).into_iter().map(|entry| entry.path).collect();
            prop_assert!(paths.iter().all(|path| !path.is_empty() && !path.contains('/')), "{:?}", paths);
        }
    }
}

#[test]
fn the_list_of_omissions_is_limited_by_its_size_in_json() {
    let git = Git::new();
    git.commit_file("kept", "x");
    let link = git.blob(b"/outside");
    // Names of quotes, which take two bytes each in JSON: half as many fit.
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
