//! Divides a failed fetch, so that one ref that cannot be fetched stops no other.
//!
//! A fetch of many objects may fail because of one: the upstream lacks a part of it, or it is beyond a limit. Nothing
//! tells which, so halves are fetched, the followed ones first.

use std::collections::BTreeSet;

use gix::ObjectId;
use gix::bstr::BString;

use super::MirrorError;
use super::refs::Refs;

/// The most fetches of a poll. Two thousand refs with one bad one need about 22.
const MAX_FETCHES: usize = 32;

/// The most of them while none succeeds, unless one bad ref of so many needs more. Then the upstream is the cause.
const MAX_FRUITLESS_FETCHES: usize = 8;

/// The most of them that may fail beyond a limit on all that is fetched, because each may download as much.
const MAX_LARGE_FETCHES: usize = 2;

/// Objects to fetch, of which the first ones are followed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) ids: Vec<ObjectId>,
    pub(super) followed: usize,
}

impl Group {
    pub(super) fn new(wanted: &Refs, is_followed: impl Fn(&BString) -> bool) -> Self {
        let followed: BTreeSet<_> = wanted.iter().filter(|(name, _)| is_followed(name)).map(|(_, id)| *id).collect();
        let others: BTreeSet<_> = wanted.values().copied().filter(|id| !followed.contains(id)).collect();
        Self { followed: followed.len(), ids: followed.into_iter().chain(others).collect() }
    }

    /// Divides it into the followed ones and the rest, or else into halves.
    fn split(self) -> [Self; 2] {
        let has_both = (1..self.ids.len()).contains(&self.followed);
        let at = if has_both { self.followed } else { self.ids.len() / 2 };
        self.split_at(at)
    }

    fn split_at(mut self, at: usize) -> [Self; 2] {
        let ids = self.ids.split_off(at);
        let rest = Self { ids, followed: self.followed.saturating_sub(at) };
        [Self { followed: self.followed - rest.followed, ..self }, rest]
    }
}

/// The result of a fetch. An error has the requested group if one of its objects may be the cause.
type Fetched = Result<(), (MirrorError, Option<Group>)>;

/// Fetches the parts of a failed group. Calls `leave_out` with each object that fails alone, and with those that were not
/// tried alone.
///
/// # Errors
/// The upstream fails, and not because of an object, before all followed ones were fetched.
pub(super) fn fetch_parts(
    failed: Group,
    error: MirrorError,
    fetch: &mut dyn FnMut(&Group) -> Fetched,
    leave_out: &mut dyn FnMut(&Group, &MirrorError),
) -> Result<(), MirrorError> {
    if error.is_of_all() {
        return fetch_followed(failed, error, fetch, leave_out);
    }
    let max_fruitless = MAX_FRUITLESS_FETCHES.max(failed.ids.len().max(1).ilog2() as usize + 3);
    let (mut failed, mut last) = (Some(failed), error);
    let (mut pending, mut fetches, mut has_succeeded) = (Vec::new(), 1, false);
    loop {
        match failed.take() {
            Some(alone) if alone.ids.len() == 1 => leave_out(&alone, &last),
            Some(several) => {
                let [first, second] = several.split();
                pending.extend([second, first]);
            }
            None => {}
        }
        let Some(group) = pending.pop() else { return Ok(()) };
        if !has_succeeded && fetches == max_fruitless {
            if pending.iter().chain([&group]).any(|group| group.followed > 0) {
                return Err(last);
            }
            fetches = MAX_FETCHES;
        }
        if fetches >= MAX_FETCHES {
            leave_out(&group, &last);
            continue;
        }
        fetches += 1;
        match fetch(&group) {
            Ok(()) => has_succeeded = true,
            Err((error, Some(group))) if !error.is_of_all() => (failed, last) = (Some(group), error),
            Err((error, Some(group))) => fetch_followed(group, error, fetch, leave_out)?,
            Err((error, None)) if pending.iter().chain([&group]).any(|group| group.followed > 0) => return Err(error),
            Err((error, None)) => {
                pending.push(group);
                (fetches, last) = (MAX_FETCHES, error);
            }
        }
    }
}

/// Fetches each followed object of a group that is beyond a limit on all that is fetched, and leaves out the rest.
fn fetch_followed(
    failed: Group,
    mut last: MirrorError,
    fetch: &mut dyn FnMut(&Group) -> Fetched,
    leave_out: &mut dyn FnMut(&Group, &MirrorError),
) -> Result<(), MirrorError> {
    let at = failed.followed;
    let is_alone = failed.ids.len() == 1;
    let [followed, rest] = failed.split_at(at);
    let mut failures = 0;
    for (number, id) in followed.ids.into_iter().enumerate() {
        let alone = Group { ids: vec![id], followed: 1 };
        if is_alone || failures == MAX_LARGE_FETCHES || number == MAX_FETCHES {
            leave_out(&alone, &last);
            continue;
        }
        match fetch(&alone) {
            Ok(()) => {}
            Err((error, Some(_))) => {
                failures += 1;
                leave_out(&alone, &error);
                last = error;
            }
            Err((error, None)) => return Err(error),
        }
    }
    leave_out(&rest, &last);
    Ok(())
}

#[cfg(test)]
mod tests {
    use weir_upstream::UpstreamError;

    use super::*;

    fn id(number: usize) -> ObjectId {
        let bytes = [&[0; 12], &(number as u64).to_be_bytes()[..]].concat();
        ObjectId::from_bytes_or_panic(&bytes)
    }

    /// Fetches ids below `count`, the first `followed` of which are followed. Returns the number of fetches, what was
    /// fetched in order, and what was left out.
    fn fetched(count: usize, followed: usize, bad: &[usize]) -> (usize, Vec<ObjectId>, Vec<ObjectId>) {
        let error = || MirrorError::from(UpstreamError::Protocol { step: "fetch", cause: "bad".to_owned() });
        let (mut fetches, mut fetched, mut left_out) = (1, Vec::new(), Vec::new());
        let mut fetch = |group: &Group| {
            fetches += 1;
            if bad.iter().any(|bad| group.ids.contains(&id(*bad))) {
                return Err((error(), Some(group.clone())));
            }
            fetched.extend(group.ids.clone());
            Ok(())
        };
        let group = Group { ids: (0..count).map(id).collect(), followed };
        fetch_parts(group, error(), &mut fetch, &mut |group, _| left_out.extend(group.ids.clone())).unwrap();
        (fetches, fetched, left_out)
    }

    #[test]
    fn all_but_the_bad_ones_are_fetched_and_the_followed_ones_first() {
        let ids = |numbers: &[usize]| numbers.iter().copied().map(id).collect::<Vec<_>>();
        assert_eq!(fetched(1, 1, &[0]), (1, ids(&[]), ids(&[0])));
        assert_eq!(fetched(5, 2, &[4]), (7, ids(&[0, 1, 2, 3]), ids(&[4])));
        assert_eq!(fetched(3, 0, &[0, 1, 2]), (5, ids(&[]), ids(&[0, 1, 2])));
        assert_eq!(fetched(64, 64, &[0]).2, ids(&[0]));
        // Nothing that nobody follows can be fetched.
        let (fetches, none, left_out) = fetched(500, 0, &(0..500).collect::<Vec<_>>());
        assert_eq!((fetches, none.len(), left_out.len()), (11, 0, 500));
        assert_eq!(fetched(4, 2, &[0, 3]), (7, ids(&[1, 2]), ids(&[0, 3])));
        let (fetches, all_others, left_out) = fetched(2000, 1, &[1500]);
        assert!(fetches < MAX_FETCHES && all_others.len() == 1999 && left_out == ids(&[1500]), "{fetches}");
        // Too many for one poll. The next one fetches more.
        let (fetches, some, left_out) = fetched(2000, 1, &(0..2000).step_by(7).skip(1).collect::<Vec<_>>());
        assert!(fetches <= MAX_FETCHES && some[0] == id(0) && some.len() + left_out.len() == 2000);
    }

    #[test]
    fn an_upstream_that_always_fails_gets_a_few_fetches_and_a_limit_of_all_even_fewer() {
        let busy = || MirrorError::from(UpstreamError::Protocol { step: "fetch", cause: "busy".to_owned() });
        let large = || MirrorError::PackTooLarge { limit: 1 };
        for (error, followed, expected) in [
            // The first of the followed ones were fetched alone.
            (&busy as &dyn Fn() -> MirrorError, 50, (8, true, 2)),
            (&large, 50, (MAX_LARGE_FETCHES, false, 100)),
            (&large, 1, (1, false, 100)),
            (&large, 0, (0, false, 100)),
        ] {
            let (mut fetches, mut left_out) = (0, 0);
            let mut fetch = |group: &Group| {
                fetches += 1;
                Err((error(), Some(group.clone())))
            };
            let failed = Group { ids: (0..100).map(id).collect(), followed };
            let result = fetch_parts(failed, error(), &mut fetch, &mut |group, _| left_out += group.ids.len());
            assert_eq!((fetches, result.is_err(), left_out), expected);
        }
    }

    #[test]
    fn a_lost_connection_ends_the_poll_unless_all_followed_ones_were_fetched() {
        let lost = || MirrorError::from(UpstreamError::Connect { cause: "lost".to_owned(), timeout: false });
        for (followed, is_lost) in [(2, true), (1, false)] {
            let failed = Group { ids: (0..3).map(id).collect(), followed };
            let mut answers = vec![Err((lost(), None)), Ok(())];
            let mut left_out = 0;
            let mut fetch = |_: &Group| if followed == 1 { answers.pop().unwrap() } else { Err((lost(), None)) };
            let result = fetch_parts(failed, lost(), &mut fetch, &mut |group, _| left_out += group.ids.len());
            assert_eq!((result.is_err(), left_out), (is_lost, if is_lost { 0 } else { 2 }));
        }
    }
}
