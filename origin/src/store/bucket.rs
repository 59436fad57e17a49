//! Buckets: S3, Google Cloud Storage and Azure Blob Storage.

#[cfg(all(test, feature = "s3"))]
mod tests;

use std::sync::Arc;

use object_store::prefix::PrefixStore;
use object_store::{Error, ObjectStore, parse_url_opts};
use reqwest::Url;

use crate::config::StoreConfig;

/// The prefixes of the environment variables that the providers' own tools read.
const OF_PROVIDERS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Creates a client of a bucket, without sending a request. The configuration takes precedence over the environment.
///
/// # Errors
/// A file or an environment variable cannot be used, or this build does not support the provider.
pub(super) fn open(config: &StoreConfig, url: &Url) -> Result<Arc<dyn ObjectStore>, String> {
    // The HTTP client uses the installed cryptography provider. An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| OF_PROVIDERS.iter().any(|prefix| name.starts_with(prefix)));
    let mut options: Vec<(String, String)> = environment.collect();
    let mut set = |key: &str, value: String| options.push((key.to_owned(), value));
    if let Some(endpoint) = &config.endpoint {
        // Google's key is `base_url`; each provider ignores the keys of the others.
        set("endpoint", endpoint.clone());
        set("base_url", endpoint.clone());
        set("allow_http", config.allow_http.to_string());
    }
    if let Some(key) = config.access_key()? {
        set("access_key_id", key.id);
        set("secret_access_key", key.secret);
    }
    let (store, prefix) = parse_url_opts(url, options).map_err(|error| format!("[store] url: {error}"))?;
    Ok(Arc::new(PrefixStore::new(store, prefix)))
}

/// Whether an error leaves open that the bucket exists.
pub(super) fn exists(error: &Error) -> bool {
    let text = error.to_string();
    !["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|gone| text.contains(gone))
}
