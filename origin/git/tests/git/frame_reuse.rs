//! Frames that are taken from the build before: less is made, and no frame is another.

use proptest::prelude::*;

use crate::prelude::*;
use crate::tar_reading::{Frames, build_into};

fn build(frames: &Frames, git: &Git, commit: &CommitId, selection: &Selection, base: Option<&Base>) -> Built {
    build_into(frames, &git.dir, commit, selection, 2, &Limits::default(), base).unwrap().0
}

/// Text that compresses a little, another for each number.
fn text(number: u64, bytes: usize) -> Vec<u8> {
    let mut seed = number.wrapping_mul(6364136223846793005) | 1;
    let next = |_| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        b"etaoin shrdlu\n\0"[(seed >> 60) as usize % 15]
    };
    (0..bytes).map(next).collect()
}

/// Twelve megabytes in 240 files.
fn write_many(git: &Git) {
    for number in 0..240 {
        git.write(format!("dir{}/sub{}/file{number}", number % 5, number % 3), text(number, 50_000));
    }
}

#[test]
fn a_change_of_one_file_builds_one_frame_and_equals_a_full_build() {
    let git = Git::new();
    write_many(&git);
    for everything in [Selection::default(), Selection { gzip: true, ..Selection::default() }] {
        let first = git.commit("first");
        let frames = Frames::default();
        let built = build(&frames, &git, &first, &everything, None);
        let count = built.zstd.len();
        assert!((8..=16).contains(&count), "{count}");
        let recipe = built.recipe.to_bytes().len();
        assert!(recipe <= 230 * count, "{recipe} bytes for {count} frames");

        // Nothing changed: everything is reused, the end of the tar as well.
        let again = build(&frames, &git, &first, &everything, Some(&frames.base(&built)));
        assert_eq!(again, Built { reused_frames: count, ..built.clone() });

        let second = git.commit_file("dir2/sub1/file7", text(10_007, 50_001));
        let warm = build(&frames, &git, &second, &everything, Some(&frames.base(&built)));
        let cold = build(&Frames::default(), &git, &second, &everything, None);
        assert!(warm.reused_frames >= count - 3, "{} of {count}", warm.reused_frames);
        assert_eq!(warm, Built { reused_frames: warm.reused_frames, ..cold });
        assert_ne!(warm.digest, built.digest);
        git.write("dir2/sub1/file7", text(7, 50_000));
    }
}

#[test]
fn attributes_from_above_change_unchanged_runs() {
    let git = Git::new();
    write_many(&git);
    let (everything, frames) = (Selection::default(), Frames::default());
    let before = frames.base(&build(&frames, &git, &git.commit("first"), &everything, None));
    for rule in ["dir1/** text eol=crlf\n", "dir1/** text=auto eol=crlf\n", "file3* export-ignore\n"] {
        let commit = git.commit_file(".gitattributes", rule);
        let warm = build(&frames, &git, &commit, &everything, Some(&before));
        let cold = build(&Frames::default(), &git, &commit, &everything, None);
        assert_eq!(warm, Built { reused_frames: warm.reused_frames, ..cold }, "{rule}");
    }
    // The same blobs under other paths, and the same entries with another coding.
    let commit = git.commit("again");
    let below = Selection { folder: "dir1".parse().unwrap(), ..Selection::default() };
    for other in [below, Selection { gzip: true, ..everything }] {
        let warm = build(&frames, &git, &commit, &other, Some(&before));
        assert_eq!(warm, build(&Frames::default(), &git, &commit, &other, None), "nothing of it could be reused");
    }
}

#[test]
fn a_change_in_a_huge_file_replaces_few_frames_and_one_next_to_it_none() {
    let git = Git::new();
    let mut huge = text(1, 12 << 20);
    git.write("a", "first");
    git.write("huge", &huge);
    git.write("z", "last");
    let (everything, frames) = (Selection::default(), Frames::default());
    let first = build(&frames, &git, &git.commit("first"), &everything, None);
    assert!((6..=24).contains(&first.zstd.len()), "{}", first.zstd.len());

    git.write("z", "changed");
    let beside = build(&frames, &git, &git.commit("beside"), &everything, Some(&frames.base(&first)));
    assert_eq!(beside.reused_frames, beside.zstd.len() - 1);

    huge.splice(6 << 20..6 << 20, *b"inserted");
    git.write("huge", &huge);
    let within = build(&frames, &git, &git.commit("within"), &everything, Some(&frames.base(&beside)));
    let others = within.zstd.iter().filter(|frame| !beside.zstd.contains(frame)).count();
    // The first frame has the size in its header.
    assert!((2..=6).contains(&others), "{others} of {}", within.zstd.len());

    // It begins the tar now, and the first frame is small.
    fs::remove_file(git.dir.join("a")).unwrap();
    let commit = git.commit("first");
    let first = build(&frames, &git, &commit, &everything, Some(&frames.base(&within)));
    let cold = build(&Frames::default(), &git, &commit, &everything, None);
    assert_eq!(first, Built { reused_frames: first.reused_frames, ..cold });
    assert_eq!(first.zstd[0].tar_size, 256 << 10);
}

#[test]
fn unreadable_frames_of_the_base_are_built_and_stored_again() {
    let git = Git::new();
    write_many(&git);
    let (everything, frames) = (Selection::default(), Frames::default());
    let built = build(&frames, &git, &git.commit("first"), &everything, None);
    let count = built.zstd.len();
    // Something before all others changes, so that all others are read.
    let commit = git.commit_file("0", "new");
    let warm = build(&frames, &git, &commit, &everything, Some(&frames.base(&built)));
    let lost = built.zstd[count / 2].digest;
    frames.remove(&lost);
    let again = build(&frames, &git, &commit, &everything, Some(&frames.base(&built)));
    assert_eq!(again, Built { reused_frames: warm.reused_frames - 1, ..warm });
    frames.get(&lost).unwrap();
}

/// What a commit does.
#[derive(Debug, Clone)]
enum Change {
    Write { file: u64, bytes: usize, executable: bool },
    Remove(u64),
    Rename(u64),
    Link(u64),
    Attributes { folder: &'static str, rule: &'static str },
}

fn change() -> impl Strategy<Value = Change> {
    let file = || 0u64..60;
    let bytes = proptest::sample::select(vec![100_000, 0, 700_000, 100]);
    let rules = vec!["", "* text eol=crlf\n", "f*5 export-ignore\n", "d2 export-ignore\n", "f1? -text\n"];
    let folders = vec![".", "d1", "d3"];
    prop_oneof![
        5 => (file(), bytes, any::<bool>()).prop_map(|(file, bytes, executable)| Change::Write { file, bytes, executable }),
        1 => file().prop_map(Change::Remove),
        2 => file().prop_map(Change::Rename),
        1 => file().prop_map(Change::Link),
        1 => (proptest::sample::select(folders), proptest::sample::select(rules))
            .prop_map(|(folder, rule)| Change::Attributes { folder, rule }),
    ]
}

fn apply(git: &Git, change: &Change, seed: u64) {
    let path = |file: &u64| format!("d{}/f{file}", file % 7);
    let absent = |file| {
        // It may have been removed or renamed before.
        let _ = fs::remove_file(git.dir.join(path(file)));
    };
    match change {
        Change::Write { file, bytes, executable } => {
            absent(file);
            let contents = text(file + seed, *bytes);
            if *executable { git.write_executable(path(file), contents) } else { git.write(path(file), contents) }
        }
        Change::Remove(file) => absent(file),
        Change::Rename(file) => {
            let _ = fs::rename(git.dir.join(path(file)), git.dir.join(format!("d{}/moved{seed}", (file + 1) % 7)));
        }
        Change::Link(file) => {
            absent(file);
            git.link(path(file), format!("f{seed}"));
        }
        Change::Attributes { folder, rule } => git.write(format!("{folder}/.gitattributes"), rule),
    }
}

proptest! {
    #![proptest_config(crate::random_cases(2))]
    #[test]
    fn frames_do_not_depend_on_what_was_built_before(
        commits in proptest::collection::vec(proptest::collection::vec(change(), 1..6), 2..5)
    ) {
        let git = Git::new();
        for number in 0..60 {
            git.write(format!("d{}/f{number}", number % 7), text(number, 100_000));
        }
        let frames = Frames::default();
        let mut before: Option<Base> = None;
        for (generation, changes) in commits.iter().enumerate() {
            for change in changes {
                apply(&git, change, 1000 * (generation as u64 + 1));
            }
            let commit = git.commit("changed");
            let warm = build(&frames, &git, &commit, &Selection::default(), before.as_ref());
            let cold = build(&Frames::default(), &git, &commit, &Selection::default(), None);
            prop_assert_eq!(&Built { reused_frames: warm.reused_frames, ..cold }, &warm);
            before = Some(frames.base(&warm));
        }
    }
}
