//! Decides which updates from origins are applied. Pure.

use std::cmp::Ordering;

use weir_cache::OriginId;
use weir_cache::clock::Moment;
use weir_protocol::descriptor::{Descriptor, Generation};
use weir_protocol::name::ServiceName;

use super::entry::{Entry, VersionNumber};

/// An update about a service from an origin.
#[derive(Debug)]
pub(crate) struct Update {
    /// The origin; `None` when it is no longer configured, or when all origins gave this answer.
    pub(crate) origin: Option<OriginId>,
    pub(crate) source: UpdateSource,
    /// The time up to which the update is known to hold.
    pub(crate) at: Moment,
    pub(crate) content: UpdateContent,
}

/// The content of an update.
#[derive(Debug)]
pub(crate) enum UpdateContent {
    /// The published descriptor.
    Current(Box<Descriptor>),
    /// The service was removed; with the highest generation it had, when that is known.
    Gone(ServiceName, Option<Generation>),
}

/// Where an update came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum UpdateSource {
    /// The response to a query that was sent when this was the highest known version.
    Query(VersionNumber),
    /// The origin's event stream.
    Stream,
}

/// What the sender of an update is to the entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sender {
    /// It is the origin of the entry, or another member of its cluster.
    pub(super) shares_cluster: bool,
    /// The origin of the entry is another one, and its event stream is followed and complete.
    pub(super) has_living_owner: bool,
    /// There is no other cluster.
    pub(super) is_only_cluster: bool,
}

/// What is done with an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpdateDecision {
    /// Store it: the generation or revision is new.
    Store,
    /// Store a tombstone.
    StoreTombstone,
    /// The stored version is confirmed.
    Confirm,
    /// Ignore it: a newer version arrived while the query was in flight, or the sender lags behind the owner.
    Superseded,
    /// Reject it: a newer version is known, or another publication has the same generation.
    Reject,
    /// Reject it: the service belongs to another origin.
    RejectOtherOrigin,
    /// The service left its origin and may be at another one: query the others.
    QueryOthers,
    /// Ignore it: the service is unknown, and there is nothing to remember.
    Ignore,
}

impl Update {
    pub(crate) fn service(&self) -> &ServiceName {
        match &self.content {
            UpdateContent::Current(descriptor) => &descriptor.publication().service,
            UpdateContent::Gone(service, _) => service,
        }
    }

    /// Decides on the update. `entry`: the stored version; `floor`: the highest version of an evicted service.
    pub(super) fn decide(&self, entry: Option<&Entry>, floor: Option<VersionNumber>, sender: Sender) -> UpdateDecision {
        match &self.content {
            UpdateContent::Current(descriptor) => self.decide_current(descriptor, entry, floor, sender),
            UpdateContent::Gone(_, generation) => {
                entry.map_or(UpdateDecision::Ignore, |entry| self.decide_gone(*generation, entry, sender))
            }
        }
    }

    fn decide_current(
        &self,
        descriptor: &Descriptor,
        entry: Option<&Entry>,
        floor: Option<VersionNumber>,
        sender: Sender,
    ) -> UpdateDecision {
        let offered = descriptor.version();
        let Some(entry) = entry else {
            return if floor.is_some_and(|floor| offered < floor) {
                UpdateDecision::Reject
            } else {
                UpdateDecision::Store
            };
        };
        let belongs_to_another = entry.version.is_some() && entry.origin.is_some() && !sender.shares_cluster;
        if self.source == UpdateSource::Stream && belongs_to_another {
            return UpdateDecision::RejectOtherOrigin;
        }
        let lags = sender.shares_cluster && sender.has_living_owner;
        match (offered.cmp(&entry.highest), &entry.version) {
            (Ordering::Less, _) if self.is_superseded_by(entry) => UpdateDecision::Superseded,
            // A member may answer from an earlier view, and the last events of an earlier owner may come late.
            (Ordering::Less, _) | (Ordering::Equal, None) if lags => UpdateDecision::Superseded,
            (Ordering::Less, _) => UpdateDecision::Reject,
            (_, Some(stored)) if is_other_publication_of_same_generation(stored.descriptor(), descriptor) => {
                UpdateDecision::Reject
            }
            (Ordering::Equal, Some(_)) if entry.origin == self.origin => UpdateDecision::Confirm,
            // Each member answers for the others, and that makes it no owner.
            (Ordering::Equal, Some(_)) if sender.shares_cluster && self.source != UpdateSource::Stream => {
                UpdateDecision::Confirm
            }
            // The same version from another origin moves the service there. A service may also come back unchanged.
            _ => UpdateDecision::Store,
        }
    }

    fn decide_gone(&self, generation: Option<Generation>, entry: &Entry, sender: Sender) -> UpdateDecision {
        let is_stream = self.source == UpdateSource::Stream;
        let is_tombstone = entry.version.is_none();
        if is_stream && entry.origin != self.origin && !sender.shares_cluster {
            UpdateDecision::RejectOtherOrigin
        } else if self.is_superseded_by(entry) || generation.is_some_and(|generation| generation < entry.highest.0) {
            UpdateDecision::Superseded
        } else if is_stream && !sender.is_only_cluster {
            // A tombstone from one cluster is not final: the service may have moved to another.
            if is_tombstone { UpdateDecision::Superseded } else { UpdateDecision::QueryOthers }
        } else if is_tombstone {
            UpdateDecision::Confirm
        } else {
            UpdateDecision::StoreTombstone
        }
    }

    fn is_superseded_by(&self, entry: &Entry) -> bool {
        matches!(self.source, UpdateSource::Query(known) if known < entry.highest)
    }
}

/// A revision changes the representations of a publication, never the publication.
fn is_other_publication_of_same_generation(stored: &Descriptor, offered: &Descriptor) -> bool {
    let (stored, offered) = (stored.publication(), offered.publication());
    stored.generation == offered.generation && stored != offered
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::entry::tests::{descriptor, entry};
    use weir_cache::clock::Clock;

    const QUERY: UpdateSource = UpdateSource::Query((5, 2));

    /// The only origin, which is that of the entry.
    const ALONE: Sender = Sender { shares_cluster: true, has_living_owner: false, is_only_cluster: true };
    const STRANGER: Sender = Sender { shares_cluster: false, has_living_owner: true, is_only_cluster: false };
    /// Another member than the one that vouches for the entry.
    const MEMBER: Sender = Sender { shares_cluster: true, has_living_owner: true, is_only_cluster: true };

    fn decide(
        (origin, sender): (OriginId, Sender),
        source: UpdateSource,
        content: UpdateContent,
        entry: Option<&Entry>,
    ) -> UpdateDecision {
        let at = Clock::start().now();
        Update { origin: Some(origin), source, at, content }.decide(entry, None, sender)
    }

    fn current(generation: u64, revision: u64, content: &[u8]) -> UpdateContent {
        UpdateContent::Current(descriptor("shop", generation, revision, content).into())
    }

    fn gone(generation: Option<u64>) -> UpdateContent {
        UpdateContent::Gone("shop".parse().unwrap(), generation)
    }

    #[test]
    fn only_newer_versions_are_stored() {
        let stored = entry(Some(descriptor("shop", 5, 2, b"a")), Clock::start().now());
        for (generation, revision, content, expected) in [
            (5, 2, b"a", UpdateDecision::Confirm),
            (5, 3, b"a", UpdateDecision::Store),
            (6, 0, b"b", UpdateDecision::Store),
            (5, 1, b"a", UpdateDecision::Reject),
            (4, 9, b"b", UpdateDecision::Reject),
            (5, 2, b"b", UpdateDecision::Reject),
            (5, 3, b"b", UpdateDecision::Reject),
        ] {
            for source in [QUERY, UpdateSource::Stream] {
                let decision = decide((0, ALONE), source, current(generation, revision, content), Some(&stored));
                assert_eq!(decision, expected, "{generation}.{revision}");
            }
        }
    }

    #[test]
    fn a_tombstone_and_a_floor_remember_the_highest_generation() {
        let tombstone = entry(None, Clock::start().now());
        for (generation, revision, expected) in
            [(4, 9, UpdateDecision::Reject), (5, 2, UpdateDecision::Store), (6, 1, UpdateDecision::Store)]
        {
            let update = || current(generation, revision, b"a");
            assert_eq!(decide((0, ALONE), QUERY, update(), Some(&tombstone)), expected);
            let at = Clock::start().now();
            let update = Update { origin: Some(0), source: QUERY, at, content: update() };
            assert_eq!(update.decide(None, Some((5, 2)), ALONE), expected);
            assert_eq!(update.decide(None, None, ALONE), UpdateDecision::Store);
        }
    }

    #[test]
    fn a_response_that_the_stream_superseded_is_no_regression() {
        let stored = entry(Some(descriptor("shop", 5, 2, b"a")), Clock::start().now());
        let earlier = UpdateSource::Query((4, 1));
        assert_eq!(decide((0, ALONE), earlier, current(4, 1, b"b"), Some(&stored)), UpdateDecision::Superseded);
        assert_eq!(decide((0, ALONE), earlier, gone(None), Some(&stored)), UpdateDecision::Superseded);
        assert_eq!(decide((0, ALONE), QUERY, gone(None), Some(&stored)), UpdateDecision::StoreTombstone);
    }

    #[test]
    fn a_stream_updates_services_of_its_own_cluster_only() {
        let stored = entry(Some(descriptor("shop", 5, 2, b"a")), Clock::start().now());
        let stream = UpdateSource::Stream;
        for content in [current(6, 1, b"b"), current(5, 2, b"a"), gone(Some(9))] {
            assert_eq!(decide((1, STRANGER), stream, content, Some(&stored)), UpdateDecision::RejectOtherOrigin);
        }
        let moved = decide((1, STRANGER), QUERY, current(5, 2, b"a"), Some(&stored));
        assert_eq!(moved, UpdateDecision::Store, "it has moved there");
        let tombstone = entry(None, Clock::start().now());
        assert_eq!(decide((1, STRANGER), stream, current(6, 1, b"b"), Some(&tombstone)), UpdateDecision::Store);
    }

    #[test]
    fn ownership_moves_with_the_stream_and_never_back_in_generations() {
        let stored = entry(Some(descriptor("shop", 5, 2, b"a")), Clock::start().now());
        let tombstone = entry(None, Clock::start().now());
        let stream = UpdateSource::Stream;
        for (source, content, entry, expected) in [
            (stream, current(5, 2, b"a"), &stored, UpdateDecision::Store),
            (QUERY, current(5, 2, b"a"), &stored, UpdateDecision::Confirm),
            (stream, current(6, 1, b"b"), &stored, UpdateDecision::Store),
            (QUERY, current(6, 1, b"b"), &stored, UpdateDecision::Store),
            (stream, current(5, 2, b"b"), &stored, UpdateDecision::Reject),
            (stream, current(4, 9, b"b"), &stored, UpdateDecision::Superseded),
            (QUERY, current(4, 9, b"b"), &stored, UpdateDecision::Superseded),
            (stream, current(5, 2, b"a"), &tombstone, UpdateDecision::Superseded),
            (stream, current(6, 1, b"b"), &tombstone, UpdateDecision::Store),
            (stream, gone(Some(4)), &stored, UpdateDecision::Superseded),
            (stream, gone(Some(5)), &stored, UpdateDecision::StoreTombstone),
        ] {
            let described = format!("{source:?} {content:?}");
            assert_eq!(decide((1, MEMBER), source, content, Some(entry)), expected, "{described}");
        }
        // Once the owner is silent, a lower generation is what the cluster says.
        let sender = Sender { has_living_owner: false, ..MEMBER };
        for source in [QUERY, stream] {
            assert_eq!(decide((1, sender), source, current(4, 9, b"b"), Some(&stored)), UpdateDecision::Reject);
        }
    }

    #[test]
    fn a_tombstone_from_one_of_several_clusters_queries_the_others() {
        let stored = entry(Some(descriptor("shop", 5, 2, b"a")), Clock::start().now());
        let at = Clock::start().now();
        let update =
            |generation| Update { origin: Some(0), source: UpdateSource::Stream, at, content: gone(Some(generation)) };
        let several = Sender { is_only_cluster: false, ..ALONE };
        assert_eq!(update(5).decide(Some(&stored), None, several), UpdateDecision::QueryOthers);
        assert_eq!(update(5).decide(Some(&stored), None, ALONE), UpdateDecision::StoreTombstone);
        assert_eq!(
            update(4).decide(Some(&stored), None, ALONE),
            UpdateDecision::Superseded,
            "of an earlier life of it"
        );
        assert_eq!(update(5).decide(None, Some((5, 1)), ALONE), UpdateDecision::Ignore);
    }
}
