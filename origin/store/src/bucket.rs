//! Buckets: S3, Google Cloud Storage and Azure Blob Storage.

#[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
pub(crate) mod client;
#[cfg(all(test, feature = "s3"))]
pub(crate) mod tests;

use std::sync::Arc;
use std::time::Duration;

use object_store::ObjectStore;
use reqwest::Url;
use weir_model::ServerClocks;

use crate::config::{AccessKeyFiles, StoreConfig};

/// The prefixes of the environment variables that the providers' own tools read.
const OF_PROVIDERS: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];

/// Creates a client of a bucket, without sending a request. The configuration takes precedence over the environment.
///
/// Requests that fail are sent again for up to three minutes. With `once` each is sent once, and fails without an answer
/// within this time. `clocks` take the time of the answers.
///
/// # Errors
/// A file or an environment variable cannot be used, or this build does not support the provider.
pub(crate) fn open(
    config: &StoreConfig,
    url: &Url,
    once: Option<Duration>,
    clocks: &ServerClocks,
) -> Result<Arc<dyn ObjectStore>, String> {
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
    let access_key = config.access_key();
    access_key.as_ref().map(AccessKeyFiles::read).transpose()?;
    #[cfg(any(feature = "s3", feature = "gcs", feature = "azure"))]
    return client::build(url, options, access_key, once, clocks);
    #[cfg(not(any(feature = "s3", feature = "gcs", feature = "azure")))]
    {
        let _ = (options, access_key, once, clocks);
        Err(unsupported(url))
    }
}

/// The error of a provider that this build leaves out.
#[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
fn unsupported(url: &Url) -> String {
    format!("[store] url: this program was built without support of {}://", url.scheme())
}

/// Whether an error leaves open that the bucket exists.
pub(crate) fn exists(error: &object_store::Error) -> bool {
    let text = error.to_string();
    !["NoSuchBucket", "ContainerNotFound", "bucket does not exist"].iter().any(|gone| text.contains(gone))
}
