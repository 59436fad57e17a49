//! Creates clients of the providers that this build supports.

use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "s3")]
use object_store::CredentialProvider;
#[cfg(feature = "s3")]
use object_store::aws::{AmazonS3Builder, AwsCredential};
#[cfg(feature = "azure")]
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
#[cfg(feature = "gcs")]
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::prefix::PrefixStore;
use object_store::{ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig};
use reqwest::Url;
use weir_model::ServerClocks;

use crate::config::AccessKeyFiles;

/// Creates a client with the options of its provider. `once`: see [`super::open`].
pub(crate) fn build(
    url: &Url,
    mut options: Vec<(String, String)>,
    access_key: Option<AccessKeyFiles>,
    once: Option<Duration>,
    clocks: &ServerClocks,
) -> Result<Arc<dyn ObjectStore>, String> {
    #[cfg(not(feature = "s3"))]
    let _ = access_key;
    // The HTTP client uses the installed cryptography provider. An error means that one is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut retry = RetryConfig::default();
    if let Some(timeout) = once {
        retry.max_retries = 0;
        let timeout = humantime::format_duration(timeout).to_string();
        options.extend(["timeout", "connect_timeout"].map(|key| (key.to_owned(), timeout.clone())));
    }
    let wrong = |error: object_store::Error| format!("[store] url: {error}");
    let (_, prefix) = ObjectStoreScheme::parse(url).map_err(|error| wrong(error.into()))?;
    // Each provider has a builder of its own type, with the same methods.
    macro_rules! client {
        ($builder:ty, $finish:expr) => {{
            let builder = <$builder>::new().with_url(url.as_str()).with_retry(retry);
            let builder = builder.with_http_connector(ObservedConnector(clocks.clone()));
            let builder =
                options.into_iter().fold(builder, |builder, (key, value)| match key.to_ascii_lowercase().parse() {
                    Ok(key) => builder.with_config(key, value),
                    Err(_) => builder,
                });
            Ok(Arc::new(PrefixStore::new($finish(builder).build().map_err(wrong)?, prefix)))
        }};
    }
    match url.scheme() {
        #[cfg(feature = "s3")]
        "s3" => client!(AmazonS3Builder, |builder: AmazonS3Builder| match access_key {
            Some(files) => builder.with_credentials(Arc::new(FromFiles(files))),
            None => builder,
        }),
        #[cfg(feature = "gcs")]
        "gs" => client!(GoogleCloudStorageBuilder, std::convert::identity),
        #[cfg(feature = "azure")]
        "az" => client!(MicrosoftAzureBuilder, std::convert::identity),
        #[cfg(not(all(feature = "s3", feature = "gcs", feature = "azure")))]
        _ => Err(super::unsupported(url)),
        #[cfg(all(feature = "s3", feature = "gcs", feature = "azure"))]
        scheme => Err(format!("[store] url: {scheme}:// names no bucket")),
    }
}

/// Reads the access key for each request, so that a rotated one takes effect at once.
#[cfg(feature = "s3")]
#[derive(Debug)]
pub(crate) struct FromFiles(pub(crate) AccessKeyFiles);

#[cfg(feature = "s3")]
#[async_trait::async_trait]
impl CredentialProvider for FromFiles {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        let files = self.0.clone();
        let wrong =
            |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic { store: "S3", source };
        let read = tokio::task::spawn_blocking(move || files.read()).await.map_err(|error| wrong(error.into()))?;
        let key = read.map_err(|why| wrong(why.into()))?;
        Ok(Arc::new(AwsCredential { key_id: key.id, secret_key: key.secret, token: None }))
    }
}

/// Connects as the library does, and takes the time of each answer.
#[derive(Debug)]
struct ObservedConnector(ServerClocks);

#[derive(Debug)]
struct ObservedClient {
    client: HttpClient,
    clocks: ServerClocks,
}

impl HttpConnector for ObservedConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(ObservedClient { client, clocks: self.0.clone() }))
    }
}

#[async_trait::async_trait]
impl HttpService for ObservedClient {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let server = request.uri().authority().map_or_else(String::new, ToString::to_string);
        let response = self.client.execute(request).await?;
        self.clocks.observe(&server, response.headers());
        Ok(response)
    }
}
