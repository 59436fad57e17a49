//! What a start changes of what was published before.

use super::*;
use weir_protocol::token::SigningKey;

#[tokio::test(start_paused = true)]
async fn services_that_are_not_configured_any_more_are_retired_once() {
    let store = TestStore::new();
    let publisher = store.open().await;
    for service_name in ["stays", "goes"] {
        publish(&publisher, &service(service_name), 1, &["one"]).await.unwrap();
    }
    let (_, started) = store.start(&["stays"]).await;
    assert_eq!(started.current.keys().collect::<Vec<_>>(), [&name("stays")]);
    assert_eq!(started.retired.iter().map(|retired| retired.service.as_str()).collect::<Vec<_>>(), ["goes"]);
    let (sequence, gone) = (store.sequence().await, started.retired[0].generation);
    let (publisher, started) = store.start(&["stays", "goes"]).await;
    assert!(started.retired.is_empty() && !started.current.contains_key(&name("goes")), "it is not brought back");
    assert_eq!(store.sequence().await, sequence, "a start that changes nothing writes nothing");
    let again = service("goes");
    let cached = publisher.publish_cached(&shop(), &[candidate(&again, 1)], at(0)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate]), "its versions are retained");
    assert!(current(&again).publication().generation > gone, "by an earlier clock");
}

#[tokio::test(start_paused = true)]
async fn generations_below_the_floor_are_republished_above_it() {
    let mut store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    publisher.pin(&shop_prod, None, change("ann", 2)).await.unwrap();
    let before = current(&shop_prod);
    store.floor = 9_000_000_000_000_000;
    let (publisher, started) = store.start(&["shop-prod"]).await;
    let raised = &started.current[&name("shop-prod")];
    assert_eq!(
        (raised.publication().generation, raised.publication().digest),
        (store.floor, before.publication().digest)
    );
    assert!(started.pins.contains_key(&name("shop-prod")));
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 1).await.unwrap();
    assert_eq!(history.publications[0].entry.why, Why::FloorRaised);
    assert_eq!(history.publications[0].entry.pinned_at, Some(at(2).into()));
    let (_, again) = store.start(&["shop-prod"]).await;
    assert_eq!(again.current[&name("shop-prod")].version(), raised.version(), "once");
}

#[tokio::test(start_paused = true)]
async fn generations_of_the_far_future_are_lowered_once_the_operator_says_so() {
    let mut store = TestStore::new();
    let publisher = store.open().await;
    let clock = |minute| u64::try_from(at(minute).duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap();
    let (day, services) = (24 * 60, ["shop-prod", "gone", "near"].map(service));
    for (service, ahead) in services.iter().zip([30 * day, 30 * day, day / 2]) {
        publish(&publisher, service, 1000 + ahead, &[service.name.as_str()]).await.unwrap();
    }
    publisher.pin(&services[0], None, change("ann", 2)).await.unwrap();
    let before = current(&services[0]);
    let (_, kept) = store.start(&["shop-prod", "near"]).await;
    assert_eq!(kept.current[&name("shop-prod")].version(), before.version(), "nothing is lowered by itself");
    store.lower_generations = true;
    let (publisher, started) = store.start(&["shop-prod", "near"]).await;
    let lowered = started.current[&name("shop-prod")].publication();
    assert_eq!((lowered.generation, lowered.digest), (clock(1000), before.publication().digest), "the clock");
    assert!(started.pins.contains_key(&name("shop-prod")));
    assert_eq!(started.current[&name("near")].version(), current(&services[2]).version(), "agents believe it");
    let history = publisher.queries.history(&shop(), &name("shop-prod"), None, 5).await.unwrap();
    let why: Vec<_> = history.publications.iter().map(|listed| listed.entry.why).collect();
    assert_eq!(why, [Why::Lowered, Why::Followed]);
    let again = service("gone");
    publish(&publisher, &again, 1001, &["again"]).await.unwrap();
    assert_eq!(current(&again).publication().generation, clock(1001), "also of what is defined again");
}

#[tokio::test(start_paused = true)]
async fn a_publication_is_at_most_an_hour_ahead_of_the_servers() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let shop_prod = service("shop-prod");
    let (hours, mut headers) = (|hours: u64| Duration::from_secs(hours * 3600), http::HeaderMap::new());
    headers.insert("date", httpdate::fmt_http_date(at(5000) - hours(72)).try_into().unwrap());
    store.clocks.observe("git.example", &headers);
    publish(&publisher, &shop_prod, 5000, &["one"]).await.unwrap();
    let generation = current(&shop_prod).publication().generation;
    let published = SystemTime::UNIX_EPOCH + Duration::from_millis(generation);
    // The clock of the server goes on meanwhile.
    let is_bounded = published >= at(5000) - hours(71) && published < at(5000) - hours(70);
    assert!(is_bounded, "{published:?}, by a clock at {:?}", at(5000));
    publish(&publisher, &shop_prod, 5000, &["two"]).await.unwrap();
    assert!(current(&shop_prod).publication().generation > generation, "it is published all the same");
}

#[tokio::test(start_paused = true)]
async fn other_keys_sign_everything_again_and_the_same_keys_nothing() {
    let mut store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap();
    let (signing_key, _) = SigningKey::generate().unwrap();
    let public = signing_key.public().clone();
    store.signer = Arc::new(Signer::new(vec![signing_key]));
    let (publisher, started) = store.start(&["shop-prod"]).await;
    let signed = &started.current[&name("shop-prod")];
    assert_eq!(signed.revision(), 2);
    let retained =
        publisher.queries.version(&shop(), &name("shop-prod"), &TarballDigest::of(b"one")).await.unwrap().unwrap();
    for descriptor in [signed, &retained] {
        assert_eq!(descriptor.publication_signed_by(&public).as_ref(), Some(descriptor.publication()));
    }
    let (_, again) = store.start(&["shop-prod"]).await;
    assert_eq!(again.current[&name("shop-prod")], *signed);
}

#[tokio::test(start_paused = true)]
async fn a_moved_service_is_removed_from_its_old_repository() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let before = service_of("shop-prod", "blog");
    publish(&publisher, &before, 5, &["one"]).await.unwrap();
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], current(&before), "until something is published where it is now");
    let config = ServiceConfig::new(name("shop-prod"), shop());
    let moved = Arc::new(Service::new(&config, |_| None, Some(current(&before))).unwrap());
    assert_eq!(publish(&publisher, &moved, 0, &["one"]).await.unwrap(), Outcome::Published);
    assert!(current(&moved).publication().generation > current(&before).publication().generation);
    // Without a restart its objects are those of a superseded version.
    write::alignment::retire_moved_services(&publisher.repositories, at(6)).await;
    assert_eq!(publisher.repositories.repositories_of(&name("shop-prod")), [shop()]);
    let (_, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], current(&moved));
    assert!(started.retired.is_empty(), "readers receive no deletion");
}

#[tokio::test(start_paused = true)]
async fn a_service_moved_back_continues_above_all_generations() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let first = service("shop-prod");
    publish(&publisher, &first, 1, &["of shop"]).await.unwrap();
    publisher.pin(&first, None, change("ann", 1)).await.unwrap();
    let config = |repository: &str| ServiceConfig::new(name("shop-prod"), repository.parse().unwrap());
    let moved = Arc::new(Service::new(&config("blog"), |_| None, Some(current(&first))).unwrap());
    // It was unpinned there.
    publish(&publisher, &moved, 2, &["of blog"]).await.unwrap();
    let in_blog = current(&moved);
    assert_eq!(publisher.repositories.repositories_of(&name("shop-prod")).len(), 2);

    // Restarted before anything is published where it is again.
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], in_blog, "its generation does not go back");
    let back = Arc::new(Service::new(&config("shop"), |_| None, Some(in_blog.clone())).unwrap());
    let pinned = publisher.pin(&back, None, change("ann", 3)).await;
    assert!(matches!(pinned, Err(VersionChangeError::NothingPublished(_))), "{pinned:?}");
    let cached = publisher.publish_cached(&shop(), &[candidate(&back, 1)], at(3)).await.unwrap();
    assert!(matches!(cached[..], [Cached::UpToDate]), "{cached:?}");
    let published = current(&back);
    assert_eq!(
        (published.publication().digest, &published.publication().repository),
        (current(&first).publication().digest, &shop())
    );
    assert!(published.publication().generation > in_blog.publication().generation);
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!((&started.current[&name("shop-prod")], started.retired.len()), (&published, 0));
    assert!(started.pins.is_empty());
    assert_eq!(publisher.repositories.repositories_of(&name("shop-prod")), [shop()]);
}

#[tokio::test]
async fn a_store_knows_since_when_it_is_used() {
    let store = TestStore::new();
    let created = store.open().await.identity.created_at;
    let age = SystemTime::now().duration_since(created).unwrap();
    assert!(age < Duration::from_secs(3600), "{age:?}");
    assert_eq!(store.open().await.identity.created_at, created);
}

#[tokio::test]
async fn an_origin_with_other_records_refuses_the_objects() {
    let store = TestStore::new();
    let publisher = store.open().await;
    publish(&publisher, &service("shop-prod"), 1, &["one"]).await.unwrap();
    let other = TestStore { objects: store.objects.clone(), ..TestStore::new() };
    let error = other.try_open().await.err().unwrap().to_string();
    assert!(error.contains("prefix of its own") && error.contains("[cluster]"), "{error}");
    assert!(store.try_open().await.is_ok());
    std::fs::remove_file(store.dir.path().join("objects/store")).unwrap();
    assert!(other.try_open().await.is_ok(), "an operator let it");
}

#[tokio::test]
async fn ten_thousand_services_have_a_small_record() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let document =
        serde_json::json!({ "name": "x", "repository": "shop", "ref": "main", "folder": "deploy/overlays/prod" });
    let services = (0..10_000).map(|number| (name(&format!("service-{number:05}")), Some(document.clone()))).collect();
    publisher.define(&shop(), DefinitionChange { repository: None, services }).await.unwrap();
    let (bytes, pages) = (store.record().await.len(), store.pages().await.len());
    assert!(pages > 4 && bytes < 10_000, "{pages} pages, {bytes} bytes");
    assert_eq!(store.open_with_definitions().await.1.services.len(), 10_000);
}
