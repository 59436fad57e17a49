//! Buckets: S3, Google Cloud Storage and Azure Blob Storage.

#[cfg(all(test, feature = "s3"))]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use object_store::client::ClientConfigKey;
use object_store::prefix::PrefixStore;
use object_store::{BackoffConfig, Error, ObjectStore, RetryConfig};

use crate::config::{Provider, StoreConfig};

/// How long connecting may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one attempt may take, with its body.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(30);
/// How often a request is tried again after an error that may pass.
const MAX_RETRIES: usize = 5;
/// How long after its first attempt a request is tried again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(60);

/// A client of a bucket. Nothing is sent yet.
///
/// # Errors
/// A file or a variable of the environment cannot be used, or this build has no support for the provider.
pub(super) fn open(
    config: &StoreConfig,
    provider: Provider,
    name: &str,
    prefix: &str,
) -> Result<Arc<dyn ObjectStore>, String> {
    // The HTTP client takes the provider of cryptography that is installed. Whoever installs ring first is welcome.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let wrong = |error: Error| format!("[store] url: {error}");
    let store: Arc<dyn ObjectStore> = match provider {
        #[cfg(feature = "s3")]
        Provider::S3 => Arc::new(s3(config, name)?.build().map_err(wrong)?),
        #[cfg(feature = "gcs")]
        Provider::Gcs => Arc::new(gcs(config, name).build().map_err(wrong)?),
        #[cfg(feature = "azure")]
        Provider::Azure => Arc::new(azure(config, name).build().map_err(wrong)?),
        #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
        other => return Err(format!("[store] url: this build has no support for {other:?}")),
    };
    Ok(if prefix.is_empty() { store } else { Arc::new(PrefixStore::new(store, prefix)) })
}

/// Whether the bucket exists, as far as an error says so.
pub(super) fn exists(error: &Error) -> bool {
    let text = error.to_string();
    !["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|gone| text.contains(gone))
}

fn retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: MAX_RETRIES, retry_timeout: RETRY_TIMEOUT }
}

/// What the client of each provider is set to, beyond what the environment says of proxies.
fn client_options() -> [(ClientConfigKey, String); 2] {
    [
        (ClientConfigKey::ConnectTimeout, format!("{}s", CONNECT_TIMEOUT.as_secs())),
        (ClientConfigKey::Timeout, format!("{}s", ATTEMPT_TIMEOUT.as_secs())),
    ]
}

#[cfg(feature = "s3")]
fn s3(config: &StoreConfig, bucket: &str) -> Result<object_store::aws::AmazonS3Builder, String> {
    use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
    let mut builder = AmazonS3Builder::from_env().with_bucket_name(bucket).with_retry(retries());
    for (key, value) in client_options() {
        builder = builder.with_config(AmazonS3ConfigKey::Client(key), value);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint).with_allow_http(config.allow_http);
    }
    if let Some(key) = config.access_key()? {
        builder = builder.with_access_key_id(key.id).with_secret_access_key(key.secret);
    }
    Ok(builder)
}

#[cfg(feature = "gcs")]
fn gcs(config: &StoreConfig, bucket: &str) -> object_store::gcp::GoogleCloudStorageBuilder {
    use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
    let mut builder = GoogleCloudStorageBuilder::from_env().with_bucket_name(bucket).with_retry(retries());
    for (key, value) in client_options() {
        builder = builder.with_config(GoogleConfigKey::Client(key), value);
    }
    if let Some(endpoint) = &config.endpoint {
        let allow_http = GoogleConfigKey::Client(ClientConfigKey::AllowHttp);
        builder = builder.with_base_url(endpoint).with_config(allow_http, config.allow_http.to_string());
    }
    builder
}

#[cfg(feature = "azure")]
fn azure(config: &StoreConfig, container: &str) -> object_store::azure::MicrosoftAzureBuilder {
    use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
    let mut builder = MicrosoftAzureBuilder::from_env().with_container_name(container).with_retry(retries());
    for (key, value) in client_options() {
        builder = builder.with_config(AzureConfigKey::Client(key), value);
    }
    if let Some(endpoint) = &config.endpoint {
        builder = builder.with_endpoint(endpoint.clone()).with_allow_http(config.allow_http);
    }
    builder
}
