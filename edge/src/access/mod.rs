//! Access control: decided before anything is looked up.
//!
//! [`decision`] is the rule, [`credential`] reads `Authorization`, [`key_set`] holds the keys and denials, and [`issuers`]
//! follows the keys of issuers. [`Access`] updates them from the edge's own files and from its origins.

mod credential;
mod decision;
mod issuers;
mod key_set;
mod lists;
mod metrics;
mod origin_lists;
mod received;
mod refusal;
mod refused;
mod session;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use http::HeaderMap;
use prometheus::Registry;
use tokio::sync::watch;
use weir_protocol::access_list::AccessList;
use weir_protocol::labels::Labels;
use weir_protocol::name::ServiceName;
use weir_protocol::token::unix_seconds;
use weir_runtime::access_files::AccessFiles;
use weir_runtime::bounds::Bound;
use weir_runtime::serve::Peer;
use weir_runtime::shutdown::Drain;

pub(crate) use decision::AccessDecision;
pub(crate) use issuers::read as read_issuers;
pub(crate) use lists::KnownFleet;
pub(crate) use origin_lists::{FollowedLists, OriginListsFile};
pub(crate) use received::ShardOutcome;
pub(crate) use refusal::Refusal;
pub(crate) use refused::RefusedNames;
pub(crate) use session::{Agent, Session, token as bearer_token};

use self::credential::Credential;
use self::issuers::{KeyFailures, KeyOwners};
use self::key_set::KeySet;
use self::lists::Lists;
pub(crate) use self::metrics::AccessFamilies;
use self::metrics::AccessMetrics;
use self::origin_lists::OriginLists;
use crate::config::{AuthConfig, AuthMode, CertificateRule};
use crate::origin_client::MAX_ORIGINS;

/// How long a request waits for the keys of its token's issuer.
const MAX_KEY_WAIT: Duration = Duration::from_secs(5);

/// Access control. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Access {
    inner: Arc<Inner>,
}

struct Inner {
    needs_credentials: bool,
    /// Whether there is anything but its own keys to check a credential with.
    has_authorities: bool,
    /// Whether it has keys of its own. A reload changes that.
    has_keys: AtomicBool,
    /// Whether certificates prove agents. Without an authority for them, those of edges do not.
    accepts_certificates: bool,
    /// The services that certificates may read. There is no default.
    certificates: Vec<CertificateRule>,
    keys_from_origins: bool,
    cached_tokens: u64,
    max_issuers: usize,
    fleet_bytes: usize,
    key_set: watch::Sender<Arc<KeySet>>,
    lists: Mutex<Lists>,
    /// The lists to persist.
    persisted: watch::Sender<Arc<OriginLists>>,
    persisted_owners: watch::Sender<KeyOwners>,
    /// The [`Lists::fleet`] that applies.
    fleet: watch::Sender<Arc<KnownFleet>>,
    key_failures: KeyFailures,
    refused: RefusedNames,
    /// The edge's own list, as its files change.
    own: watch::Sender<watch::Receiver<Arc<AccessList>>>,
    metrics: AccessMetrics,
    drain: Drain,
}

impl Access {
    /// Reads the edge's own files and the persisted lists of the origins, and starts to follow the files. `origins`:
    /// their names.
    ///
    /// # Errors
    /// A file cannot be used, or a metric is registered already.
    pub(crate) async fn start(
        config: &AuthConfig,
        origins: &[&str],
        file: OriginListsFile,
        registry: &Registry,
        drain: &Drain,
    ) -> anyhow::Result<Self> {
        let metrics = AccessMetrics::register(registry)?;
        let mut own = files(config).follow(metrics.files_readable.clone(), drain).await?;
        let configs = config.issuers.clone();
        let issuers = tokio::task::spawn_blocking(move || issuers::read(&configs)).await??;
        let reading = file.clone();
        let mut origin_lists = match tokio::task::spawn_blocking(move || reading.read()).await? {
            Err(error) if config.mode == AuthMode::Open && !config.can_check() => {
                tracing::error!("{error:#}; ignored, because every client may read");
                OriginLists::default()
            }
            origin_lists => origin_lists?,
        };
        // The list of an origin that is not known now may be the only one with a denial. Its keys are not used.
        origin_lists.retain_known(origins, MAX_ORIGINS);
        let owners_file = file.key_owners();
        let key_owners = tokio::task::spawn_blocking(move || KeyOwners::read(&owners_file)).await?;
        let (persisted_owners, owners_to_persist) = watch::channel(key_owners.clone());
        let own_list = own.borrow_and_update().clone();
        let lists = Lists::new(own_list, issuers.clone(), origin_lists, key_owners, config);
        let (persisted, to_persist) = watch::channel(Arc::new(lists.origin_lists.clone()));
        let inner = Arc::new(Inner {
            needs_credentials: config.mode == AuthMode::Required,
            has_authorities: config.has_authorities(),
            has_keys: AtomicBool::new(!config.keys.is_empty()),
            accepts_certificates: config.client_ca.is_some(),
            certificates: config.certificates.clone(),
            keys_from_origins: config.keys_from_origins,
            cached_tokens: config.cached_tokens,
            max_issuers: config.max_issuers,
            fleet_bytes: usize::try_from(config.fleet_bytes.as_u64()).unwrap_or(usize::MAX),
            key_set: watch::Sender::new(Arc::new(KeySet::empty(config.cached_tokens))),
            lists: Mutex::new(lists),
            persisted,
            persisted_owners,
            fleet: watch::Sender::default(),
            key_failures: KeyFailures::default(),
            refused: RefusedNames::default(),
            own: watch::Sender::new(own),
            metrics,
            drain: drain.clone(),
        });
        inner.change(|_| {});
        issuers::follow(&inner, &config.issuers, &issuers, drain);
        drain.spawn(save_owners(file.clone(), owners_to_persist, drain.clone()));
        drain.spawn(origin_lists::save(file, to_persist, inner.metrics.lists_unsaved.clone(), drain.clone()));
        drain.spawn(follow_own(inner.clone()));
        Ok(Self { inner })
    }

    /// Reads files of keys and denials, for [`use_own`](Self::use_own).
    ///
    /// # Errors
    /// A file cannot be used.
    pub(crate) async fn read_own(&self, config: &AuthConfig) -> anyhow::Result<watch::Receiver<Arc<AccessList>>> {
        Ok(files(config).follow(self.inner.metrics.files_readable.clone(), &self.inner.drain).await?)
    }

    /// Replaces the edge's own list.
    pub(crate) fn use_own(&self, mut own: watch::Receiver<Arc<AccessList>>, config: &AuthConfig) {
        self.inner.has_keys.store(!config.keys.is_empty(), Ordering::Relaxed);
        let read = own.borrow_and_update().clone();
        self.inner.own.send_replace(own);
        self.inner.change(|lists| lists.own = read);
    }

    /// The lists of the origins, as they change.
    pub(crate) fn origin_lists(&self) -> FollowedLists {
        FollowedLists(self.inner.persisted.subscribe())
    }

    pub(crate) fn needs_credentials(&self) -> bool {
        self.inner.needs_credentials
    }

    /// Why the edge must not serve now: a sentence per reason. `clusters`: the names of the origins of each
    /// cluster, of which one list is enough.
    pub(crate) fn readiness_errors(&self, clusters: &[Vec<String>]) -> Vec<String> {
        let inner = &*self.inner;
        if !inner.checks_credentials() {
            return Vec::new();
        }
        let missing = inner.fleet.borrow().without_list(clusters);
        let key_set = inner.key_set();
        let usable_keys = key_set.sizes().0 + key_set.issuers().keys();
        let mut errors: Vec<String> = missing.iter().map(|origins| missing_list(&origins.join(", "))).collect();
        if inner.needs_credentials && usable_keys == 0 && inner.certificates.is_empty() {
            errors.push("no client can authenticate: there is no usable key and no rule for certificates".to_owned());
        }
        errors
    }

    /// The numbers of cached tokens, of issuers, of those of origins whose keys are fetched, of bytes of operators' documents and of
    /// refused names, and their limits.
    pub(crate) fn bounds(&self) -> [Bound; 5] {
        let (key_set, fleet_bytes) = (self.inner.key_set(), self.inner.fleet.borrow().fleet.bytes());
        let (urls, max_urls) = self.inner.lists().followed.in_use();
        [
            ("cached_tokens", key_set.cached_tokens(), self.inner.cached_tokens),
            ("issuers", key_set.issuers().len() as u64, self.inner.max_issuers as u64),
            ("issuer_urls", urls as u64, max_urls as u64),
            ("fleet_bytes", fleet_bytes as u64, self.inner.fleet_bytes as u64),
            self.inner.refused.bound(),
        ]
    }

    /// The names that failed credentials claimed.
    pub(crate) fn refused_names(&self) -> RefusedNames {
        self.inner.refused.clone()
    }

    /// Why the keys of issuers could not be read when that was tried last, a sentence each. Their last valid keys apply.
    pub(crate) fn key_failures(&self) -> Vec<String> {
        self.inner.key_failures.all()
    }

    /// Whether a changed file of keys or denials cannot be used. The last valid contents apply.
    pub(crate) fn has_unreadable_files(&self) -> bool {
        self.inner.metrics.files_readable.get() == 0
    }

    /// Decides on a request; `service` is `None` for a path without one. [`Access::record`] counts the decision.
    pub(crate) fn decide(&self, headers: &HeaderMap, peer: &Peer, service: Option<&ServiceName>) -> AccessDecision {
        let inner = &*self.inner;
        if !inner.checks_credentials() {
            return AccessDecision::OPEN;
        }
        let (credential, key_set) = (Credential::of(headers), inner.key_set());
        let service = service.filter(|_| inner.needs_credentials);
        let proves_nothing = credential == Credential::None && !inner.accepts_certificates;
        let decision = match proves_nothing {
            true => AccessDecision::Unauthorized(Refusal::NoCredential),
            false => decision::decide(&inner.certificates, &key_set, &credential, peer, service, SystemTime::now()),
        };
        match decision {
            AccessDecision::Unauthorized(Refusal::NoCredential) if !inner.needs_credentials => AccessDecision::OPEN,
            decision => decision,
        }
    }

    /// Waits for the keys of the issuer of a request's token, if they are being fetched: it may be the first token of a new
    /// key.
    pub(crate) async fn key_fetched(&self, headers: &HeaderMap) {
        let Credential::Token(token) = Credential::of(headers) else { return };
        let requests = self.inner.key_set().key_requests(token).to_vec();
        let answered = join_all(requests.iter().map(|request| request.answered()));
        // Whatever comes of it, the request is decided again.
        let _ = tokio::time::timeout(MAX_KEY_WAIT, answered).await;
    }

    /// Whether an origin of each cluster has said what operators say of agents, now or before a restart. `clusters`: the
    /// names of their origins.
    pub(crate) fn knows_fleet(&self, clusters: &[Vec<String>]) -> bool {
        self.inner.fleet.borrow().without_list(clusters).is_empty()
    }

    /// The labels that operators and its token assert of an agent. None while an origin may assert others.
    pub(crate) fn labels_of(&self, agent: &Agent, clusters: impl FnOnce() -> Vec<Vec<String>>) -> Labels {
        let known = self.inner.fleet.borrow().clone();
        let labels = known.fleet.labels_of(&agent.name, &agent.labels);
        let is_known = labels.is_empty() || known.without_list(&clusters()).is_empty();
        if is_known { labels } else { Labels::default() }
    }

    /// What operators say of agents.
    pub(crate) fn fleet(&self) -> watch::Receiver<Arc<KnownFleet>> {
        self.inner.fleet.subscribe()
    }

    /// Counts the decision of a request that was answered.
    pub(crate) fn record(&self, decision: AccessDecision, headers: &HeaderMap, peer: &Peer) {
        self.inner.metrics.decided(decision);
        if let AccessDecision::Unauthorized(refusal) = decision {
            if let Some(name) = refused::claimed_name(headers, peer) {
                self.inner.refused.record(name, refusal, SystemTime::now());
            }
            tracing::debug!(address = %peer.address, reason = refusal.into_str(), "a client was rejected");
        }
    }
}

fn files(config: &AuthConfig) -> AccessFiles {
    AccessFiles { keys: config.keys.clone(), deny: config.deny.clone() }
}

/// Applies the edge's own list whenever its files change, and other files when they are named, until the drain.
async fn follow_own(inner: Arc<Inner>) {
    let mut named = inner.own.subscribe();
    loop {
        let mut own = named.borrow_and_update().clone();
        let changes = async {
            while own.changed().await.is_ok() {
                let read = own.borrow_and_update().clone();
                inner.change(|lists| lists.own = read);
            }
            std::future::pending::<()>().await;
        };
        tokio::select! {
            () = changes => {}
            Ok(()) = named.changed() => {}
            () = inner.drain.begun() => return,
        }
    }
}

/// Writes the owners of keys after each change, until the drain. Without them the order of the entries decides after a restart.
async fn save_owners(file: OriginListsFile, mut owners: watch::Receiver<KeyOwners>, drain: Drain) {
    loop {
        tokio::select! {
            changed = owners.changed() => if changed.is_err() { return },
            () = drain.begun() => if !owners.has_changed().unwrap_or(false) { return },
        }
        let (contents, file) = (owners.borrow_and_update().clone(), file.clone());
        let written = tokio::task::spawn_blocking(move || contents.write(&file.key_owners())).await;
        if let Ok(Err(error)) = written {
            tracing::error!(%error, "the owners of issuers' keys cannot be written");
        }
    }
}

fn missing_list(origin: &str) -> String {
    format!("origin {origin} has not sent its access list yet: a revoked token would be accepted")
}

impl Inner {
    /// Whether a credential that is presented is checked.
    fn checks_credentials(&self) -> bool {
        self.needs_credentials || self.has_authorities || self.has_keys.load(Ordering::Relaxed)
    }

    fn key_set(&self) -> Arc<KeySet> {
        self.key_set.borrow().clone()
    }

    fn lists(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lists of the origins have changed.
    fn persist(&self, lists: &mut Lists) {
        lists.join_fleets();
        self.persisted.send_replace(Arc::new(lists.origin_lists.clone()));
    }

    /// Changes a list and rebuilds the key set.
    fn change<R>(&self, change: impl FnOnce(&mut Lists) -> R) -> R {
        // Held to the end, so that concurrent changes are not lost.
        let mut lists = self.lists();
        let changed = change(&mut lists);
        let before = self.key_set();
        let (issuers, are_new) = lists.issuer_table();
        let after = KeySet::of(
            &lists.own,
            issuers,
            &lists.origin_lists.all_sent(),
            self.keys_from_origins,
            &before,
            self.cached_tokens,
            unix_seconds(SystemTime::now()),
        )
        .ignoring(lists.ignored_issuers());
        self.metrics.set_key_set(&after);
        for (reason, issuers) in lists.followed.not_fetched() {
            let gauge = self.metrics.issuers_not_fetched.with_label_values(&[reason]);
            gauge.set(i64::try_from(issuers).unwrap_or(i64::MAX));
        }
        self.metrics.fleet_conflicts.set(i64::try_from(lists.conflicts.len()).unwrap_or(i64::MAX));
        self.key_set.send_replace(Arc::new(after));
        self.persisted_owners.send_if_modified(|before| {
            let is_new = are_new && *before != lists.key_owners;
            if is_new {
                before.clone_from(&lists.key_owners);
            }
            is_new
        });
        self.fleet.send_if_modified(|before| {
            // The first list of an origin makes labels known, whatever it has.
            let is_new =
                !Arc::ptr_eq(&before.fleet, &lists.fleet) || before.origins.iter().ne(lists.origin_lists.names());
            if is_new {
                let origins = lists.origin_lists.names().cloned().collect();
                *before = KnownFleet { fleet: lists.fleet.clone(), origins }.into();
            }
            is_new
        });
        changed
    }
}

#[cfg(test)]
mod tests;
