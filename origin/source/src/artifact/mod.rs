//! Sources of versions that are archives each: charts of Helm repositories, and artifacts in registries.
//!
//! A poll lists what the services follow ([`Chosen`]), and `fetch` downloads and unpacks the archives that a build needs.
//! `state` decides which ones those are, and `signatures` which may be published. Nothing but what is published survives the process.

mod back_off;
mod chosen;
mod fetch;
mod listing;
mod not_fetched;
mod pause;
mod signatures;
mod state;
mod verify;
mod whole;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use weir_protocol::revision_id::RevisionId;
use weir_tarball::{BuildContext, Built, ContentKey, FolderPath, FrameSink, ListedEntry, Listing, TarballError};
use weir_upstream::http::{Client, USER_AGENT, UpstreamSession};
use weir_upstream::{Phase, RepositoryConfig, Upstream, UpstreamError};

pub(crate) use chosen::{Blob, Chosen, Location, chart_revision};

use self::listing::Listing as UpstreamListing;
use self::not_fetched::NotFetched;
use self::pause::Pause;
use self::signatures::Policy;
use self::state::{Needed, State};
use super::archive::{ArchiveTree, Layout, Original, Spool, SpoolStore};
use super::oci::Tokens;
use super::{
    LeftOutRef, ListRequest, ListTarget, PollFailure, PollOutcome, PollRequest, ResolvedServices, ServiceFailure,
    SourceContext,
};
use crate::{Age, Candidate, Service};

/// A repository of archives as a source.
pub(crate) struct ArtifactSource {
    listing: UpstreamListing,
    tokens: Tokens,
    spools: SpoolStore,
    state: Mutex<State>,
    pause: Mutex<Pause>,
    shared: Arc<SourceContext>,
}

impl ArtifactSource {
    pub(super) fn new(config: &RepositoryConfig, shared: Arc<SourceContext>) -> Self {
        let spools = SpoolStore::new(shared.data_dir.artifacts(&config.name, config.url.as_str()));
        let (listing, tokens) =
            (UpstreamListing::new(config, &shared.metrics), Tokens::new(shared.metrics.registry_tokens.clone()));
        Self { listing, tokens, spools, state: Mutex::default(), pause: Mutex::default(), shared }
    }

    pub(crate) fn poll(&self, request: &PollRequest<'_>, stop: &AtomicBool) -> Result<PollOutcome, PollFailure> {
        let _active = request.progress.start();
        self.state().poll_started();
        if let Some(error) = self.pause().take(Instant::now()) {
            return Err(error.into());
        }
        let upstream = Upstream::of(request.config, &self.shared.upstreams, self.shared.clocks.clone());
        let session = UpstreamSession::new(&upstream, "list", stop)?;
        let polled = self.poll_with(&session, request);
        request.progress.count_requests(session.requests());
        let stored = i64::try_from(self.spools.bytes()).unwrap_or(i64::MAX);
        self.shared.metrics.mirror_bytes.with_label_values(&[request.config.name.as_str()]).set(stored);
        Ok(polled?)
    }

    fn poll_with(
        &self,
        session: &UpstreamSession<'_>,
        request: &PollRequest<'_>,
    ) -> Result<PollOutcome, UpstreamError> {
        let client = Client::new(session, USER_AGENT)?;
        let policy = request.config.verify.as_ref().map(Policy::read);
        // Before the listing, which may fail: a key that was removed must not count until then.
        self.state().signatures.set_policy(policy.clone());
        request.progress.listing();
        let listed_at = Some(Instant::now());
        let (choices, left_out) = self.listing.list(&client, &self.tokens, request.services, request.progress)?;
        let moved = {
            let mut state = self.state();
            (state.left_out, state.listed_at, state.made_at) = (left_out, listed_at, self.listing.made_at());
            state.list(choices)
        };
        let (due, unused) = {
            // In this order: a build locks the spools while it has the state.
            let state = self.state();
            let unused = self.spools.retain(|key| state.is_chosen(key));
            (state.due(request.services, |key| self.spools.get(key).is_some(), Instant::now()), unused)
        };
        // Removes their files, without the locks.
        drop(unused);
        if due.is_empty() {
            return Ok(if moved { PollOutcome::Changed } else { PollOutcome::Unchanged });
        }
        if !(request.may_fetch)() {
            return Ok(PollOutcome::FetchPending);
        }
        let done = Arc::<AtomicUsize>::default();
        let mut has_succeeded = false;
        for service in &due {
            request.progress.show(Phase::Checking, done.clone(), Some(due.len()));
            match self.process(&client, policy.as_ref(), service, request) {
                Ok(success) => has_succeeded |= success,
                // What is new is published first.
                Err(error) if has_succeeded => {
                    self.pause().demanded(error, Instant::now());
                    break;
                }
                Err(error) => return Err(error),
            }
            done.fetch_add(1, Ordering::Relaxed);
        }
        Ok(PollOutcome::Changed)
    }

    /// Verifies and fetches what one service follows. Returns whether something succeeded. An error ends the poll.
    fn process(
        &self,
        client: &Client<'_>,
        policy: Option<&Policy>,
        service: &Service,
        request: &PollRequest<'_>,
    ) -> Result<bool, UpstreamError> {
        let (interval, mut has_succeeded) = (request.config.poll_interval, false);
        let unverified = self.state().unverified(service, Instant::now());
        if let Some((policy, unverified)) = policy.zip(unverified) {
            client.session().set_step("verify");
            has_succeeded = self.verify(client, policy, &unverified, request)?;
        }
        let needed = self.state().needed(service, |key| self.spools.get(key).is_some(), Instant::now());
        let Some(Needed { chosen, revision, signed }) = needed else { return Ok(has_succeeded) };
        client.session().set_step("fetch");
        request.progress.preparing();
        let keeps = request.services.iter().any(|service| service.publishes_whole());
        let (result, ends) = split(self.fetch(client, &chosen, signed, keeps, request.progress), |error| {
            NotFetched::by(&chosen, "fetch", error)
        });
        has_succeeded |= result.is_ok();
        let label = if result.is_ok() { "fetched" } else { "failed" };
        self.shared.metrics.archives_fetched.with_label_values(&[label]).inc();
        self.state().fetched(&chosen, revision.as_ref(), result, interval, Instant::now());
        ends.map_or(Ok(has_succeeded), Err)
    }

    /// The versions that the last listing passed over.
    pub(crate) fn left_out(&self) -> Vec<LeftOutRef> {
        self.state().left_out.clone()
    }

    /// Resolves the versions of services, from memory.
    pub(crate) fn resolve(&self, config: &RepositoryConfig, services: &[Arc<Service>]) -> ResolvedServices {
        let state = self.state();
        let resolve = |service: &Arc<Service>| {
            let followed = state.followed(service, config.verify.as_ref());
            let (chosen, revision, sha256) = followed.inspect_err(|_| service.not_found(state.listed_at))?;
            let key = ContentKey::new(&service.repository, &service.selection, |key| {
                key.field(b"archive v1");
                key.field(sha256.as_bytes());
                let name = if let Layout::OneFile(name) = &chosen.layout { name.as_bytes() } else { b"" };
                key.field(&[u8::from(chosen.layout == Layout::StripTop)]);
                key.field(name);
                // Of what is published as a whole, another manifest is another content.
                if let Some(manifest) = chosen.manifest().filter(|_| service.publishes_whole()) {
                    key.field(manifest.as_bytes());
                }
            });
            let version = chosen.version.as_ref().and_then(|version| version.parse().ok());
            let named = chosen.version.as_deref().and_then(|version| service.followed.version(version));
            let (seen_at, listed) = (state.listed_at, state.made_at);
            let mut age = Box::new(Age { seen_at, version: named, listed, ..Age::default() });
            age.behind = service.behind(&revision, &age);
            let (service, parts) = (service.clone(), Vec::new());
            Ok(Candidate { service, revision, version, parts, key, age, stepped_back: None })
        };
        services.iter().map(|service| (service.clone(), resolve(service))).collect()
    }

    /// The contents of a service at a revision.
    pub(super) fn tree<'a>(
        &self,
        service: &'a Service,
        revision: &RevisionId,
    ) -> Result<ArchiveTree<'a>, ServiceFailure> {
        self.open(&*self.spool(revision, false)?, revision, &service.selection.folder)
    }

    pub(crate) fn build(
        &self,
        service: &Service,
        revision: &RevisionId,
        context: &BuildContext<'_>,
        sink: &dyn FrameSink,
    ) -> Result<Built, ServiceFailure> {
        let spool = self.spool(revision, service.publishes_whole())?;
        let tree = self.open(&spool, revision, &service.selection.folder)?;
        let build = || {
            let mut built = weir_tarball::build(&tree, &service.selection, context, sink)?;
            if let Original::Stored(_, whole) = &spool.original
                && service.publishes_whole()
            {
                built.whole = Some(whole.store(sink)?);
            }
            Ok(built)
        };
        build().map_err(|error| self.failure(revision, "build", &error))
    }

    pub(crate) fn list(
        &self,
        ListRequest { target, selection, limits }: &ListRequest<'_>,
        stop: &AtomicBool,
        emit: &mut dyn FnMut(ListedEntry),
    ) -> Result<(RevisionId, Listing), ServiceFailure> {
        let revision = match target {
            ListTarget::Followed(followed) => self.state().revision(followed)?,
            ListTarget::At(revision) => revision.clone(),
        };
        let spool = self.spool(&revision, false)?;
        let tree = self.open(&spool, &revision, &selection.folder)?;
        let listing = weir_tarball::list(&tree, selection, limits, stop, emit);
        let listing = listing.map_err(|error| self.failure(&revision, "select", &error))?;
        Ok((revision, listing))
    }

    /// Ends the back-offs of archives: somebody may have fixed the cause.
    pub(crate) fn reset_back_offs(&self) {
        self.state().reset_back_offs();
    }

    pub(crate) fn has_content(&self) -> bool {
        self.state().has_listed()
    }

    /// Whether a build waits for an archive since the last poll started.
    pub(crate) fn needs_poll(&self) -> bool {
        self.state().has_new_wants()
    }

    pub(crate) fn remove_siblings(&self) {
        self.spools.remove_siblings();
    }

    pub(crate) fn remove_all(&self) {
        self.spools.remove_all();
    }

    /// The unpacked archive of a revision. If it is not there, the next poll fetches it. `whole`: with its bytes, if they can be
    /// published.
    fn spool(&self, revision: &RevisionId, whole: bool) -> Result<Arc<Spool>, ServiceFailure> {
        let mut state = self.state();
        let (key, named) = state.archive_of(revision)?;
        match self.spools.get(&key).filter(|spool| !whole || spool.original.is_of(named.as_ref())) {
            Some(spool) => Ok(spool),
            None => Err(state.want(revision)),
        }
    }

    fn open<'a>(
        &self,
        spool: &Spool,
        revision: &RevisionId,
        folder: &'a FolderPath,
    ) -> Result<ArchiveTree<'a>, ServiceFailure> {
        spool.open(folder).map_err(|error| self.damaged(revision, &error))
    }

    /// Converts a tarball error. Only those of the disk may pass by themselves.
    pub(super) fn failure(&self, revision: &RevisionId, step: &'static str, error: &TarballError) -> ServiceFailure {
        match error {
            TarballError::Spool { .. } => self.damaged(revision, error),
            _ => ServiceFailure::of_tarball(step, error),
        }
    }

    /// The unpacked archive cannot be read: the next poll fetches it again.
    fn damaged(&self, revision: &RevisionId, error: &dyn std::fmt::Display) -> ServiceFailure {
        tracing::warn!(%revision, %error, "an unpacked archive cannot be read: it is fetched again");
        let mut state = self.state();
        let removed = state.archive_of(revision).ok().and_then(|(key, _)| self.spools.remove(&key));
        let failure = state.want(revision);
        drop(state);
        drop(removed);
        failure
    }

    fn pause(&self) -> MutexGuard<'_, Pause> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Splits an error that ends the poll into a failure of one version and the error. Once the failure is recorded, others are
/// the first of the next poll. The watchdog interrupts a poll whose version takes too long.
fn split<T, E>(
    result: Result<Result<T, E>, UpstreamError>,
    failure: impl FnOnce(&UpstreamError) -> E,
) -> (Result<T, E>, Option<UpstreamError>) {
    match result {
        Ok(result) => (result, None),
        Err(error) => (Err(failure(&error)), Some(error)),
    }
}
