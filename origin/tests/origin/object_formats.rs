//! Services of a repository whose object format changes.

use crate::prelude::*;

#[tokio::test]
async fn a_service_continues_after_a_change_of_the_object_format() {
    let (_home, upstream, node, old) = started().await;
    fs::remove_dir_all(upstream.bare()).unwrap();
    fs::create_dir_all(upstream.bare()).unwrap();
    let git = Git::at(upstream.bare());
    git.run(["init", "-q", "-b", "main", "--object-format=sha256", "."]);
    let commit = git.commit_file("deploy/app.yaml", "replicas: 3\n");
    node.running.trigger_poll(&crate::node::repository());
    let new = node.published(|descriptor| descriptor.publication().commit.as_ref() == Some(&commit)).await;
    assert!(new.publication().generation > old.publication().generation);
    assert_eq!(commit_of(&new).len(), 64);
    assert_eq!(names(&node.tarball(&new).await), ["app.yaml"]);
    assert_eq!(node.metric("weir_origin_mirrors_set_aside_total{repository=\"shop\"}").await, 1.0);
    node.stop().await;
}
