//! Deltas as revisions of the current version.

use weir_protocol::encoding::Encoding;

use super::*;

/// A build with a SHA-256 of its own.
async fn publish_version(publisher: &Publisher, service: &Arc<Service>, number: u64) -> Sha256 {
    let frame = number.to_string();
    let attempt = publisher.repositories.begin_attempt(&service.repository);
    let bytes = Bytes::from(frame.clone());
    let put = tokio::task::spawn_blocking(move || attempt.put(bytes).map(|_| attempt));
    let sha256 = Sha256::of(frame.as_bytes());
    let built = Built { sha256, ..built(&[&frame]) };
    let candidate = candidate(service, number);
    publisher.publish_built(&candidate, built, put.await.unwrap().unwrap(), at(number)).await.unwrap();
    sha256
}

/// The dictionaries of a version's deltas.
fn dictionaries(descriptor: &Descriptor) -> Vec<Sha256> {
    descriptor.representations().iter().filter_map(|one| one.dictionary).collect()
}

/// Adds what the current version lacks; the number of deltas.
async fn add_deltas(publisher: &Publisher, service: &Arc<Service>) -> usize {
    let Some(DeltaPlan { target, bases }) = publisher.deltas.plan(service).await.unwrap() else { return 0 };
    let deltas = bases.iter().map(|base| {
        let sha256 = base.publication().sha256;
        (sha256, Bytes::from(format!("{sha256} to {}", target.publication().sha256)))
    });
    let (count, deltas) = (bases.len(), deltas.collect());
    assert!(publisher.deltas.publish(service, target.publication().digest, deltas).await.unwrap());
    count
}

#[tokio::test(start_paused = true)]
async fn a_version_has_deltas_against_the_last_three_before_it() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let mut versions = Vec::new();
    for (number, expected) in [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3)] {
        versions.insert(0, publish_version(&publisher, &shop_prod, number).await);
        let published = current(&shop_prod);
        assert_eq!(add_deltas(&publisher, &shop_prod).await, expected);
        let revised = current(&shop_prod);
        assert_eq!(dictionaries(&revised), versions[1..][..expected]);
        assert_eq!(revised.publication(), published.publication());
        assert_eq!(revised.revision(), if expected == 0 { 1 } else { 2 });
        for delta in revised.representations().iter().filter(|one| one.dictionary.is_some()) {
            assert_eq!((delta.encoding, delta.frames), (Encoding::Dcz, 1));
            assert!(publisher.repositories.objects().get(&shop(), Area::Public, &delta.digest).await.is_ok());
        }
        assert!(publisher.deltas.plan(&shop_prod).await.unwrap().is_none(), "each is made once");
    }
    // A version that comes back keeps what is still of use.
    let back = Candidate { revision: revision(9), ..candidate(&shop_prod, 4) };
    assert!(matches!(publisher.publish_cached(&shop(), &[back], at(9)).await.unwrap()[..], [Cached::UpToDate]));
    assert_eq!(add_deltas(&publisher, &shop_prod).await, 1);
    let mut expected = vec![versions[2], versions[3], versions[0]];
    let mut found = dictionaries(&current(&shop_prod));
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

#[tokio::test(start_paused = true)]
async fn a_commit_without_a_change_keeps_deltas_and_a_rebuild_drops_them() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    for number in [1, 2] {
        publish_version(&publisher, &shop_prod, number).await;
    }
    add_deltas(&publisher, &shop_prod).await;
    let (record, revised) = (store.record().await, current(&shop_prod));
    assert_eq!(publish(&publisher, &shop_prod, 3, &["2"]).await.unwrap(), Outcome::Unchanged);
    assert_eq!((store.record().await, current(&shop_prod)), (record, revised.clone()));

    let attempt = publisher.repositories.begin_attempt(&shop());
    assert!(publisher.publish_rebuilt(&shop_prod, &revised, built(&["2"]), attempt).await.unwrap());
    let rebuilt = current(&shop_prod);
    assert_eq!((dictionaries(&rebuilt), rebuilt.revision()), (vec![], revised.revision() + 1));
}

#[tokio::test(start_paused = true)]
async fn deltas_of_a_superseded_version_are_not_published() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod"));
    let first = publish_version(&publisher, &shop_prod, 1).await;
    publish_version(&publisher, &shop_prod, 2).await;
    let superseded = current(&shop_prod).publication().digest;
    publish_version(&publisher, &shop_prod, 3).await;
    let (record, deltas) = (store.record().await, vec![(first, Bytes::from("late"))]);
    assert!(!publisher.deltas.publish(&shop_prod, superseded, deltas).await.unwrap());
    assert_eq!(store.record().await, record);
}

#[tokio::test(start_paused = true)]
async fn each_publication_waits_once_for_its_deltas() {
    let store = TestStore::new();
    let publisher = store.open().await;
    let (prod, test) = (service("shop-prod"), service("shop-test"));
    for number in [1, 2] {
        publish_version(&publisher, &prod, number).await;
        publish_version(&publisher, &test, number).await;
    }
    for (service, waiting) in [(&prod, 1), (&test, 0)] {
        let next = publisher.deltas.next().await;
        assert_eq!((&next.0.name, next.1), (&service.name, waiting));
        add_deltas(&publisher, service).await;
    }
    let next = tokio::time::timeout(Duration::from_secs(60), publisher.deltas.next()).await;
    assert!(next.is_err(), "a revision is no publication");
}
