//! Writes that fail after the disk has taken them.

use super::*;
use crate::database::DatabaseFile;
use crate::database::faulty::Faults;
use std::sync::atomic::Ordering;

/// A publisher whose next writes may fail.
fn failing(dir: &Path) -> (Publisher, Faults) {
    let (mut publisher, faults) = (open(dir), Faults::default());
    let retention = RetentionConfig::default();
    // One process at a time has the file.
    publisher.state = State::of(DatabaseFile::in_memory().unwrap(), retention.clone()).unwrap();
    publisher.state = State::of(DatabaseFile::faulty(&dir.join("state.redb"), &faults), retention).unwrap();
    (publisher, faults)
}

type Act = fn(&Publisher, &Arc<Service>) -> bool;

fn pinned(publisher: &Publisher, service: &Arc<Service>, digest: Option<&TarballDigest>) -> bool {
    let order = Order { service: &service.name, expected: None, by: None, now: at(9) };
    publisher.pin(service, &order, digest).is_ok()
}

#[test]
fn what_a_write_that_failed_has_left_is_what_is_shown() {
    let acts: [(&str, Act); 4] = [
        ("pin", |publisher, service| pinned(publisher, service, None)),
        ("roll back", |publisher, service| pinned(publisher, service, Some(&content("tar 1", "").digest))),
        ("unpin", |publisher, service| {
            let order = Order { service: &service.name, expected: None, by: None, now: at(9) };
            publisher.unpin(service, &order).is_ok()
        }),
        ("publish", |publisher, service| {
            let sighting = Sighting { service: service.clone(), commit: commit(7), key: key(1) };
            publisher.settle_known(&[sighting], at(9)).is_ok()
        }),
    ];
    for (name, act) in acts {
        let (mut landed, mut writes) = (0, 0);
        let was_done = (1..20).any(|sync| {
            let dir = tempfile::tempdir().unwrap();
            let (publisher, faults) = failing(dir.path());
            let service = service("shop-prod");
            publish(&publisher, &service, 1);
            publish(&publisher, &service, 2);
            if name == "unpin" {
                assert!(pinned(&publisher, &service, None));
            }
            let before = publisher.state.standing(&service.name).unwrap();
            faults.fails_at_sync.store(sync, Ordering::SeqCst);
            let done = act(&publisher, &service);
            faults.fails_at_sync.store(0, Ordering::SeqCst);
            let (current, pin) = publisher.state.standing(&service.name).unwrap();
            assert_eq!(service.current().as_deref(), current.as_ref(), "{name} {sync}");
            assert_eq!(service.is_pinned(), pin.is_some(), "{name} {sync}");
            landed += usize::from(!done && before != (current, pin));
            writes += 1;
            done
        });
        assert!(was_done && writes > 1 && landed > 0, "{name}: {landed} of {writes} landed");
    }
}
