//! Pure: what the services follow since the last listing, and which archives are needed for it. Time is an argument.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::digest::Sha256;
use weir_protocol::revision_id::RevisionId;
use weir_upstream::VerifyConfig;

use super::super::archive::Layout;
use super::super::{Followed, ServiceFailure};
use super::back_off::Failed;
use super::fetch::Fetched;
use super::listing::Choices;
use super::signatures::Signatures;
use super::{Chosen, chart_revision};
use crate::{LeftOutRef, Service};

/// An archive's bytes, and how they become a folder.
type Archive = (Sha256, Layout);

/// The state of a repository between polls.
#[derive(Default)]
pub(super) struct State {
    /// Of all that is followed. `None`: never listed.
    choices: Option<Choices>,
    pub(super) left_out: Vec<LeftOutRef>,
    /// When they were requested.
    pub(super) listed_at: Option<Instant>,
    /// When the upstream made the list.
    pub(super) made_at: Option<SystemTime>,
    /// The digests of archives for which the listing has none. Not of URLs: two versions may have the same one.
    digests: HashMap<Chosen, Sha256>,
    failed: HashMap<Chosen, Failed>,
    pub(super) signatures: Signatures,
    /// The revisions of which a build found no archive.
    wanted: HashSet<RevisionId>,
    /// Whether no poll has started since the last one was wanted. A failed poll is repeated after its back-off, not at once.
    has_new_wants: bool,
}

/// An archive to fetch.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Needed {
    pub(super) chosen: Chosen,
    /// `None`: its digest is not known yet.
    pub(super) revision: Option<RevisionId>,
    /// The digest that its signer states.
    pub(super) signed: Option<Sha256>,
}

/// A version whose signatures must be checked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Unverified {
    pub(super) chosen: Chosen,
    /// The digest of its archive, once it is known.
    pub(super) sha256: Option<Sha256>,
}

impl State {
    /// Takes a listing. Returns whether a choice moved.
    pub(super) fn list(&mut self, choices: Choices) -> bool {
        let moved = self.choices.as_ref() != Some(&choices);
        let followed: HashSet<&Chosen> = choices.iter().flat_map(|(_, chosen)| chosen).collect();
        self.failed.retain(|chosen, _| followed.contains(chosen));
        self.digests.retain(|chosen, _| followed.contains(chosen));
        self.signatures.retain(|chosen| followed.contains(chosen));
        self.choices = Some(choices);
        let current: HashSet<_> = self.chosen().filter_map(|chosen| Some(self.identify(chosen)?.0)).collect();
        self.wanted.retain(|revision| current.contains(revision));
        moved
    }

    /// The services that follow something to verify or to fetch. What failed before is last, so that it does not keep a server
    /// from others.
    pub(super) fn due(
        &self,
        services: &[Arc<Service>],
        is_stored: impl Fn(&Archive) -> bool,
        now: Instant,
    ) -> Vec<Arc<Service>> {
        let is_due = |service: &&Arc<Service>| {
            self.unverified(service, now).is_some() || self.needed(service, &is_stored, now).is_some()
        };
        let mut due: Vec<Arc<Service>> = services.iter().filter(is_due).cloned().collect();
        due.sort_by_cached_key(|service| {
            let chosen = self.choice(&service.followed)?.as_ref().ok()?;
            let fetch = self.failed.get(chosen).and_then(|failed| failed.until);
            fetch.max(self.signatures.failed_until(chosen))
        });
        due
    }

    /// How often a version was fetched, but was incomplete.
    pub(super) fn incomplete(&self, chosen: &Chosen) -> u32 {
        self.failed.get(chosen).map_or(0, Failed::incomplete)
    }

    /// The version that a service follows, if its signatures must be checked now.
    pub(super) fn unverified(&self, service: &Service, now: Instant) -> Option<Unverified> {
        let chosen = self.choice(&service.followed)?.as_ref().ok()?;
        // Without a digest in the listing, an archive that is not the signed one is found by its download.
        let waits = chosen.blob.sha256.is_none() && self.failed.get(chosen).is_some_and(|failed| failed.waits(now));
        let sha256 = || self.identify(chosen).map(|(_, sha256)| sha256);
        let is_due = !waits && self.signatures.needs_check(chosen, now);
        is_due.then(|| Unverified { chosen: chosen.clone(), sha256: sha256() })
    }

    /// The archive without which a service cannot be built: not that of a published revision or of a service that is
    /// pinned, unless a build wants it.
    pub(super) fn needed(
        &self,
        service: &Service,
        is_stored: impl Fn(&Archive) -> bool,
        now: Instant,
    ) -> Option<Needed> {
        let chosen = self.choice(&service.followed)?.as_ref().ok()?;
        let identity = self.identify(chosen);
        let is_needed = match &identity {
            None => self.signatures.allow(chosen),
            Some((revision, sha256)) => {
                let published = is_published(service, revision);
                let has = || service.is_pinned() || published || is_stored(&(*sha256, chosen.layout.clone()));
                // What is published may have to be rebuilt, and what is stored may lack what a build needs.
                (self.wanted.contains(revision) || !has()) && (published || self.signatures.allow(chosen))
            }
        };
        let waits = self.failed.get(chosen).is_some_and(|failed| failed.waits(now));
        let revision = identity.map(|(revision, _)| revision);
        let signed = self.signatures.digest(chosen);
        (is_needed && !waits).then(|| Needed { chosen: chosen.clone(), revision, signed })
    }

    /// Takes the result of a fetch.
    pub(super) fn fetched(
        &mut self,
        chosen: &Chosen,
        revision: Option<&RevisionId>,
        result: Fetched,
        interval: Duration,
        now: Instant,
    ) {
        match result {
            Ok(sha256) => {
                revision.map(|revision| self.wanted.remove(revision));
                self.failed.remove(chosen);
                if chosen.blob.sha256.is_none() {
                    self.digests.insert(chosen.clone(), sha256);
                }
            }
            Err(error) => {
                let failed = Failed::after(self.failed.get(chosen), error, interval, now);
                self.failed.insert(chosen.clone(), failed);
            }
        }
    }

    /// What a service follows, if its signatures are those of the policy: the version, its revision and the digest of its
    /// archive.
    pub(super) fn followed(
        &self,
        service: &Service,
        policy: Option<&VerifyConfig>,
    ) -> Result<(&Chosen, RevisionId, Sha256), ServiceFailure> {
        let chosen = self.chosen_for(&service.followed)?;
        let identity = self.identify(chosen);
        let published = identity.as_ref().is_some_and(|(revision, _)| is_published(service, revision));
        if let Some(failed) = self.failed.get(chosen).filter(|_| !published) {
            return Err(failed.failure.clone());
        }
        let accepted = self.signatures.accept(chosen, identity.as_ref().map(|(_, sha256)| *sha256), policy);
        accepted.map_err(|reason| ServiceFailure::unverified(&reason, published))?;
        identity.map(|(revision, sha256)| (chosen, revision, sha256)).ok_or_else(|| pending(chosen))
    }

    /// The revision that a service would have if it followed this. It is not one that must not be published: a build would
    /// want its archive, which is never fetched.
    pub(super) fn revision(&self, followed: &Followed) -> Result<RevisionId, ServiceFailure> {
        let chosen = self.chosen_for(followed)?;
        let (revision, sha256) = self.identify(chosen).unzip();
        let accepted = self.signatures.accept(chosen, sha256, self.signatures.config());
        accepted.map_err(|reason| ServiceFailure::unverified(&reason, false))?;
        revision.ok_or_else(|| self.failed.get(chosen).map_or_else(|| pending(chosen), |failed| failed.failure.clone()))
    }

    /// The archive of a revision that is followed, and the digest of its manifest in a registry.
    pub(super) fn archive_of(&self, revision: &RevisionId) -> Result<(Archive, Option<Sha256>), ServiceFailure> {
        let (chosen, sha256) = self.with_revision(revision)?;
        Ok(((sha256, chosen.layout.clone()), chosen.manifest()))
    }

    /// Records that a build needs the archive of a followed revision. Returns the failure of the build.
    pub(super) fn want(&mut self, revision: &RevisionId) -> ServiceFailure {
        let (failure, has_failed) = match self.with_revision(revision) {
            Ok((chosen, _)) => match self.failed.get(chosen) {
                Some(failed) => (failed.failure.clone(), true),
                None => (pending(chosen), false),
            },
            Err(failure) => return failure,
        };
        // What has failed is fetched by a later poll, once its back-off ends.
        self.wanted.insert(revision.clone());
        self.has_new_wants |= !has_failed;
        failure
    }

    fn with_revision(&self, revision: &RevisionId) -> Result<(&Chosen, Sha256), ServiceFailure> {
        let mut chosen = self.chosen();
        let found = chosen.find_map(|chosen| {
            let (other, sha256) = self.identify(chosen)?;
            (other == *revision).then_some((chosen, sha256))
        });
        let other = || match self.choices {
            Some(_) => format!("the archive of `{revision}` is not stored, and no service follows it any more"),
            None => {
                format!("the archive of `{revision}` is not stored, and the repository was not read since the start")
            }
        };
        found.ok_or_else(|| ServiceFailure::transient("build", other()))
    }

    /// Ends the back-offs of archives.
    pub(super) fn reset_back_offs(&mut self) {
        self.failed.retain(|_, failed| failed.until.is_none());
        self.signatures.reset_back_offs();
    }

    pub(super) fn has_listed(&self) -> bool {
        self.choices.is_some()
    }

    pub(super) fn has_new_wants(&self) -> bool {
        self.has_new_wants
    }

    pub(super) fn poll_started(&mut self) {
        self.has_new_wants = false;
    }

    /// Whether a service follows this archive.
    pub(super) fn is_chosen(&self, (sha256, layout): &Archive) -> bool {
        let mut chosen = self.chosen();
        chosen.any(|chosen| {
            chosen.layout == *layout && self.identify(chosen).is_some_and(|(_, chosen)| chosen == *sha256)
        })
    }

    fn chosen(&self) -> impl Iterator<Item = &Chosen> {
        self.choices.iter().flatten().filter_map(|(_, chosen)| chosen.as_ref().ok())
    }

    fn choice(&self, followed: &Followed) -> Option<&Result<Chosen, ServiceFailure>> {
        let mut choices = self.choices.iter().flatten();
        choices.find(|(other, _)| other == followed).map(|(_, chosen)| chosen)
    }

    fn chosen_for(&self, followed: &Followed) -> Result<&Chosen, ServiceFailure> {
        let unlisted =
            || "the repository was not read for this yet: the next poll does so for what services follow".to_owned();
        match self.choice(followed) {
            Some(Ok(chosen)) => Ok(chosen),
            Some(Err(failure)) => Err(failure.clone()),
            None => Err(ServiceFailure::transient("resolve", unlisted())),
        }
    }

    /// The revision and the digest, once they are known.
    fn identify(&self, chosen: &Chosen) -> Option<(RevisionId, Sha256)> {
        let sha256 = chosen.blob.sha256.or_else(|| self.digests.get(chosen).copied())?;
        let named = || chart_revision(chosen.version.as_deref().unwrap_or_default(), &sha256);
        Some((chosen.revision.clone().unwrap_or_else(named), sha256))
    }
}

fn pending(chosen: &Chosen) -> ServiceFailure {
    ServiceFailure::transient("fetch", format!("{} is fetched with the next poll", chosen.label))
}

fn is_published(service: &Service, revision: &RevisionId) -> bool {
    service.published().is_some_and(|published| published == *revision)
}

#[cfg(test)]
mod tests {
    use reqwest::Url;
    use weir_upstream::SourceKind;

    use super::super::not_fetched::NotFetched;
    use super::super::signatures::Policy;
    use super::super::{Blob, Location};
    use super::*;
    use crate::{RetryPolicy, ServiceConfig};

    const INTERVAL: Duration = Duration::from_secs(60);

    const POLICY: VerifyConfig =
        VerifyConfig { mode: None, ssh_allowed_signers: None, pgp_keyring: None, cosign_keys: Vec::new() };

    fn service() -> Arc<Service> {
        let mut config = ServiceConfig::new("shop-prod".parse().unwrap(), "charts".parse().unwrap());
        config.chart = Some("shop".parse().unwrap());
        Arc::new(Service::new(&config, |_| Some(SourceKind::Helm), None).unwrap())
    }

    fn follow(followed: &str) -> Arc<Service> {
        let mut config = ServiceConfig::new("shop-prod".parse().unwrap(), "charts".parse().unwrap());
        config.chart = Some("shop".parse().unwrap());
        config.followed_ref = followed.parse().unwrap();
        Arc::new(Service::new(&config, |_| Some(SourceKind::Helm), None).unwrap())
    }

    /// A listing in which the chart stands for this version, with an archive of this digest.
    fn listing(service: &Service, version: &str, digest: Option<u8>) -> Choices {
        let sha256 = digest.map(|byte| Sha256::from_bytes([byte; 32]));
        let url = Location::Url(Url::parse("https://charts.example/shop.tgz").unwrap());
        let chosen = Chosen {
            label: format!("chart `shop` {version}"),
            chart: Some("shop".parse().unwrap()),
            revision: sha256.map(|sha256| chart_revision(version, &sha256)),
            version: Some(version.to_owned()),
            blob: Blob { sha256, size: None, max_bytes: 100, max_bytes_key: "max_chart", at: url },
            layout: Layout::StripTop,
            signed: None,
        };
        vec![(service.followed.clone(), Ok(chosen))]
    }

    fn failure(retry: RetryPolicy) -> Fetched {
        let failure = ServiceFailure { retry, ..ServiceFailure::transient("fetch", "it is bad".to_owned()) };
        Err(NotFetched { failure, retry_after: None, is_incomplete: false })
    }

    fn all_needed(
        state: &State,
        services: &[Arc<Service>],
        is_stored: impl Fn(&Archive) -> bool,
        now: Instant,
    ) -> Vec<Needed> {
        services.iter().filter_map(|service| state.needed(service, &is_stored, now)).collect()
    }

    #[test]
    fn a_bad_archive_is_fetched_again_once_its_entry_changes_or_its_back_off_ends() {
        let (mut state, services, now) = (State::default(), [service()], Instant::now());
        let needed = |state: &State, at: Instant| all_needed(state, &services, |_| false, at);
        assert!(state.followed(&services[0], None).unwrap_err().reason.contains("was not read"));
        assert!(state.list(listing(&services[0], "1.0.0", Some(1))));
        assert!(!state.list(listing(&services[0], "1.0.0", Some(1))), "no choice moved");
        let first = needed(&state, now).pop().unwrap();
        assert!(all_needed(&state, &services, |_| true, now).is_empty(), "it is stored");
        state.fetched(&first.chosen, first.revision.as_ref(), failure(RetryPolicy::Never), INTERVAL, now);
        assert!(needed(&state, now + 1000 * INTERVAL).is_empty());
        assert_eq!(state.followed(&services[0], None).unwrap_err().reason, "it is bad");

        assert!(state.list(listing(&services[0], "1.0.0", Some(2))));
        let second = needed(&state, now).pop().unwrap();
        let (chosen, revision) = (&second.chosen, second.revision.as_ref());
        let waits = |state: &State, seconds| {
            let until = now + Duration::from_secs(seconds);
            assert!(needed(state, until - Duration::from_millis(1)).is_empty(), "{seconds}");
            assert_eq!(needed(state, until).len(), 1, "{seconds}");
        };
        for seconds in [5, 10, 20, 40, 80, 160, 320, 600, 600] {
            state.fetched(chosen, revision, failure(RetryPolicy::BackOff), INTERVAL, now);
            waits(&state, seconds);
        }
        state.reset_back_offs();
        assert_eq!(needed(&state, now).len(), 1, "somebody may have mended the server");
        for (retry_after, seconds) in [(100, 100), (100_000, 1800)] {
            let retry_after = Some(Duration::from_secs(retry_after));
            let failed = NotFetched { retry_after, ..failure(RetryPolicy::BackOff).unwrap_err() };
            state.fetched(chosen, revision, Err(failed), INTERVAL, now);
            waits(&state, seconds);
        }
        let digest = Sha256::from_bytes([2; 32]);
        state.fetched(&second.chosen, second.revision.as_ref(), Ok(digest), INTERVAL, now);
        let (_, revision, sha256) = state.followed(&services[0], None).unwrap();
        assert_eq!((Some(&revision), sha256), (second.revision.as_ref(), digest));
    }

    #[test]
    fn an_archive_without_a_digest_is_named_by_what_came() {
        let (mut state, services, now) = (State::default(), [service()], Instant::now());
        state.list(listing(&services[0], "1.0.0", None));
        let needed = all_needed(&state, &services, |_| true, now).pop().unwrap();
        assert_eq!(needed.revision, None);
        assert!(state.followed(&services[0], None).unwrap_err().reason.contains("is fetched with the next poll"));
        let digest = Sha256::from_bytes([7; 32]);
        state.fetched(&needed.chosen, None, Ok(digest), INTERVAL, now);
        assert_eq!(state.followed(&services[0], None).unwrap().1, chart_revision("1.0.0", &digest));
        state.list(listing(&services[0], "1.0.0", None));
        assert!(all_needed(&state, &services, |_| true, now).is_empty(), "the entry did not change");
    }

    /// The server may return another archive, and another provenance, with each request.
    #[test]
    fn versions_at_one_url_have_digests_and_failures_of_their_own() {
        let (mut state, now) = (State::default(), Instant::now());
        let services = [follow("semver:^1"), follow("semver:^2")];
        let versions = ["1.0.0", "2.0.0"].into_iter().zip(&services);
        state.signatures.set_policy(Some(Policy::read(&POLICY)));
        state.list(versions.flat_map(|(version, service)| listing(service, version, None)).collect());
        for (byte, Unverified { chosen, .. }) in
            (1..).zip(services.each_ref().map(|service| state.unverified(service, now).unwrap()))
        {
            state.signatures.checked(&chosen, Ok(Sha256::from_bytes([byte; 32])), INTERVAL, now);
        }
        let needed = all_needed(&state, &services, |_| false, now);
        let [first, second] = &needed[..] else { panic!("{needed:?}") };
        let [old, new] = [1, 2].map(|byte| Sha256::from_bytes([byte; 32]));
        let followed = |state: &State, at: usize| {
            let followed = state.followed(&services[at], Some(&POLICY));
            followed.map(|(_, _, sha256)| sha256).map_err(|failure| failure.reason)
        };
        state.fetched(&first.chosen, None, Ok(old), INTERVAL, now);
        assert_eq!(followed(&state, 0), Ok(old));
        assert_eq!(followed(&state, 1), Err("chart `shop` 2.0.0 is fetched with the next poll".to_owned()));
        state.fetched(&second.chosen, None, failure(RetryPolicy::BackOff), INTERVAL, now);
        assert_eq!((followed(&state, 0), followed(&state, 1)), (Ok(old), Err("it is bad".to_owned())));
        state.fetched(&second.chosen, None, Ok(new), INTERVAL, now);
        assert_eq!((followed(&state, 0), followed(&state, 1)), (Ok(old), Ok(new)));
        // Whatever digest is recorded, only the signed one is published.
        state.fetched(&second.chosen, None, Ok(old), INTERVAL, now);
        let reason = followed(&state, 1).unwrap_err();
        assert!(reason.starts_with("chart `shop` 2.0.0 has the SHA-256 digest `0101"), "{reason}");
    }

    #[test]
    fn what_failed_is_tried_after_all_others() {
        let (mut state, now) = (State::default(), Instant::now());
        let services = ["^1", "^2", "^3"].map(|range| follow(&format!("semver:{range}")));
        let versions = ["1.0.0", "2.0.0", "3.0.0"].into_iter().zip(&services);
        state.signatures.set_policy(Some(Policy::read(&POLICY)));
        state.list(versions.flat_map(|(version, service)| listing(service, version, None)).collect());
        let due = |state: &State| -> Vec<String> {
            let due = state.due(&services, |_| false, now + INTERVAL);
            due.iter().map(|service| service.followed.to_string()).collect()
        };
        let [first, second, third] = [0, 1, 2].map(|at| services[at].followed.to_string());
        assert_eq!(due(&state), [&*first, &second, &third]);
        let chosen = |state: &State, at: usize| state.chosen_for(&services[at].followed).unwrap().clone();
        let refuse = |state: &mut State, at: usize, now: Instant| {
            let failure = failure(RetryPolicy::BackOff).unwrap_err();
            let chosen = chosen(state, at);
            state.signatures.checked(&chosen, Err(failure), INTERVAL, now);
        };
        refuse(&mut state, 0, now);
        assert_eq!(due(&state), [&*second, &third, &first]);
        let second_chosen = chosen(&state, 1);
        let later = now + Duration::from_secs(1);
        state.signatures.checked(&second_chosen, Ok(Sha256::from_bytes([1; 32])), INTERVAL, later);
        state.fetched(&second_chosen, None, failure(RetryPolicy::BackOff), INTERVAL, later);
        assert_eq!(due(&state), [&*third, &first, &second]);

        // A dry run reports it, and wants nothing.
        assert_eq!(state.revision(&services[0].followed).unwrap_err().reason, "it is bad");
        assert_eq!(state.revision(&services[1].followed).unwrap_err().reason, "it is bad");
        let reason = state.revision(&services[2].followed).unwrap_err().reason;
        assert_eq!(reason, "the signature of chart `shop` 3.0.0 is verified with the next poll");
        assert!(!state.has_new_wants());
        let known = listing(&services[0], "1.0.0", Some(1));
        state.list(known);
        refuse(&mut state, 0, now);
        assert_eq!(state.revision(&services[0].followed).unwrap_err().reason, "it is bad");
    }

    #[test]
    fn what_a_build_wants_is_fetched_while_it_is_followed() {
        let (mut state, services, now) = (State::default(), [service()], Instant::now());
        state.list(listing(&services[0], "1.0.0", Some(1)));
        let revision = state.followed(&services[0], None).unwrap().1;
        assert!(state.is_chosen(&state.archive_of(&revision).unwrap().0) && !state.has_new_wants());
        assert!(state.want(&revision).reason.contains("chart `shop` 1.0.0 is fetched with the next poll"));
        assert!(state.has_new_wants());
        state.poll_started();
        assert!(!state.has_new_wants(), "a poll that fails is not repeated at once");
        let needed = all_needed(&state, &services, |_| false, now).pop().unwrap();
        state.fetched(&needed.chosen, needed.revision.as_ref(), failure(RetryPolicy::BackOff), INTERVAL, now);
        assert_eq!(state.want(&revision).reason, "it is bad");
        assert!(!state.has_new_wants() && all_needed(&state, &services, |_| false, now).is_empty());
        assert_eq!(all_needed(&state, &services, |_| false, now + INTERVAL).len(), 1, "it is still wanted");
        state.list(listing(&services[0], "1.1.0", Some(2)));
        assert!(state.want(&revision).reason.contains("no service follows it any more") && !state.has_new_wants());
        assert!(state.archive_of(&revision).is_err());
    }

    #[test]
    fn nothing_is_fetched_for_a_pinned_service_unless_a_build_wants_it() {
        let (mut state, services, now) = (State::default(), [service()], Instant::now());
        services[0].pinned(crate::Pin { since: std::time::SystemTime::now(), by: None, reason: None });
        state.list(listing(&services[0], "1.1.0", Some(1)));
        assert!(all_needed(&state, &services, |_| false, now).is_empty());
        let revision = state.followed(&services[0], None).unwrap().1;
        state.want(&revision);
        assert_eq!(all_needed(&state, &services, |_| false, now).len(), 1, "for a dry run, say");
        state.list(listing(&services[0], "1.1.0", None));
        assert_eq!(all_needed(&state, &services, |_| false, now).len(), 1, "what it would follow has no name before");
    }
}
