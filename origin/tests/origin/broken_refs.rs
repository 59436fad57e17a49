//! Broken refs, which anyone with permission to push can create: other refs are followed nevertheless.

use proptest::prelude::*;

use crate::prelude::*;

/// Pushes a chain of tags.
fn push_nested_tags(upstream: &Upstream, count: usize) {
    let work = Git::at(upstream.work());
    let (mut of, mut kind) = (upstream.git(&["rev-parse", "HEAD"]), "commit");
    for _ in 0..count {
        let text = format!("object {of}\ntype {kind}\ntag deep\ntagger a <a@b> 0 +0000\n\nt\n");
        of = String::from_utf8(work.feed(["mktag"], text.as_bytes())).unwrap().trim().to_owned();
        kind = "tag";
    }
    upstream.git(&["push", "--quiet", "origin", &format!("{of}:refs/tags/deep")]);
}

async fn is_at(node: &Node, commit: &str) {
    assert_eq!(commit_of(&node.descriptor().await), commit);
    assert_eq!(*node.running.condition(&service()).unwrap().borrow(), Condition::Following);
}

#[track_caller]
fn shows_the_tag(state: &RepositoryState) {
    assert!(matches!(state.health, Health::Healthy { .. }), "{state:?}");
    let [tag] = &*state.left_out else { panic!("{state:?}") };
    assert!(!tag.is_followed && tag.name == "refs/tags/deep" && tag.reason.contains("too many tags"), "{tag:?}");
    assert!(state.mirrored && state.consecutive_failures == 0, "{state:?}");
}

#[tokio::test]
async fn refs_besides_a_broken_tag_are_published() {
    let (_home, upstream, node, _) = started().await;
    push_nested_tags(&upstream, 40);
    let second = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    shows_the_tag(&node.poll().await);
    is_at(&node, &second).await;

    // The broken tag causes no work, and is still reported.
    shows_the_tag(&node.poll().await);
    is_at(&node, &second).await;
    let third = upstream.push("deploy/app.yaml", b"replicas: 3\n");
    shows_the_tag(&node.poll().await);
    is_at(&node, &third).await;
    assert!(node.admin("/status").await.1.contains("cannot be followed"));
    assert_eq!(node.metric("weir_origin_refs_left_out{repository=\"shop\"}").await, 1.0);

    upstream.git(&["push", "--quiet", "origin", ":refs/tags/deep"]);
    let state = node.poll().await;
    assert!(state.left_out.is_empty(), "{state:?}");
    is_at(&node, &third).await;
    assert_eq!(node.metric("weir_origin_refs_left_out{repository=\"shop\"}").await, 0.0);
    assert_eq!(node.metric("weir_origin_repository_healthy{repository=\"shop\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_repository_with_a_broken_tag_is_cloned() {
    let (home, upstream) = (Home::new(), Upstream::small());
    push_nested_tags(&upstream, 40);
    let (node, _) = home.start_published(&upstream).await;
    shows_the_tag(&node.repository(|state| state.applied_polls > 0).await);
    is_at(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;
}

/// A service that follows a broken ref is told why; the others go on.
#[tokio::test]
async fn a_followed_tag_that_is_broken_is_named_in_its_service() {
    let (home, upstream) = (Home::new(), Upstream::small());
    push_nested_tags(&upstream, 40);
    let mut config = home.config(&upstream.url());
    also(&mut config, "docs").followed_ref = "refs/tags/deep".parse().unwrap();
    let node = home.start(config).await;
    let state = node.repository(|state| state.applied_polls > 0).await;
    let Health::Unhealthy { failure, .. } = &state.health else { panic!("{state:?}") };
    assert!(failure.reason.contains("`refs/tags/deep` cannot be followed"), "{failure:?}");
    is_at(&node, &upstream.git(&["rev-parse", "HEAD"])).await;
    node.stop().await;
}

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
