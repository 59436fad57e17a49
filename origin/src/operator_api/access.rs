//! Who may: whoever shows an operator's certificate, or the operators' token.

use std::sync::Arc;

use http::HeaderMap;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::serve::Peer;

use super::error::OperatorError;

/// What whoever shows the token is called.
const BY_TOKEN: &str = "token";

/// Who may. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Access {
    token: Option<Arc<OperatorToken>>,
}

impl Access {
    pub(super) fn new(token: Option<OperatorToken>) -> Self {
        Self { token: token.map(Arc::new) }
    }

    /// Checks that a request is an operator's. The name that the certificate says; whoever shows the token is `token`.
    pub(super) async fn check(&self, headers: &HeaderMap, peer: &Peer) -> Result<String, OperatorError> {
        if let Some(identity) = peer.identity.as_ref().filter(|identity| identity.role == Role::Operator) {
            return Ok(identity.name.to_string());
        }
        let token = self.token.as_ref().ok_or(OperatorError::NoTokenConfigured)?;
        token.admits(headers).await?;
        Ok(BY_TOKEN.to_owned())
    }
}
