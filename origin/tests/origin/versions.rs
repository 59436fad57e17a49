//! History, diff, rollback and pins, on a running origin.

use weir_origin::versions::{ChangeRequest, VersionError};
use weir_protocol::versions::Versions;
use weir_publish::Why;
use weir_source::WithoutPin;

use crate::artifacts::NAME;
use crate::prelude::*;
use crate::registry_server::RegistryServer;

fn change_by(by: &str) -> ChangeRequest {
    ChangeRequest { by: Some(by.to_owned()), ..ChangeRequest::default() }
}

fn digest(descriptor: &Descriptor) -> TarballDigest {
    descriptor.publication().digest
}

async fn push_and_poll(node: &Node, upstream: &Upstream, contents: &str) -> Descriptor {
    upstream.push("deploy/app.yaml", contents.as_bytes());
    node.poll().await;
    node.descriptor().await
}

#[tokio::test]
async fn a_rollback_holds_over_restarts_and_pushes_until_it_is_unpinned() {
    let (home, upstream, node, old) = started().await;
    let new = push_and_poll(&node, &upstream, "replicas: 9\n").await;
    node.running.versions().roll_back(&service(), &digest(&old), change_by("ann")).await.unwrap();
    let back = node.descriptor().await;
    assert_eq!(digest(&back), digest(&old));
    assert_eq!(back.publication().commit, old.publication().commit);
    assert!(back.publication().generation > new.publication().generation);
    node.tarball(&back).await;
    // Nobody has looked at its ref since.
    let otherwise = node.status().await["services"][0]["pinned"]["otherwise"].clone();
    assert_eq!((&otherwise["commit"], &otherwise["examined"]), (&json!(new.publication().commit), &json!(false)));
    assert!(otherwise["as_of"].is_string(), "{otherwise}");

    let pushed: CommitId = upstream.push("deploy/app.yaml", b"replicas: 10\n").parse().unwrap();
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), back.bytes());
    let pinned = node.status().await["services"][0].clone();
    assert_eq!(pinned["condition"], "pinned");
    let otherwise = &pinned["pinned"]["otherwise"];
    assert_eq!((&otherwise["commit"], &otherwise["examined"]), (&json!(pushed), &json!(true)));
    node.stop().await;

    let node = home.start(home.config(&upstream.url())).await;
    assert_eq!(node.descriptor().await.bytes(), back.bytes());
    assert_eq!(node.status().await["services"][0]["pinned"]["by"], "ann", "a restart forgets nobody");
    let mut condition = node.running.condition(&service()).unwrap();
    assert!(matches!(*condition.borrow(), Condition::Pinned { .. }), "from the first moment");
    let looked_at = |now: &Condition| matches!(now, Condition::Pinned { without_pin: WithoutPin::At(at), .. } if at.commit().as_ref() == Some(&pushed));
    condition.wait_for(looked_at).await.unwrap();

    // Unpinning needs no upstream: what it was at last is in the mirror.
    upstream.take_away();
    let versions = node.running.versions();
    assert!(versions.unpin(&service(), change_by("bob")).await.unwrap());
    let on = node.published(|now| now.publication().commit.as_ref() == Some(&pushed)).await;
    assert!(on.publication().generation > back.publication().generation);
    condition.wait_for(|now| *now == Condition::Following).await.unwrap();

    let page = versions.history(&service(), None, 100).await.unwrap().publications;
    let reply: Vec<_> = page.iter().map(|listed| (listed.entry.why, listed.entry.digest, listed.retained)).collect();
    let followed = |descriptor: &Descriptor| (Why::Followed, digest(descriptor), true);
    assert_eq!(reply, [followed(&on), (Why::RolledBack, digest(&back), true), followed(&new), followed(&old)]);
    assert_eq!(page[1].entry.by.as_deref(), Some("ann"), "who rolled back");
    assert_eq!(page[1].entry.acts[0].author.by.as_deref(), Some("bob"), "who changed it last");
    assert!(page[1].entry.pinned_at.is_some() && page[1].entry.unpinned_at.is_some());

    // What was rolled back from is listed for edges, and has no tags.
    let listed = Versions::parse(&node.get(&format!("/v1/services/{SERVICE}/versions")).await.body).unwrap();
    let listed: Vec<_> = listed.iter().map(|(version, followed)| (version.bytes(), *followed)).collect();
    assert_eq!(listed, [(on.bytes(), true), (back.bytes(), true), (new.bytes(), false)]);
    node.stop().await;
}

#[tokio::test]
async fn a_rollback_rebuilds_a_damaged_version_and_refuses_a_lost_one() {
    let (home, upstream, node, old) = started().await;
    let new = push_and_poll(&node, &upstream, "replicas: 9\n").await;
    let versions = node.running.versions();
    flip_a_bit(&home.object(&object_of(&old)));
    versions.roll_back(&service(), &digest(&old), ChangeRequest::default()).await.unwrap();
    node.tarball(&node.descriptor().await).await;
    assert_eq!(node.metric("weir_origin_object_rebuilds_total{result=\"rebuilt\"}").await, 1.0);

    // The mirror is gone too, so the other one can be had from nowhere.
    upstream.take_away();
    std::fs::remove_dir_all(home.data_dir().join("mirrors")).unwrap();
    flip_a_bit(&home.object(&object_of(&new)));
    let before = node.descriptor().await;
    let refused = versions.roll_back(&service(), &digest(&new), ChangeRequest::default()).await;
    assert!(matches!(refused, Err(VersionError::Lost(_) | VersionError::NotRetained(..))), "{refused:?}");
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    node.stop().await;
}

#[tokio::test]
async fn a_pinned_service_reports_errors_of_its_ref() {
    let (_home, upstream, node, published) = started().await;
    node.running.versions().pin(&service(), ChangeRequest::default()).await.unwrap();
    upstream.git(&["rm", "-r", "--quiet", "deploy"]);
    upstream.push("docs/more.md", b"the folder is gone\n");
    node.poll().await;
    let failing = node.status().await["services"][0]["pinned"]["otherwise"]["failure"]["reason"].clone();
    assert!(failing.as_str().unwrap().contains("deploy"), "{failing}");
    assert_eq!(node.descriptor().await.bytes(), published.bytes());
    node.running.versions().unpin(&service(), ChangeRequest::default()).await.unwrap();
    let mut condition = node.running.condition(&service()).unwrap();
    condition.wait_for(|now| matches!(now, Condition::Unhealthy { .. })).await.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn a_digest_of_a_rollback_is_not_the_tag_that_is_called_so() {
    let (home, registry) = (Home::new(), RegistryServer::start(None));
    registry.push_archive(NAME, "v1", &[("map.yaml", "a: 1")]);
    let mut config = crate::artifacts::config(&home, &registry.url(NAME), &json!({ "insecure": true }), &[]);
    config.operator_listen = Some(([127, 0, 0, 1], 0).into());
    let node = home.start(config).await;
    let operator = Operator::without_token(&home, &node, Some("operator"));
    let follow = async |tag: &str| {
        let put = operator.put("/v1/services/web", json!({ "repository": REPOSITORY, "ref": tag })).await;
        assert!(put.status.is_success(), "{put:?}");
        node.poll().await;
        let is_tag = |now: &Descriptor| now.publication().version.as_ref().is_some_and(|it| it.as_str() == tag);
        node.published_of("web", is_tag).await.publication().digest
    };
    let first = follow("v1").await;
    let tag = first.to_string();
    registry.push_archive(NAME, &tag, &[("map.yaml", "a: 2")]);
    let second = follow(&tag).await;

    let roll_back = async |body| operator.send(Method::POST, "/v1/services/web/rollback", &[], Some(body)).await;
    let several = roll_back(json!({ "revision": tag })).await;
    assert_eq!((several.status.as_u16(), several.problem().0), (409, "ambiguous-revision"), "{several:?}");
    let candidates = several.body["errors"].as_array().unwrap().iter().map(|it| &it["digest"]).collect::<Vec<_>>();
    assert_eq!(candidates, [&json!(second), &json!(first)]);
    let back = roll_back(json!({ "digest": tag })).await;
    assert_eq!((back.status.as_u16(), &back.body["status"]["published"]["digest"]), (200, &json!(first)), "{back:?}");
    node.stop().await;
}
