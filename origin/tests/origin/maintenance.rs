//! Upkeep of mirrors: as many fetches as there may be, forced pushes, and readers in between.

use weir_origin::source::Upstream as Remote;
use weir_origin::source::git::mirror::{MaintenanceError, Upkeep, UpkeepBounds};
use weir_origin::source::git::revision;

use crate::prelude::*;

/// Packs between two repacks, those of a geometric row, and the one that a fetch has just brought.
const MOST_PACKS: usize = 16 + 12;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A bare upstream whose history stands ready, so that a push is nothing but a ref that moves.
struct Prepared {
    dir: tempfile::TempDir,
    commits: Vec<String>,
}

impl Prepared {
    /// So many commits; each holds its number in `deploy/number`. In a line, or each with nothing before it.
    fn new(commits: usize, in_a_line: bool) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let git = Git::init(&dir.path().join("upstream"));
        let mut stream = String::new();
        for number in 0..commits {
            let text = number.to_string();
            let branch = if in_a_line { "refs/heads/all".to_owned() } else { format!("refs/made/{number}") };
            stream += &format!("commit {branch}\ncommitter A <a@b> {} +0000\ndata 1\nx\n", 1_700_000_000 + number);
            stream += &format!("M 100644 inline deploy/number\ndata {}\n{text}\n", text.len());
        }
        git.feed(["fast-import", "--quiet"], stream.as_bytes());
        let commits: Vec<String> = if in_a_line {
            git.line(["rev-list", "--reverse", "refs/heads/all"]).lines().map(str::to_owned).collect()
        } else {
            (0..commits).map(|number| git.line(["rev-parse", &format!("refs/made/{number}")])).collect()
        };
        let prepared = Self { dir, commits };
        prepared.push(0);
        fs::remove_file(prepared.git_dir().join("refs/heads/all")).ok();
        prepared
    }

    /// The same with a mirror, which has followed the first `packs` commits one by one.
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

    fn git_dir(&self) -> PathBuf {
        self.dir.path().join("upstream/.git")
    }

    fn url(&self) -> String {
        format!("file://{}", self.git_dir().display())
    }

    /// What a (forced) push comes to.
    fn push(&self, number: usize) {
        let main = self.git_dir().join("refs/heads/main");
        let beside = main.with_extension("lock");
        fs::write(&beside, format!("{}\n", self.commits[number])).unwrap();
        fs::rename(beside, main).unwrap();
    }
}

const BOUNDS: UpkeepBounds = UpkeepBounds { min_free: 0, max_mirror: u64::MAX };

fn poll(mirror: &Mirror, prepared: &Prepared) -> Poll {
    let remote = Remote::new(prepared.url().as_str());
    mirror.poll(&remote, &FetchProgress::default(), &AtomicBool::new(false)).unwrap()
}

fn keep_up(mirror: &Mirror, kept: &[CommitId], now: SystemTime) -> Upkeep {
    mirror.keep_up(|| Ok(kept.to_vec()), &BOUNDS, now, &AtomicBool::new(false)).unwrap()
}

/// The number in `deploy/number` of a commit, read as a build does.
fn number_at(repository: &gix::Repository, commit: &str) -> Option<String> {
    let commit = repository.find_commit(gix::ObjectId::from_hex(commit.as_bytes()).unwrap()).ok()?;
    let entry = commit.tree().ok()?.lookup_entry_by_path("deploy/number").ok()??;
    Some(String::from_utf8(entry.object().ok()?.data.clone()).unwrap())
}

/// Files of a directory that this process has open, and those that it has mapped.
fn held(directory: &Path) -> (usize, usize) {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let name = directory.to_str().unwrap();
    (open.filter(|file| file.starts_with(directory)).count(), maps.lines().filter(|line| line.contains(name)).count())
}

#[test]
fn many_fetches_leave_neither_packs_nor_open_files_nor_maps_behind() {
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
        joined += usize::from(keep_up(&mirror, &[], SystemTime::now()) == Upkeep::Joined);
        // What was opened before the packs were joined finds everything still.
        assert_eq!(number_at(&repository, &prepared.commits[number / 2]).unwrap(), (number / 2).to_string());
        drop(repository);
        let (open, mapped) = held(&dir);
        most_held = (most_held.0.max(open), most_held.1.max(mapped));
    }
    assert!(most_packs <= MOST_PACKS, "{most_packs} packs");
    assert!((fetches / 50..=fetches / 8).contains(&joined), "joined {joined} times");
    // Nothing is held by a mirror that nobody reads.
    assert_eq!(most_held, (0, 0));
    assert!(matches!(poll(&mirror, &prepared), Poll::Unchanged { .. }));
    mirror.look_closely().unwrap();
}

#[test]
fn what_a_forced_push_leaves_behind_goes_in_time_but_not_what_is_retained() {
    let (prepared, mirror) = Prepared::mirrored(4, false, 4);
    let dir = prepared.mirror_dir();
    let now = SystemTime::now();
    assert_eq!(keep_up(&mirror, &[], now), Upkeep::NotDue);
    // What is not there cannot be kept.
    let retained = [prepared.commits[1].parse().unwrap(), "1".repeat(40).parse().unwrap()];
    let week = 7 * DAY;
    assert_eq!(keep_up(&mirror, &retained, now + week), Upkeep::Full);
    assert_eq!(mirror.size().unwrap().packs, 1);
    let repository = mirror.repository().unwrap().to_thread_local();
    let there: Vec<bool> = prepared.commits.iter().map(|commit| number_at(&repository, commit).is_some()).collect();
    assert_eq!(there, [false, true, false, true]);
    assert!(!dir.join("refs/weir/kept").exists());
    assert_eq!(keep_up(&mirror, &[], now + week), Upkeep::NotDue);
    mirror.look_closely().unwrap();
    // The clone goes on from there, also back to what is gone.
    prepared.push(0);
    poll(&mirror, &prepared);
    let repository = mirror.repository().unwrap().to_thread_local();
    assert_eq!(number_at(&repository, &prepared.commits[0]).unwrap(), "0");
}

#[test]
fn a_repack_that_fails_or_is_interrupted_changes_nothing_and_is_due_again() {
    let (prepared, mirror) = Prepared::mirrored(3, true, 3);
    let dir = prepared.mirror_dir();
    let now = SystemTime::now();
    assert_eq!(keep_up(&mirror, &[], now), Upkeep::NotDue);
    let later = now + 8 * DAY;
    let interrupted = mirror.keep_up(|| Ok(Vec::new()), &BOUNDS, later, &AtomicBool::new(true));
    assert!(matches!(interrupted, Err(MaintenanceError::Interrupted)), "{interrupted:?}");
    let unknown = || Err(MaintenanceError::Local("the state".to_owned()));
    let unknown = mirror.keep_up(unknown, &BOUNDS, later, &AtomicBool::new(false));
    assert!(unknown.is_err(), "without knowing what is retained nothing is dropped");
    let later = later + DAY;
    assert_eq!(mirror.size().unwrap().packs, 3);
    mirror.look_closely().unwrap();

    // A pack that is cut short: the program says so, and everything stays.
    let packs = || fs::read_dir(dir.join("objects/pack")).unwrap().flatten().map(|entry| entry.path());
    let pack = packs().find(|path| path.extension().is_some_and(|ending| ending == "pack")).unwrap();
    let whole = fs::read(&pack).unwrap();
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, &whole[..whole.len() / 2]).unwrap();
    let failed = mirror.keep_up(|| Ok(Vec::new()), &BOUNDS, later, &AtomicBool::new(false));
    assert!(matches!(failed, Err(MaintenanceError::Repack(_))), "{failed:?}");
    assert_eq!(keep_up(&mirror, &[], later + DAY), Upkeep::NotDue, "the second pause in a row is longer");
    fs::remove_file(&pack).unwrap();
    fs::write(&pack, whole).unwrap();
    assert_eq!(keep_up(&mirror, &[], later + 2 * DAY), Upkeep::Full);
    mirror.look_closely().unwrap();
    assert!(packs().all(|path| !path.file_name().unwrap().to_str().unwrap().contains("tmp")));
}

/// Otherwise packs would grow in number for as long as it fails, with a whole repack after each poll.
#[test]
fn a_full_repack_that_cannot_end_does_not_keep_small_packs_from_being_joined() {
    let (prepared, mirror) = Prepared::mirrored(20, true, 15);
    let dir = prepared.mirror_dir();
    let begun = SystemTime::now();
    assert_eq!(keep_up(&mirror, &[], begun), Upkeep::NotDue, "the first look sets the mark");
    (15..20).for_each(|number| {
        prepared.push(number);
        poll(&mirror, &prepared);
    });
    // All that a ref leads to cannot be written when it is not there.
    let lost = dir.join("refs/heads/lost");
    fs::create_dir_all(lost.parent().unwrap()).unwrap();
    fs::write(&lost, format!("{}\n", "1".repeat(40))).unwrap();
    let week = begun + 7 * DAY;
    let failed = mirror.keep_up(|| Ok(Vec::new()), &BOUNDS, week, &AtomicBool::new(false));
    assert!(matches!(failed, Err(MaintenanceError::Repack(_))), "{failed:?}");
    assert_eq!(mirror.size().unwrap().packs, 20);
    assert_eq!(keep_up(&mirror, &[], week + Duration::from_secs(60)), Upkeep::Joined);
    assert!(mirror.size().unwrap().packs < 16);
    fs::remove_file(lost).unwrap();
    assert_eq!(keep_up(&mirror, &[], week + DAY), Upkeep::Full);
    assert_eq!(mirror.size().unwrap().packs, 1);
    mirror.look_closely().unwrap();
}

#[test]
fn a_disk_without_room_for_a_second_copy_is_told_before_it_is_full() {
    let (_prepared, mirror) = Prepared::mirrored(3, true, 3);
    let begun = SystemTime::now();
    assert_eq!(keep_up(&mirror, &[], begun), Upkeep::NotDue, "the first look sets the mark");
    let week = begun + 7 * DAY;
    let much = UpkeepBounds { min_free: u64::MAX, ..BOUNDS };
    let refused = mirror.keep_up(|| Ok(Vec::new()), &much, week, &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(refused, MaintenanceError::NoRoom { .. }), "{refused}");
    assert!(refused.to_string().contains("`limits.min_free`"), "{refused}");
    // It is not told at each poll, and tried again.
    assert_eq!(keep_up(&mirror, &[], week + Duration::from_secs(60)), Upkeep::NotDue);
    assert_eq!(keep_up(&mirror, &[], week + DAY), Upkeep::Full);
}

#[test]
fn a_mark_of_a_clock_that_was_set_back_does_not_hold_for_ever() {
    let (_prepared, mirror) = Prepared::mirrored(2, true, 2);
    let now = SystemTime::now();
    assert_eq!(keep_up(&mirror, &[], now + 3650 * DAY), Upkeep::NotDue, "the first look sets the mark");
    assert_eq!(keep_up(&mirror, &[], now), Upkeep::NotDue);
    assert_eq!(keep_up(&mirror, &[], now + 7 * DAY), Upkeep::Full);
}

/// No pack comes with it, and nothing comes after it.
#[test]
fn what_a_branch_was_forced_back_from_goes_though_nothing_is_fetched() {
    let (prepared, mirror) = Prepared::mirrored(2, true, 0);
    prepared.push(1);
    poll(&mirror, &prepared);
    // The first look, before the push.
    let mark = SystemTime::now();
    assert_eq!(keep_up(&mirror, &[], mark), Upkeep::NotDue);
    prepared.push(0);
    poll(&mirror, &prepared);
    assert_eq!(mirror.size().unwrap().packs, 1);
    assert_eq!(keep_up(&mirror, &[], mark + 7 * DAY), Upkeep::Full);
    let repository = mirror.repository().unwrap().to_thread_local();
    assert!(
        number_at(&repository, &prepared.commits[1]).is_none()
            && number_at(&repository, &prepared.commits[0]).is_some()
    );
    assert_eq!(keep_up(&mirror, &[], mark + 30 * DAY), Upkeep::NotDue, "nothing was left behind since");
}

#[test]
fn readers_find_everything_while_packs_are_joined_and_dropped() {
    let commits = long_or(120, 40);
    let (prepared, mirror) = Prepared::mirrored(commits, true, 0);
    prepared.push(0);
    poll(&mirror, &prepared);
    let (done, read) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    // Opened once for several reads, as a build has it.
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
            // Every tenth time all is written anew.
            now += if number % 10 == 0 { 8 * DAY } else { Duration::ZERO };
            keep_up(&mirror, &[], now);
        }
        // However slow the readers were, they read between and after.
        while read.load(Ordering::Relaxed) < 50 {
            std::thread::yield_now();
        }
        done.store(true, Ordering::Relaxed);
    });
}

/// Forced pushes, each as soon as the one before it is published, while readers read what is current then.
#[tokio::test]
async fn every_answer_is_whole_while_a_branch_is_forced_back_and_forth() {
    let pushes = long_or(60, 20);
    let prepared = Prepared::new(pushes + 1, false);
    let home = Home::new();
    let mut config = home.config(&prepared.url());
    config.repositories[0].min_poll_interval = Duration::ZERO;
    let node = home.start(config).await;
    node.published(|_| true).await;
    let (done, read) = (AtomicBool::new(false), std::sync::atomic::AtomicUsize::new(0));
    let reader = async || {
        let mut published = node.running.service(&service()).unwrap();
        while !done.load(Ordering::Relaxed) {
            // While the next push is fetched and published: verified against the descriptor as an agent would.
            for _ in 0..4 {
                let descriptor = node.descriptor().await;
                assert_eq!(names(&node.tarball(&descriptor).await), ["number"]);
                read.fetch_add(1, Ordering::Relaxed);
            }
            published.changed().await.unwrap();
        }
    };
    let pusher = async {
        for number in 1..=pushes {
            prepared.push(number);
            node.running.trigger_poll(&repository());
            node.published(|descriptor| descriptor.publication().commit.as_str() == prepared.commits[number]).await;
        }
        done.store(true, Ordering::Relaxed);
        // Wakes the readers.
        prepared.push(0);
        node.running.trigger_poll(&repository());
    };
    tokio::join!(pusher, reader(), reader());
    assert!(read.load(Ordering::Relaxed) > pushes, "{read:?} reads");
    let packs = node.metric("weir_origin_mirror_packs{repository=\"shop\"}").await;
    assert!(packs <= MOST_PACKS as f64, "{packs} packs");
    assert!(node.metric("weir_origin_repacks_total{repository=\"shop\",result=\"joined\"}").await >= 1.0);
    assert_eq!(node.metric("weir_origin_repacks_total{repository=\"shop\",result=\"failed\"}").await, 0.0);
    assert_eq!(node.metric("weir_origin_mirrors_set_aside_total{repository=\"shop\"}").await, 0.0);
    node.stop().await;
}
