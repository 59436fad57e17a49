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
