//! Authentication of operators: by client certificate or token.

use std::sync::Arc;
use std::time::SystemTime;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde_json::json;
use weir_protocol::name::NodeName;
use weir_protocol::problem::Problem;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::{NotAdmitted, OperatorToken};
use weir_runtime::serve::{Body, Peer};

use super::{no_keys, uncached};

/// The name of an operator who authenticates with the token.
const BY_TOKEN: &str = "token";

/// The operator of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// From the certificate, or `token`.
    pub(super) name: String,
    pub(super) proof: Proof,
}

/// By what an operator proved the name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Proof {
    Token,
    Certificate,
    /// This member of the cluster authenticated the operator and passed the request on.
    Member(NodeName),
}

impl Caller {
    pub(super) fn forwarded_by(&self) -> Option<&NodeName> {
        if let Proof::Member(name) = &self.proof { Some(name) } else { None }
    }
}

/// What an operator may do.
pub(super) fn whoami(head: &Parts, caller: &Caller) -> Result<Response<Body>, Problem> {
    no_keys(head)?;
    let by = if caller.proof == Proof::Token { "token" } else { "certificate" };
    Ok(uncached(&json!({ "name": caller.name, "role": "admin", "services": null, "by": by })))
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
    pub(super) async fn check(&self, headers: &HeaderMap, peer: &Peer, now: SystemTime) -> Result<Caller, Problem> {
        if let Some(identity) = peer.identity.as_ref().filter(|identity| identity.role == Role::Operator) {
            // Connections outlive certificates.
            if peer.has_expired(now) {
                let detail = "The client certificate has expired: connect with a new one.";
                let title = "The client certificate has expired";
                return Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail));
            }
            return Ok(Caller { name: identity.name.to_string(), proof: Proof::Certificate });
        }
        let token = self.token.as_ref().ok_or_else(no_token_configured)?;
        token.admits(headers).await.map_err(not_admitted)?;
        Ok(Caller { name: BY_TOKEN.to_owned(), proof: Proof::Token })
    }
}

fn no_token_configured() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "no-operator-token",
        "No operator token is configured",
        "Connect with a client certificate whose SAN is `spiffe://<trust domain>/operator/<name>`; or set `operator_token_file` in \
         `[operator]` of the origin's configuration to a file with a token of at least 16 bytes, and send it as \
         `Authorization: Bearer <token>`.",
    )
}

fn not_admitted(why: NotAdmitted) -> Problem {
    match why {
        NotAdmitted::Unauthorized => Problem::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "The operator token is missing or wrong",
            "Send the token of `operator_token_file` as `Authorization: Bearer <token>`, or connect with a client certificate \
             whose SAN is `spiffe://<trust domain>/operator/<name>`.",
        )
        .with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"weir\"")),
        NotAdmitted::Unusable => Problem::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "operator-token-unusable",
            "The operator token cannot be read",
            "The file of the operator token cannot be used; the origin's log has the reason.",
        ),
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
        let expired = later.unwrap_err();
        assert_eq!(expired.status(), StatusCode::UNAUTHORIZED);
        assert!(expired.detail().contains("has expired"), "{expired:?}");
    }
}
