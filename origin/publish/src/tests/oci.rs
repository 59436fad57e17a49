//! The OCI form of publications.

use weir_protocol::encoding::Encoding;
use weir_protocol::oci::{OciForm, UpstreamManifest};
use weir_source::{OciChoice, OciSource};
use weir_tarball::{Whole, WholeBlob};

use super::*;

/// A service with an OCI form, or one that only stores gzip.
pub(super) fn service(name: &str, has_oci: bool) -> Arc<Service> {
    let config = ServiceConfig { gzip: true, ..ServiceConfig::new(super::name(name), shop()) };
    let url = Some("https://git.example/shop.git".to_owned());
    let oci = if has_oci { OciChoice::On(OciSource { url }) } else { OciChoice::Off };
    Arc::new(Service::new(&config, |_| None, None).unwrap().with_oci(oci))
}

/// Publishes these frames as zstd, and as gzip.
async fn publish(publisher: &Publisher, service: &Arc<Service>, number: u64, frames: &[&str]) -> Outcome {
    let attempt = publisher.repositories.begin_attempt(&service.repository);
    let put: Vec<Bytes> = frames.iter().map(|frame| Bytes::copy_from_slice(frame.as_bytes())).collect();
    let put = tokio::task::spawn_blocking(move || {
        put.into_iter().try_for_each(|it| attempt.put(it).map(drop)).map(|()| attempt)
    });
    let built = Built { gzip: Some(built(frames).zstd), ..built(frames) };
    publisher.publish_built(&candidate(service, number), built, put.await.unwrap().unwrap(), at(number)).await.unwrap()
}

async fn cached(publisher: &Publisher, service: &Arc<Service>, number: u64) -> Cached {
    let cached = publisher.publish_cached(&shop(), &[candidate(service, number)], at(number)).await;
    cached.unwrap().remove(0)
}

fn form(service: &Service) -> OciForm {
    current(service).oci().expect("it has a form").clone()
}

#[tokio::test(start_paused = true)]
async fn a_form_names_the_gzip_body_and_stays_with_its_version() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod", true));
    publish(&publisher, &shop_prod, 1, &["one", "two"]).await;
    let (first, descriptor) = (form(&shop_prod), current(&shop_prod));
    let gzip = descriptor.representation(Encoding::Gzip).unwrap();
    let blob = first.blob(&Sha256::of(b"onetwo")).expect("it is that of all frames");
    assert_eq!((blob.digest, blob.size, blob.frames), (gzip.digest, gzip.size, 2));
    assert!(first.manifest.contains(&format!("\"HEAD@{}\"", revision(1))), "{}", first.manifest);

    assert_eq!(
        publish(&publisher, &shop_prod, 2, &["one", "two"]).await,
        Outcome::Unchanged,
        "a commit without a digest"
    );
    publish(&publisher, &shop_prod, 3, &["three"]).await;
    assert_ne!(form(&shop_prod), first);
    publisher.pin(&shop_prod, Some(&descriptor.publication().digest), change("ann", 4)).await.unwrap();
    assert_eq!(form(&shop_prod), first, "who pulls by digest finds it after a rollback");
    let (_, started) = store.start(&["shop-prod"]).await;
    assert_eq!(started.current[&name("shop-prod")].oci(), Some(&first));
}

#[tokio::test(start_paused = true)]
async fn a_version_without_a_form_gets_one_by_a_build_and_loses_it_without() {
    let store = TestStore::new();
    let (publisher, without) = (store.open().await, service("shop-prod", false));
    publish(&publisher, &without, 1, &["one"]).await;
    let before = current(&without);
    assert_eq!(before.oci(), None);
    let with = Service::new(&ServiceConfig::new(name("shop-prod"), shop()), |_| None, Some(before.clone())).unwrap();
    let with = Arc::new(with.with_oci(OciChoice::On(OciSource { url: None })));
    assert!(matches!(cached(&publisher, &with, 1).await, Cached::NeedsBuild), "its key is that of what is published");
    assert_eq!(publish(&publisher, &with, 1, &["one"]).await, Outcome::Revised);
    assert_eq!((current(&with).publication(), current(&with).revision()), (before.publication(), 2));
    assert!(form(&with).blob(&Sha256::of(b"one")).is_some());
    assert!(matches!(cached(&publisher, &with, 1).await, Cached::UpToDate));

    let puts = store.store.puts();
    assert!(matches!(cached(&publisher, &without, 1).await, Cached::UpToDate));
    let after = current(&without);
    assert_eq!((after.publication(), after.oci(), after.revision()), (before.publication(), None, 3));
    assert_eq!(store.store.puts() - puts, 1, "a page, and nothing is built");
}

#[tokio::test(start_paused = true)]
async fn stored_content_gets_a_form_for_its_service_and_its_commit() {
    let store = TestStore::new();
    let (publisher, prod, test) = (store.open().await, service("shop-prod", true), service("shop-test", true));
    publish(&publisher, &prod, 1, &["one"]).await;
    assert!(matches!(cached(&publisher, &test, 1).await, Cached::UpToDate));
    let (of_prod, of_test) = (form(&prod), form(&test));
    assert_eq!(of_test.blobs, of_prod.blobs);
    assert!(of_test.manifest.contains("\"dev.weir.service\":\"shop-test\""), "{}", of_test.manifest);
    let plain = service("shop-plain", false);
    publish(&publisher, &plain, 7, &["seven"]).await;
    assert!(matches!(cached(&publisher, &test, 7).await, Cached::NeedsBuild), "the other one has no form");
}

#[tokio::test(start_paused = true)]
async fn a_lost_frame_is_told_from_a_store_that_does_not_answer() {
    let store = TestStore::new();
    let (publisher, shop_prod) = (store.open().await, service("shop-prod", true));
    publish(&publisher, &shop_prod, 1, &["one"]).await;
    let again = async |frames: &[&str]| {
        let attempt = publisher.repositories.begin_attempt(&shop());
        let built = Built { gzip: Some(built(frames).zstd), ..built(frames) };
        publisher.publish_built(&candidate(&shop_prod, 2), built, attempt, at(2)).await
    };
    // As if these frames were reused.
    let lost = again(&["one", "lost"]).await.unwrap_err();
    assert!(matches!(lost, PublishError::LostFrame(_)), "{lost}");
    store.store.fail_gets(true);
    let silent = again(&["one"]).await.unwrap_err();
    assert!(matches!(silent, PublishError::Object(_)), "{silent}");
}

/// Publishes a chart, say, as its upstream has it.
pub(super) async fn publish_whole(publisher: &Publisher, service: &Arc<Service>, slices: &[&str]) -> Outcome {
    let attempt = publisher.repositories.begin_attempt(&service.repository);
    let put: Vec<Bytes> =
        [&["files"][..], slices].concat().iter().map(|it| Bytes::copy_from_slice(it.as_bytes())).collect();
    let put = tokio::task::spawn_blocking(move || {
        put.into_iter().try_for_each(|it| attempt.put(it).map(drop)).map(|()| attempt)
    });
    let frames = built(slices).zstd;
    let blob = WholeBlob { sha256: Sha256::of(slices.concat().as_bytes()), media_type: "chart".to_owned(), frames };
    let (media_type, text, attachments) = ("m".to_owned(), "{}".to_owned(), Vec::new());
    let manifest = UpstreamManifest { media_type, text, attachments };
    let whole = Whole { manifest: Some(manifest), blobs: vec![blob] };
    let files = built(&["files"]);
    let built = Built { gzip: Some(files.zstd.clone()), whole: Some(whole), ..files };
    let attempt = put.await.unwrap().unwrap();
    publisher.publish_built(&candidate(service, 1), built, attempt, at(1)).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_whole_is_written_once_no_other_origin_would_delete_its_blobs() {
    let mut store = TestStore::new();
    let all_know = Arc::new(AtomicUsize::new(0));
    let known = all_know.clone();
    store.may_store_blobs = Some(Arc::new(move || known.load(Ordering::SeqCst) > 0));
    let (publisher, shop) = (store.open().await, service("shop", true));
    publish_whole(&publisher, &shop, &["archive", "s end"]).await;
    let before = form(&shop);
    assert_eq!((before.is_upstream, before.blobs[0].sha256), (false, Sha256::of(b"files")));
    all_know.store(1, Ordering::SeqCst);
    assert_eq!(publish_whole(&publisher, &shop, &["archive", "s end"]).await, Outcome::Revised);
    let after = form(&shop);
    assert_eq!((after.is_upstream, &*after.manifest, after.blobs[0].frames), (true, "{}", 2));
    let other = service("other", true);
    assert!(matches!(cached(&publisher, &other, 1).await, Cached::UpToDate));
    assert_eq!(form(&other), after, "the manifest is copied, and not made");
}
