//! Fragments that are taken over from an earlier blob: less is made, and no byte is another.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::MetadataExt;

use proptest::prelude::*;
use weir_origin::blob_store::StoredBlob;
use weir_origin::tarball::{Built, Earlier, FragmentIndex, Limits, Selection};
use weir_shared::commit_id::CommitId;

use crate::git_fixture::Git;
use crate::node::{Home, blob_of};
use crate::tar_reading::build_after;
use crate::upstream::Upstream;

/// A blob as it would lie in the store, through the bytes of its index.
fn earlier(built: &Built, blob: &[u8]) -> Earlier {
    let mut file: File = tempfile::tempfile().unwrap();
    file.write_all(blob).unwrap();
    let index = FragmentIndex::parse(&built.blob, &built.fragments.to_bytes(&built.blob)).unwrap();
    Earlier::new(StoredBlob::whole(file).unwrap(), index)
}

fn build(git: &Git, commit: &CommitId, selection: &Selection, earlier: Option<&Earlier>) -> (Built, Vec<u8>) {
    let (built, _, blob) = build_after(&git.dir, commit, selection, 2, &Limits::default(), earlier).unwrap();
    (built, blob)
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

/// Thirty megabytes in six hundred files.
fn write_many(git: &Git) {
    for number in 0..600 {
        git.write(format!("dir{}/sub{}/file{number}", number % 5, number % 3), text(number, 50_000));
    }
}

#[test]
fn after_a_change_of_one_file_one_fragment_is_made_and_the_bytes_are_those_of_a_build_from_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    write_many(&git);
    let everything = Selection::default();
    let first = git.commit("first");
    let (built, blob) = build(&git, &first, &everything, None);
    let fragments = built.fragments.fragments();
    assert!((5..=12).contains(&fragments), "{fragments}");

    // Nothing changed: everything is taken over, the end of the tar as well.
    let (again, _) = build(&git, &first, &everything, Some(&earlier(&built, &blob)));
    assert_eq!(again, Built { reused_fragments: fragments, ..built.clone() });

    git.write("dir2/sub1/file7", text(10_007, 50_000));
    let second = git.commit("second");
    let (warm, _) = build(&git, &second, &everything, Some(&earlier(&built, &blob)));
    let (cold, _) = build(&git, &second, &everything, None);
    assert_eq!(warm, Built { reused_fragments: fragments - 1, ..cold });
    assert_ne!(warm.digest, built.digest);
}

#[test]
fn what_is_set_from_above_is_seen_in_fragments_that_did_not_change_themselves() {
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    write_many(&git);
    let everything = Selection::default();
    let (built, blob) = build(&git, &git.commit("first"), &everything, None);
    let before = earlier(&built, &blob);
    for rule in ["dir1/** text eol=crlf\n", "dir1/** text=auto eol=crlf\n", "file3* export-ignore\n"] {
        git.write(".gitattributes", rule);
        let commit = git.commit("attributes");
        let (warm, _) = build(&git, &commit, &everything, Some(&before));
        let (cold, _) = build(&git, &commit, &everything, None);
        assert_eq!(warm, Built { reused_fragments: warm.reused_fragments, ..cold }, "{rule}");
    }
    // The other end of a folder: the same blobs under other paths.
    let below = Selection { folder: "dir1".parse().unwrap(), ..Selection::default() };
    let commit = git.commit("again");
    let (warm, _) = build(&git, &commit, &below, Some(&before));
    let (cold, _) = build(&git, &commit, &below, None);
    assert_eq!(warm, cold, "nothing of it could be taken over");
}

#[test]
fn an_earlier_blob_that_has_rotted_is_passed_over() {
    let dir = tempfile::tempdir().unwrap();
    let git = Git::init(dir.path());
    write_many(&git);
    let commit = git.commit("first");
    let (built, mut blob) = build(&git, &commit, &Selection::default(), None);
    let middle = blob.len() / 2;
    blob[middle] ^= 0x10;
    let fragments = built.fragments.fragments();
    let (again, _) = build(&git, &commit, &Selection::default(), Some(&earlier(&built, &blob)));
    assert_eq!(again, Built { reused_fragments: fragments - 1, ..built.clone() });
    blob.truncate(middle);
    let (again, _) = build(&git, &commit, &Selection::default(), Some(&earlier(&built, &blob)));
    assert_eq!(again, Built { reused_fragments: again.reused_fragments, ..built });
    assert!(again.reused_fragments < fragments - 1);
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
    let file = || 0u64..120;
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
    #![proptest_config(ProptestConfig { cases: 4, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_blob_does_not_tell_how_it_came_about(
        commits in proptest::collection::vec(proptest::collection::vec(change(), 1..6), 2..5)
    ) {
        let dir = tempfile::tempdir().unwrap();
        let git = Git::init(dir.path());
        for number in 0..120 {
            git.write(format!("d{}/f{number}", number % 7), text(number, 100_000));
        }
        let mut before: Option<Earlier> = None;
        for (generation, changes) in commits.iter().enumerate() {
            for change in changes {
                apply(&git, change, 1000 * (generation as u64 + 1));
            }
            let commit = git.commit("changed");
            let (warm, blob) = build(&git, &commit, &Selection::default(), before.as_ref());
            let (cold, _) = build(&git, &commit, &Selection::default(), None);
            prop_assert_eq!(&Built { reused_fragments: warm.reused_fragments, ..cold }, &warm);
            before = Some(earlier(&warm, &blob));
        }
    }
}

#[tokio::test]
async fn an_origin_takes_over_what_it_published_and_does_without_when_the_index_is_lost() {
    let (home, upstream) = (Home::new(), Upstream::small());
    for number in 0..8 {
        upstream.push(&format!("deploy/large-{number}"), &text(number, 3 << 20));
    }
    let (node, first) = home.start_published(&upstream).await;
    let index = |blob| home.blob(&blob).with_extension("fragments");
    // It is kept after the publication.
    node.repository(|state| state.attempts > 0).await;
    assert!(index(blob_of(&first)).exists());
    let count = async |result| node.metric(&format!("weir_origin_fragments_total{{result=\"{result}\"}}")).await;
    let (made, reused) = (count("made").await, count("reused").await);
    assert!(made >= 3.0 && reused == 0.0, "{made} {reused}");

    upstream.push("deploy/large-3", &text(100, 3 << 20));
    node.poll().await;
    let second = node.published(|published| published.version() != first.version()).await;
    let (made_then, reused) = (count("made").await, count("reused").await);
    assert!(reused >= 1.0 && made_then - made <= 2.0, "{made_then} {reused}");
    // What it has in common with the first stands on the disk once.
    let (shared, whole) = (home.blob(&blob_of(&second)).with_extension("parts"), home.blob(&blob_of(&second)));
    assert!(shared.join("1").exists() && !whole.exists());
    assert_eq!(fs::metadata(shared.join("0")).unwrap().ino(), fs::metadata(home.blob(&blob_of(&first))).unwrap().ino());
    node.tarball(&second).await;
    // Where that rots, both are made again.
    let mut rotten = fs::read(shared.join("0")).unwrap();
    rotten[100_000] ^= 1;
    fs::write(shared.join("0"), rotten).unwrap();
    node.tarball(&first).await;
    node.tarball(&second).await;
    assert!(!shared.exists() && whole.exists());

    let reused = count("reused").await;
    std::fs::write(index(blob_of(&second)), b"something else").unwrap();
    upstream.push("deploy/large-3", &text(101, 3 << 20));
    node.poll().await;
    let third = node.published(|published| published.version() != second.version()).await;
    node.tarball(&third).await;
    assert_eq!(count("reused").await, reused);
    node.stop().await;
}
