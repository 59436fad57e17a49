//! What publishing does when nothing fails.

use std::collections::BTreeSet;

use weir_protocol::part::{Part, revision_of};

use super::*;

#[tokio::test(start_paused = true)]
async fn publications_survive_a_restart() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    assert_eq!(publish(&publisher, &shop_prod, 1, &["one", "two"]).await.unwrap(), Outcome::Published);
    let descriptor = current(&shop_prod);
    assert_eq!((descriptor.representations()[0].frames, store.events()), (2, 1));
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], descriptor);
    let again = service("shop-prod");
    let before = store.record().await;
    let cached = publisher.publish_cached(&shop(), &[candidate(&again, 1)], at(2)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate]));
    assert_eq!((current(&again), store.record().await), (descriptor, before));
}

#[tokio::test(start_paused = true)]
async fn a_commit_that_changes_no_digest_writes_nothing() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let (record, descriptor) = (store.record().await, current(&shop_prod));
    assert_eq!(publish(&publisher, &shop_prod, 2, &["one"]).await.unwrap(), Outcome::Unchanged);
    let cached = publisher.publish_cached(&shop(), &[candidate(&shop_prod, 2)], at(3)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate]), "it is not built again");
    assert_eq!((store.record().await, current(&shop_prod), store.events()), (record, descriptor, 1));
    let cached = publisher.publish_cached(&shop(), &[candidate(&shop_prod, 3)], at(3)).await.unwrap();
    assert!(matches!(cached[..], [Cached::NeedsBuild]));
}

#[tokio::test(start_paused = true)]
async fn another_ref_of_the_same_content_is_a_revision() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let mut config = ServiceConfig::new(name("shop-prod"), shop());
    config.followed_ref = "release".parse().unwrap();
    let moved = Arc::new(Service::new(&config, |_| None, Some(current(&shop_prod))).unwrap());
    let cached = publisher.publish_cached(&shop(), &[candidate(&moved, 1)], at(2)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate]));
    let (before, after) = (current(&shop_prod), current(&moved));
    assert_eq!((after.followed_ref(), after.revision()), ("release", 2));
    assert_eq!(after.publication(), before.publication());
}

#[tokio::test(start_paused = true)]
async fn known_contents_are_published_without_a_build() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let (prod, test) = (service("shop-prod"), service("shop-test"));
    publish(&publisher, &prod, 1, &["one"]).await.unwrap();
    publish(&publisher, &prod, 2, &["two"]).await.unwrap();
    let puts = store.store.puts();
    let candidates = [candidate(&prod, 1), candidate(&test, 2)];
    let cached = publisher.publish_cached(&shop(), &candidates, at(3)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate, Cached::UpToDate]), "{cached:?}");
    let digest = |text: &str| TarballDigest::of(text.as_bytes());
    assert_eq!(current(&prod).publication().digest, digest("one"), "a retained version of its own");
    assert_eq!(current(&test).publication().digest, digest("two"), "what another service was at");
    assert_eq!(current(&prod).publication().revision_id, revision(1));
    assert_eq!(store.store.puts() - puts, 2, "a page and a segment");
}

#[tokio::test(start_paused = true)]
async fn publications_that_wait_are_written_together() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let services: Vec<_> = (0..30).map(|number| service(&format!("s{number}"))).collect();
    publish(&publisher, &services[0], 1, &["same"]).await.unwrap();
    let before = store.sequence().await;
    // Nothing is stored for these: all of them wait before the writer takes the first one.
    let published = services[1..].iter().map(|service| {
        let (publisher, candidate) = (&publisher, candidate(service, 1));
        async move { publisher.publish_cached(&shop(), &[candidate], at(1)).await.unwrap() }
    });
    for cached in futures_util::future::join_all(published).await {
        assert!(matches!(cached[..], [Cached::UpToDate]), "{cached:?}");
    }
    assert_eq!(store.sequence().await, before + 1);
    assert!(services.iter().all(|service| current(service).publication().generation > 0));
    let (_, started) = store.start(&["s0", "s29"]).await;
    assert_eq!((started.current.len(), started.retired.len()), (2, 28));
}

#[tokio::test(start_paused = true)]
async fn a_tip_that_a_publication_has_overtaken_is_not_stored() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let lacks = async |commit: &str| {
        let positions = publisher.queries.positions(&shop()).await.unwrap();
        let threshold = positions.find(&shop_prod.name, "main", commit)?;
        threshold.lacks(current(&shop_prod).publication().generation)
    };
    let tip = |commit: u64, generation| SeenTip {
        followed_ref: "main".to_owned(),
        revision_id: revision(commit),
        in_force: vec![(shop_prod.name.clone(), generation)],
    };
    let commit = |number: u64| revision(number).commit().unwrap().to_string();
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let first = current(&shop_prod).publication().generation;
    publisher.add_tips(&shop(), vec![tip(2, first)]).await.unwrap();
    assert_eq!(lacks(&commit(2)).await, Some(false));
    publish(&publisher, &shop_prod, 4, &["two"]).await.unwrap();
    publisher.add_tips(&shop(), vec![tip(3, first)]).await.unwrap();
    assert_eq!(lacks(&commit(3)).await, None, "whoever runs the first one would lack a commit that changed nothing");
}

#[tokio::test(start_paused = true)]
async fn pins_and_rollbacks_are_in_the_history() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let nothing = publisher.pin(&shop_prod, None, change("ann", 0)).await.unwrap_err();
    assert!(matches!(nothing, VersionChangeError::NothingPublished(_)));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let first = current(&shop_prod);
    publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap();
    let second = current(&shop_prod);

    let expected = VersionChange { expected: Some(first.publication().generation), ..change("ann", 3) };
    let digest = first.publication().digest;
    let conflict = publisher.pin(&shop_prod, Some(&digest), expected).await.unwrap_err();
    assert!(matches!(conflict, VersionChangeError::GenerationConflict { .. }), "{conflict}");
    let unknown = publisher.pin(&shop_prod, Some(&TarballDigest::of(b"x")), change("ann", 3)).await.unwrap_err();
    assert!(matches!(unknown, VersionChangeError::NotRetained(..)), "{unknown}");
    assert_eq!(current(&shop_prod), second);

    publisher.pin(&shop_prod, Some(&digest), change("ann", 4)).await.unwrap();
    let rolled_back = current(&shop_prod);
    assert_eq!(rolled_back.publication().digest, digest);
    assert!(rolled_back.publication().generation > second.publication().generation);
    assert_eq!(publish(&publisher, &shop_prod, 5, &["three"]).await.unwrap(), Outcome::Pinned);
    assert_eq!(current(&shop_prod), rolled_back);

    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.pins[&name("shop-prod")].since, at(4));
    assert!(publisher.unpin(&shop_prod, change("bob", 6)).await.unwrap());
    assert!(!publisher.unpin(&shop_prod, change("bob", 6)).await.unwrap());
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 10).await.unwrap();
    let why: Vec<_> = history.publications.iter().map(|listed| listed.entry.why).collect();
    assert_eq!(why, [Why::RolledBack, Why::Followed, Why::Followed]);
    let [last, two, one] = &history.publications[..] else { panic!("{history:?}") };
    assert_eq!((last.current, last.entry.by.as_deref()), (true, Some("ann")));
    assert_eq!((last.entry.pinned_at, last.entry.unpinned_at), (Some(at(4).into()), Some(at(6).into())));
    assert!(two.retained && !two.current && one.retained, "the digest of the first one is current");
    assert_eq!(publish(&publisher, &shop_prod, 7, &["three"]).await.unwrap(), Outcome::Published);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_published_of_a_service_that_was_withdrawn_or_retired() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let generation = current(&shop_prod).publication().generation;
    let retired = publisher.retire(&shop(), std::slice::from_ref(&shop_prod), at(2)).await.unwrap();
    assert_eq!(retired[&name("shop-prod")], generation);
    assert_eq!(publish(&publisher, &shop_prod, 3, &["two"]).await.unwrap(), Outcome::Withdrawn);
    let again = service("shop-prod");
    assert_eq!(publish(&publisher, &again, 0, &["two"]).await.unwrap(), Outcome::Published);
    assert_eq!(current(&again).publication().generation, generation + 1, "also after a clock that was set back");
}

#[tokio::test(start_paused = true)]
async fn versions_and_their_objects_are_found_again() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one", "shared"]).await.unwrap();
    let first = current(&shop_prod);
    publish(&publisher, &shop_prod, 2, &["two", "shared"]).await.unwrap();
    let version = |digest| {
        let publisher = publisher.clone();
        async move { publisher.queries.version(&shop(), &name("shop-prod"), &digest).await.unwrap() }
    };
    assert_eq!(version(first.publication().digest).await, Some(first.clone()));
    assert_eq!(version(current(&shop_prod).publication().digest).await, Some(current(&shop_prod)));
    assert_eq!(version(TarballDigest::of(b"x")).await, None);
    let versions = [first.clone(), current(&shop_prod)];
    for (object, expected) in [("one", Some(0)), ("shared", Some(1)), ("two", Some(1)), ("x", None)] {
        let found = publisher.queries.find_reference(&shop(), &ObjectDigest::of(object.as_bytes())).await.unwrap();
        assert_eq!(found.as_ref(), expected.map(|number: usize| &versions[number]), "{object}");
    }
    let mut revisions = publisher.queries.revisions(&shop(), &BTreeSet::new()).await.unwrap();
    revisions.sort_by_key(|(_, revision)| revision.to_string());
    assert_eq!(revisions, [1, 2].map(|number| (name("shop-prod"), revision(number))));
    let recipe = publisher.queries.recipe(&shop_prod).await.unwrap();
    assert!(Recipe::parse(&recipe).is_ok());
    publisher.drop_version(&shop_prod, &first.publication().digest).await.unwrap();
    assert_eq!(version(first.publication().digest).await, None);
}

#[tokio::test(start_paused = true)]
async fn revisions_of_parts_are_found_in_the_versions_of_other_repositories() {
    let store = TestStore::new();
    let (publisher, composed) = (store.open().await, service("composed"));
    let part = |to: &str, repository: &str, number| Part {
        service: None,
        digest: None,
        to: to.to_owned(),
        repository: repository.parse().unwrap(),
        revision_id: revision(number),
    };
    let parts = vec![part("chart", "shop", 1), part("values", "config", 2)];
    let candidate = Candidate { revision: revision_of(&parts), parts, ..candidate(&composed, 1) };
    publish_candidate(&publisher, &candidate, 1, &["one"]).await.unwrap();
    let config = "config".parse().unwrap();
    let found = publisher.queries.revisions(&config, &BTreeSet::from([shop()])).await.unwrap();
    assert_eq!(found, [(name("composed"), revision(2))]);
    let mut found = publisher.queries.revisions(&shop(), &BTreeSet::new()).await.unwrap();
    found.sort_by_key(|(_, revision)| revision.to_string());
    assert_eq!(found, [candidate.revision, revision(1)].map(|revision| (name("composed"), revision)));
}

#[tokio::test(start_paused = true)]
async fn definitions_of_operators_survive_a_restart() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let document = |text: &str| Some(serde_json::json!({ "text": text }));
    let services = (0..2000).map(|number| (name(&format!("s{number}")), document("x")));
    let define = DefinitionChange { repository: Some(document("shop")), services: services.collect() };
    publisher.define(&shop(), define).await.unwrap();
    let blog: RepositoryName = "blog".parse().unwrap();
    let moved = DefinitionChange { repository: None, services: vec![(name("s7"), document("moved"))] };
    publisher.define(&blog, moved).await.unwrap();
    let gone = DefinitionChange { repository: None, services: vec![(name("s8"), None)] };
    publisher.define(&shop(), gone).await.unwrap();
    let (_, stored) = store.open_with_definitions().await;
    assert_eq!(stored.repositories.get(&shop()).cloned(), document("shop"));
    assert_eq!(stored.services.len(), 1999);
    assert_eq!(stored.services.get(&name("s7")).map(|(_, it)| it.clone()), document("moved"), "the newer one");
    assert!(!stored.services.contains_key(&name("s8")));
}
