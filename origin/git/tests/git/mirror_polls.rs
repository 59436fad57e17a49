//! Polls of a mirror: changed, deleted and unchanged refs.

use weir_git::revision::{Revision, resolve};
use weir_upstream::Upstream;

use crate::prelude::*;

#[test]
fn the_first_poll_clones_and_an_unchanged_one_writes_nothing() {
    let (pair, first) = Pair::of_a_commit();
    pair.git.run(["tag", "-a", "-m", "annotated", "v1"]);
    assert_eq!(pair.poll(), Poll::Changed { refs: 3 }, "a branch, a tag and HEAD");
    assert_eq!(pair.resolve("HEAD").unwrap(), first);
    assert_eq!(pair.resolve("main").unwrap(), first);
    assert_eq!(pair.resolve("v1").unwrap(), first, "an annotated tag leads to its commit");
    let before = pair.files();
    assert_eq!(pair.poll(), Poll::Unchanged { refs: 3 });
    assert_eq!(pair.files(), before);
    let config = fs::read_to_string(pair.mirror_dir().join("config")).unwrap();
    assert!(!config.contains("remote") && !config.contains("up stream"), "{config}");
    assert!(before.iter().all(|(path, _)| !path.ends_with("FETCH_HEAD") && !path.ends_with("logs")));
    assert!(before.iter().all(|(path, _)| path.extension().is_none_or(|ending| ending != "keep")));
}

#[test]
fn pushes_forced_pushes_and_changed_tags_are_followed() {
    let (pair, first) = Pair::of_a_commit();
    pair.git.run(["tag", "moving"]);
    pair.follow();
    let second = pair.git.commit_file("a", "2");
    pair.git.run(["tag", "-f", "moving"]);
    pair.follow();
    assert_eq!(pair.resolve("moving").unwrap(), second);
    pair.git.run(["reset", "-q", "--hard", first.as_str()]);
    let third = pair.git.commit_file("a", "3");
    pair.follow();
    assert_eq!(pair.resolve("main").unwrap(), third);
    assert_eq!(pair.resolve(second.as_str()).unwrap(), second, "the tag leads to it still");
}

#[test]
fn branches_can_become_directories_and_back() {
    let (pair, first) = Pair::of_a_commit();
    pair.follow();
    for step in [
        &["branch", "del/1"][..],
        &["branch", "del/2/deep"],
        &["branch", "-D", "del/1", "del/2/deep"],
        &["branch", "del"],
        &["branch", "-M", "del", "del/1"],
        &["branch", "-M", "del/1", "del"],
        &["tag", "t/1"],
        &["tag", "-d", "t/1"],
        &["tag", "t"],
        &["branch", "-D", "del"],
    ] {
        pair.git.run(step);
        pair.follow();
    }
    assert_eq!(pair.resolve("del"), Err(RevisionError::RefMissing("del".to_owned())));
    pair.git.run(["commit", "-q", "--allow-empty", "-m", "newer"]);
    // A fetch, and a change from a directory to a branch, in one poll.
    pair.git.run(["branch", "x/1"]);
    pair.follow();
    pair.git.run(["branch", "-D", "x/1"]);
    pair.git.run(["commit", "-q", "--allow-empty", "-m", "newest"]);
    pair.git.run(["branch", "x"]);
    pair.follow();
    pair.git.run(["branch", "-D", "x"]);
    pair.git.run(["commit", "-q", "--allow-empty", "-m", "newest of all"]);
    pair.git.run(["branch", "x/y/z"]);
    pair.follow();
    assert_ne!(pair.resolve("x/y/z").unwrap(), first);
}

#[test]
fn a_short_name_prefers_a_branch_to_a_tag() {
    let (pair, first) = Pair::of_a_commit();
    pair.git.run(["tag", "both"]);
    let second = pair.git.commit_file("a", "2");
    pair.git.run(["branch", "both"]);
    let blob = pair.git.blob(b"tagged");
    pair.git.run(["tag", "of-a-blob", &blob]);
    pair.follow();
    assert_eq!(pair.resolve("both").unwrap(), second);
    assert_eq!(pair.resolve("refs/tags/both").unwrap(), first);
    assert_eq!(pair.resolve("refs/heads/both").unwrap(), second);
    assert_eq!(pair.resolve("of-a-blob"), Err(RevisionError::NotACommit("of-a-blob".to_owned())));
    let absent = "1".repeat(40);
    assert_eq!(pair.resolve(&absent), Err(RevisionError::CommitMissing(absent.parse().unwrap())));
    assert!(matches!(pair.resolve(&blob), Err(RevisionError::NotACommit(_))));
}

#[test]
fn the_default_branch_may_change_or_be_missing() {
    let (pair, first) = Pair::of_a_commit();
    pair.git.run(["branch", "other"]);
    let second = pair.git.commit_file("a", "2");
    pair.follow();
    assert_eq!(pair.resolve("HEAD").unwrap(), second);
    pair.git.run(["symbolic-ref", "HEAD", "refs/heads/other"]);
    assert!(matches!(pair.poll(), Poll::Changed { .. }));
    assert_eq!(pair.resolve("HEAD").unwrap(), first);
    pair.git.run(["symbolic-ref", "HEAD", "refs/heads/unborn"]);
    assert!(matches!(pair.poll(), Poll::Changed { .. }));
    assert_eq!(pair.resolve("HEAD"), Err(RevisionError::NoDefaultBranch));
    assert!(matches!(pair.poll(), Poll::Unchanged { .. }));
    pair.git.run(["branch", "third", "main"]);
    pair.follow();
    assert_eq!(pair.resolve("HEAD"), Err(RevisionError::NoDefaultBranch));
    pair.git.run(["symbolic-ref", "HEAD", "refs/heads/main"]);
    assert!(matches!(pair.poll(), Poll::Changed { .. }));
    assert_eq!(pair.resolve("HEAD").unwrap(), second);
    // A detached HEAD may be at a commit that is on no branch.
    pair.git.run(["checkout", "-q", "--detach"]);
    let detached = pair.git.commit_file("a", "3");
    assert!(matches!(pair.poll(), Poll::Changed { .. }));
    assert_eq!(pair.resolve("HEAD").unwrap(), detached);
}

/// Only the symbolic ref of that name is the default branch.
#[test]
fn a_branch_or_a_tag_may_be_called_head() {
    let (pair, first) = Pair::of_a_commit();
    pair.git.run(["branch", "other"]);
    let second = pair.git.commit_file("a", "2");
    for name in ["refs/heads/HEAD", "refs/tags/HEAD", "refs/heads/refs/heads/main"] {
        pair.git.run(["update-ref", name, "other"]);
        pair.follow();
        assert_eq!((pair.resolve("HEAD").unwrap(), pair.resolve("main").unwrap()), (second.clone(), second.clone()));
        assert_eq!(pair.resolve(name).unwrap(), first);
    }
}

#[test]
fn an_empty_upstream_deletes_no_refs() {
    let pair = Pair::new();
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::EmptyRepository), "{error}");
    let first = pair.git.commit_file("a", "1");
    pair.follow();
    fs::remove_dir_all(&pair.git.dir).unwrap();
    let error = pair.try_poll().unwrap_err();
    assert_eq!(error.kind(), "not_found");
    assert!(error.to_string().ends_with("there is no Git repository at this path"), "{error}");
    assert_eq!(error.step(), "list refs");
    Git::init(&pair.git.dir);
    let error = pair.try_poll().unwrap_err();
    assert!(matches!(error, MirrorError::NothingAdvertised { mirrored: 2 }), "{error}");
    assert_eq!(pair.resolve("main").unwrap(), first);
}

#[test]
fn hundreds_of_packs_do_not_run_out_of_slots() {
    let pair = Pair::new();
    pair.git.commit_file("a", "0");
    pair.poll();
    let held = pair.mirror.repository().unwrap();
    for cycle in 1..=10 {
        let commit = pair.git.commit_file("a", cycle.to_string());
        assert!(matches!(pair.poll(), Poll::Changed { .. }));
        assert_eq!(pair.resolve("main").unwrap(), commit);
    }
    let packs = fs::read_dir(pair.mirror_dir().join("objects/pack")).unwrap();
    let packs = packs.filter(|entry| entry.as_ref().unwrap().path().extension().is_some_and(|e| e == "pack")).count();
    assert_eq!(packs, 11, "the test means to have many packs");
    // Copies of one pack under other names stand for a year of pushes.
    let dir = pair.mirror_dir().join("objects/pack");
    let one = fs::read_dir(&dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension().is_some_and(|e| e == "pack"));
    let one = one.unwrap();
    for copy in 0..600 {
        let name = dir.join(format!("pack-{copy:040x}.pack"));
        fs::copy(&one, &name).unwrap();
        fs::copy(one.with_extension("idx"), name.with_extension("idx")).unwrap();
    }
    let last = pair.git.commit_file("a", "last");
    pair.follow();
    assert_eq!(pair.resolve("main").unwrap(), last);
    build_tar(&pair.mirror_dir(), &last, &Selection::default(), 2).map(|_| ()).unwrap_or_else(|e| panic!("{e}"));
    drop(held);
}

#[test]
fn files_of_a_killed_fetch_are_removed() {
    let (pair, _) = Pair::of_a_commit();
    pair.poll();
    let dir = pair.mirror_dir();
    fs::create_dir_all(dir.join("refs/heads")).unwrap();
    for name in
        ["objects/pack/.tmpAbc", "objects/pack/pack-0.keep", "packed-refs.lock", "refs/heads/main.lock", "HEAD.lock"]
    {
        fs::write(dir.join(name), "torn").unwrap();
    }
    fs::create_dir_all(dir.join("refs/heads/next")).unwrap();
    fs::create_dir_all(dir.with_file_name(".shop.new")).unwrap();
    let reopened = Mirror::open(&dir, DEFAULT_MAX_OBJECT).unwrap();
    pair.git.run(["branch", "next"]);
    pair.git.commit_file("a", "2");
    let poll =
        reopened.poll(&pair.upstream, &pair.revisions, &FetchProgress::default(), &AtomicBool::new(false)).unwrap();
    assert!(matches!(poll, Poll::Changed { .. }));
    pair.assert_equal();
    assert!(!dir.join("objects/pack/pack-0.keep").exists());
}

#[test]
fn a_killed_creation_is_repeated() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join(".m.new/objects")).unwrap();
    fs::write(dir.path().join(".m.new/HEAD"), "half").unwrap();
    Mirror::open(&dir.path().join("m"), DEFAULT_MAX_OBJECT).unwrap();
    assert!(!dir.path().join(".m.new").exists());
    fs::write(dir.path().join("file"), "").unwrap();
    let error = Mirror::open(&dir.path().join("file"), DEFAULT_MAX_OBJECT).unwrap_err();
    assert_eq!(error.step(), "write");
    assert!(!error.to_string().contains(dir.path().to_str().unwrap()), "no path: {error}");
}

#[test]
fn an_interrupt_ends_a_poll() {
    let (pair, _) = Pair::of_a_commit();
    let stop = AtomicBool::new(true);
    let error = pair.mirror.poll(&pair.upstream, &pair.revisions, &FetchProgress::default(), &stop).unwrap_err();
    assert!(matches!(error, MirrorError::Upstream(UpstreamError::Interrupted)), "{error}");
    pair.follow();
}

#[test]
fn an_upstream_may_be_a_work_tree_a_path_or_a_shallow_clone() {
    let pair = Pair::new();
    for round in ["1", "2", "3"] {
        pair.git.write("a", round);
        pair.git.commit(round);
    }
    let dir = pair.git.dir.parent().unwrap();
    let url = format!("file://{}", pair.git.dir.display());
    assert!(git_command(dir).args(["clone", "-q", "--depth=1", &url, "shallow"]).status().unwrap().success());
    let shallow = Git::at(dir.join("shallow"));
    let tip: CommitId = shallow.line(["rev-parse", "HEAD"]).parse().unwrap();
    let mirror = Mirror::open(&dir.join("mirror-of-shallow"), DEFAULT_MAX_OBJECT).unwrap();
    let upstream = Upstream::new(shallow.dir.to_str().unwrap());
    let poll = || mirror.poll(&upstream, &HashSet::new(), &FetchProgress::default(), &AtomicBool::new(false)).unwrap();
    assert!(matches!(poll(), Poll::Changed { .. }));
    assert!(matches!(poll(), Poll::Unchanged { .. }));
    let next = shallow.commit_file("b", "on top");
    assert!(matches!(poll(), Poll::Changed { .. }));
    for commit in [tip, next] {
        build_tar(&dir.join("mirror-of-shallow"), &commit, &Selection::default(), 1).unwrap();
    }
    let ends = |git_dir: &str| fs::read_to_string(dir.join(git_dir).join("shallow")).unwrap();
    assert_eq!(ends("mirror-of-shallow"), ends("shallow/.git"));
    let pinned = Revision::Commit(pair.git.line(["rev-parse", "HEAD^"]).parse().unwrap());
    let resolved = resolve(&mirror.repository().unwrap().to_thread_local(), &pinned);
    assert!(matches!(resolved, Err(RevisionError::CommitTooDeep(_))), "{resolved:?}");
    mirror.full_check().unwrap();
}

/// Git reads commits with any author and committer, or without.
#[test]
fn odd_authors_and_committers_stop_nothing() {
    let (pair, first) = Pair::of_a_commit();
    pair.follow();
    let (tree, mut tip) = (pair.git.line(["rev-parse", "HEAD^{tree}"]), first.to_string());
    let commit = |parent: &str, by: &str| {
        let text = format!("tree {tree}\nparent {parent}\nauthor {by}\ncommitter {by}\n\nodd\n");
        let id = pair.git.feed(["hash-object", "-t", "commit", "--literally", "-w", "--stdin"], text.as_bytes());
        String::from_utf8(id).unwrap().trim().to_owned()
    };
    for by in [
        "a a@b> 1700000000 +0000",
        "a <a@b 1700000000 +0000",
        "a",
        "a 1700000000 +0000",
        "a <a@b>",
        "a <a@b> Fri Jan 2 15:00:00 2015",
        "a <a@b> 1700000000.25 +0000",
        "a <a@b> 1700000000 GMT",
        "a <a@b> 1700000000 +0000 and more",
        "<> <>",
        "",
    ] {
        // Beside the followed branch, as its tip, and below its tip.
        pair.git.run(["update-ref", "refs/heads/other", &commit(first.as_str(), by)]);
        pair.follow();
        tip = commit(&tip, by);
        pair.git.run(["update-ref", "refs/heads/main", &tip]);
        pair.follow();
        assert_eq!(pair.resolve("main").unwrap().as_str(), tip, "{by}");
        build_tar(&pair.mirror_dir(), &tip.parse().unwrap(), &Selection::default(), 1).unwrap();
        // A pinned commit is searched in the history.
        assert_eq!(pair.resolve(first.as_str()).unwrap(), first, "{by}");
    }
    pair.git.run(["reset", "-q", "--hard", "main"]);
    pair.git.commit_file("a", "2");
    pair.follow();
    assert_eq!(pair.resolve(&tip).unwrap().as_str(), tip);
}
