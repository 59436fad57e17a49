//! What a tarball holds: the same as `git archive` wherever the two are meant to agree, and what is left out.

use proptest::prelude::*;

use crate::prelude::*;
use crate::tar_reading::{TarEntry, build_limited, git_archive};

fn folder(path: &str) -> Selection {
    Selection { folder: path.parse().unwrap(), ..Selection::default() }
}

/// The entries of our tarball, which must leave nothing out.
fn entries_of(git: &Git, commit: &CommitId, path: &str) -> Vec<TarEntry> {
    let (built, tar) = build_tar(&git.dir, commit, &folder(path), 2).unwrap();
    assert_eq!(built.omitted, []);
    read_tar(&tar)
}

fn paths(entries: &[TarEntry]) -> Vec<&str> {
    entries.iter().map(|entry| entry.path.as_str()).collect()
}

#[test]
fn order_is_that_of_the_bytes_with_a_directory_s_slash_counted() {
    let git = Git::new();
    for path in ["a/b", "a-b", "a.b", "a0", "a/-", "B", "a/b.d/c", "a/b-d"] {
        git.write(path, path);
    }
    let commit = git.commit("order");
    let entries = entries_of(&git, &commit, "");
    assert_eq!(paths(&entries), ["B", "a-b", "a.b", "a/", "a/-", "a/b", "a/b-d", "a/b.d/", "a/b.d/c", "a0"]);
    assert!(paths(&entries).is_sorted());
    assert_eq!(entries, git_archive(&git, &commit, ""));
}

#[test]
fn attributes_decide_as_in_git_archive() {
    let git = Git::new();
    let attributes = "\
        *.bat eol=crlf\n*.txt text=auto eol=crlf\n*.native text\n*.bin -text eol=crlf\n*.png binary\n*.lf text eol=lf\n\
        *.old crlf\n*.forced text eol=crlf\n/docs export-ignore\ntests/ export-ignore\n*.md export-ignore\n\
        /deep/er/x export-ignore\n**/any/** export-ignore\n[attr]hidden export-ignore\n*.hid hidden\n\"sp ace\" export-ignore\n";
    git.write(".gitattributes", attributes);
    git.write(
        "sub/.gitattributes",
        "*.bat -text\nkeep.md -export-ignore\nlocal export-ignore\n[attr]nested export-ignore\n*.nst nested\n",
    );
    let text = &b"one\ntwo\n"[..];
    for name in ["a.bat", "a.txt", "a.native", "a.bin", "a.png", "a.lf", "a.old", "a.forced", "a.md", "a.hid", "sp ace"]
    {
        for place in ["", "sub/", "deep/", "deep/er/"] {
            git.write(format!("{place}{name}"), text);
        }
    }
    for (name, contents) in [
        ("mixed.txt", &b"one\r\ntwo\n"[..]),
        ("mixed.forced", b"one\r\ntwo\nthree\r"),
        ("nul.txt", b"one\n\0two\n"),
        ("cr.txt", b"one\rtwo\n"),
        ("controls.txt", b"\x01\x02\x03\n"),
        ("none.txt", b"no line end"),
        ("empty.txt", b""),
        ("ctrl-z.txt", b"one\n\x1a"),
        ("latin.txt", b"k\xe4se\n"),
    ] {
        git.write(name, contents);
        git.write(format!("sub/{name}"), contents);
    }
    for path in ["docs/a", "sub/docs/a", "tests/a", "sub/tests/a", "sub/keep.md", "sub/local", "local", "sub/a.nst"] {
        git.write(path, text);
    }
    for path in ["deep/er/x/y", "deep/er/z", "p/any/q", "only-ignored/x.md", "tests-not", "run.bat/inside"] {
        git.write(path, text);
    }
    git.link("link.bat", "a.bat");
    let commit = git.commit("attributes");
    for place in ["", "sub", "deep", "deep/er"] {
        let (ours, mut theirs) = (entries_of(&git, &commit, place), git_archive(&git, &commit, place));
        // Git writes a directory of which nothing is left; the format does not.
        theirs.retain(|entry| !["only-ignored/", "p/", "p/any/"].contains(&entry.path.as_str()));
        assert_eq!(paths(&ours), paths(&theirs), "in `{place}`");
        for (ours, theirs) in ours.iter().zip(&theirs) {
            assert_eq!(ours, theirs, "in `{place}`");
        }
    }
    let all = entries_of(&git, &commit, "");
    let contents = |path: &str| all.iter().find(|entry| entry.path == path).unwrap().contents.clone();
    assert_eq!(contents("a.bat"), b"one\r\ntwo\r\n", "the test would not notice if nothing was converted");
    assert_eq!(contents("sub/a.bat"), text);
    assert!(!paths(&all).contains(&"only-ignored/"));
}

#[test]
fn a_folder_that_is_ignored_from_above_is_empty() {
    let git = Git::new();
    git.write(".gitattributes", "/docs export-ignore\n");
    git.write("docs/deep/a", "a");
    let commit = git.commit_file("docs/.gitattributes", "* -export-ignore\n");
    for place in ["docs", "docs/deep"] {
        let error = build_tar(&git.dir, &commit, &folder(place), 1).unwrap_err();
        assert!(matches!(error, TarballError::Empty), "{error}");
    }
}

#[test]
fn harmful_entries_are_omitted_and_listed() {
    let git = Git::new();
    let blob = git.blob(b"contents");
    let below = git.raw_tree(&[("100644", b"x", &blob)]);
    let up = git.blob(b"../outside");
    let through = git.blob(b"inside/../f");
    let inside = git.blob(b"./f");
    let absolute = git.blob(b"/etc/passwd");
    let long = git.blob(&[b'x'; 5000]);
    let commit = git.commit_tree(&[
        ("40000", b"..", &below),
        ("40000", b".GIT", &below),
        ("100644", &[b'L'; 256], &blob),
        ("120000", b"absolute", &absolute),
        ("100644", b"f", &blob),
        ("120000", b"inside", &inside),
        ("120000", b"long", &long),
        ("160000", b"m\xffodule", commit_of(&git).as_str()),
        ("120000", b"through", &through),
        ("120000", b"up", &up),
    ]);
    let (built, tar) = build_tar(&git.dir, &commit, &folder(""), 2).unwrap();
    assert_eq!(paths(&read_tar(&tar)), ["f", "inside"]);
    let omitted: Vec<_> = built.omitted.iter().map(|omission| (omission.path.as_str(), omission.reason)).collect();
    let long_name = "L".repeat(256);
    assert_eq!(
        omitted,
        [
            ("..", OmissionReason::UnsafeName),
            (".GIT", OmissionReason::UnsafeName),
            (long_name.as_str(), OmissionReason::UnsafeName),
            ("absolute", OmissionReason::Symlink),
            ("long", OmissionReason::Symlink),
            ("m%FFodule", OmissionReason::Submodule),
            ("through", OmissionReason::Symlink),
            ("up", OmissionReason::Symlink),
        ]
    );
    let filters = Filters::new(&[], &["up".into(), "m*odule".into(), ".GIT/".into()]).unwrap();
    let selection = Selection { filters, ..Selection::default() };
    let (built, _) = build_tar(&git.dir, &commit, &selection, 2).unwrap();
    assert_eq!(built.omitted.len(), 5, "what is excluded is not missing");
}

fn commit_of(git: &Git) -> CommitId {
    let empty = git.raw_tree(&[]);
    git.line(["commit-tree", "-m", "a submodule's commit", &empty]).parse().unwrap()
}

#[test]
fn a_symlink_may_point_within_the_folder_only() {
    let git = Git::new();
    git.write("top", "t");
    git.write("a/file", "f");
    git.link("a/b/to-file", "../file");
    git.link("a/b/to-top", "../../top");
    let commit = git.commit("links");
    assert!(paths(&entries_of(&git, &commit, "")).contains(&"a/b/to-top"));
    let (built, tar) = build_tar(&git.dir, &commit, &folder("a"), 1).unwrap();
    assert_eq!(paths(&read_tar(&tar)), ["b/", "b/to-file", "file"]);
    assert_eq!(built.omitted[0].path, "b/to-top");
}

#[test]
fn nothing_of_the_repository_s_configuration_is_run() {
    let git = Git::new();
    git.write(".gitattributes", "* ident export-subst filter=evil working-tree-encoding=UTF-16\n");
    git.write("f", "$Id$ $Format:%H$\n");
    git.run(["config", "filter.evil.smudge", "touch ran; cat"]);
    git.run(["config", "core.autocrlf", "true"]);
    git.run(
        ["-c", "core.safecrlf=false", "-c", "core.autocrlf=false", "update-index", "--add", "--cacheinfo"]
            .into_iter()
            .map(str::to_owned)
            .chain([format!("100644,{},f", git.blob(b"$Id$ $Format:%H$\n"))]),
    );
    let tree = git.line(["write-tree"]);
    let commit: CommitId = git.line(["commit-tree", "-m", "c", &tree]).parse().unwrap();
    assert_eq!(entries_of(&git, &commit, "")[0].contents, b"$Id$ $Format:%H$\n");
    assert!(!git.dir.join("ran").exists());
}

#[test]
fn filters_choose_files_and_directories_appear_only_with_them() {
    let git = Git::new();
    for path in [
        "app/prod/a.yaml",
        "app/prod/b.json",
        "app/dev/a.yaml",
        "app/readme.md",
        "x/y/z.yaml",
        "app/prod/secret/s.yaml",
    ] {
        git.write(path, path);
    }
    let commit = git.commit("filters");
    let of = |folder: &str, include: &[&str], exclude: &[&str]| {
        let owned = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let filters = Filters::new(&owned(include), &owned(exclude)).unwrap();
        let selection = Selection { folder: folder.parse().unwrap(), filters, ..Selection::default() };
        build_tar(&git.dir, &commit, &selection, 2)
            .map(|(_, tar)| read_tar(&tar).into_iter().map(|e| e.path).collect::<Vec<_>>())
    };
    assert_eq!(of("app", &["**/*.yaml"], &["secret"]).unwrap(), ["dev/", "dev/a.yaml", "prod/", "prod/a.yaml"]);
    assert_eq!(of("app", &["prod"], &["*.json", "prod/secret/"]).unwrap(), ["prod/", "prod/a.yaml"]);
    assert_eq!(of("", &["y"], &[]).unwrap(), ["x/", "x/y/", "x/y/z.yaml"]);
    assert!(matches!(of("app", &["*.none"], &[]).unwrap_err(), TarballError::Empty));
    assert!(matches!(of("none", &[], &[]).unwrap_err(), TarballError::FolderMissing(_)));
    assert!(matches!(of("app/readme.md", &[], &[]).unwrap_err(), TarballError::NotAFolder(_, "file")));
}

#[test]
fn limits_hold() {
    let git = Git::new();
    git.write("d/small", [b'x'; 10]);
    git.write("large", [b'x'; 2000]);
    let commit = git.commit("limits");
    let of = |limits: Limits| build_limited(&git.dir, &commit, &folder(""), 1, &limits).map(|_| ());
    of(Limits::default()).unwrap();
    let error = of(Limits { max_file_bytes: 1999, ..Limits::default() }).unwrap_err();
    assert!(matches!(&error, TarballError::FileTooLarge { path, size: 2000, .. } if path == "large"), "{error}");
    of(Limits { max_file_bytes: 2000, ..Limits::default() }).unwrap();
    assert!(matches!(of(Limits { max_tarball_bytes: 3000, ..Limits::default() }), Err(TarballError::TooLarge { .. })));
    assert!(matches!(
        of(Limits { max_entries: 2, ..Limits::default() }),
        Err(TarballError::TooManyEntries { limit: 2 })
    ));
    of(Limits { max_entries: 3, ..Limits::default() }).unwrap();
}

#[test]
fn a_tree_out_of_order_is_refused_and_a_missing_object_named() {
    let git = Git::new();
    let blob = git.blob(b"x");
    let below = git.raw_tree(&[("100644", b"x", &blob)]);
    for (entries, reason) in [
        (&[("100644", &b"b"[..], blob.as_str()), ("100644", b"a", &blob)][..], "out of order"),
        (&[("100644", b"a", &blob), ("100644", b"a", &blob)], "twice"),
        (&[("100644", b"a", &blob), ("100644", b"a-", &blob), ("40000", b"a", &below)], "twice"),
    ] {
        let commit = git.commit_tree(&[("40000", b"deploy", &git.raw_tree(entries))]);
        for selected in ["", "deploy"] {
            let error = build_tar(&git.dir, &commit, &folder(selected), 2).unwrap_err();
            assert!(error.to_string().contains(&format!("has `deploy/a` {reason}")), "{error}");
        }
    }
    let absent = "1234567890123456789012345678901234567890";
    let commit = git.commit_tree(&[("100644", b"a", &blob), ("100644", b"b", absent)]);
    let error = build_tar(&git.dir, &commit, &folder(""), 2).unwrap_err();
    assert!(matches!(&error, TarballError::Object { id, .. } if id == absent), "{error}");
}

/// One thing in a random working tree.
#[derive(Debug, Clone)]
enum Thing {
    File { executable: bool, contents: Vec<u8> },
    Link { target: String },
}

fn component() -> impl Strategy<Value = Vec<u8>> {
    let plain = "[a-c]{1,2}".prop_map(String::into_bytes);
    let odd = proptest::collection::vec(any::<u8>().prop_filter("no NUL, no slash", |b| !matches!(b, 0 | b'/')), 1..6);
    let long = (90usize..255).prop_map(|length| vec![b'n'; length]);
    prop_oneof![5 => plain, 2 => odd, 1 => long].prop_filter("not special to git", |name| {
        !name.to_ascii_lowercase().starts_with(b".git") && name != b"." && name != b".."
    })
}

fn thing() -> impl Strategy<Value = Thing> {
    let contents = prop_oneof![
        Just(Vec::new()),
        proptest::collection::vec(any::<u8>(), 0..2000),
        Just(vec![b'z'; 512]),
        Just(vec![b'z'; 1024]),
    ];
    prop_oneof![
        4 => (any::<bool>(), contents).prop_map(|(executable, contents)| Thing::File { executable, contents }),
        1 => "[a-c/]{1,10}|n{101,150}".prop_map(|target| Thing::Link { target: format!("x{target}") }),
    ]
}

proptest! {
    #![proptest_config(crate::random_cases(6))]
    #[test]
    fn a_random_tree_equals_git_archive(
        things in proptest::collection::vec((proptest::collection::vec(component(), 1..4), thing()), 1..25)
    ) {
        let git = Git::new();
        for (path, thing) in &things {
            let path = path.join(&b'/');
            // A file where a directory is, or the other way round: the first one stays.
            if git.is_free(&path) {
                match thing {
                    Thing::File { executable: false, contents } => git.write(&path, contents),
                    Thing::File { executable: true, contents } => git.write_executable(&path, contents),
                    Thing::Link { target } => git.link(&path, target),
                }
            }
        }
        let commit = git.commit("random");
        let ours = entries_of(&git, &commit, "");
        let theirs = git_archive(&git, &commit, "");
        prop_assert_eq!(paths(&ours), paths(&theirs));
        for (ours, theirs) in ours.iter().zip(&theirs) {
            prop_assert!(ours == theirs, "{}", ours.path);
        }
        prop_assert!(ours.iter().all(|entry| entry.kind != '5' || entry.path.ends_with('/')));
    }
}
