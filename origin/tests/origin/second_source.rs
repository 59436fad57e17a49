//! A folder on the disk as a source: all that another kind has to bring that is not Git.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;

use weir_origin::source::folder::FolderTree;
use weir_origin::tarball::list;

use crate::prelude::*;
use crate::tar_reading::{Frames, build_contents};

/// Unpacks a tarball and compares what is there then; of modes only what `run` has.
fn assert_unpacks_to(tar: &[u8], root: &Path) {
    let dir = tempfile::tempdir().unwrap();
    tar::Archive::new(tar).unpack(dir.path()).unwrap();
    let differences = Command::new("diff").args(["-r", "--no-dereference"]).args([dir.path(), root]).output().unwrap();
    assert!(differences.status.success(), "{}", String::from_utf8_lossy(&differences.stdout));
    let is_executable = |root: &Path| fs::metadata(root.join("run")).unwrap().permissions().mode() & 0o100 != 0;
    assert_eq!(is_executable(dir.path()), is_executable(root));
}

#[test]
fn a_directory_source_is_built_and_its_frames_are_reused() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("folder");
    let write = |path: &str, contents: &[u8]| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, contents).unwrap();
    };
    let noise =
        |bytes: usize| -> Vec<u8> { (0..bytes as u32).map(|at| (at.wrapping_mul(0x9E37_79B9) >> 21) as u8).collect() };
    for path in ["a-b", "a/x", "a/y/z", "a0", "run"] {
        write(path, path.as_bytes());
    }
    for number in 0..40 {
        write(&format!("many/{number}"), &noise(150_000 + number));
    }
    write("zz-large", &noise(9 << 20));
    let mode = |mode| fs::set_permissions(root.join("run"), fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    symlink("y/z", root.join("a/link")).unwrap();
    let (selection, limits) = (Selection::default(), Limits::default());
    let folder = || FolderTree::read(&root).unwrap();
    let frames = Frames::default();
    let build = |base: Option<&Base>| build_contents(&frames, &folder(), &selection, 2, &limits, base).unwrap();
    let cold = || build_contents(&Frames::default(), &folder(), &selection, 2, &limits, None).unwrap().0;
    let (first, tar) = build(None);
    assert_unpacks_to(&tar, &root);
    assert!(first.zstd.len() > 10);
    assert_eq!(cold(), first);

    // A file changes, and of another the mode alone.
    write("many/30", b"changed");
    mode(0o644);
    let (second, tar) = build(Some(&frames.base(&first)));
    assert_unpacks_to(&tar, &root);
    assert!(second.reused_frames > 5, "{}", second.reused_frames);
    assert_eq!(Built { reused_frames: 0, ..second }, cold());
    symlink("many", root.join("m")).unwrap();
    // By the letter it leads to `run`, and through the other link to wherever that leads.
    symlink("m/../run", root.join("out")).unwrap();
    let (third, _) = build(None);
    assert_eq!(
        third.omitted.iter().map(|left| (left.path.as_str(), left.reason)).collect::<Vec<_>>(),
        [("out", OmissionReason::Symlink)]
    );

    let filters = Filters::new(&["a".to_owned(), "**/7".to_owned()], &["z".to_owned()]).unwrap();
    let (selection, mut listed) = (Selection { filters, ..Selection::default() }, Vec::new());
    let stop = AtomicBool::new(false);
    let found = list(&folder(), &selection, &limits, &stop, &mut |entry| listed.push(entry.path)).unwrap();
    assert_eq!(listed, ["a/", "a/link", "a/x", "many/", "many/7"]);
    assert_eq!(found.file_bytes, 3 + 150_007);
}

#[tokio::test]
async fn a_folder_is_followed_published_and_served_as_a_repository_is() {
    let (home, site) = (Home::new(), tempfile::tempdir().unwrap());
    let deploy = site.path().join("deploy");
    fs::create_dir(&deploy).unwrap();
    fs::write(deploy.join("app.yaml"), "1").unwrap();
    let mut config = home.config(&format!("folder://{}", site.path().display()));
    config.services[0].revision = "HEAD".parse().unwrap();
    let node = home.start(config.clone()).await;
    let first = node.published(|_| true).await;
    assert_eq!(names(&node.tarball(&first).await), ["app.yaml"]);
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), first.bytes(), "nothing moved");

    fs::write(site.path().join("beside"), "x").unwrap();
    fs::write(deploy.join("db.yaml"), "2").unwrap();
    node.poll().await;
    let second = node.descriptor().await;
    assert_ne!(second.publication().revision_id, first.publication().revision_id);
    assert_eq!(second.publication().commit, None);
    assert_eq!(names(&node.tarball(&second).await), ["app.yaml", "db.yaml"]);
    assert!(second.publication().generation > first.publication().generation);
    node.tarball(&first).await;
    node.stop().await;

    // An object is lost: it is built again of what the folder holds.
    fs::remove_file(home.object(&second.representations()[0].digest)).unwrap();
    let node = home.start(config).await;
    node.tarball(&second).await;

    // Without the folder the publication stays, and the repository reports the reason.
    fs::rename(&deploy, site.path().join("away")).unwrap();
    node.poll().await;
    assert_eq!(node.descriptor().await.bytes(), second.bytes());
    let state = node.status().await["services"][0]["condition"].clone();
    assert_eq!(state, "unhealthy", "{}", node.status().await);
    node.stop().await;
}

#[tokio::test]
async fn invalid_directory_sources_are_refused() {
    let home = Home::new();
    let error = weir_origin::start(home.config("folder://site")).await.err().unwrap().to_string();
    assert!(error.contains("folder:///srv/site"), "{error}");
}
