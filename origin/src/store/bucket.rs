//! Buckets: S3, Google Cloud Storage and Azure Blob Storage.

#[cfg(all(test, feature = "s3"))]
mod tests;

use std::sync::Arc;

use object_store::prefix::PrefixStore;
use object_store::{Error, ObjectStore, parse_url_opts};
use reqwest::Url;

use crate::config::StoreConfig;

/// The variables of the environment that the providers' own tools read begin with these.
const OF_PROVIDERS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// A client of a bucket. Nothing is sent yet. What the configuration says goes before the environment.
///
/// # Errors
/// A file or a variable of the environment cannot be used, or this build has no support for the provider.
pub(super) fn open(config: &StoreConfig, url: &Url) -> Result<Arc<dyn ObjectStore>, String> {
    // The HTTP client takes the provider of cryptography that is installed. Whoever installs ring first is welcome.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| OF_PROVIDERS.iter().any(|prefix| name.starts_with(prefix)));
    let mut options: Vec<(String, String)> = environment.collect();
    let mut set = |key: &str, value: String| options.push((key.to_owned(), value));
    if let Some(endpoint) = &config.endpoint {
        // Google's is called `base_url`; each provider passes over what is another's.
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

/// Whether the bucket exists, as far as an error says so.
pub(super) fn exists(error: &Error) -> bool {
    let text = error.to_string();
    !["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|gone| text.contains(gone))
}
