//! When objects are asked for, by who waits and by what failed.

use super::*;
use crate::lfs::Pointer;

const INTERVAL: Duration = Duration::from_secs(120);
const MIDDLE: f64 = 0.5;

fn files(names: &[u8]) -> Vec<LfsFile> {
    let file = |name: &u8| {
        let oid = LfsOid::from_hex(format!("{name:064x}").as_bytes()).unwrap();
        LfsFile { path: format!("{name}.bin"), pointer: Pointer { oid, size: 10 } }
    };
    names.iter().map(file).collect()
}

fn oid(name: u8) -> LfsOid {
    files(&[name])[0].pointer.oid
}

fn service(name: &str) -> Who {
    Who::Service(name.parse().unwrap())
}

/// Of an object each, whether it came.
fn tried(objects: &[(u8, bool)]) -> Attempted {
    let result = |came: bool| if came { Ok(()) } else { Err("it is wrong".into()) };
    Attempted {
        tried: objects.iter().map(|(name, came)| (oid(*name), result(*came))).collect(),
        ..Attempted::default()
    }
}

struct At {
    wanted: Wanted,
    start: Instant,
}

impl At {
    fn new() -> Self {
        Self { wanted: Wanted::default(), start: Instant::now() }
    }

    fn at(&self, seconds: u64) -> Instant {
        self.start + Duration::from_secs(seconds)
    }

    fn waits(&mut self, who: &str, names: &[u8], seconds: u64) {
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        self.wanted.waits(service(who), files(names), clock);
        self.wanted.settle(self.at(seconds));
    }

    fn due(&self) -> Option<u64> {
        self.wanted.due().map(|due| (due - self.start).as_secs())
    }

    fn due_at(&self, seconds: u64) -> Vec<Vec<LfsFile>> {
        self.wanted.due_now(self.at(seconds))
    }

    fn attempted(&mut self, asked: &[u8], attempted: &Attempted, seconds: u64) {
        let asked: Vec<_> = asked.iter().map(|name| oid(*name)).collect();
        let times = (self.at(seconds), SystemTime::UNIX_EPOCH);
        self.wanted.attempted(&asked, attempted, INTERVAL, times, MIDDLE);
        self.wanted.settle(self.at(seconds));
    }
}

#[test]
fn what_fails_is_left_alone_ever_longer_and_what_is_new_is_asked_for_at_once() {
    let mut it = At::new();
    assert_eq!(it.due(), None);
    it.waits("a", &[1, 2], 0);
    assert_eq!((it.due(), it.due_at(0)), (Some(0), vec![files(&[1, 2])]));
    it.attempted(&[1, 2], &tried(&[(1, false), (2, true)]), 0);
    it.waits("a", &[1], 0);
    assert_eq!((it.due(), it.due_at(4).len()), (Some(5), 0));
    assert_eq!(it.wanted.failure(&files(&[1, 2]), it.at(1)).as_deref(), Some("it is wrong"));
    it.attempted(&[1], &tried(&[(1, false)]), 5);
    assert_eq!(it.due(), Some(15));

    it.waits("a", &[1, 3], 6);
    assert_eq!((it.due(), it.due_at(6)), (Some(6), vec![files(&[3])]));
    it.attempted(&[3], &tried(&[(3, true)]), 7);
    it.waits("a", &[1], 7);
    assert_eq!(it.due(), Some(15), "that it worked for another changes nothing");

    // Who comes back to it does not begin anew, unless it was long ago.
    it.wanted.waits_no_more(&service("a"));
    it.wanted.settle(it.at(8));
    assert_eq!((it.due(), it.wanted.is_idle()), (None, false));
    it.waits("b", &[1], 9);
    assert_eq!(it.due(), Some(15));
    it.wanted.forget_failures();
    it.wanted.settle(it.at(10));
    assert_eq!(it.due(), Some(10));
    it.attempted(&[1], &tried(&[(1, true)]), 11);
    it.wanted.waits_no_more(&service("b"));
    it.wanted.settle(it.at(11));
    assert!(it.wanted.is_idle());
}

#[test]
fn a_pause_that_is_asked_for_holds_for_all_and_for_whatever_is_new() {
    let mut it = At::new();
    it.waits("a", &[1], 0);
    let told = Attempted { pause: Some(Duration::from_secs(600)), ..Attempted::failed("answered 429".to_owned()) };
    it.wanted.attempted(&[oid(1)], &told, INTERVAL, (it.at(0), SystemTime::UNIX_EPOCH), 0.0);
    it.waits("a", &[2], 1);
    it.wanted.forget_failures();
    it.wanted.settle(it.at(2));
    assert_eq!(it.due(), Some(600));
    assert_eq!(it.wanted.failure(&files(&[2]), it.at(599)).as_deref(), Some("answered 429"));
    assert_eq!(it.wanted.failure(&files(&[2]), it.at(600)), None);
    assert!(it.wanted.show(|_| SystemTime::UNIX_EPOCH).unwrap().held_until.is_some());
    it.attempted(&[2], &tried(&[(2, false)]), 601);
    assert_eq!(it.due(), Some(606));
}

#[test]
fn whoever_was_not_tried_comes_first_the_next_time() {
    let mut it = At::new();
    it.waits("a", &[1, 2], 0);
    it.waits("b", &[3, 4, 5], 0);
    assert_eq!(it.due_at(0), [files(&[1, 2]), files(&[3, 4, 5])], "little before much");
    let gave_up = Attempted { ended_by: Some("it stalls".into()), ..tried(&[(1, false)]) };
    it.attempted(&[1, 2, 3, 4, 5], &gave_up, 0);
    assert_eq!((it.due(), it.due_at(4).len()), (Some(5), 0), "all are left alone");
    assert_eq!(it.due_at(5), [files(&[3, 4, 5]), files(&[2, 1])]);
    // What nobody wanted any more when its turn came has not failed.
    it.attempted(&[1, 2, 3, 4, 5], &tried(&[(3, true)]), 5);
    assert_eq!(it.due(), Some(5));
}

#[test]
fn the_failure_that_is_shown_is_of_an_object_that_is_waited_for() {
    let mut it = At::new();
    let failure = |it: &At| it.wanted.show(|_| SystemTime::UNIX_EPOCH).unwrap().failure.map(|failure| failure.reason);
    it.waits("a", &[1], 0);
    it.attempted(&[1], &tried(&[(1, false)]), 0);
    assert_eq!(failure(&it).as_deref(), Some("it is wrong"));
    // It is kept in mind, and so is the pause, for whoever comes back to it.
    it.waits("a", &[2], 1);
    assert_eq!(failure(&it), None);
    it.waits("a", &[1, 2], 2);
    assert_eq!(failure(&it).as_deref(), Some("it is wrong"));
}

#[test]
fn who_waits_does_so_since_the_first_of_what_he_waited_for() {
    let mut it = At::new();
    let since = |it: &At| {
        let (_, since) = it.wanted.show(|_| SystemTime::UNIX_EPOCH).unwrap().services[0].clone();
        since.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
    };
    it.waits("a", &[1], 1);
    // A newer commit.
    it.wanted.waits_no_more(&service("a"));
    it.waits("a", &[2], 2);
    assert_eq!(since(&it), 1);
    it.wanted.waits_no_more(&service("a"));
    it.wanted.settle(it.at(3));
    it.waits("a", &[3], 4);
    assert_eq!(since(&it), 4);
}

#[test]
fn each_object_is_asked_for_once_whoever_waits_for_it() {
    let mut it = At::new();
    it.waits("a", &[1, 2], 0);
    it.waits("b", &[2, 3], 0);
    it.waits("c", &[1], 0);
    let mut asked = it.due_at(0).concat();
    asked.sort_by_key(|file| file.pointer.oid);
    assert_eq!(asked, files(&[1, 2, 3]));
}
