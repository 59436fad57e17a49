//! `.gitattributes` as people and machines write them: each rule decides as in `git archive`.
//!
//! (One does not: a byte order mark at the start of the file is passed over, as Git does in a working tree; `git archive`
//! takes it for a part of the first pattern.)

use weir_origin::tarball::{Filters, Selection};

use crate::git_fixture::Git;
use crate::tar_reading::{build_tar, git_archive, read_tar};

const FILES: [&str; 14] = [
    "plain.x",
    "dir/plain.x",
    "dir/in/plain.x",
    "a b",
    "quo\"te",
    "#hash",
    "!bang",
    "star*x",
    "starx",
    "dir2/x",
    "ä.x",
    "B.X",
    "back\\slash",
    "keep",
];

#[test]
fn each_rule_decides_as_in_git_archive() {
    let rules: [&[u8]; 36] = [
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
        b"[attr]m export-ignore\nplain.x m -export-ignore\ndir2/x -export-ignore m\n",
        b"plain.x export-ignore keep\nkeep bad,name export-ignore",
        b"*.x text=auto eol=crlf\nkeep eol=CRLF\ndir2/x eol=crlf -crlf\n",
    ];
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    for file in FILES {
        git.write(file, "one\ntwo\n");
    }
    let mut different = Vec::new();
    for rule in rules {
        git.write(".gitattributes", rule);
        let commit = git.commit("rule");
        let everything = Selection { folder: "".parse().unwrap(), filters: Filters::default() };
        let (_, tar) = build_tar(&git.dir, &commit, &everything, 1).unwrap();
        let (ours, mut theirs) = (read_tar(&tar), git_archive(&git, &commit, ""));
        // We write a directory only when something below it is written.
        let files: Vec<String> = theirs.iter().filter(|e| e.kind != '5').map(|e| e.path.clone()).collect();
        theirs.retain(|entry| entry.kind != '5' || files.iter().any(|file| file.starts_with(&entry.path)));
        if ours != theirs {
            let names = |entries: &[crate::tar_reading::TarEntry]| {
                entries.iter().map(|e| format!("{} {}", e.path, e.contents.len())).collect::<Vec<_>>()
            };
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
