//! What is unpacked is what was packed, and its tarball is that of the same files in Git.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use bytes::Bytes;
use proptest::prelude::*;
use weir_git::tree::GitTree;
use weir_protocol::digest::{ObjectDigest, Sha256};
use weir_tarball::{BuildContext, Built, Contents, Filters, FrameSink, Limits, Selection, TarballError};

use super::*;
use crate::archive::{FilePath, SpoolStore};

#[test]
fn records_hard_links_and_old_directories_are_read() {
    let long = format!("shop/{}", "l".repeat(200));
    let archive = tar(&[
        member(b"pax_global_header", b'g', b"", &pax("comment", b"of git archive")),
        member(b"shop/old/", b'0', b"", b""),
        [member(b"", b'L', b"", format!("{long}\0").as_bytes()), file("shop/l", b"1")].concat(),
        [member(b"", b'K', b"", b"old/x\0"), member(b"shop/link", b'2', b"", b"")].concat(),
        [
            member(b"p", b'x', b"", &[pax("path", b"shop/b"), pax("size", b"1"), pax("mtime", b"1.5")].concat()),
            file("shop/x", b"2"),
        ]
        .concat(),
        [member(b"p", b'x', b"", &pax("SCHILY.xattr.user.x", b"\n\n9 path=y\n")), file("shop/old/c", b"3")].concat(),
        member(b"./shop//hard", b'1', b"shop/./b", b""),
        member(b"shop/old/", b'5', b"", b""),
    ]);
    let expected = ["b = 2", "hard = 2", "link -> old/x", &format!("{} = 1", &long[5..]), "old/", "old/c = 3"];
    assert_eq!(lines(&archive, &Layout::StripTop), expected);
    let (_, contents) = unpacked(&archive, &Layout::StripTop, &BOUNDS).unwrap();
    assert_eq!(contents, b"123", "a hard link has no contents of its own");
    let several = [gzip(&archive[..1000]), gzip(&archive[1000..])].concat();
    for compressed in [gzip(&archive), several, zstd(&archive, 20)] {
        assert_eq!(lines(&compressed, &Layout::StripTop), expected);
    }
    let one = Layout::OneFile(FilePath::new("app.tgz").unwrap());
    assert_eq!(unpacked(&gzip(&archive), &one, &BOUNDS).unwrap().1, gzip(&archive), "not an archive here");
    let below = Layout::OneFile(FilePath::new("app/deploy.yaml").unwrap());
    assert_eq!(lines(b"a: 1", &below), ["app/", "app/deploy.yaml = a: 1"]);
    for path in ["..", "", "/a", "a/", "a//b", "a/../b", "./a", ".git/a"] {
        assert!(FilePath::new(path).is_none(), "{path}");
    }
}

/// Frames by digest.
#[derive(Default)]
struct Frames(Mutex<BTreeMap<String, Bytes>>);

impl FrameSink for Frames {
    fn put(&self, frame: Bytes) -> std::io::Result<ObjectDigest> {
        let digest = ObjectDigest::of(&frame);
        self.0.lock().unwrap().insert(digest.to_string(), frame);
        Ok(digest)
    }
}

fn build(contents: &impl Contents, selection: &Selection) -> Result<(Built, usize), TarballError> {
    let context = BuildContext { limits: &Limits::default(), threads: 2, base: None, interrupt: &RUN };
    let frames = Frames::default();
    let built = weir_tarball::build(contents, selection, &context, &frames)?;
    let frames = frames.0.into_inner().unwrap().len();
    Ok((built, frames))
}

fn run(dir: &Path, program: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new(program);
    command.current_dir(dir).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

#[test]
fn a_tarball_of_an_archive_is_that_of_the_same_files_in_git() {
    let dir = tempfile::tempdir().unwrap();
    let chart = dir.path().join("chart");
    // Several frames.
    let mut large = vec![0; 6 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut large);
    for (path, contents) in [
        ("Chart.yaml", &b"name: shop\n"[..]),
        ("templates-more/x", b"x"),
        ("templates.txt", b""),
        ("templates/a.yaml", b"a"),
        ("templates/deep/er/b.yaml", b"b"),
        ("templates/run.sh", b"#!/bin/sh"),
        ("crds/large", &large),
    ] {
        fs::create_dir_all(chart.join(path).parent().unwrap()).unwrap();
        fs::write(chart.join(path), contents).unwrap();
    }
    fs::set_permissions(chart.join("templates/run.sh"), fs::Permissions::from_mode(0o755)).unwrap();
    for (target, link) in [
        ("a.yaml", "templates/inside"),
        ("../Chart.yaml", "templates/up"),
        ("../../etc/passwd", "templates/out"),
        ("/etc/passwd", "absolute"),
        ("templates/deep", "directory"),
        ("directory/../Chart.yaml", "through"),
        ("templates/../Chart.yaml", "around"),
    ] {
        symlink(target, chart.join(link)).unwrap();
    }
    run(&chart, "git", &["init", "-q", "-b", "main"]);
    run(&chart, "git", &["add", "."]);
    run(&chart, "git", &["-c", "user.name=A", "-c", "user.email=a@example.com", "commit", "-q", "-m", "x"]);
    let commit: weir_protocol::commit_id::CommitId =
        String::from_utf8(run(&chart, "git", &["rev-parse", "HEAD"])).unwrap().trim().parse().unwrap();
    let repository = gix::open_opts(&chart, gix::open::Options::isolated()).unwrap();
    let archives = [
        run(&chart, "git", &["archive", "--prefix", "shop/", "HEAD"]),
        run(dir.path(), "tar", &["--exclude", "chart/.git", "-czf", "-", "chart"]),
        run(dir.path(), "tar", &["--exclude", "./chart/.git", "--format", "pax", "-cf", "-", "./chart"]),
    ];
    let store = SpoolStore::new(dir.path().join("x.artifacts"));
    let patterns = |patterns: &[&str]| patterns.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    for (folder, include, exclude) in [
        ("", &[][..], &[][..]),
        ("", &["templates/**/*.yaml"], &[]),
        ("", &["*.yaml", "crds/**"], &["templates/deep/**"]),
        ("templates", &[], &["run.sh"]),
        ("templates/deep", &[], &[]),
    ] {
        let filters = Filters::new(&patterns(include), &patterns(exclude)).unwrap();
        let selection = Selection { folder: folder.parse().unwrap(), filters, ..Selection::default() };
        let tree = GitTree { repository: repository.clone(), commit: commit.clone(), selection: &selection, lfs: None };
        let (git, frames) = build(&tree, &selection).unwrap();
        for archive in &archives {
            let key = (Sha256::of(archive), Layout::StripTop);
            let spool = store.add(key, &archive[..], &BOUNDS, &RUN).unwrap();
            let (built, same) = build(&spool.open(&selection.folder).unwrap(), &selection).unwrap();
            assert_eq!((built.digest, built.size, built.entries), (git.digest, git.size, git.entries), "{folder}");
            assert_eq!((&built.omitted, &built.zstd, same), (&git.omitted, &git.zstd, frames));
        }
        assert_eq!(git.omitted.is_empty(), folder == "templates/deep" || !include.is_empty(), "{:?}", git.omitted);
    }
    let spool = store.get(&(Sha256::of(&archives[0]), Layout::StripTop)).unwrap();
    for (folder, reason) in [
        ("templates/none", "the revision has no folder `templates/none`"),
        ("Chart.yaml/x", "`Chart.yaml` is not a folder but a file"),
        ("directory", "`directory` is not a folder but a symlink"),
    ] {
        let selection = Selection { folder: folder.parse().unwrap(), ..Selection::default() };
        let error = build(&spool.open(&selection.folder).unwrap(), &selection).unwrap_err();
        assert_eq!(error.to_string(), reason);
    }
}

#[derive(Debug, Clone)]
enum Node {
    File(Vec<u8>, bool),
    Link(String),
}

fn node() -> impl Strategy<Value = Node> {
    prop_oneof![
        (proptest::collection::vec(any::<u8>(), 0..700), any::<bool>())
            .prop_map(|(bytes, mode)| Node::File(bytes, mode)),
        "(\\.\\./){0,2}[a-c]{1,4}(/[a-c.]{2,3}x){0,2}".prop_map(Node::Link),
    ]
}

proptest! {
    #[test]
    fn every_tree_is_read_as_it_was_written(
        nodes in proptest::collection::btree_map("[ab]{1,2}(/[ab.-]{1,2}x){0,3}(/[c]{1,120}){0,1}", node(), 1..12),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut builder = tar::Builder::new(Vec::new());
        for (path, node) in &nodes {
            let mut header = tar::Header::new_gnu();
            match node {
                Node::File(contents, executable) => {
                    header.set_size(contents.len() as u64);
                    header.set_mode(if *executable { 0o755 } else { 0o644 });
                    builder.append_data(&mut header, format!("top/{path}"), &contents[..]).unwrap();
                }
                Node::Link(target) => {
                    header.set_size(0);
                    header.set_entry_type(tar::EntryType::Symlink);
                    builder.append_link(&mut header, format!("top/{path}"), target).unwrap();
                }
            }
        }
        let archive = builder.into_inner().unwrap();
        let conflict = nodes.keys().any(|path| nodes.keys().any(|other| other.starts_with(&format!("{path}/"))));
        let compressed = gzip(&archive);
        let result = unpacked(&compressed, &Layout::StripTop, &BOUNDS);
        prop_assert_eq!(result.is_err(), conflict);
        if let Ok((index, contents)) = result {
            let leaves: Vec<_> = index.below(b"").filter(|(_, kind)| **kind != EntryKind::Directory).collect();
            prop_assert_eq!(leaves.len(), nodes.len());
            for (path, kind) in leaves {
                let same = match (kind, &nodes[str::from_utf8(path).unwrap()]) {
                    (EntryKind::File { file, executable }, Node::File(expected, mode)) => {
                        executable == mode && contents[file.offset as usize..][..file.size as usize] == expected[..]
                    }
                    (EntryKind::Symlink { target }, Node::Link(expected)) => target == expected.as_bytes(),
                    _ => false,
                };
                prop_assert!(same, "{:?}", String::from_utf8_lossy(path));
            }
            prop_assert_eq!(Index::decode(&index.encode()), Some(index));
            let short = &compressed[..cut.index(compressed.len())];
            prop_assert!(unpacked(short, &Layout::StripTop, &BOUNDS).is_err(), "no part of an archive is enough");
        }
    }

    #[test]
    fn no_bytes_break_the_reader(
        mut archive in proptest::collection::vec(any::<u8>(), 512..2048),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let _ = unpacked(&archive, &Layout::AsIs, &BOUNDS);
        archive = tar(&[file("a/b", b"1"), member(b"a/c", b'2', b"b", b""), member(b"", b'x', b"", &pax("path", b"d")), file("e", b"2")]);
        for (at, byte) in changes {
            let at = at.index(archive.len());
            archive[at] = byte;
        }
        for header in [0, 1024, 1536, 2560] {
            let mut fixed = tar::Header::new_old();
            fixed.as_mut_bytes().copy_from_slice(&archive[header..header + 512]);
            fixed.set_cksum();
            archive[header..header + 512].copy_from_slice(fixed.as_bytes());
        }
        let _ = unpacked(&archive, &Layout::AsIs, &BOUNDS);
    }
}
