//! A chain of deltas that takes too much memory, on the disk of a real Git server.

use crate::packs::line_of_large_deltas;
use crate::prelude::*;

/// Stores a pack in a repository, and commits all its objects.
fn commit_pack(repository: &Path, pack: &[u8]) -> String {
    let git = Git::at(repository.to_owned());
    let pack = git.feed(["index-pack", "--stdin"], pack);
    let pack = String::from_utf8(pack).unwrap();
    let listed =
        git.line(["verify-pack", "-v", &format!("objects/pack/pack-{}.pack", pack.split_whitespace().last().unwrap())]);
    let blobs = listed.lines().filter_map(|line| Some(line.split_once(" blob ")?.0));
    let entries: String = blobs.enumerate().map(|(at, id)| format!("100644 blob {id}\tfile-{at}\n")).collect();
    let text = |out: Vec<u8>| String::from_utf8(out).unwrap().trim().to_owned();
    let folder = text(git.feed(["mktree"], entries.as_bytes()));
    let root = text(git.feed(["mktree"], format!("040000 tree {folder}\tdeploy\n").as_bytes()));
    let commit = git.line(["commit-tree", "-m", "large", "-p", "main", &root]);
    git.run(["update-ref", "refs/heads/main", &commit]);
    commit
}

#[tokio::test]
async fn published_services_continue_while_a_pack_is_refused() {
    let (home, upstream, neighbour) = (Home::new(), Upstream::small(), Upstream::small());
    let mut config = home.config(&upstream.url());
    config.upstreams.max_object = bytesize::ByteSize::mib(8);
    let other: weir_protocol::name::RepositoryName = "other".parse().unwrap();
    config.repositories.push(RepositoryConfig::new(other.clone(), neighbour.url()));
    let node = home.start(config).await;
    let before = node.published(|_| true).await;

    let large = commit_pack(&upstream.bare(), &line_of_large_deltas(25).0);
    let state = node.poll().await;
    let Health::Unhealthy { failure, .. } = &state.health else { panic!("{:?}", state.health) };
    assert!(failure.step == "fetch" && failure.reason.contains("`[upstreams] max_object`"), "{failure:?}");
    assert!(node.metric("weir_origin_poll_failures_total{kind=\"limit\"}").await >= 1.0);
    let after = node.descriptor().await;
    assert_eq!(after.publication().commit, before.publication().commit);
    node.tarball(&after).await;
    let mut state = node.running.repository(&other).unwrap();
    let polls = state.borrow().applied_polls;
    assert!(node.running.trigger_poll(&other));
    let state = in_time(state.wait_for(|state| state.applied_polls > polls)).await.unwrap().clone();
    assert!(!matches!(state.health, Health::Unhealthy { .. }), "{:?}", state.health);

    // The remedy from the error message.
    upstream_repack(&upstream);
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), large);
    node.stop().await;
}

fn upstream_repack(upstream: &Upstream) {
    Git::at(upstream.bare()).run(["repack", "-adfq", "--depth=10"]);
}
