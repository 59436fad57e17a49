//! Authentication of operators: by client certificate or token.

use std::sync::Arc;

use http::HeaderMap;
use weir_protocol::name::NodeName;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::OperatorToken;
use weir_runtime::serve::Peer;

use super::error::OperatorError;

/// The name of an operator who authenticates with the token.
const BY_TOKEN: &str = "token";

/// The operator of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// From the certificate, or `token`.
    pub(super) name: String,
    /// The member of the cluster that authenticated the operator and passed the request on.
    pub(super) forwarded_by: Option<NodeName>,
}

/// Checks credentials. Clones are cheap.
#[derive(Debug, Clone)]
pub(super) struct Access {
    token: Option<Arc<OperatorToken>>,
}

impl Access {
    pub(super) fn new(token: Option<OperatorToken>) -> Self {
        Self { token: token.map(Arc::new) }
    }

    /// Authenticates a request, and returns the operator.
    pub(super) async fn check(&self, headers: &HeaderMap, peer: &Peer) -> Result<Caller, OperatorError> {
        if let Some(identity) = peer.identity.as_ref().filter(|identity| identity.role == Role::Operator) {
            return Ok(Caller { name: identity.name.to_string(), forwarded_by: None });
        }
        let token = self.token.as_ref().ok_or(OperatorError::NoTokenConfigured)?;
        token.admits(headers).await?;
        Ok(Caller { name: BY_TOKEN.to_owned(), forwarded_by: None })
    }
}
