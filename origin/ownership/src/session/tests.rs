use std::time::Duration;

use super::*;

const TTL: Duration = Duration::from_secs(30);

fn session(ended: Option<u64>) -> (Session<u64>, Instant) {
    let now = Instant::now();
    let settings = Settings {
        node: "origin-1".parse().unwrap(),
        url: "https://origin-1.example:7400".to_owned(),
        zone: None,
        weight: 1,
        digests: Digests::default(),
        timing: Timing::new(TTL),
        run: 100,
        clock: 0,
        ended,
    };
    (Session::new(&settings, now), now)
}

fn written(request: Option<SessionRequest<u64>>) -> NodeRecord {
    match request {
        Some(SessionRequest::Write { record, .. }) => record,
        other => panic!("a write is due, not {other:?}"),
    }
}

fn joined() -> (Session<u64>, Instant) {
    let (mut session, now) = session(None);
    assert_eq!(session.poll(now), Some(SessionRequest::Read));
    session.read(None, now, now);
    written(session.poll(now));
    session.written(1, now, now + Duration::from_secs(1));
    (session, now)
}

#[test]
fn a_change_of_what_members_have_in_common_is_announced_at_once() {
    let (mut session, now) = joined();
    assert_eq!(session.poll(now), None);
    let digests = Digests { configuration: Some("c0ffee".to_owned()), signing_keys: None };
    session.describe(digests.clone(), now);
    assert_eq!(written(session.poll(now)).digests, digests);
}

#[test]
fn a_session_is_valid_from_before_its_renewal_was_sent() {
    let (mut session, now) = joined();
    assert_eq!(session.valid_until(), Some(now + Duration::from_secs(27)));
    let due = now + Duration::from_secs(10);
    assert_eq!((session.wake_at(), session.poll(due - Duration::from_millis(1))), (Some(due), None));
    let renewal = written(session.poll(due));
    assert_eq!(renewal.renewals, 2);
    session.written(2, due, due + Duration::from_secs(4));
    assert_eq!(session.valid_until(), Some(due + Duration::from_secs(27)));
}

#[test]
fn a_renewal_with_an_unknown_outcome_is_found_by_reading() {
    let (mut session, now) = joined();
    let due = now + Duration::from_secs(10);
    let renewal = written(session.poll(due));
    let later = due + Duration::from_secs(5);
    session.failed(true, due, later);
    assert_eq!(session.poll(later), None, "a pause comes first");
    let later = later + Duration::from_secs(1);
    assert_eq!(session.poll(later), Some(SessionRequest::Read));
    assert_eq!(session.read(Some((renewal, 2)), later, later), Progress::Going);
    assert_eq!(session.valid_until(), Some(due + Duration::from_secs(27)), "from before that write was sent");
}

#[test]
fn a_record_of_somebody_else_ends_the_session() {
    let (mut session, now) = joined();
    let due = now + Duration::from_secs(10);
    let mut other = written(session.poll(due));
    other.session = SessionId(7);
    session.failed(false, due, due);
    let due = due + Duration::from_secs(1);
    assert_eq!(session.poll(due), Some(SessionRequest::Read));
    assert_eq!(session.read(Some((other.clone(), 9)), due, due), Progress::Lost);
    session.halt();
    assert_eq!((session.valid_until(), session.poll(due)), (None, None), "until all work is stopped");
    session.resume(due);
    assert_eq!(session.id(), SessionId(102));
    // The other process goes on, and then it dies.
    let mut now = due;
    for version in [9, 10, 10, 10, 10] {
        assert_eq!(session.poll(now), Some(SessionRequest::Read));
        other.renewals = version;
        session.read(Some((other.clone(), version)), now, now);
        assert!(session.is_name_taken());
        now += Duration::from_secs(10);
    }
    let record = written(session.poll(now));
    assert_eq!(record.session, SessionId(103));
}

#[test]
fn a_restart_replaces_its_last_session_at_once() {
    for (ended, is_replaced) in [(Some(6), true), (Some(8), false), (None, false)] {
        let (mut session, now) = session(ended);
        let mut record = session.record.clone();
        record.session = SessionId(7);
        session.poll(now);
        session.read(Some((record, 3)), now, now);
        assert_eq!(session.poll(now).is_some(), is_replaced);
    }
}

#[test]
fn a_session_that_was_not_confirmed_in_time_is_not_used() {
    let (mut session, now) = session(None);
    session.poll(now);
    session.read(None, now, now);
    let first = written(session.poll(now));
    session.failed(true, now, now + Duration::from_secs(5));
    // It was committed, and nobody could say so for half a minute: for the others it has ended.
    let later = now + Duration::from_secs(31);
    assert_eq!(session.poll(later), Some(SessionRequest::Read));
    session.read(Some((first.clone(), 1)), later, later);
    assert_eq!(session.valid_until(), None);
    let second = written(session.poll(later));
    assert_ne!(second.session, first.session);
    session.written(2, later, later);
    assert_eq!(session.valid_until(), Some(later + Duration::from_secs(27)));
}

#[test]
fn a_late_renewal_does_not_revive_a_session_that_has_ended() {
    let (mut session, now) = joined();
    let due = now + Duration::from_secs(10);
    let renewal = written(session.poll(due));
    session.failed(true, due, due + Duration::from_secs(5));
    // Every read fails until the session has expired; then the renewal is committed.
    session.halt();
    let later = now + Duration::from_secs(32);
    session.resume(later);
    assert_eq!(session.poll(later), Some(SessionRequest::Read));
    session.read(Some((renewal.clone(), 2)), later, later);
    assert_eq!(session.valid_until(), None, "though it would be valid from when the renewal was sent");
    assert_ne!(written(session.poll(later)).session, renewal.session);
}
