//! Authentication of operators: by client certificate or token.

use std::sync::Arc;

use http::HeaderMap;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::serve::Peer;

use super::error::OperatorError;

/// The name of an operator who authenticates with the token.
const BY_TOKEN: &str = "token";

/// Checks credentials. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct Access {
    token: Option<Arc<OperatorToken>>,
}

impl Access {
    pub(super) fn new(token: Option<OperatorToken>) -> Self {
        Self { token: token.map(Arc::new) }
    }

    /// Authenticates a request, and returns the operator's name: from the certificate, or `token`.
    pub(super) async fn check(&self, headers: &HeaderMap, peer: &Peer) -> Result<String, OperatorError> {
        if let Some(identity) = peer.identity.as_ref().filter(|identity| identity.role == Role::Operator) {
            return Ok(identity.name.to_string());
        }
        let token = self.token.as_ref().ok_or(OperatorError::NoTokenConfigured)?;
        token.admits(headers).await?;
        Ok(BY_TOKEN.to_owned())
    }
}
