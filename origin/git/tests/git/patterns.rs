//! `include`, `exclude` and the patterns of `.gitattributes` match what they match in Git.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use proptest::prelude::*;
use weir_tarball::{Filters, Inclusion, Matcher};

use crate::prelude::*;
use crate::tar_reading::build_limited;

const PATTERNS: usize = 60;

/// What `git check-attr` says of each path, and what we say: for each pattern.
fn both(git: &Git, patterns: &[String], paths: &[Vec<u8>]) -> (Vec<bool>, Vec<bool>) {
    let rules: String = patterns.iter().enumerate().map(|(at, pattern)| format!("{pattern} a{at}\n")).collect();
    git.write(".gitattributes", rules);
    let names = (0..patterns.len()).map(|at| format!("a{at}").into_bytes());
    let arguments = ["check-attr", "-z"].map(|each| each.as_bytes().to_vec()).into_iter().chain(names);
    let arguments = arguments.chain([b"--".to_vec()]).chain(paths.iter().cloned()).map(OsString::from_vec);
    let printed = git.run(arguments);
    let fields: Vec<&[u8]> = printed.split(|byte| *byte == 0).collect();
    let theirs = fields.chunks_exact(3).map(|fields| fields[2] == b"set").collect();
    let mut matcher = Matcher::default();
    let filters: Vec<_> = patterns.iter().map(|text| Filters::new(std::slice::from_ref(text), &[]).unwrap()).collect();
    let mut ours = Vec::new();
    for path in paths {
        let (path, is_directory) = path.strip_suffix(b"/").map_or((path.as_slice(), false), |path| (path, true));
        for filters in &filters {
            let decided = filters.descend(Inclusion::Undecided, path, is_directory, &mut matcher);
            ours.push(decided == Inclusion::Included);
        }
    }
    (ours, theirs)
}

fn assert_equal(git: &Git, patterns: &[String], paths: &[Vec<u8>]) {
    let (ours, theirs) = both(git, patterns, paths);
    assert_eq!(ours.len(), patterns.len() * paths.len());
    assert_eq!(ours.len(), theirs.len());
    for (at, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
        let (path, pattern) = (&paths[at / patterns.len()], &patterns[at % patterns.len()]);
        assert_eq!(ours, theirs, "`{pattern}` on `{}` (left: ours, right: Git's)", path.escape_ascii());
    }
}

fn pattern() -> impl Strategy<Value = String> {
    let token = prop_oneof![
        8 => prop::sample::select(vec!["a", "b", ".", "/", "/", "*", "**", "**/", "/**", "?", "***", "a**/", "-"]),
        3 => prop::sample::select(vec![
            "[ab]", "[!a]", "[^b]", "[a-b]", "[]a]", "[!]a]", "[a-]", "[-a]", "[\\]a]", "[b-\\z]", "[[:alpha:]]",
            "[[:punct:]x]", "[![:lower:]]", "[[:nope:]]", "[[:alpha]", "[a", "[[::]]", "[[:]a]", "[a-c-e]", "[/]", "[!/]",
        ]),
        2 => prop::sample::select(vec!["\\a", "\\*", "\\/", "\\[", "\\", "ä"]),
    ];
    let is_pattern = |text: &String| !text.starts_with(['-']) && Filters::new(std::slice::from_ref(text), &[]).is_ok();
    proptest::collection::vec(token, 1..8).prop_map(|tokens| tokens.concat()).prop_filter("refused", is_pattern)
}

fn path() -> impl Strategy<Value = Vec<u8>> {
    let part = "[ab.*-]{1,3}|ä|\\[|\\\\";
    (proptest::collection::vec(part, 1..5), any::<bool>()).prop_filter_map("no path", |(parts, is_directory)| {
        let is_path = parts.iter().all(|part| !matches!(part.as_str(), "." | ".."));
        is_path.then(|| (parts.join("/") + if is_directory { "/" } else { "" }).into_bytes())
    })
}

proptest! {
    #![proptest_config(crate::random_cases(30))]
    #[test]
    fn random_patterns_match_what_they_match_in_git(
        patterns in proptest::collection::vec(pattern(), PATTERNS),
        paths in proptest::collection::vec(path(), 60),
    ) {
        assert_equal(&Git::new(), &patterns, &paths);
    }
}

#[test]
fn classes_contain_what_they_contain_in_git() {
    let names = "alnum alpha blank cntrl digit graph lower print punct space upper xdigit".split(' ');
    let patterns: Vec<String> = names.map(|name| format!("x[[:{name}:]]")).collect();
    let bytes = (1..=255u8).filter(|byte| *byte != b'/');
    let paths: Vec<Vec<u8>> = bytes.map(|byte| vec![b'x', byte]).collect();
    assert_equal(&Git::new(), &patterns, &paths);
}

/// A line of a `.gitattributes` file, an `exclude` and an `include`, each of which took longer than a build may.
#[test]
fn patterns_take_time_linear_in_the_path() {
    let git = Git::new();
    let pattern = format!("**/{}[b]", "a/**/".repeat(40));
    for file in 0..300 {
        git.write(format!("{}{file}/c", "a/".repeat(60)), "one\n");
    }
    git.commit("deep");
    let folder = git.line(["rev-parse", "HEAD:a"]);
    // Git itself would not end if these files were in its working tree with the attributes.
    let attributes = git.blob(format!("{pattern} text eol=crlf\n").as_bytes());
    let commit = git.commit_tree(&[("100644", b".gitattributes", &attributes), ("40000", b"a", &folder)]);
    let filters = Filters::new(&["c".to_owned()], &[pattern]).unwrap();
    let (_, tar) = build_tar(&git.dir, &commit, &Selection { filters, ..Selection::default() }, 1).unwrap();
    assert_eq!(read_tar(&tar).iter().filter(|entry| entry.path.ends_with("/c")).count(), 300);
}

#[test]
fn a_build_has_a_bound_of_steps() {
    let git = Git::new();
    git.write(".gitattributes", format!("{} text\n", "*a".repeat(900)).repeat(100));
    git.write("a".repeat(240), "one\n");
    let commit = git.commit("many rules");
    let limits = Limits { max_match_steps: 1_000_000, ..Limits::default() };
    let error = build_limited(&git.dir, &commit, &Selection::default(), 1, &limits).unwrap_err().to_string();
    assert!(error.contains("takes more than 1000000 steps"), "{error}");
}

/// A small pack can have one large file of attributes in any number of directories.
#[test]
fn attributes_of_many_directories_take_steps() {
    let git = Git::new();
    let (rules, file) = (git.blob("a x\n".repeat(10_000).as_bytes()), git.blob(b"one\n"));
    let folder = git.raw_tree(&[("100644", b".gitattributes", &rules), ("100644", b"f", &file)]);
    let names: Vec<String> = (0..100).map(|number| format!("{number:03}")).collect();
    let folders: Vec<_> = names.iter().map(|name| ("40000", name.as_bytes(), folder.as_str())).collect();
    let commit = git.commit_tree(&folders);
    let limits = Limits { max_match_steps: 1_000_000, ..Limits::default() };
    let error = build_limited(&git.dir, &commit, &Selection::default(), 1, &limits).unwrap_err().to_string();
    assert!(error.contains("takes more than 1000000 steps"), "{error}");
}
