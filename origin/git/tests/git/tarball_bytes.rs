//! The exact bytes of a tarball: golden files, and what must not change them.

use std::sync::atomic::AtomicUsize;

use weir_git::tree::{GitTree, content_key};
use weir_tarball::{BuildContext, FrameSink, build};

use crate::prelude::*;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/protocol/golden").join(name)
}

/// Compares with a golden file. With `WEIR_GOLDEN=write` it is written instead: for a new format, never for this one.
fn assert_golden(name: &str, tar: &[u8]) {
    if std::env::var_os("WEIR_GOLDEN").is_some_and(|value| value == "write") {
        fs::write(golden(name), tar).unwrap();
    }
    assert!(
        fs::read(golden(name)).unwrap() == tar,
        "{name} is not what was built: every digest in the field would change"
    );
}

/// One of everything that the format knows.
fn one_of_everything(git: &Git) -> CommitId {
    git.write("README.md", "hello\n");
    git.write_executable("bin/run", "#!/bin/sh\nexit 0\n");
    git.write("empty", "");
    git.write("block", [b'b'; 512]);
    git.link("bin/link", "run");
    git.link("bin/long-link", format!("{}/x", "t".repeat(120)));
    git.write("käse", "utf-8\n");
    git.write(b"latin-\xe4\xff", "not utf-8\n");
    git.write(format!("{}/{}", "d".repeat(99), "f".repeat(99)), "long path\n");
    git.write(format!("{}/x", "e".repeat(99)), "the directory's slash is the hundredth byte\n");
    git.write("f".repeat(100), "a name of a hundred bytes\n");
    git.commit_file("g".repeat(101), "a name of a hundred and one bytes\n")
}

#[test]
fn golden_tarballs_are_reproduced() {
    let git = Git::new();
    let commit = one_of_everything(&git);
    let (_, tar) = build_tar(&git.dir, &commit, &Selection::default(), 2).unwrap();
    assert_golden("everything.tar", &tar);
    let filters = Filters::new(&["run".into()], &[]).unwrap();
    let selection = Selection { folder: "bin".parse().unwrap(), filters, ..Selection::default() };
    let (_, tar) = build_tar(&git.dir, &commit, &selection, 1).unwrap();
    assert_golden("one-file.tar", &tar);
}

/// The smallest golden tar, put together here by hand and not by the code that is tested.
#[test]
fn a_golden_tarball_has_the_layout_of_the_protocol() {
    let mut header = vec![0; 512];
    for (offset, bytes) in [
        (0, &b"run"[..]),
        (100, b"0000755\x000000000\x000000000\x0000000000021\x0000000000000\x00"),
        (156, b"0"),
        (257, b"ustar\x0000"),
        (329, b"0000000\x000000000\x00"),
    ] {
        header[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum::<u32>() + 8 * 32;
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut expected = header;
    expected.extend_from_slice(b"#!/bin/sh\nexit 0\n");
    expected.resize(1024 + 1024, 0);
    assert_eq!(fs::read(golden("one-file.tar")).unwrap(), expected);
}

/// More than one frame, large files among small ones.
fn several_frames(git: &Git) -> CommitId {
    let mut seed = 7u64;
    let mut noise = |length: usize| -> Vec<u8> {
        let next = |_| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        };
        (0..length).map(next).collect()
    };
    git.write("large/several-frames", noise(5 << 20));
    git.write("large/one-frame", noise(2 << 20));
    for at in 0..100 {
        git.write(format!("small/{}/{at}", at % 7), noise(30_000));
    }
    git.write("zeros", vec![0; 5 << 20]);
    git.commit("several frames")
}

#[test]
fn neither_threads_nor_packs_change_a_byte() {
    let git = Git::new();
    let commit = several_frames(&git);
    let (first, tar) = build_tar(&git.dir, &commit, &Selection::default(), 1).unwrap();
    assert_eq!(read_tar(&tar).len(), 100 + 7 + 2 + 2 + 1);
    for threads in [4, 0] {
        let (again, _) = build_tar(&git.dir, &commit, &Selection::default(), threads).unwrap();
        assert_eq!(again, first, "with {threads} threads");
    }
    git.run(["repack", "-adfq", "--depth=10"]);
    let (repacked, _) = build_tar(&git.dir, &commit, &Selection::default(), 2).unwrap();
    assert_eq!(repacked, first);
}

#[test]
fn a_sink_that_fails_and_a_request_to_stop_end_a_build() {
    struct Full(AtomicUsize);
    impl FrameSink for Full {
        fn put(&self, frame: Bytes) -> std::io::Result<ObjectDigest> {
            let room = |room: usize| room.checked_sub(frame.len());
            self.0
                .try_update(Ordering::Relaxed, Ordering::Relaxed, room)
                .map_err(|_| std::io::ErrorKind::StorageFull)?;
            Ok(ObjectDigest::of(&frame))
        }
    }
    let git = Git::new();
    let commit = several_frames(&git);
    let repository = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
    let selection = Selection::default();
    let tree = GitTree { repository, commit, selection: &selection, lfs: None };
    let run = |room: usize, stop: bool| {
        let stop = AtomicBool::new(stop);
        let context = BuildContext { limits: &Limits::default(), threads: 2, base: None, interrupt: &stop };
        build(&tree, &selection, &context, &Full(room.into())).unwrap_err()
    };
    for room in [0, 3 << 20] {
        let error = run(room, false);
        assert!(matches!(&error, TarballError::Write(e) if e.kind() == std::io::ErrorKind::StorageFull), "{error}");
    }
    assert!(matches!(run(usize::MAX, true), TarballError::Interrupted));
}

#[test]
fn the_content_key_covers_exactly_the_inputs_of_the_bytes() {
    let git = Git::new();
    git.write("deploy/prod/a", "a");
    let first = git.commit_file("elsewhere", "1");
    let key = |commit: &CommitId, name: &str, folder: &str, include: &[&str], exclude: &[&str]| {
        let repo = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
        let owned = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let filters = Filters::new(&owned(include), &owned(exclude)).unwrap();
        let selection = Selection { folder: folder.parse().unwrap(), filters, ..Selection::default() };
        content_key(&repo, commit, &name.parse().unwrap(), &selection).unwrap()
    };
    let of = |commit: &CommitId| key(commit, "shop", "deploy/prod", &[], &[]);
    git.write("elsewhere", "2");
    let second = git.commit_file("deploy/other", "x");
    assert_eq!(of(&first), of(&second), "a commit elsewhere changes nothing");

    let base = of(&second);
    let mut keys = vec![
        base,
        key(&second, "shop2", "deploy/prod", &[], &[]),
        key(&second, "shop", "deploy", &[], &[]),
        key(&second, "shop", "deploy/prod", &["a"], &[]),
        key(&second, "shop", "deploy/prod", &[], &["a"]),
        key(&second, "shop", "deploy/prod", &["a", "b"], &[]),
        key(&second, "shop", "deploy/prod", &["a"], &["b"]),
    ];
    git.write("deploy/prod/a", "b");
    keys.push(of(&git.commit("inside")));
    git.write("deploy/prod/a", "a");
    git.write(".gitattributes", "*.md export-ignore\n");
    keys.push(of(&git.commit("attributes at the top")));
    git.write("deploy/.gitattributes", "*.md export-ignore\n");
    keys.push(of(&git.commit("attributes between")));
    git.write("elsewhere-dir/.gitattributes", "*.md export-ignore\n");
    assert_eq!(of(&git.commit("attributes elsewhere")), *keys.last().unwrap());
    for (at, one) in keys.iter().enumerate() {
        assert_eq!(keys.iter().filter(|other| *other == one).count(), 1, "key {at} is not its own");
    }
}
