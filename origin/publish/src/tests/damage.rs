//! Records and pages that are damaged: nothing new is published until an operator confirms, and nothing is invented.

use super::*;

const NO_BYTES: &[u8] = b"damaged";

#[tokio::test(start_paused = true)]
async fn a_damaged_page_is_read_from_the_one_before_and_waits_for_an_operator() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    publisher.pin(&shop_prod, None, change("ann", 2)).await.unwrap();
    let pinned = current(&shop_prod);
    let document = DefinitionChange { repository: None, services: vec![(name("shop-prod"), Some(7.into()))] };
    publisher.define(&shop(), document).await.unwrap();
    std::fs::write(&store.pages().await[0], NO_BYTES).unwrap();

    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")], pinned, "what can be read is served");
    assert!(started.pins.contains_key(&name("shop-prod")), "a pin does not lapse");
    let suspension = &publisher.repositories.suspended()[&shop()];
    assert!(
        suspension.until == SuspendedUntil::Confirmed && suspension.reason.contains("previous version is used"),
        "{suspension:?}"
    );
    let error = publish(&publisher, &shop_prod, 3, &["two"]).await.unwrap_err().to_string();
    assert!(error.contains("`shop`") && error.contains("operator"), "{error}");
    assert!(publisher.define(&shop(), DefinitionChange::default()).await.is_err());

    assert!(publisher.confirm(&shop()).await.unwrap());
    assert!(!publisher.confirm(&shop()).await.unwrap(), "once");
    let (publisher, definitions) = store.open_with_definitions().await;
    assert!(
        publisher.repositories.suspended().is_empty() && definitions.services.is_empty(),
        "the document was in the damaged page"
    );
    assert_eq!(publish(&publisher, &shop_prod, 4, &["two"]).await.unwrap(), Outcome::Pinned);
}

#[tokio::test(start_paused = true)]
async fn damage_of_this_run_is_confirmed_after_a_restart_which_shows_what_is_left() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    publisher.pin(&shop_prod, None, change("ann", 2)).await.unwrap();
    publisher.unpin(&shop_prod, change("ann", 3)).await.unwrap();
    std::fs::write(&store.pages().await[0], NO_BYTES).unwrap();
    publish(&publisher, &shop_prod, 4, &["two"]).await.unwrap_err();
    assert_eq!(publisher.repositories.suspended()[&shop()].until, SuspendedUntil::Restarted);
    let record = store.record().await;
    let error = publisher.confirm(&shop()).await.unwrap_err().to_string();
    assert!(error.contains("restart"), "{error}");
    assert_eq!((store.record().await, publisher.repositories.suspended().len()), (record, 1));

    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert!(started.pins.contains_key(&name("shop-prod")), "as it was before the last change");
    assert!(publisher.confirm(&shop()).await.unwrap());
    assert_eq!(publish(&publisher, &shop_prod, 5, &["two"]).await.unwrap(), Outcome::Pinned);
}

#[tokio::test(start_paused = true)]
async fn a_confirmation_does_not_cover_later_damage() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let filler = serde_json::Value::from("x".repeat(2000));
    let services = (0..300).map(|number| (name(&format!("s{number:03}")), Some(filler.clone()))).collect();
    publisher.define(&shop(), DefinitionChange { repository: None, services }).await.unwrap();
    let pages = store.pages().await;
    std::fs::write(&pages[0], NO_BYTES).unwrap();
    let publisher = store.open().await;
    assert_eq!(publisher.repositories.suspended()[&shop()].until, SuspendedUntil::Confirmed);
    std::fs::write(&pages[1], NO_BYTES).unwrap();
    assert!(publisher.confirm(&shop()).await.is_err());
    assert_eq!(publisher.repositories.suspended()[&shop()].until, SuspendedUntil::Restarted);
    assert!(store.open().await.confirm(&shop()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_lost_page_without_a_previous_copy_loses_its_services_only() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let filler = serde_json::Value::from("x".repeat(2000));
    let services = (0..300).map(|number| (name(&format!("s{number:03}")), Some(filler.clone()))).collect();
    publisher.define(&shop(), DefinitionChange { repository: None, services }).await.unwrap();
    let pages = store.pages().await;
    assert!(pages.len() > 2);
    std::fs::remove_file(&pages[1]).unwrap();
    let (publisher, definitions) = store.open_with_definitions().await;
    let reason = &publisher.repositories.suspended()[&shop()].reason;
    assert!(reason.contains("services before `s") && reason.contains("missing"), "{reason}");
    let lost = 300 - definitions.services.len();
    assert!(lost > 0 && lost < 150, "{lost} of 300");
    assert!(publisher.confirm(&shop()).await.unwrap());
    assert_eq!(store.open_with_definitions().await.1.services.len(), 300 - lost);
}

#[tokio::test(start_paused = true)]
async fn when_neither_copy_can_be_read_nothing_is_invented() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for number in 1..3 {
        publish(&publisher, &shop_prod, number, &[&number.to_string()]).await.unwrap();
    }
    for file in ["shop.record", "shop.previous"] {
        std::fs::write(store.dir.path().join("records/repositories").join(file), NO_BYTES).unwrap();
    }
    let (publisher, started) = store.start(&["shop-prod"]).await;
    assert!(started.current.is_empty() && started.retired.is_empty());
    let reason = &publisher.repositories.suspended()[&shop()].reason;
    assert!(reason.contains("backup"), "{reason}");
    assert!(publish(&publisher, &shop_prod, 3, &["three"]).await.is_err());
    assert!(publisher.confirm(&shop()).await.is_err(), "there is nothing to take over");
    assert_eq!(publisher.repositories.suspended().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_did_not_answer_is_read_again_without_an_operator() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    store.store.fail_gets(true);
    let publisher = {
        drop(publisher);
        store.open().await
    };
    assert_eq!(publisher.repositories.suspended()[&shop()].until, SuspendedUntil::Read);
    assert!(publish(&publisher, &shop_prod, 2, &["two"]).await.is_err());
    let next = [candidate(&shop_prod, 2)];
    let looked = publisher.publish_cached(&shop(), &next, at(2)).await.unwrap();
    assert!(matches!(looked[..], [Cached::Refused(_)]), "nothing is built for nothing: {looked:?}");
    assert!(publisher.confirm(&shop()).await.is_err(), "what could not be read is not given up");
    store.store.fail_gets(false);
    let looked = publisher.publish_cached(&shop(), &next, at(2)).await.unwrap();
    assert!(matches!(looked[..], [Cached::NeedsBuild]), "{looked:?}");
    assert_eq!(publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap(), Outcome::Published);
    assert!(publisher.repositories.suspended().is_empty());
    let retained = publisher.queries.version(&shop(), &name("shop-prod"), &TarballDigest::of(b"one")).await.unwrap();
    assert!(retained.is_some());
}

#[tokio::test(start_paused = true)]
async fn an_unreadable_record_is_read_again_with_its_definitions() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    let document = DefinitionChange { repository: None, services: vec![(name("shop-prod"), Some(7.into()))] };
    publisher.define(&shop(), document).await.unwrap();
    store.store.fail_gets(true);
    let (publisher, definitions) = store.open_with_definitions().await;
    assert!(definitions.services.is_empty() && publisher.repositories.may_have_unknown_definitions());
    store.store.fail_gets(false);
    // No request arrives meanwhile.
    let due = loop {
        publisher.reloads.wait().await;
        let due = publisher.reloads.unapplied();
        if !due.is_empty() {
            break due;
        }
    };
    assert!(
        publisher.repositories.suspended().is_empty() && publisher.repositories.may_have_unknown_definitions(),
        "nobody has them yet"
    );
    let Reloaded { stored, published, .. } = publisher.reloads.read(&due[0]);
    assert_eq!(stored.services[&name("shop-prod")].1, 7);
    assert_eq!(published.current[&name("shop-prod")], current(&shop_prod));
    publisher.reloads.mark_applied(&due[0]);
    assert!(publisher.reloads.unapplied().is_empty() && !publisher.repositories.may_have_unknown_definitions());
}

#[tokio::test(start_paused = true)]
async fn while_something_cannot_be_read_no_service_is_taken_for_deleted() {
    let store = TestStore::new();
    let (publisher, blog) = (store.open().await, "blog".parse().unwrap());
    publish(&publisher, &service("shop-prod"), 1, &["one"]).await.unwrap();
    publisher.define(&blog, DefinitionChange { repository: Some(Some(7.into())), services: Vec::new() }).await.unwrap();
    let record = store.dir.path().join("records/repositories/blog.record");
    let whole = std::fs::read(&record).unwrap();
    std::fs::write(&record, NO_BYTES).unwrap();
    let (_, started) = store.start(&[]).await;
    assert!(started.retired.is_empty(), "it may have been moved there");
    std::fs::write(&record, whole).unwrap();
    let (_, started) = store.start(&[]).await;
    assert_eq!(started.retired.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_repository_without_its_record_is_suspended_until_it_has_one() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    publish(&publisher, &shop_prod, 1, &["one"]).await.unwrap();
    publish(&publisher, &shop_prod, 2, &["two"]).await.unwrap();
    assert_eq!(store.open().await.repositories.without_record(), 0);
    for file in ["shop.record", "shop.previous"] {
        std::fs::remove_file(store.dir.path().join("records/repositories").join(file)).unwrap();
    }
    let publisher = store.open().await;
    assert!(publisher.repositories.without_record() == 1 && publisher.repositories.may_have_unknown_definitions());
    publish(&publisher, &service("shop-prod"), 3, &["three"]).await.unwrap();
    assert!(publisher.repositories.without_record() == 0 && !publisher.repositories.may_have_unknown_definitions());
}
