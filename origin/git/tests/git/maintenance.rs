//! Maintenance of mirrors: many fetches, forced pushes, and concurrent readers.

use weir_git::mirror::{MaintenanceError, MaintenanceLimits, Repack};
use weir_git::revision;
use weir_upstream::Upstream;

use crate::prelude::*;
use crate::prepared::{MOST_PACKS, Prepared};

const DAY: Duration = Duration::from_secs(24 * 3600);

impl Prepared {
    /// A prepared upstream with a mirror, which has followed the first `packs` commits one by one.
    fn mirrored(commits: usize, in_a_line: bool, packs: usize) -> (Self, Mirror) {
        let prepared = Self::new(commits, in_a_line);
        let mirror = Mirror::open(&prepared.mirror_dir(), DEFAULT_MAX_OBJECT).unwrap();
        for number in 0..packs {
            prepared.push(number);
            poll(&mirror, &prepared);
        }
        (prepared, mirror)
    }

    fn mirror_dir(&self) -> PathBuf {
        self.dir.path().join("mirror.git")
    }
}

const LIMITS: MaintenanceLimits = MaintenanceLimits { min_free: 0, max_mirror: u64::MAX };

fn poll(mirror: &Mirror, prepared: &Prepared) -> Poll {
    let upstream = Upstream::new(prepared.url().as_str());
    mirror.poll(&upstream, &HashSet::new(), &FetchProgress::default(), &AtomicBool::new(false)).unwrap()
}

fn maintain(mirror: &Mirror, retained: &[CommitId], now: SystemTime) -> Option<Repack> {
    mirror.maintain(|| Ok(retained.to_vec()), &LIMITS, now, &AtomicBool::new(false)).unwrap()
}

/// The number in `deploy/number` of a commit, read as a build does.
fn number_at(repository: &gix::Repository, commit: &str) -> Option<String> {
    let commit = repository.find_commit(gix::ObjectId::from_hex(commit.as_bytes()).unwrap()).ok()?;
    let entry = commit.tree().ok()?.lookup_entry_by_path("deploy/number").ok()??;
    Some(String::from_utf8(entry.object().ok()?.data.clone()).unwrap())
}

/// The open and the mapped files of this process in a directory.
fn open_files(directory: &Path) -> (usize, usize) {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let name = directory.to_str().unwrap();
    (open.filter(|file| file.starts_with(directory)).count(), maps.lines().filter(|line| line.contains(name)).count())
}

#[test]
fn many_fetches_leave_no_packs_open_files_or_maps() {
    let fetches = long_or(500, 100);
    let (prepared, mirror) = Prepared::mirrored(fetches + 1, true, 0);
    let dir = prepared.mirror_dir();
    let (mut most_packs, mut joined, mut most_held) = (0, 0, (0, 0));
    for number in 0..=fetches {
        prepared.push(number);
        assert!(matches!(poll(&mirror, &prepared), Poll::Changed { refs: 1 | 2 }), "fetch {number}");
        let repository = mirror.repository().unwrap().to_thread_local();
        assert_eq!(number_at(&repository, &prepared.commits[number]).unwrap(), number.to_string());
        most_packs = most_packs.max(mirror.size().unwrap().packs);
        joined += usize::from(maintain(&mirror, &[], SystemTime::now()) == Some(Repack::Geometric));
        // A handle from before the repack still finds everything.
        assert_eq!(number_at(&repository, &prepared.commits[number / 2]).unwrap(), (number / 2).to_string());
        drop(repository);
        let (open, mapped) = open_files(&dir);
        most_held = (most_held.0.max(open), most_held.1.max(mapped));
    }
    assert!(most_packs <= MOST_PACKS, "{most_packs} packs");
    assert!((fetches / 50..=fetches / 8).contains(&joined), "joined {joined} times");
    // A mirror without readers has no open files.
    assert_eq!(most_held, (0, 0));
    assert!(matches!(poll(&mirror, &prepared), Poll::Unchanged { .. }));
    mirror.full_check().unwrap();
}

#[test]
fn unreachable_objects_are_dropped_unless_they_are_retained() {
    let (prepared, mirror) = Prepared::mirrored(4, false, 4);
    let dir = prepared.mirror_dir();
    let now = SystemTime::now();
    assert_eq!(maintain(&mirror, &[], now), None);
    // A missing commit cannot be retained.
    let retained = [prepared.commits[1].parse().unwrap(), "1".repeat(40).parse().unwrap()];
    let week = 7 * DAY;
    assert_eq!(maintain(&mirror, &retained, now + week), Some(Repack::Full));
    assert_eq!(mirror.size().unwrap().packs, 1);
    let repository = mirror.repository().unwrap().to_thread_local();
    let there: Vec<bool> = prepared.commits.iter().map(|commit| number_at(&repository, commit).is_some()).collect();
    assert_eq!(there, [false, true, false, true]);
    assert!(!dir.join("refs/weir/kept").exists());
    assert_eq!(maintain(&mirror, &[], now + week), None);
    mirror.full_check().unwrap();
    // The mirror continues, also back to a dropped commit.
    prepared.push(0);
    poll(&mirror, &prepared);
    let repository = mirror.repository().unwrap().to_thread_local();
    assert_eq!(number_at(&repository, &prepared.commits[0]).unwrap(), "0");
}

#[test]
fn a_failed_or_interrupted_repack_changes_nothing_and_is_repeated() {
    let (prepared, mirror) = Prepared::mirrored(3, true, 3);
    let dir = prepared.mirror_dir();
    let now = SystemTime::now();
    assert_eq!(maintain(&mirror, &[], now), None);
    let later = now + 8 * DAY;
    let interrupted = mirror.maintain(|| Ok(Vec::new()), &LIMITS, later, &AtomicBool::new(true));
    assert!(matches!(interrupted, Err(MaintenanceError::Interrupted)), "{interrupted:?}");
    let unknown = || Err(MaintenanceError::Local("the state".to_owned()));
    let unknown = mirror.maintain(unknown, &LIMITS, later, &AtomicBool::new(false));
    assert!(unknown.is_err(), "without knowing what is retained nothing is dropped");
    let later = later + DAY;
    assert_eq!(mirror.size().unwrap().packs, 3);
    mirror.full_check().unwrap();

    // A truncated pack: the program reports it, and everything stays.
    let packs = || fs::read_dir(dir.join("objects/pack")).unwrap().flatten().map(|entry| entry.path());
    let pack = packs().find(|path| path.extension().is_some_and(|ending| ending == "pack")).unwrap();
    let whole = fs::read(&pack).unwrap();
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, &whole[..whole.len() / 2]).unwrap();
    let failed = mirror.maintain(|| Ok(Vec::new()), &LIMITS, later, &AtomicBool::new(false));
    assert!(matches!(failed, Err(MaintenanceError::Repack(_))), "{failed:?}");
    assert_eq!(maintain(&mirror, &[], later + DAY), None, "the second pause in a row is longer");
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, whole).unwrap();
    assert_eq!(maintain(&mirror, &[], later + 2 * DAY), Some(Repack::Full));
    mirror.full_check().unwrap();
    assert!(packs().all(|path| !path.file_name().unwrap().to_str().unwrap().contains("tmp")));
}

/// Otherwise the packs would increase as long as full repacks fail, with one after each poll.
#[test]
fn geometric_repacks_continue_while_full_ones_fail() {
    let (prepared, mirror) = Prepared::mirrored(20, true, 15);
    let dir = prepared.mirror_dir();
    let begun = SystemTime::now();
    assert_eq!(maintain(&mirror, &[], begun), None, "the first look sets the mark");
    (15..20).for_each(|number| {
        prepared.push(number);
        poll(&mirror, &prepared);
    });
    // A full repack fails over a missing object.
    let lost = dir.join("refs/heads/lost");
    fs::create_dir_all(lost.parent().unwrap()).unwrap();
    fs::write(&lost, format!("{}\n", "1".repeat(40))).unwrap();
    let week = begun + 7 * DAY;
    let failed = mirror.maintain(|| Ok(Vec::new()), &LIMITS, week, &AtomicBool::new(false));
    assert!(matches!(failed, Err(MaintenanceError::Repack(_))), "{failed:?}");
    assert_eq!(mirror.size().unwrap().packs, 20);
    assert_eq!(maintain(&mirror, &[], week + Duration::from_secs(60)), Some(Repack::Geometric));
    assert!(mirror.size().unwrap().packs < 16);
    fs::remove_file(lost).unwrap();
    assert_eq!(maintain(&mirror, &[], week + DAY), Some(Repack::Full));
    assert_eq!(mirror.size().unwrap().packs, 1);
    mirror.full_check().unwrap();
}

#[test]
fn a_full_repack_is_refused_without_disk_space() {
    let (_prepared, mirror) = Prepared::mirrored(3, true, 3);
    let begun = SystemTime::now();
    assert_eq!(maintain(&mirror, &[], begun), None, "the first look sets the mark");
    let week = begun + 7 * DAY;
    let much = MaintenanceLimits { min_free: u64::MAX, ..LIMITS };
    let refused = mirror.maintain(|| Ok(Vec::new()), &much, week, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(refused, MaintenanceError::DiskFull { .. }), "{refused}");
    assert!(refused.to_string().contains("`limits.min_free`"), "{refused}");
    // It backs off.
    assert_eq!(maintain(&mirror, &[], week + Duration::from_secs(60)), None);
    assert_eq!(maintain(&mirror, &[], week + DAY), Some(Repack::Full));
}

#[test]
fn a_timestamp_in_the_future_does_not_block_repacks() {
    let (_prepared, mirror) = Prepared::mirrored(2, true, 2);
    let now = SystemTime::now();
    assert_eq!(maintain(&mirror, &[], now + 3650 * DAY), None, "the first look sets the mark");
    assert_eq!(maintain(&mirror, &[], now), None);
    assert_eq!(maintain(&mirror, &[], now + 7 * DAY), Some(Repack::Full));
}

/// No pack comes with the push, and nothing follows it.
#[test]
fn unreachable_objects_are_dropped_without_a_fetch() {
    let (prepared, mirror) = Prepared::mirrored(2, true, 0);
    prepared.push(1);
    poll(&mirror, &prepared);
    // The first check, before the push.
    let mark = SystemTime::now();
    assert_eq!(maintain(&mirror, &[], mark), None);
    prepared.push(0);
    poll(&mirror, &prepared);
    assert_eq!(mirror.size().unwrap().packs, 1);
    assert_eq!(maintain(&mirror, &[], mark + 7 * DAY), Some(Repack::Full));
    let repository = mirror.repository().unwrap().to_thread_local();
    assert!(
        number_at(&repository, &prepared.commits[1]).is_none()
            && number_at(&repository, &prepared.commits[0]).is_some()
    );
    assert_eq!(maintain(&mirror, &[], mark + 30 * DAY), None, "nothing was left behind since");
}

#[test]
fn readers_find_everything_during_repacks() {
    let commits = long_or(120, 40);
    let (prepared, mirror) = Prepared::mirrored(commits, true, 0);
    prepared.push(0);
    poll(&mirror, &prepared);
    let (done, read) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // One handle for several reads, as in a build.
                    let repository = mirror.repository().unwrap().to_thread_local();
                    for _ in 0..5 {
                        let tip = revision::resolve(&repository, &"main".parse().unwrap()).unwrap();
                        let at = prepared.commits.iter().position(|commit| commit == tip.as_str()).unwrap();
                        assert_eq!(number_at(&repository, tip.as_str()), Some(at.to_string()));
                        assert_eq!(number_at(&repository, &prepared.commits[at / 2]), Some((at / 2).to_string()));
                        read.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        let mut now = SystemTime::now();
        for number in 1..commits {
            prepared.push(number);
            poll(&mirror, &prepared);
            // Every tenth repack is a full one.
            now += if number % 10 == 0 { 8 * DAY } else { Duration::ZERO };
            maintain(&mirror, &[], now);
        }
        // Slow readers read between and after repacks.
        while read.load(Ordering::Relaxed) < 50 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
}
