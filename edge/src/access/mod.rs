//! Who may read what, decided before anything is looked up.
//!
//! [`decision`] is the rule, [`credential`] what a request shows, [`standing`] which keys verify tokens just now and what
//! is denied. [`Access`] keeps that standing current: from this edge's own files, and from what its origins say.

mod credential;
mod decision;
mod heard;
mod metrics;
mod standing;

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use http::HeaderMap;
use prometheus::Registry;
use tokio::sync::watch;
use weir_protocol::access_list::AccessList;
use weir_protocol::name::ServiceName;
use weir_protocol::token::unix_seconds;
use weir_runtime::access_files::AccessFiles;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::Peer;
use weir_runtime::shutdown::Drain;

pub(crate) use decision::{Decision, Refusal};
pub(crate) use heard::HeardFile;

use self::credential::Credential;
use self::heard::Heard;
pub(crate) use self::metrics::AccessFamilies;
use self::metrics::AccessMetrics;
use self::standing::Standing;
use crate::config::{AuthConfig, AuthMode, CertificateRule};
use crate::origin_client::OriginId;

/// Decides. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Access {
    inner: Arc<Inner>,
}

struct Inner {
    /// Whether a reader must prove itself.
    needs_credentials: bool,
    /// What certificates open. What no rule opens is closed.
    certificates: Vec<CertificateRule>,
    keys_from_origins: bool,
    cached_tokens: u64,
    /// The names of the origins, by their ids.
    origins: Vec<String>,
    standing: RwLock<Arc<Standing>>,
    lists: Mutex<Lists>,
    /// What is to be on disk.
    saved: watch::Sender<Arc<Heard>>,
    metrics: AccessMetrics,
}

/// What the standing is made of.
struct Lists {
    own: Arc<AccessList>,
    heard: Heard,
}

impl Access {
    /// Reads the edge's own files, and begins to follow them; what origins said before the last restart is in force again
    /// at once. `origins`: their names, by their ids.
    ///
    /// # Errors
    /// One of the files cannot be used, or the name of a metric is taken.
    pub(crate) async fn start(
        config: &AuthConfig,
        origins: Vec<String>,
        file: HeardFile,
        registry: &Registry,
        drain: &Drain,
    ) -> anyhow::Result<Self> {
        let metrics = AccessMetrics::register(registry)?;
        let files = AccessFiles { keys: config.keys.clone(), deny: config.deny.clone() };
        let mut own = files.follow(metrics.files_readable.clone(), drain).await?;
        let reading = file.clone();
        let mut heard = match tokio::task::spawn_blocking(move || reading.read()).await? {
            Err(error) if config.mode == AuthMode::Open => {
                tracing::error!("{error:#}: nobody needs it while everybody may read");
                Heard::new()
            }
            heard => heard?,
        };
        // What an origin said that is no longer asked is nobody's word.
        heard.retain(|origin, _| origins.contains(origin));
        let (saved, to_save) = watch::channel(Arc::new(heard.clone()));
        let lists = Lists { own: own.borrow_and_update().clone(), heard };
        let inner = Arc::new(Inner {
            needs_credentials: config.mode == AuthMode::Required,
            certificates: config.certificates.clone(),
            keys_from_origins: config.keys_from_origins,
            cached_tokens: config.cached_tokens,
            origins,
            standing: RwLock::new(Arc::new(Standing::empty(config.cached_tokens))),
            lists: Mutex::new(lists),
            saved,
            metrics,
        });
        inner.change(|_| {});
        drain.spawn(heard::save(file, to_save, inner.metrics.lists_unsaved.clone(), drain.clone()));
        let (following, begun) = (inner.clone(), drain.clone());
        drain.spawn(async move {
            let changes = async {
                while own.changed().await.is_ok() {
                    let read = own.borrow_and_update().clone();
                    following.change(|lists| lists.own = read);
                }
                std::future::pending::<()>().await;
            };
            tokio::select! { () = changes => {}, () = begun.begun() => {} }
        });
        Ok(Self { inner })
    }

    /// Whether a reader must prove itself.
    pub(crate) fn needs_credentials(&self) -> bool {
        self.inner.needs_credentials
    }

    /// Why nobody, or somebody who should not, could read just now: a sentence for each reason.
    pub(crate) fn troubles(&self) -> Vec<String> {
        let inner = &*self.inner;
        if !inner.needs_credentials {
            return Vec::new();
        }
        let unheard = {
            let lists = inner.lists.lock().unwrap_or_else(PoisonError::into_inner);
            let unheard = inner.origins.iter().filter(|origin| !lists.heard.contains_key(*origin));
            unheard.cloned().collect::<Vec<_>>()
        };
        let (usable_keys, ..) = inner.standing().sizes();
        let mut troubles: Vec<String> = unheard.iter().map(|origin| not_heard(origin)).collect();
        if usable_keys == 0 && inner.certificates.is_empty() {
            troubles.push(
                "nobody can prove anything: there is no usable key, and no certificate opens anything".to_owned(),
            );
        }
        troubles
    }

    /// How many tokens are remembered, and at the most.
    pub(crate) fn bound(&self) -> Bound {
        ("cached_tokens", self.inner.standing().remembered(), self.inner.cached_tokens)
    }

    /// Whether a file of keys or denials has changed and cannot be used: what it said last is in force.
    pub(crate) fn files_are_unreadable(&self) -> bool {
        self.inner.metrics.files_readable.get() == 0
    }

    /// Decides about a request for a service; or, without one, for what is no service's. Counts nothing: [`Access::note`]
    /// does, once for each answer.
    pub(crate) fn decide(&self, headers: &HeaderMap, peer: &Peer, service: Option<&ServiceName>) -> Decision {
        let inner = &*self.inner;
        if inner.needs_credentials {
            let (credential, now) = (Credential::of(headers), unix_seconds(SystemTime::now()));
            let standing = inner.standing();
            decision::decide(&inner.certificates, &standing, &credential, peer.identity.as_ref(), service, now)
        } else {
            Decision::OPEN
        }
    }

    /// An answer was given as was decided.
    pub(crate) fn note(&self, decision: Decision, peer: &Peer) {
        self.inner.metrics.decided(decision);
        if let Decision::Unauthorized(refusal) = decision {
            tracing::debug!(address = %peer.address, reason = refusal.as_str(), "a reader was turned away");
        }
    }

    /// Takes an origin's list in the place of what it said before. In force at once, and on disk soon after. A list that
    /// cannot be read changes nothing.
    pub(crate) fn heard(&self, origin: OriginId, json: &[u8]) {
        let Some(name) = self.inner.origins.get(origin) else { return };
        let list = match AccessList::parse(json) {
            Ok(list) => list,
            Err(error) => {
                self.inner.metrics.lists_refused.inc();
                tracing::error!(origin = name, %error, "what the origin says of keys and denials is refused");
                return;
            }
        };
        self.inner.change(|lists| {
            if lists.heard.get(name) != Some(&list) {
                tracing::info!(origin = name, "the origin says anew which keys there are and what is denied");
                lists.heard.insert(name.clone(), list);
                self.inner.saved.send_replace(Arc::new(lists.heard.clone()));
            }
        });
    }
}

fn not_heard(origin: &str) -> String {
    format!("origin {origin} was never heard on what it denies: a token that it has revoked would be taken")
}

impl Inner {
    fn standing(&self) -> Arc<Standing> {
        self.standing.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes a list and makes the new standing of all of them.
    fn change(&self, change: impl FnOnce(&mut Lists)) {
        // Held to the end: of two changes the later standing has both.
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut lists);
        let before = self.standing();
        let after = Standing::of(
            &lists.own,
            &lists.heard.values(),
            self.keys_from_origins,
            &before,
            self.cached_tokens,
            unix_seconds(SystemTime::now()),
        );
        self.metrics.stands(&after);
        *self.standing.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    async fn start(dir: &std::path::Path, drain: &Drain, origins: &[&str]) -> Access {
        let origins = origins.iter().map(|name| (*name).to_owned()).collect();
        let registry = Registry::new();
        Access::start(&AuthConfig::default(), origins, HeardFile::at(dir), &registry, drain).await.unwrap()
    }

    fn denies(access: &Access, ids: [&str; 3]) -> [bool; 3] {
        ids.map(|id| access.inner.standing().denies(&id.parse().unwrap()))
    }

    const T123: [&str; 3] = ["t1", "t2", "t3"];

    #[tokio::test]
    async fn what_an_origin_said_last_survives_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let drain = Drain::new();
        let access = start(dir.path(), &drain, &["a", "b"]).await;
        access.heard(0, br#"{"denied_tokens": [{"jti": "t1"}]}"#);
        access.heard(1, br#"{"denied_tokens": [{"jti": "t2"}]}"#);
        access.heard(1, br#"{"denied_tokens": [{"jti": "t3"}]}"#);
        access.heard(1, b"{\"denied_tokens\": 3}");
        access.heard(7, b"{}");
        assert_eq!(access.inner.metrics.lists_refused.get(), 1);
        assert_eq!(access.troubles(), [""; 0], "an open edge lets everybody read");
        assert!(drain.finish(Duration::from_secs(5)).await);

        let drain = Drain::new();
        let access = start(dir.path(), &drain, &["b", "c", "a"]).await;
        assert_eq!(denies(&access, T123), [true, false, true]);
        access.heard(0, b"{}");
        assert_eq!(denies(&access, T123), [true, false, false], "the last word counts");
        drain.cut().await;

        // An origin that is no longer configured says nothing any more.
        let drain = Drain::new();
        let access = start(dir.path(), &drain, &["b"]).await;
        assert!(!denies(&access, T123)[0]);
        drain.cut().await;
    }
}
