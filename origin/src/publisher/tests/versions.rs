//! Going back, staying, and what the history tells of it.

use super::*;

#[test]
fn a_rollback_is_a_new_generation_that_stays_until_it_is_unpinned() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    publish(&publisher, &service, 1);
    let first = service.current().unwrap();
    publish(&publisher, &service, 2);
    let second = service.current().unwrap();
    let digest = first.publication().digest;

    let overtaken = Order { expected: Some(first.publication().generation), ..order(&service, 3) };
    let refused = publisher.pin(&service, &overtaken, Some(&digest));
    assert!(matches!(refused, Err(OrderError::Overtaken { current, .. }) if current == Some(second.version().0)));
    let unknown = TarballDigest::of(b"never seen");
    let refused = publisher.pin(&service, &order(&service, 3), Some(&unknown));
    assert!(matches!(refused, Err(OrderError::NotRetained(..))));
    assert!(!service.is_pinned());

    let expected = Order { expected: Some(second.publication().generation), ..order(&service, 3) };
    publisher.pin(&service, &expected, Some(&digest)).unwrap();
    let back = service.current().unwrap();
    assert!(back.publication().generation > second.publication().generation);
    assert_eq!((back.publication().digest, &back.publication().commit), (digest, &commit(1)));
    assert_eq!(back.representations(), first.representations());
    assert!(service.is_pinned());

    // Whatever is found or was being built meanwhile changes nothing, and what is served can be healed.
    publish(&publisher, &service, 4);
    let seen = Sighting { service: service.clone(), commit: commit(2), key: key(2) };
    assert_eq!(publisher.settle_known(&[seen], at(4)).unwrap(), [true]);
    assert_eq!(service.current().unwrap().bytes(), back.bytes());
    publish(&publisher, &service, 1);
    assert_eq!(service.current().unwrap().bytes(), back.bytes());

    let swept = at(3) + 480 * HOUR;
    sweep(&publisher, swept);
    assert!(publisher.blobs().size(&back.representations()[0].digest).is_ok(), "a pin outlives every age");
    drop(publisher);

    let publisher = open(dir.path());
    let published = publisher.load(&["shop-prod"].into(), at(5)).unwrap();
    assert_eq!(published.pins, [(service.name.clone(), at(3))]);
    assert_eq!(published.current[0].1.bytes(), back.bytes());
    assert!(publisher.unpin(&service, &order(&service, 6)).unwrap());
    assert!(!publisher.unpin(&service, &order(&service, 6)).unwrap(), "it was not pinned any more");
    publish(&publisher, &service, 7);
    assert_eq!(service.current().unwrap().publication().commit, commit(7));
    assert!(publisher.load(&["shop-prod"].into(), at(8)).unwrap().pins.is_empty());
}

#[test]
fn the_current_version_is_pinned_without_a_new_generation_and_a_pin_goes_with_its_service() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let nothing = publisher.pin(&service, &order(&service, 0), None);
    assert!(matches!(nothing, Err(OrderError::NothingPublished(_))));
    publish(&publisher, &service, 1);
    let before = service.current().unwrap();
    publisher.pin(&service, &order(&service, 2), None).unwrap();
    publisher.pin(&service, &order(&service, 3), Some(&before.publication().digest)).unwrap();
    assert_eq!(service.current().unwrap().bytes(), before.bytes());
    assert_eq!(publisher.load(&["shop-prod"].into(), at(4)).unwrap().pins, [(service.name.clone(), at(2))]);
    assert!(publisher.load(&HashSet::new(), at(4)).unwrap().pins.is_empty());
    assert!(publisher.load(&["shop-prod"].into(), at(4)).unwrap().pins.is_empty());
}

#[test]
fn a_pinned_service_that_lost_what_it_is_pinned_to_is_published_again() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    service.pinned(at(1));
    let seen = Sighting { service: service.clone(), commit: commit(2), key: key(2) };
    assert_eq!(publisher.settle_known(&[seen], at(2)).unwrap(), [false], "it is to be built");
    publish(&publisher, &service, 3);
    assert_eq!(service.current().unwrap().publication().commit, commit(3));
}

#[test]
fn the_history_tells_what_was_published_when_and_why_page_by_page() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (service, other) = (service("shop-prod"), service("shop-prod2"));
    for number in 0..14 {
        publish(&publisher, &service, number);
    }
    publish(&publisher, &other, 20);
    sweep(&publisher, at(14));
    let back = content("tar 5", "").digest;
    publisher.pin(&service, &order(&service, 15), Some(&back)).unwrap();
    publisher.unpin(&service, &order(&service, 16)).unwrap();

    let first = publisher.history(&service.name, None, 4).unwrap();
    let newest = &first.publications[0];
    assert_eq!((newest.entry.why, newest.entry.by.as_deref()), (Why::RolledBack, Some("ann")));
    assert!(newest.current && newest.retained && newest.entry.pinned_at < newest.entry.unpinned_at);
    let mut seen = first.publications.clone();
    let mut next = first.next_before;
    while let Some(before) = next {
        let page = publisher.history(&service.name, Some(before), 4).unwrap();
        seen.extend(page.publications);
        next = page.next_before;
    }
    assert_eq!(seen.len(), 15);
    assert!(seen.is_sorted_by(|one, next| one.entry.generation > next.entry.generation));
    let retained: Vec<_> = seen.iter().map(|listed| listed.retained).collect();
    let expected = [true].into_iter().chain((0..14).rev().map(|number| number >= 3)).collect::<Vec<_>>();
    assert_eq!(retained, expected);
    assert_eq!(seen[14].entry.commit, commit(0));
    assert_eq!(seen.iter().filter(|listed| listed.current).count(), 1);
    drop(publisher);
    let publisher = open(dir.path());
    assert_eq!(publisher.history(&service.name, None, 200).unwrap().publications, seen);
}

#[test]
fn a_history_is_bounded_by_number_and_age() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open_with(dir.path(), RetentionConfig { history: 5, ..RetentionConfig::default() });
    let service = service("shop-prod");
    let entries = |before| publisher.history(&service.name, before, 200).unwrap();
    publish(&publisher, &service, 1);
    publish(&publisher, &service, 2);
    let days = 90 * 24 * 60;
    publish(&publisher, &service, 1 + days);
    assert_eq!(entries(None).publications.len(), 3, "a publication does not ask how old others are: clocks err");
    publisher.state.age_history(at(1 + days)).unwrap();
    assert_eq!(entries(None).publications.len(), 2, "the first is ninety days old");
    for number in 0..7 {
        publish(&publisher, &service, 10 + days + number);
    }
    let page = entries(None);
    assert_eq!((page.publications.len(), page.next_before), (5, None));
}
