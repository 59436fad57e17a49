//! `.gitattributes` as people and machines write them: each rule decides as in `git archive`.
//!
//! (One does not: a byte order mark at the start of the file is passed over, as Git does in a working tree; `git archive`
//! takes it for a part of the first pattern.)

use proptest::prelude::*;

use crate::prelude::*;
use crate::tar_reading::{TarEntry, git_archive};

const FILES: &str =
    "plain.x,dir/plain.x,dir/in/plain.x,a b,quo\"te,#hash,!bang,star*x,starx,dir2/x,ä.x,B.X,back\\slash,keep";

/// Our entries of a folder, and those of `git archive`.
fn both(git: &Git, commit: &CommitId, folder: &str) -> (Vec<TarEntry>, Vec<TarEntry>) {
    let selection = Selection { folder: folder.parse().unwrap(), ..Selection::default() };
    let ours = build_tar(&git.dir, commit, &selection, 1).map_or_else(|_| Vec::new(), |(_, tar)| read_tar(&tar));
    let mut theirs = git_archive(git, commit, folder);
    // We write a directory only when something below it is written.
    let files: Vec<String> = theirs.iter().filter(|e| e.kind != '5').map(|e| e.path.clone()).collect();
    theirs.retain(|entry| entry.kind != '5' || files.iter().any(|file| file.starts_with(&entry.path)));
    (ours, theirs)
}

fn names(entries: &[TarEntry]) -> Vec<String> {
    entries.iter().map(|e| format!("{} {}", e.path, e.contents.len())).collect()
}

#[test]
fn each_rule_decides_as_in_git_archive() {
    let rules: [&[u8]; 37] = [
        b"plain.x export-ignore\r\nkeep eol=crlf\r\n",
        b"  plain.x export-ignore\n",
        b"\tplain.x\texport-ignore\n",
        b"plain.x export-ignore=true\n",
        b"plain.x export-ignore=\n",
        b"plain.x export-ignore=set\n",
        b"!plain.x export-ignore\n",
        b"\\!bang export-ignore\n",
        b"\"a b\" export-ignore\n",
        b"\"quo\\\"te\" export-ignore\n",
        b"\"\\303\\244.x\" export-ignore\n",
        b"\"unclosed export-ignore\n",
        b"#hash export-ignore\n",
        b"\\#hash export-ignore\n",
        b"star\\*x export-ignore\n",
        b"star[*]x export-ignore\n",
        b"dir export-ignore\n",
        b"dir/ export-ignore\n",
        b"/dir export-ignore\n",
        b"dir/* export-ignore\n",
        b"dir/** export-ignore\n",
        b"dir/**/plain.x export-ignore\n",
        b"**/plain.x export-ignore\n",
        b"*/plain.x export-ignore\n",
        b"* export-ignore\nkeep -export-ignore\n",
        b"* export-ignore\nkeep !export-ignore\n",
        b"b.x export-ignore\n",
        b"[Bb].[Xx] export-ignore\n",
        b"[[:upper:]].X export-ignore\n",
        b"back\\\\slash export-ignore\n",
        b"plain.x\\ export-ignore\n",
        b"[attr]m export-ignore eol=crlf\nplain.x m\nkeep -m\n",
        b"[attr]m export-ignore\n[attr]n m\nplain.x n\n",
        b"[attr]text eol=crlf\nplain.x text\nkeep -text\n",
        b"[attr]m export-ignore\nplain.x m -export-ignore\ndir2/x -export-ignore m\n",
        b"plain.x export-ignore keep\nkeep bad,name export-ignore",
        b"*.x text=auto eol=crlf\nkeep eol=CRLF\ndir2/x eol=crlf -crlf\n",
    ];
    let git = Git::new();
    for file in FILES.split(',') {
        git.write(file, "one\ntwo\n");
    }
    let mut different = Vec::new();
    for rule in rules {
        let commit = git.commit_file(".gitattributes", rule);
        let (ours, theirs) = both(&git, &commit, "");
        if ours != theirs {
            different.push(format!(
                "{:?}\n ours   {:?}\n theirs {:?}",
                rule.escape_ascii().to_string(),
                names(&ours),
                names(&theirs)
            ));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Files that hold rules, but are not what Git reads rules from; and rules that nobody can read.
#[test]
fn only_attributes_files_have_rules() {
    let git = Git::new();
    for file in
        ["link/f", "link/rules", "dir/f", "dir/.gitattributes/f", "bytes/f", "bytes/g\u{e4}", "self/f", "last/f"]
    {
        git.write(file, "one\ntwo\n");
    }
    git.write("rules", "f export-ignore\n");
    git.link("link/.gitattributes", "../rules");
    git.write("bytes/.gitattributes", b"\xff\xfe\x00f export-ignore\ng\xe4 export-ignore\n\0\n\xc3 \xa4\nf eol=crlf\n");
    git.write("self/.gitattributes", ".gitattributes export-ignore\n");
    let commit = git.commit_file("last/.gitattributes", "f eol=crlf");
    let (ours, theirs) = both(&git, &commit, "");
    assert_eq!(names(&ours), names(&theirs));
    assert_eq!(ours, theirs);
    assert!(ours.iter().any(|entry| entry.path == "link/f"), "the link is not followed");
    assert!(!ours.iter().any(|entry| entry.path == "self/.gitattributes"), "a file may leave itself out");
}

fn pattern() -> impl Strategy<Value = String> {
    prop::sample::select(vec![
        "*", "a", "b", "*.x", "a.x", "/a", "/*.x", "a/", "b/", "a/b", "/a/b", "a/*", "a/**", "**/b", "**/a/*.x",
        "b/a.x", "[ab]", "[!a].x", "?.x", "\"a\"", "\\a", "!a", "a/b/", "c", "**", "a**", "/a/**/c",
    ])
    .prop_map(str::to_owned)
}

fn attribute() -> impl Strategy<Value = &'static str> {
    let attributes = "export-ignore -export-ignore !export-ignore export-ignore=x text -text !text text=auto \
                      text=input eol=crlf eol=lf -eol !eol crlf -crlf crlf=input binary -binary !binary m -m !m n -n m=x";
    prop::sample::select(attributes.split(' ').collect::<Vec<_>>())
}

fn rules() -> impl Strategy<Value = String> {
    let rule = (pattern(), proptest::collection::vec(attribute(), 1..4));
    let rule = rule.prop_map(|(pattern, attributes)| format!("{pattern} {}\n", attributes.join(" ")));
    let define =
        prop::sample::select(vec!["[attr]m export-ignore eol=crlf\n", "[attr]n -text m\n", "[attr]n text=auto\n"]);
    proptest::collection::vec(prop_oneof![5 => rule, 1 => define.prop_map(str::to_owned)], 0..6)
        .prop_map(|l| l.concat())
}

proptest! {
    #![proptest_config(crate::random_cases(10))]
    #[test]
    fn random_rules_at_every_level_decide_as_in_git_archive(levels in proptest::collection::vec(rules(), 4)) {
        let git = Git::new();
        for folder in ["", "a/", "b/", "a/b/", "b/a/", "a/a/", "a/b/c/"] {
            for name in ["a.x", "b.x", "c", "d"] {
                let is_folder = name == "c" && folder == "a/b/";
                if !is_folder {
                    git.write(format!("{folder}{name}"), "one\ntwo\n");
                }
            }
            git.write(format!("{folder}mixed.x"), "one\r\ntwo\n");
            git.write(format!("{folder}nul.x"), "one\0two\n");
        }
        for (folder, rules) in ["", "a/", "a/b/", "b/"].iter().zip(&levels) {
            git.write(format!("{folder}.gitattributes"), rules);
        }
        let commit = git.commit("rules");
        for folder in ["", "a", "a/b"] {
            let (ours, theirs) = both(&git, &commit, folder);
            prop_assert_eq!(names(&ours), names(&theirs), "below `{}` by {:?}", folder, levels);
            prop_assert!(ours == theirs, "below `{}` by {:?}", folder, levels);
        }
    }
}
