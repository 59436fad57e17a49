//! An agent whose request lasts, such as an event stream: who it is, and how long its credential counts.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;
use weir_protocol::observed::Proved;
use weir_protocol::token::{CLOCK_LEEWAY, UnixSeconds, unix_seconds};
use weir_runtime::identity::{Identity, Role};
use weir_runtime::serve::{Peer, until};

use super::credential::Credential;
use super::refusal::Refusal;
use super::{Access, Inner};

/// An agent, as its credential proves it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Agent {
    pub(crate) name: NodeName,
    /// What its token asserts. A certificate asserts nothing.
    pub(crate) labels: Labels,
    /// By what it proves its name.
    pub(crate) proved: Proved,
    /// What it may read.
    pub(crate) services: Vec<NameGlob>,
    /// When its credential ends. `None`: never.
    pub(crate) valid_until: Option<UnixSeconds>,
}

impl Agent {
    pub(crate) fn may_read(&self, service: &ServiceName) -> bool {
        self.services.iter().any(|glob| glob.matches(service.as_str()))
    }

    /// Its memory, approximately, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let labels = self.labels.iter().map(|(key, value)| 100 + key.len() + value.len());
        200 + labels.chain(self.services.iter().map(|glob| 50 + glob.as_str().len())).sum::<usize>()
    }
}

/// An agent with its credential.
pub(crate) struct Session {
    pub(crate) agent: Agent,
    inner: Arc<Inner>,
    token: Option<String>,
    peer: Arc<Peer>,
}

impl Access {
    /// The agent that sends a request. `None`: the edge is open, and it proves nothing.
    ///
    /// # Errors
    /// Why it is not authenticated.
    pub(crate) fn agent(&self, headers: &HeaderMap, peer: &Peer) -> Result<Option<Agent>, Refusal> {
        if !self.inner.checks_credentials() {
            return Ok(None);
        }
        match self.inner.agent(token(headers)?, peer, SystemTime::now()) {
            Err(Refusal::NoCredential) if !self.inner.needs_credentials => Ok(None),
            agent => agent.map(Some),
        }
    }

    /// The same with its credential.
    ///
    /// # Errors
    /// As [`agent`](Self::agent).
    pub(crate) fn session(&self, headers: &HeaderMap, peer: &Arc<Peer>) -> Result<Option<Session>, Refusal> {
        let Some(agent) = self.agent(headers, peer)? else { return Ok(None) };
        let token = token(headers)?.map(str::to_owned);
        Ok(Some(Session { agent, inner: self.inner.clone(), token, peer: peer.clone() }))
    }
}

/// The bearer token of a request, whatever it is worth.
///
/// # Errors
/// There are several, or it is not text.
pub(crate) fn token(headers: &HeaderMap) -> Result<Option<&str>, Refusal> {
    match Credential::of(headers) {
        Credential::None => Ok(None),
        Credential::Token(token) => Ok(Some(token)),
        Credential::Unreadable => Err(Refusal::Malformed),
    }
}

impl Inner {
    /// The agent that a token proves, or else the certificate of a connection.
    fn agent(&self, token: Option<&str>, peer: &Peer, now: SystemTime) -> Result<Agent, Refusal> {
        let key_set = self.key_set();
        let mut agent = match (token, &peer.identity) {
            (Some(token), _) => {
                let claims = key_set.claims(token, unix_seconds(now))?;
                Agent {
                    name: claims.subject.clone(),
                    labels: claims.labels.clone(),
                    proved: Proved::Token,
                    services: claims.services.clone(),
                    valid_until: Some(claims.expires),
                }
            }
            (None, Some(Identity { role: Role::Agent, name })) if self.accepts_certificates => {
                if key_set.denies_agent(name) {
                    return Err(Refusal::Denied);
                }
                if peer.has_expired(now) {
                    return Err(Refusal::Expired);
                }
                let rules = self.certificates.iter().filter(|rule| rule.agents.matches(name.as_str()));
                Agent {
                    name: name.clone(),
                    labels: Labels::default(),
                    proved: Proved::Certificate,
                    services: rules.flat_map(|rule| rule.services.iter().cloned()).collect(),
                    valid_until: peer.certificate_ends.map(unix_seconds),
                }
            }
            (None, _) => return Err(Refusal::NoCredential),
        };
        if !self.needs_credentials {
            agent.services = vec![NameGlob::any()];
        }
        Ok(agent)
    }
}

impl Session {
    /// Waits until the credential no longer proves the same: it has ended, was denied, or its key is gone. Returns why;
    /// [`Refusal::Denied`] also if it proves something else now.
    pub(crate) async fn ended(&self) -> Refusal {
        let mut changes = self.inner.key_set.subscribe();
        loop {
            changes.borrow_and_update();
            match self.inner.agent(self.token.as_deref(), &self.peer, SystemTime::now()) {
                Ok(agent) if agent == self.agent => {}
                Ok(_) => return Refusal::Denied,
                Err(refusal) => return refusal,
            }
            // Tokens are accepted a little longer, certificates are not.
            let leeway = if self.token.is_some() { CLOCK_LEEWAY.as_secs() } else { 1 };
            let ends = self.agent.valid_until.map(|ends| Duration::from_secs(ends.saturating_add(leeway)));
            let ends = ends.and_then(|ends| UNIX_EPOCH.checked_add(ends));
            tokio::select! {
                () = until(ends) => {}
                changed = changes.changed() => if changed.is_err() { return Refusal::Denied },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    use prometheus::Registry;
    use weir_protocol::access_list::AccessList;
    use weir_protocol::token::{Claims, SigningKey};
    use weir_runtime::shutdown::Drain;

    use crate::access::decision::AuthMethod;
    use crate::access::{AccessDecision, OriginListsFile};
    use crate::config::{AuthConfig, AuthMode, CertificateRule};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn peer(identity: Option<Identity>, certificate_ends: Option<SystemTime>) -> Arc<Peer> {
        Arc::new(Peer { address: ([127, 0, 0, 1], 1).into(), identity, certificate_ends })
    }

    fn issue(key: &SigningKey, id: &str, expires: UnixSeconds) -> HeaderMap {
        let claims = Claims {
            subject: format!("agent-{id}").parse().unwrap(),
            id: Some(id.parse().unwrap()),
            services: vec!["shop".parse().unwrap()],
            labels: BTreeMap::from([("ring".to_owned(), "canary".to_owned())]).try_into().unwrap(),
            expires,
            not_before: None,
            issued_at: None,
        };
        let value = format!("Bearer {}", key.issue(&claims).unwrap()).parse().unwrap();
        [(http::header::AUTHORIZATION, value)].into_iter().collect()
    }

    #[tokio::test]
    async fn a_session_ends_when_its_credential_ends_or_is_denied() {
        let (dir, drain, key) = (tempfile::tempdir().unwrap(), Drain::new(), SigningKey::generate().unwrap().0);
        let config = AuthConfig {
            mode: AuthMode::Required,
            keys_from_origins: true,
            client_ca: Some("ca.pem".into()),
            certificates: vec![CertificateRule {
                agents: "c-*".parse().unwrap(),
                services: vec!["shop".parse().unwrap()],
            }],
            ..AuthConfig::default()
        };
        let lists = OriginListsFile::at(dir.path());
        let access = Access::start(&config, &["a"], lists, &Registry::new(), &drain).await.unwrap();
        let send = |change: &dyn Fn(&mut AccessList)| {
            let mut list = AccessList::default();
            list.add_key(key.public().clone()).unwrap();
            change(&mut list);
            access.set_origin_list("a", list.json().get().as_bytes());
        };
        send(&|_| {});
        let now = unix_seconds(SystemTime::now());
        let begin = |id: &str, expires| access.session(&issue(&key, id, expires), &peer(None, None));
        let session = begin("one", now + 3600).unwrap().unwrap();
        assert_eq!((session.agent.name.as_str(), session.agent.valid_until), ("agent-one", Some(now + 3600)));
        assert_eq!(session.agent.labels.iter().collect::<Vec<_>>(), [("ring", "canary")]);
        assert!(session.agent.may_read(&"shop".parse().unwrap()) && !session.agent.may_read(&"bank".parse().unwrap()));

        async fn ended(session: &Session) -> Refusal {
            tokio::time::timeout(PATIENCE, session.ended()).await.unwrap()
        }
        let (first, second) = (begin("one", now + 3600).unwrap().unwrap(), begin("two", now + 3600).unwrap().unwrap());
        let waiting = tokio::spawn(async move { (ended(&first).await, ended(&second).await) });
        tokio::task::yield_now().await;
        send(&|list| {
            list.deny_token("one".parse().unwrap(), None).unwrap();
            list.deny_agent("agent-two".parse().unwrap()).unwrap();
        });
        assert_eq!(waiting.await.unwrap(), (Refusal::Denied, Refusal::Denied));
        assert_eq!(begin("two", now + 3600).err(), Some(Refusal::Denied));
        let three = begin("three", now + 3600).unwrap().unwrap();
        send(&|list| list.revoke_key(key.public().id().clone()).unwrap());
        assert_eq!(ended(&three).await, Refusal::RevokedKey);

        send(&|_| {});
        let almost = begin("four", now - CLOCK_LEEWAY.as_secs() + 2).unwrap().unwrap();
        assert_eq!(ended(&almost).await, Refusal::Expired);

        let identity = Identity { role: Role::Agent, name: "c-1".parse().unwrap() };
        let ends = SystemTime::now() + Duration::from_millis(20);
        let certified = access.session(&HeaderMap::new(), &peer(Some(identity.clone()), Some(ends))).unwrap().unwrap();
        assert!(certified.agent.may_read(&"shop".parse().unwrap()));
        assert_eq!(ended(&certified).await, Refusal::Expired);
        let read = |ends| {
            let peer = peer(Some(identity.clone()), Some(ends));
            access.decide(&HeaderMap::new(), &peer, Some(&"shop".parse().unwrap()))
        };
        assert_eq!(read(ends + Duration::from_secs(3600)), AccessDecision::Allowed(AuthMethod::Certificate));
        assert_eq!(read(ends), AccessDecision::Unauthorized(Refusal::Expired), "on a connection that is still open");
        send(&|list| list.deny_agent("c-1".parse().unwrap()).unwrap());
        let denied = access.session(&HeaderMap::new(), &peer(Some(identity), None)).err();
        assert_eq!(
            (denied, access.session(&HeaderMap::new(), &peer(None, None)).err()),
            (Some(Refusal::Denied), Some(Refusal::NoCredential))
        );
        drain.cut().await;
    }
}
