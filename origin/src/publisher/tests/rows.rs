//! Rows that are not as they should be.

use super::*;

#[test]
fn a_pin_of_whatever_time_is_shown_as_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let service = service("shop-prod");
    publish(&publisher, &service, 1);
    for (milliseconds, shown) in [
        (u64::MAX, "9999-12-31T23:59:59Z"),
        (253_402_300_800_000, "9999-12-31T23:59:59Z"),
        (253_402_300_799_999, "9999-12-31T23:59:59Z"),
        (0, "1970-01-01T00:00:00Z"),
    ] {
        publisher.state.set_pin(&service.name, milliseconds);
        let pins = publisher.load(&["shop-prod"].into(), at(2)).unwrap().pins;
        service.pinned(pins[0].1);
        assert_eq!(crate::status::service(&service, None)["pinned"]["since"], shown);
        service.unpinned();
    }
}

#[test]
fn no_blob_that_a_version_may_name_goes_because_the_version_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let publisher = open(dir.path());
    let (one, two, other) = (service("one"), service("two"), service("other"));
    let blobs = [publish(&publisher, &one, 1), publish(&publisher, &one, 2), publish(&publisher, &two, 3)];
    publisher.state.spoil(&one.name, Some(&content("tar 1", "").digest));
    publisher.state.spoil(&two.name, None);
    let swept_for_long = |publisher: &Publisher| {
        for round in 0..260 {
            publisher.sweep(at(round) + HOUR, Clock::Steady).unwrap();
        }
    };
    swept_for_long(&publisher);
    assert_eq!(stored(&publisher, &blobs), [0, 1, 2], "what names them is written down");
    // A directory of a version that did not write it down.
    publisher.state.forget_index();
    drop(publisher);
    let publisher = open(dir.path());
    let unknown = publish(&publisher, &other, 7);
    publish(&publisher, &other, 8);
    publisher.state.forget_superseded(&other.name, &content("tar 7", "").digest, at(9)).unwrap();
    swept_for_long(&publisher);
    assert_eq!(stored(&publisher, &blobs), [0, 1, 2], "what names them is not known");
    assert_eq!(stored(&publisher, &[unknown]), [0], "and this may be theirs too");

    let inspected = publisher.state.inspect().unwrap();
    assert_eq!(inspected.unreadable.len(), 2);
    publisher.state.mend_rows(&inspected, at(10)).unwrap();
    assert!(!publisher.state.inspect().unwrap().has_wrong_index);
    swept_for_long(&publisher);
    assert_eq!(stored(&publisher, &blobs), [1], "now it is known that nothing names them");
    assert!(stored(&publisher, &[unknown]).is_empty());
    // The generations are where they were.
    publish(&publisher, &two, 3);
    assert_eq!(two.current().unwrap().publication().generation, 1_795_000_180_001);
}
