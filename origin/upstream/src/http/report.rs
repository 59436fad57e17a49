//! Reads what a server reports in the body of a response that refuses a request.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Response;
use reqwest::header::HeaderValue;
use tokio::time::timeout;

use super::super::server_report::ServerReport;
use super::client::Client;

/// The most bytes of a body that are read.
const MAX_BYTES: usize = 16 << 10;

/// The longest time for it. The status says enough without the body.
const TIMEOUT: Duration = Duration::from_secs(5);

impl Client<'_> {
    /// What the server reports, as far as it can be read.
    pub(super) fn report(&self, response: &mut Response) -> ServerReport {
        let mut body = Vec::new();
        let read = async {
            while let Ok(Some(chunk)) = response.chunk().await
                && body.len() < MAX_BYTES
            {
                body.extend_from_slice(&chunk[..chunk.len().min(MAX_BYTES - body.len())]);
            }
        };
        // The timer needs the runtime.
        let _ = self.session().wait(async { timeout(TIMEOUT, read).await });
        ServerReport::of_body(&body, response.status().canonical_reason(), &self.secrets())
    }

    /// What a server must not show of its requests: some repeat them.
    fn secrets(&self) -> Vec<String> {
        let sent = self.sent_authorization.borrow();
        self.authorization().into_iter().chain(sent.as_ref()).flat_map(secrets_of).collect()
    }
}

/// The token, or the encoded password and the password.
fn secrets_of(authorization: &HeaderValue) -> impl Iterator<Item = String> {
    let value = String::from_utf8_lossy(authorization.as_bytes());
    let secret = value.split_once(' ').map_or(&*value, |(_, secret)| secret).to_owned();
    let decoded = STANDARD.decode(&secret).ok().and_then(|bytes| String::from_utf8(bytes).ok());
    let password = decoded.and_then(|text| text.split_once(':').map(|(_, password)| password.to_owned()));
    [Some(secret), password].into_iter().flatten().filter(|secret| !secret.is_empty())
}
