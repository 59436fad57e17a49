//! Tests against moto, an independent implementation of S3. `.ci/run` installs it.

use std::path::Path;

use object_store::{CredentialProvider, ObjectStoreExt};
use prometheus::Registry;
use weir_model::ServerClocks;
use weir_protocol::digest::ObjectDigest;
use weir_protocol::name::RepositoryName;
use weir_runtime::bounds::Bounds;

use super::*;
use crate::object_location::StoredObject;
use crate::test_server::TestServer;
use crate::{Area, ObjectError, Objects, StoreMetrics};

/// The configuration of a bucket on a server, with key files in the folder.
pub(crate) fn config(folder: &Path, url: &str, endpoint: &str) -> StoreConfig {
    let file = |name: &str| {
        std::fs::write(folder.join(name), format!("{name}\n")).unwrap();
        Some(folder.join(name))
    };
    StoreConfig {
        url: Some(url.to_owned()),
        endpoint: Some(endpoint.to_owned()),
        allow_http: true,
        access_key_id_file: file("id"),
        secret_access_key_file: file("secret"),
        ..StoreConfig::default()
    }
}

pub(crate) async fn open(config: &StoreConfig, data_dir: &Path) -> Objects {
    let registry = Registry::new();
    let metrics = StoreMetrics::register(&registry).unwrap();
    Objects::open(config, data_dir, metrics, (&Bounds::register(&registry).unwrap(), &ServerClocks::default()))
        .await
        .unwrap()
}

#[tokio::test]
async fn objects_are_in_a_bucket_and_a_copy_in_the_cache() {
    let Some(server) = TestServer::moto() else { return };
    let shop: RepositoryName = "shop".parse().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), "s3://weir-hub/prod", &server.endpoint);
    let objects = open(&config, dir.path()).await;
    let absent = ObjectDigest::of(b"absent");
    let error = objects.get(&shop, Area::Public, &absent).await.unwrap_err();
    assert!(matches!(error, ObjectError::Unavailable(_)), "no bucket is not an empty one: {error}");
    let listed = objects.list(&shop, Area::Public).await;
    assert!(matches!(listed, Err(ObjectError::Unavailable(_))), "{listed:?}");
    server.create_bucket("weir-hub").await;

    let frame = objects.put(&shop, Area::Public, "frame".into()).await.unwrap();
    let page = objects.put(&shop, Area::Private, "page".into()).await.unwrap();
    let missing = objects.get(&shop, Area::Public, &absent).await;
    assert!(matches!(missing, Err(ObjectError::Missing(_))), "{missing:?}");
    let listed = objects.list(&shop, Area::Public).await.unwrap();
    assert_eq!(listed, [StoredObject { digest: frame, size: 5 }]);
    objects.delete(&shop, Area::Private, &page).await.unwrap();
    assert!(!objects.exists(&shop, Area::Private, &page).await.unwrap());
    assert!(matches!(objects.get(&shop, Area::Private, &page).await, Err(ObjectError::Missing(_))));

    // The cache hides damage in the bucket; reads without the cache find it.
    let bucket = super::open(&config, &"s3://weir-hub/prod".parse().unwrap(), None, &ServerClocks::default()).unwrap();
    bucket.put(&format!("shop/public/{}", frame.hex()).into(), "other".into()).await.unwrap();
    assert_eq!(objects.get(&shop, Area::Public, &frame).await.unwrap(), "frame");
    assert!(matches!(objects.past_cache().get(&shop, Area::Public, &frame).await, Err(ObjectError::Corrupt(_))));
    let elsewhere = tempfile::tempdir().unwrap();
    let uncached = open(&config, elsewhere.path()).await;
    assert!(matches!(uncached.get(&shop, Area::Public, &frame).await, Err(ObjectError::Corrupt(_))));
    drop(objects);

    drop(server);
    let objects = open(&config, dir.path()).await;
    assert_eq!(objects.get(&shop, Area::Public, &frame).await.unwrap(), "frame", "from the cache");
    let away = objects.get(&shop, Area::Public, &absent).await;
    assert!(matches!(away, Err(ObjectError::Unavailable(_))), "{away:?}");
}

#[tokio::test]
async fn a_rotated_access_key_needs_no_restart() {
    let dir = tempfile::tempdir().unwrap();
    let credentials = client::FromFiles(config(dir.path(), "s3://b", "http://s3.example").access_key().unwrap());
    assert_eq!(credentials.get_credential().await.unwrap().key_id, "id");
    std::fs::write(dir.path().join("id"), "rotated\n").unwrap();
    assert_eq!(credentials.get_credential().await.unwrap().key_id, "rotated");
    std::fs::remove_file(dir.path().join("id")).unwrap();
    let error = credentials.get_credential().await.unwrap_err().to_string();
    assert!(error.contains("[store] access_key_id_file"), "{error}");
}

#[test]
fn a_client_of_each_provider_is_made_without_sending_anything() {
    let config = StoreConfig::default();
    super::open(&config, &"s3://weir-hub".parse().unwrap(), None, &ServerClocks::default()).unwrap();
    let endpoint = Some("https://account.blob.example".to_owned());
    let azure = StoreConfig { endpoint, ..config };
    let error =
        super::open(&azure, &"az://weir-hub/prod".parse().unwrap(), None, &ServerClocks::default()).unwrap_err();
    assert!(error.contains("[store] url") && error.to_lowercase().contains("account"), "{error}");
}
