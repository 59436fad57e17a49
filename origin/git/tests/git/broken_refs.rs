//! Broken refs, which anyone with permission to push can create: other refs are followed nevertheless.

use proptest::prelude::*;

use crate::prelude::*;

/// Breaks a ref in one of several ways; `salt` makes each different.
fn break_a_ref(git: &Git, kind: u8, salt: u32) {
    let object = |kind: &str, text: String| {
        let id = git.feed(["hash-object", "-t", kind, "--literally", "-w", "--stdin"], text.as_bytes());
        String::from_utf8(id).unwrap().trim().to_owned()
    };
    let set = |name: &str, id: &str| {
        // Without the checks of git.
        let path = git.dir.join(".git").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{id}\n")).unwrap();
    };
    let (tree, missing) = (git.line(["rev-parse", "HEAD^{tree}"]), format!("{salt:040x}"));
    let commit =
        |tree: &str, by: &str| object("commit", format!("tree {tree}\nauthor {by}\ncommitter {by}\n\n{salt}\n"));
    let good = "a <a@b> 1700000000 +0000";
    let tree_of = |mode, name: &[u8], id: &str| git.raw_tree(&[(mode, name, id)]);
    match kind {
        0 => set("refs/heads/HEAD", &commit(&tree, good)),
        1 => set(&format!("refs/heads/odd-{salt}"), &commit(&tree, "a")),
        2 => set(&format!("refs/heads/without-tree-{salt}"), &commit(&missing, good)),
        3 => set(&format!("refs/heads/without-file-{salt}"), &commit(&tree_of("100644", b"x", &missing), good)),
        4 => set(&format!("refs/heads/no-commit-{salt}"), &object("commit", format!("nothing {salt}\n"))),
        5 => set(&format!("refs/tags/blob-{salt}"), &git.blob(salt.to_string().as_bytes())),
        6 => set(&format!("refs/tags/no-tag-{salt}"), &object("tag", format!("nothing {salt}\n"))),
        7 => set(&format!("refs/heads/missing-{salt}"), &missing),
        8 => set(&format!("refs/heads/x-{salt}.lock"), &commit(&tree, good)),
        9 => set(&format!("refs/heads/{}", "x".repeat(252)), &commit(&tree, good)),
        _ => {
            set(&format!("refs/heads/large-{salt}"), &commit(&tree_of("100644", b"x", &git.blob(&[0; 200_000])), good));
        }
    }
}

proptest! {
    #![proptest_config(crate::random_cases(8))]

    /// What nobody follows never stops what is followed.
    #[test]
    fn broken_refs_never_stop_a_followed_branch(pushes in prop::collection::vec(prop::collection::vec(0u8..=10, 0..4), 1..4)) {
        let (mut pair, _) = Pair::of_a_commit();
        pair.upstream.limits.max_object = ByteSize(100_000);
        let poll = |pair: &Pair| {
            let (progress, stop) = (FetchProgress::default(), AtomicBool::new(false));
            let memory = FetchMemory::new(pair.upstream.limits.max_object.as_u64(), pair.upstream.limits.max_objects);
            pair.mirror.poll_with(&pair.upstream, &pair.revisions, &progress, &memory, &stop, &|| true)
        };
        for (number, broken) in (1..).zip(pushes) {
            for (salt, kind) in (number * 10..).zip(broken) {
                break_a_ref(&pair.git, kind, salt);
            }
            let commit = pair.git.commit_file("a", number.to_string());
            poll(&pair).unwrap();
            prop_assert_eq!(pair.resolve("main").unwrap(), commit.clone(), "{:?}", pair.mirror.left_out());
            let (_, tar) = build_tar(&pair.mirror_dir(), &commit, &Selection::default(), 1).unwrap();
            prop_assert_eq!(read_tar(&tar)[0].contents.clone(), number.to_string().into_bytes());
        }
        pair.mirror.full_check().unwrap();
    }
}
