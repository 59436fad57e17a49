//! Reads what a server reports in the body of a response that refuses a request.

use std::time::Duration;

use reqwest::Response;
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
        ServerReport::of_body(&body, response.status().canonical_reason())
    }
}
