//! What a row of a batch poll, or of an event, means for one service. Pure.
//!
//! Rows are not signed. One can confirm what this machine has found out by itself, or cause a poll; it never raises a
//! generation.

use weir_protocol::batch_poll::{BatchRow, RowState};
use weir_protocol::digest::TarballDigest;

/// The state of a service on this machine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CurrentState {
    /// The release, with the generation that an edge confirmed for it.
    pub(super) release: Option<(TarballDigest, u64)>,
    pub(super) highest_generation: u64,
    /// What the edges last offered while the service is pinned.
    pub(super) pinned: Option<Option<TarballDigest>>,
    /// Whether the last poll failed.
    pub(super) is_failing: bool,
    /// The generation of the release that the check refused.
    pub(super) refused: Option<u64>,
    /// What the last row offered.
    pub(super) row_before: Option<(TarballDigest, u64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    /// As good as a poll that found nothing new.
    Confirmed,
    /// A poll is due.
    Poll,
    /// The schedule decides.
    Nothing,
}

/// What is offered by a row of the state `current`.
pub(super) fn offered(row: &BatchRow) -> Option<(TarballDigest, u64)> {
    (row.state == RowState::Current).then_some(()).and(row.digest.zip(row.generation))
}

pub(super) fn meaning(row: &BatchRow, held: CurrentState) -> Meaning {
    let Some((digest, generation)) = offered(row) else { return Meaning::Nothing };
    let is_held = match held.pinned {
        Some(offered_before) => offered_before == Some(digest),
        // A lower generation is refused, and a higher one recorded, by a poll.
        None => held.release == Some((digest, generation)) && generation >= held.highest_generation,
    };
    if is_held {
        Meaning::Confirmed
    } else if held.is_failing && held.row_before == Some((digest, generation)) {
        // The back-off is for this very row.
        Meaning::Nothing
    } else {
        Meaning::Poll
    }
}

/// Whether a row is older than what the last poll failed with: the edge lags, and the back-off goes on. A generation above
/// `credible` makes none outdated.
pub(super) fn is_outdated(row: &BatchRow, held: CurrentState, credible: u64) -> bool {
    let before = held.row_before.map(|(_, generation)| generation).filter(|generation| *generation <= credible);
    let newest = before.max(held.refused);
    held.is_failing && offered(row).is_some_and(|(_, generation)| Some(generation) < newest)
}

/// The row of a service that no edge has a publication of.
pub(super) fn is_not_published(row: &BatchRow) -> bool {
    row.state == RowState::NotPublished
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(content: &[u8], generation: u64) -> BatchRow {
        BatchRow {
            service: "shop".parse().unwrap(),
            state: RowState::Current,
            digest: Some(TarballDigest::of(content)),
            generation: Some(generation),
            revision_id: None,
            etag: None,
        }
    }

    #[test]
    fn only_what_a_poll_has_found_out_is_confirmed() {
        let (one, two) = (TarballDigest::of(b"one"), TarballDigest::of(b"two"));
        let held = CurrentState { release: Some((one, 5)), highest_generation: 5, ..CurrentState::default() };
        assert_eq!(meaning(&row(b"one", 5), held), Meaning::Confirmed);
        assert_eq!(meaning(&row(b"two", 6), held), Meaning::Poll);
        assert_eq!(meaning(&row(b"one", 6), held), Meaning::Poll, "a poll records the generation");
        assert_eq!(meaning(&row(b"one", 4), held), Meaning::Poll, "a poll refuses the generation");
        assert_eq!(meaning(&row(b"one", 5), CurrentState { highest_generation: 6, ..held }), Meaning::Poll);
        assert_eq!(meaning(&row(b"one", 5), CurrentState::default()), Meaning::Poll, "there is no release yet");
        let failing = CurrentState { is_failing: true, row_before: Some((two, 6)), ..held };
        assert_eq!(meaning(&row(b"two", 6), failing), Meaning::Nothing, "the back-off decides");
        assert_eq!(meaning(&row(b"two", 7), failing), Meaning::Poll, "this one was not tried");
        assert!(is_outdated(&row(b"one", 5), failing, 6) && !is_outdated(&row(b"two", 6), failing, 6));
        assert!(!is_outdated(&row(b"one", 5), failing, 5), "nobody can have published generation 6 yet");
        let before = CurrentState { is_failing: true, row_before: Some((one, 5)), ..held };
        assert_eq!(meaning(&row(b"one", 5), before), Meaning::Confirmed);
        assert!(!is_outdated(&row(b"one", 5), before, 6));
        assert!(is_outdated(&row(b"one", 5), CurrentState { refused: Some(6), ..before }, 6));
        let pinned = CurrentState { pinned: Some(Some(two)), ..held };
        assert_eq!(meaning(&row(b"two", 6), pinned), Meaning::Confirmed);
        assert_eq!(meaning(&row(b"one", 5), pinned), Meaning::Poll);
        let absent = BatchRow { state: RowState::NotPublished, digest: None, ..row(b"one", 5) };
        assert_eq!(meaning(&absent, held), Meaning::Nothing);
    }
}
