//! Revisions of services: refs of every kind, versions, commits.

use crate::prelude::*;

/// A commit on no branch, and the ref that points to it.
fn pull_request(git: &Git, name: &str, contents: &str) -> CommitId {
    let blob = git.blob(contents.as_bytes());
    let commit = git.commit_tree(&[("100644", b"a", &blob)]);
    git.run(["update-ref", name, commit.as_str()]);
    commit
}

#[test]
fn a_ref_of_a_pull_request_is_fetched_only_if_a_service_follows_it() {
    const NAME: &str = "refs/pull/7/head";
    let (mut pair, _) = Pair::of_a_commit();
    let first = pull_request(&pair.git, NAME, "proposed");
    pull_request(&pair.git, "refs/pull/8/head", "another");
    pair.follow();
    assert_eq!(pair.resolve(NAME), Err(RevisionError::RefMissing(NAME.to_owned())));

    pair.revisions = [NAME.parse().unwrap()].into();
    pair.follow();
    assert_eq!(pair.resolve(NAME).as_ref(), Ok(&first));
    assert!(pair.resolve("refs/pull/8/head").is_err());
    // The commit is in the mirror, but its author may not have push permission.
    assert_eq!(pair.resolve(first.as_str()), Err(RevisionError::CommitUnreachable(first.clone())));

    let second = pull_request(&pair.git, NAME, "proposed again");
    pair.follow();
    assert_eq!(pair.resolve(NAME).unwrap(), second);
    pair.git.run(["update-ref", "-d", NAME]);
    pair.follow();
    assert_eq!(pair.resolve(NAME), Err(RevisionError::RefMissing(NAME.to_owned())));

    // A name that was a directory, and a ref that no service follows any more.
    let third = pull_request(&pair.git, "refs/pull/7", "a ref in place of a folder");
    pair.revisions = ["refs/pull/7".parse().unwrap()].into();
    pair.follow();
    assert_eq!(pair.resolve("refs/pull/7").unwrap(), third);
    pair.revisions.clear();
    pair.follow();
    assert!(pair.resolve("refs/pull/7").is_err());
}

#[test]
fn a_commit_must_be_reachable_from_a_branch_or_a_tag() {
    let pair = Pair::new();
    let commits: Vec<CommitId> = (0..5).map(|round| pair.git.commit_file("a", round.to_string())).collect();
    pair.follow();
    for commit in &commits {
        assert_eq!(pair.resolve(commit.as_str()).as_ref(), Ok(commit));
    }
    let dropped = &commits[4];
    pair.git.run(["reset", "-q", "--hard", commits[3].as_str()]);
    pair.follow();
    assert_eq!(pair.resolve(dropped.as_str()), Err(RevisionError::CommitUnreachable(dropped.clone())));
    pair.git.run(["tag", "-a", "-m", "kept after all", "kept", dropped.as_str()]);
    pair.follow();
    assert_eq!(pair.resolve(dropped.as_str()).as_ref(), Ok(dropped));
    pair.git.run(["tag", "-d", "kept"]);
    // Merged by another branch, as a second parent.
    pair.git.run(["checkout", "-q", "-b", "merged"]);
    pair.git.run(["merge", "-q", "--no-ff", "-m", "merge", dropped.as_str()]);
    pair.follow();
    assert_eq!(pair.resolve(dropped.as_str()).as_ref(), Ok(dropped));
    // An id of the other format.
    let error = pair.resolve(&"a".repeat(64)).unwrap_err();
    assert!(matches!(error, RevisionError::OtherFormat { .. }) && error.to_string().contains("sha1"), "{error}");
}

#[test]
fn nested_tags_changed_tags_and_tags_of_other_objects() {
    let (pair, first) = Pair::of_a_commit();
    pair.git.run(["tag", "-a", "-m", "inner", "inner"]);
    pair.git.run(["tag", "-a", "-m", "outer", "outer", "inner"]);
    let tree = pair.git.line(["rev-parse", "HEAD^{tree}"]);
    pair.git.run(["tag", "of-a-tree", &tree]);
    pair.git.run(["tag", "-a", "-m", "annotated", "of-a-tree-annotated", &tree]);
    pair.follow();
    assert_eq!(pair.resolve("outer").unwrap(), first);
    for name in ["of-a-tree", "of-a-tree-annotated"] {
        assert_eq!(pair.resolve(name), Err(RevisionError::NotACommit(name.to_owned())));
    }
    assert_eq!(pair.resolve(first.as_str()).unwrap(), first, "such tags do not disturb");
    let second = pair.git.commit_file("a", "2");
    pair.git.run(["tag", "-f", "-a", "-m", "moved", "inner"]);
    pair.follow();
    assert_eq!(pair.resolve("inner").unwrap(), second);
    assert_eq!(pair.resolve("outer").unwrap(), first, "it tags the tag that was");
}

#[test]
fn a_range_follows_the_highest_version() {
    let pair = Pair::new();
    let tag = |name: &str| {
        pair.git.write("a", name);
        let commit = pair.git.commit(name);
        pair.git.run(["tag", "-a", "-m", name, name]);
        commit
    };
    let (first, api) = (tag("v1.2.0"), tag("api/v1.0.0"));
    tag("v2.0.0");
    let candidate = tag("v1.3.0-rc.1");
    pair.git.run(["branch", "v1.9.0"]);
    pair.follow();
    assert_eq!(pair.resolve("semver:^1").unwrap(), first, "no pre-release, no branch");
    assert_eq!(pair.resolve("semver:>=1.0.0-0 <2").unwrap(), candidate);
    assert_eq!(pair.resolve("semver:api/v1.*").unwrap(), api);
    let higher = tag("1.10.0");
    pair.follow();
    assert_eq!(pair.resolve("semver:^1").unwrap(), higher);
    pair.git.run(["tag", "-d", "1.10.0"]);
    pair.follow();
    assert_eq!(pair.resolve("semver:^1").unwrap(), first, "a version that was taken back is not followed");
    let error = pair.resolve("semver:9.x").unwrap_err();
    assert!(matches!(error, RevisionError::NoVersion(_)) && error.to_string().contains("semver:9.x"), "{error}");
    // The highest version counts even if it is broken: a lower one would be a silent rollback.
    let blob = pair.git.blob(b"x");
    pair.git.run(["tag", "v1.11.0", &blob]);
    pair.follow();
    assert!(matches!(pair.resolve("semver:^1"), Err(RevisionError::NotACommit(_))));
}
