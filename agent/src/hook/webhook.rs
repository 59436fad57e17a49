//! One request of a webhook.

use std::path::Path;

use bytes::Bytes;
use http::{Method, Request, header};
use http_body_util::Full;
use weir_runtime::http_client::{root_cause, webhook_client};
use weir_runtime::tls;

use super::run::HookError;
use crate::config::WebhookConfig;

/// Sends the facts. The client is made for each request, so that renewed authorities are used.
pub(super) async fn send(config: &WebhookConfig, ca: &Path, facts: &serde_json::Value) -> Result<(), HookError> {
    let failed = |message: String| HookError::Webhook(message);
    let tls =
        tls::client_config(config.ca.as_deref().unwrap_or(ca), None).map_err(|error| failed(error.to_string()))?;
    let request = Request::builder()
        .method(Method::POST)
        .uri(&config.url)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::USER_AGENT, concat!("weir-agent/", env!("CARGO_PKG_VERSION")))
        .body(Full::new(Bytes::from(facts.to_string())))
        .map_err(|error| failed(error.to_string()))?;
    let response = tokio::time::timeout(config.timeout, webhook_client(tls).request(request)).await;
    let response = response.map_err(|_| HookError::TimedOut { what: "webhook", after: config.timeout })?;
    let status = response.map_err(|error| failed(root_cause(&error)))?.status();
    if status.is_success() { Ok(()) } else { Err(failed(format!("the server answers {status}"))) }
}
