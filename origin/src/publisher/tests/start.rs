//! What a start finds out of order.

use super::*;

#[test]
fn what_is_below_the_floor_is_published_again_above_it_and_stays_pinned() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (quiet, pinned, gone) = (service("quiet"), service("pinned"), service("gone"));
    publish(&publisher, &quiet, 1);
    publish(&publisher, &gone, 2);
    publish(&publisher, &pinned, 3);
    publisher.pin(&pinned, &order(&pinned, 4), None).unwrap();
    let before = [&quiet, &pinned].map(|service| service.current().unwrap());
    drop(publisher);

    // What edges have seen of a clock that was far ahead.
    let floor = before[1].publication().generation + 1_000_000;
    let publisher = Publisher { generation_floor: floor, ..open(dir.path()) };
    let published = publisher.load(&["quiet", "pinned"].into(), at(5)).unwrap();
    let now = |name| published.current.iter().find(|(service, _)| service.as_str() == name).unwrap().1.clone();
    for (before, after) in before.iter().zip([now("quiet"), now("pinned")]) {
        assert_eq!(after.version(), (floor, 1));
        assert_eq!(after.representations(), before.representations());
        let (before, after) = (before.publication(), after.publication());
        assert_eq!((after.digest, &after.commit), (before.digest, &before.commit));
    }
    assert_eq!(published.pins, [(pinned.name.clone(), at(4))]);
    let newest = |service: &Service| publisher.history(&service.name, None, 1).unwrap().publications.remove(0);
    let entry = newest(&pinned).entry;
    assert_eq!((entry.generation, entry.why, entry.by.as_deref()), (floor, Why::Lifted, Some("ann")));
    assert!(entry.pinned_at.is_some() && newest(&quiet).entry.by.is_none());

    // Its content is known, whatever else was forgotten.
    publisher.state.forget_content(&key(1));
    assert!(publisher.state.content(&quiet.name, &key(1)).unwrap().is_some());

    // Once; and what goes on from there is higher still.
    assert!(
        publisher.load(&["quiet", "pinned"].into(), at(6)).unwrap().current.iter().all(|(_, d)| d.version().0 == floor)
    );
    let quiet = service("quiet");
    publish(&publisher, &quiet, 7);
    assert_eq!(quiet.current().unwrap().publication().generation, floor + 1);
    publish(&publisher, &gone, 8);
    assert_eq!(gone.current().unwrap().publication().generation, floor);
}

#[test]
fn an_index_that_is_not_that_of_the_versions_is_made_anew_before_anything_is_removed_by_it() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    let blobs = [1, 2, 3].map(|number| publish(&publisher, &service, number));
    let kept = publisher.state.kept().unwrap();
    publisher.state.forget_names(&blobs[2]);
    publisher.state.found_in_folder(0, &blobs, at(3)).unwrap();
    assert_eq!(publisher.state.superfluous(at(3), None, 10).unwrap(), [blobs[2]], "what is current would go");
    drop(publisher);

    let publisher = open(dir.path());
    publisher.load(&["shop-prod"].into(), at(4)).unwrap();
    assert_eq!(publisher.state.kept().unwrap(), kept);
    sweep(&publisher, at(5));
    assert_eq!(stored(&publisher, &blobs), [0, 1, 2]);
}

#[test]
fn what_an_unreadable_version_named_goes_with_it() {
    let dir = tempfile::tempdir().unwrap();
    let publisher =
        open_with(dir.path(), RetentionConfig { versions: 1, linger: Duration::ZERO, ..RetentionConfig::default() });
    let (service, gone) = (service("shop-prod"), service("gone"));
    let mut blobs: Vec<_> = [1, 2].map(|number| publish(&publisher, &service, number)).into();
    blobs.push(publish(&publisher, &gone, 3));
    let generation = gone.current().unwrap().publication().generation;
    publisher.state.spoil(&service.name, Some(&content("tar 1", "").digest));
    publisher.state.spoil(&service.name, None);
    publisher.state.spoil(&gone.name, None);
    drop(publisher);

    let publisher =
        open_with(dir.path(), RetentionConfig { versions: 1, linger: Duration::ZERO, ..RetentionConfig::default() });
    let published = publisher.load(&["shop-prod"].into(), at(4)).unwrap();
    assert_eq!(published.retired, [(gone.name.clone(), generation)], "readers are told of it all the same");
    let service =
        Arc::new(Service::new(&ServiceConfig::new(service.name.clone(), "shop".parse().unwrap()), None).unwrap());
    blobs.extend([5, 6].map(|number| publish(&publisher, &service, number)));
    for _ in 0..=256 {
        publisher.sweep(at(7), Clock::Steady).unwrap();
    }
    assert_eq!(stored(&publisher, &blobs), [3, 4], "what is current, and what it superseded");
    let kept = publisher.state.kept().unwrap();
    assert_eq!((kept.blobs, kept.bytes, kept.superseded), (2, 12, 1));
}
