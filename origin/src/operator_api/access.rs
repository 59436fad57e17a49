//! Authentication of operators: by client certificate or token.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use http::request::Parts;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use ring::digest::{SHA256, digest};
use serde_json::json;
use tokio::sync::watch;
use weir_protocol::name::NodeName;
use weir_protocol::problem::Problem;
use weir_runtime::identity::Role;
use weir_runtime::operator_token::{NotAdmitted, OperatorToken, presented};
use weir_runtime::serve::{Body, Peer};

use super::permissions::Permissions;
use super::{no_keys, uncached};
use crate::config::{BY_TOKEN, OperatorConfig, OperatorRole};

/// Shorter tokens can be guessed, whatever digest the configuration has.
const SHORTEST_TOKEN: usize = 16;

/// The operator of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Caller {
    /// From the certificate, or `token`.
    pub(super) name: String,
    pub(super) may: Permissions,
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
    let (Permissions { role, services, .. }, version) = (&caller.may, env!("CARGO_PKG_VERSION"));
    let services = services.as_deref();
    Ok(uncached(&json!({ "name": caller.name, "role": role, "services": services, "by": by, "version": version })))
}

/// Checks credentials. Clones are cheap, and share the operators.
#[derive(Debug, Clone)]
pub(crate) struct Access {
    token: Option<Arc<OperatorToken>>,
    operators: Arc<watch::Sender<Arc<Operators>>>,
}

/// The operators of the configuration, by what proves them.
#[derive(Debug, Default)]
struct Operators {
    by_token: BTreeMap<[u8; 32], Known>,
    by_certificate: BTreeMap<NodeName, Known>,
}

#[derive(Debug, Clone)]
struct Known {
    name: NodeName,
    may: Permissions,
}

impl Operators {
    fn of(configs: &[OperatorConfig]) -> Self {
        let mut operators = Self::default();
        for config in configs {
            let known = || Known { name: config.name.clone(), may: Permissions::of(config) };
            operators.by_token.extend(config.token_digest().map(|digest| (digest, known())));
            operators.by_certificate.extend(config.certificate.clone().map(|name| (name, known())));
        }
        operators
    }
}

impl Known {
    fn caller(&self, proof: Proof) -> Caller {
        Caller { name: self.name.to_string(), may: self.may.clone(), proof }
    }
}

impl Access {
    pub(super) fn new(token: Option<OperatorToken>, configs: &[OperatorConfig]) -> Self {
        let operators = Arc::new(watch::Sender::new(Arc::new(Operators::of(configs))));
        Self { token: token.map(Arc::new), operators }
    }

    /// Replaces the operators, for the next request of each.
    pub(crate) fn replace(&self, configs: &[OperatorConfig]) {
        self.operators.send_replace(Operators::of(configs).into());
    }

    /// Authenticates a request, and returns the operator.
    pub(super) async fn check(&self, headers: &HeaderMap, peer: &Peer, now: SystemTime) -> Result<Caller, Problem> {
        let operators = self.operators.borrow().clone();
        let Operators { by_token, by_certificate } = &*operators;
        if let Some(identity) = peer.identity.as_ref().filter(|identity| identity.role == Role::Operator) {
            // Connections outlive certificates.
            if peer.has_expired(now) {
                let detail = "The client certificate has expired: connect with a new one.";
                let title = "The client certificate has expired";
                return Err(Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail));
            }
            if by_token.is_empty() && by_certificate.is_empty() {
                let may = Permissions::of_role(OperatorRole::Admin);
                return Ok(Caller { name: identity.name.to_string(), may, proof: Proof::Certificate });
            }
            let known = by_certificate.get(&identity.name).ok_or_else(|| unknown_certificate(&identity.name))?;
            return Ok(known.caller(Proof::Certificate));
        }
        // What can be learned by the time that this takes is about digests, of which no token follows.
        let presented = presented(headers);
        let digest = presented.filter(|token| token.len() >= SHORTEST_TOKEN).map(|token| digest(&SHA256, token));
        let known = digest.and_then(|digest| by_token.get(digest.as_ref()));
        if let Some(known) = known {
            return Ok(known.caller(Proof::Token));
        }
        match &self.token {
            Some(token) => token.admits(headers).await.map_err(not_admitted)?,
            None if by_token.is_empty() => return Err(no_token_configured()),
            None if presented.is_some() => return Err(not_admitted(NotAdmitted::Wrong)),
            None => return Err(not_admitted(NotAdmitted::Missing)),
        }
        let may = Permissions::of_role(OperatorRole::Admin);
        Ok(Caller { name: BY_TOKEN.to_owned(), may, proof: Proof::Token })
    }
}

fn unknown_certificate(name: &NodeName) -> Problem {
    let detail = format!(
        "The client certificate is that of operator `{name}`, whom no [[operator]] of the origin's configuration names: add one \
         with `certificate = \"{name}\"` and a role."
    );
    Problem::new(StatusCode::FORBIDDEN, "unknown-operator", "The operator is not known", detail)
}

fn no_token_configured() -> Problem {
    Problem::new(
        StatusCode::FORBIDDEN,
        "no-operator-token",
        "No operator token is configured",
        "Connect with a client certificate whose SAN is `spiffe://<trust domain>/operator/<name>`; or add an `[[operator]]` with \
         `token_sha256` to the origin's configuration, and send its token as `Authorization: Bearer <token>`.",
    )
}

fn not_admitted(why: NotAdmitted) -> Problem {
    let unauthorized = |title, detail| {
        let problem = Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", title, detail);
        problem.with_header(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"weir\""))
    };
    match why {
        NotAdmitted::Missing => unauthorized(
            "The operator token is missing",
            "Send the token of an operator as `Authorization: Bearer <token>`, or connect with a client certificate \
             whose SAN is `spiffe://<trust domain>/operator/<name>`.",
        ),
        NotAdmitted::Wrong => unauthorized(
            "The operator token is not known",
            "No operator of this origin has the token that was sent: it was replaced, its operator was removed, or it is of \
             another hub.",
        ),
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
        let (access, now) = (Access::new(None, &[]), SystemTime::now());
        let identity = Some(Identity { role: Role::Operator, name: "ops".parse().unwrap() });
        let peer = Peer { address: ([127, 0, 0, 1], 1).into(), identity, certificate_ends: Some(now) };
        assert_eq!(access.check(&HeaderMap::new(), &peer, now).await.unwrap().name, "ops");
        let later = access.check(&HeaderMap::new(), &peer, now + Duration::from_secs(1)).await;
        let expired = later.unwrap_err();
        assert_eq!(expired.status(), StatusCode::UNAUTHORIZED);
        assert!(expired.detail().contains("has expired"), "{expired:?}");
    }
}
