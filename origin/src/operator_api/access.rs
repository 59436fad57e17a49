//! Authentication of operators: by client certificate or token.

use std::sync::Arc;
use std::time::SystemTime;

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
    pub(super) async fn check(
        &self,
        headers: &HeaderMap,
        peer: &Peer,
        now: SystemTime,
    ) -> Result<Caller, OperatorError> {
        if let Some(identity) = peer.identity.as_ref().filter(|identity| identity.role == Role::Operator) {
            // Connections outlive certificates.
            if peer.has_expired(now) {
                return Err(OperatorError::CertificateExpired);
            }
            return Ok(Caller { name: identity.name.to_string(), forwarded_by: None });
        }
        let token = self.token.as_ref().ok_or(OperatorError::NoTokenConfigured)?;
        token.admits(headers).await?;
        Ok(Caller { name: BY_TOKEN.to_owned(), forwarded_by: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use weir_runtime::identity::Identity;

    #[tokio::test]
    async fn a_certificate_that_expires_ends_requests_on_its_open_connection() {
        let (access, now) = (Access::new(None), SystemTime::now());
        let identity = Some(Identity { role: Role::Operator, name: "ops".parse().unwrap() });
        let peer = Peer { address: ([127, 0, 0, 1], 1).into(), identity, certificate_ends: Some(now) };
        assert_eq!(access.check(&HeaderMap::new(), &peer, now).await.unwrap().name, "ops");
        let later = access.check(&HeaderMap::new(), &peer, now + Duration::from_secs(1)).await;
        assert!(matches!(later, Err(OperatorError::CertificateExpired)), "{later:?}");
    }
}
