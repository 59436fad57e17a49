//! Pure: decides how many superseded versions are retained, at each publication. What expires later is decided beside the
//! collector (`remove/expiry.rs`).

use std::time::SystemTime;

use crate::stored::history_line::Why;
use crate::stored::row::{Retained, Row, StoredVersion, unix_milliseconds};

/// The most bytes of retained descriptors in a row. Together with the largest current descriptor and the largest staged one
/// this stays well below the largest object. Descriptors are large if they list many omitted paths.
const MAX_RETAINED_BYTES: usize = 8 << 20;

/// Makes a version current (`None`: retires the service) and retains its predecessor. Nothing is staged afterwards: what
/// was is a retained version like the others. At most `most` versions are retained, fewer if they exceed the row's limit.
/// Returns how many were dropped.
pub(crate) fn supersede(row: &mut Row, next: Option<StoredVersion>, now: SystemTime, most: usize) -> usize {
    let before = std::mem::replace(&mut row.current, next);
    let before_count = row.retained.len() + usize::from(before.is_some());
    unstage(row, now);
    if let Some(version) = before {
        row.retained.retain(|retained| retained.version.digest != version.digest);
        let followed = row.current.as_ref().is_some_and(|next| next.why == Why::Followed);
        row.retained
            .insert(0, Retained { superseded_at: unix_milliseconds(now), followed, only_staged: false, version });
    }
    if let Some(current) = row.current.as_ref().filter(|current| current.why != Why::Followed) {
        // Consumers of ranges must take none of those that were gone back from.
        let behind = row.retained.iter().take_while(|retained| retained.version.digest != current.digest).count();
        row.retained[..behind].iter_mut().for_each(|retained| retained.followed = false);
    }
    if let Some(current) = &row.current {
        row.retained.retain(|retained| retained.version.digest != current.digest);
    }
    debug_assert!(row.retained.len() <= before_count);
    trim(row, most)
}

/// What was staged is a retained version like the others from now on.
pub(crate) fn unstage(row: &mut Row, now: SystemTime) {
    if let Some(staged) = row.staged.take() {
        let ended = row.retained.iter_mut().filter(|retained| retained.version.digest == staged.digest);
        ended.for_each(|retained| retained.superseded_at = unix_milliseconds(now));
    }
}

/// Retains the newest `most` versions, fewer if they exceed the row's limit, and a staged one. Returns how many were dropped.
pub(crate) fn trim(row: &mut Row, most: usize) -> usize {
    let (before, mut count, mut bytes) = (row.retained.len(), 0, 0);
    let staged = row.staged.as_ref().map(|staged| staged.digest);
    row.retained.retain(|retained| {
        if staged == Some(retained.version.digest) {
            return true;
        }
        count += 1;
        bytes += retained.version.size();
        count <= most && bytes <= MAX_RETAINED_BYTES
    });
    before - row.retained.len()
}

#[cfg(test)]
mod tests {
    use super::super::decision::rewritten;
    use super::super::draft::tests::descriptor;
    use super::*;
    use weir_protocol::descriptor::{Descriptor, Omission, OmissionReason};
    use weir_tarball::ContentKey;

    fn version(number: u64) -> StoredVersion {
        StoredVersion::new(&descriptor("a", number), ContentKey::from_bytes([0; 32]), None, Why::Followed, None)
    }

    #[test]
    fn the_newest_are_retained_and_no_digest_twice() {
        let now = SystemTime::UNIX_EPOCH;
        let mut row = Row::new("a".parse().unwrap());
        let mut dropped = 0;
        for number in [1, 2, 3, 1, 4, 1] {
            dropped += supersede(&mut row, Some(version(number)), now, 2);
        }
        let digests: Vec<_> = row.retained.iter().map(|retained| retained.version.digest).collect();
        assert_eq!(digests, [version(4).digest, version(3).digest]);
        assert_eq!((row.current.as_ref().unwrap().digest, dropped), (version(1).digest, 1));
        supersede(&mut row, None, now, 2);
        let digests: Vec<_> = row.retained.iter().map(|retained| retained.version.digest).collect();
        assert!(row.current.is_none() && digests == [version(1).digest, version(4).digest]);
    }

    #[test]
    fn only_versions_that_the_service_went_on_from_keep_their_tags() {
        let (now, mut row) = (SystemTime::UNIX_EPOCH, Row::new("a".parse().unwrap()));
        let next = |number, why| {
            StoredVersion::new(&descriptor("a", number), ContentKey::from_bytes([0; 32]), None, why, None)
        };
        for (number, why) in [
            (1, Why::Followed),
            (2, Why::Followed),
            (3, Why::Followed),
            (4, Why::Followed),
            (2, Why::RolledBack),
            (5, Why::Followed),
        ] {
            supersede(&mut row, Some(next(number, why)), now, 10);
        }
        let followed = |row: &Row| row.retained.iter().map(|one| one.followed).collect::<Vec<_>>();
        // The latest superseded first: 2, 4, 3, 1. It went back past 3.
        assert_eq!(followed(&row), [true, false, false, true]);
        supersede(&mut row, Some(next(6, Why::SteppedBack)), now, 10);
        assert_eq!(followed(&row), [false; 5], "it is older than all that are known");
        supersede(&mut row, None, now, 10);
        assert!(!followed(&row)[0], "it was deleted");
    }

    #[test]
    fn a_row_has_room_for_versions_that_omit_much() {
        let (now, mut row) = (SystemTime::UNIX_EPOCH, Row::new("a".parse().unwrap()));
        for number in 1..=5 {
            let mut fields = rewritten(&descriptor("a", number));
            let path = "x".repeat(3 << 20);
            fields.publication.omitted = vec![Omission { path, reason: OmissionReason::Symlink }];
            let large = version(number).with(&Descriptor::new(fields));
            supersede(&mut row, Some(large), now, 20);
        }
        let digests: Vec<_> = row.retained.iter().map(|retained| retained.version.digest).collect();
        assert_eq!(digests, [version(4).digest, version(3).digest]);
        assert_eq!(row.current.unwrap().digest, version(5).digest);
    }
}
