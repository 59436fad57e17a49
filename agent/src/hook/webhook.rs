//! One request of a webhook.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use rustls::ClientConfig;
use weir_runtime::http_client::{root_cause, webhook_client};
use weir_runtime::tls;

use super::run::HookError;
use crate::config::WebhookConfig;

/// The TLS settings, made for each request: renewed authorities are used. Blocks.
pub(super) fn tls(ca: &Path) -> Result<ClientConfig, HookError> {
    tls::client_config(ca, None).map_err(|error| HookError::Webhook(error.to_string()))
}

/// Sends the facts, within `after`.
pub(super) async fn send(
    config: &WebhookConfig,
    tls: ClientConfig,
    facts: &serde_json::Value,
    after: Duration,
) -> Result<(), HookError> {
    let failed = |message: String| HookError::Webhook(message);
    let request = Request::builder()
        .method(Method::POST)
        .uri(&config.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("weir-agent/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(facts.to_string())))
        .map_err(|error| failed(error.to_string()))?;
    let response = tokio::time::timeout(after, webhook_client(tls).request(request)).await;
    let response = response.map_err(|_| HookError::TimedOut { what: "webhook", after, stderr: String::new() })?;
    let status = response.map_err(|error| failed(root_cause(&error)))?.status();
    if status.is_success() { Ok(()) } else { Err(failed(format!("the server answers {status}"))) }
}
