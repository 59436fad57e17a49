//! Mirrors damaged by a power loss or a disk: they are replaced automatically.

use std::io::{Seek, SeekFrom, Write};

use crate::prelude::*;

const SET_ASIDE: &str = "weir_origin_mirrors_set_aside_total{repository=\"shop\"}";

/// The only mirror of the repository.
pub(crate) fn mirror(home: &Home) -> PathBuf {
    only_mirror(&home.data_dir().join("mirrors/shop"))
}

/// The same by the folder of a repository.
pub(crate) fn only_mirror(folder: &Path) -> PathBuf {
    let entries = fs::read_dir(folder).unwrap();
    let mut mirrors = entries.map(|entry| entry.unwrap().path()).filter(|path| path.extension().unwrap() == "git");
    mirrors.next().unwrap()
}

fn packs(mirror: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(mirror.join("objects/pack")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|found| found == ending)).collect()
}

/// Overwrites the middle of a file, as a failing disk does.
fn corrupt(file: &Path) {
    let length = fs::metadata(file).unwrap().len();
    let mut permissions = fs::metadata(file).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(file, permissions).unwrap();
    let mut file = fs::OpenOptions::new().write(true).open(file).unwrap();
    file.seek(SeekFrom::Start(12)).unwrap();
    file.write_all(&vec![0; usize::try_from(length).unwrap() - 12 - 20]).unwrap();
}

fn truncate(file: &Path) {
    let length = fs::metadata(file).unwrap().len();
    let bytes = fs::read(file).unwrap();
    fs::remove_file(file).unwrap();
    fs::write(file, &bytes[..usize::try_from(length).unwrap() / 2]).unwrap();
}

/// Removes the packs of the mirror.
pub(crate) fn lose_packs(home: &Home) {
    packs(&mirror(home), "pack").iter().for_each(|pack| fs::remove_file(pack).unwrap());
}

/// Pushes, and checks that the push is published and the mirror intact.
async fn follows_again(home: &Home, node: &Node, upstream: &Upstream, damage: &str) {
    let commit = upstream.push("deploy/app.yaml", damage.as_bytes());
    node.running.trigger_poll(&crate::node::repository());
    let descriptor = node.published(|d| commit_of(d) == commit).await;
    node.tarball(&descriptor).await;
    assert_eq!(node.metric(SET_ASIDE).await, 1.0, "{damage}");
    let fsck = git_command(&mirror(home)).args(["fsck", "--full"]).output().unwrap();
    assert!(fsck.status.success(), "{damage}: {}", String::from_utf8_lossy(&fsck.stderr));
}

#[tokio::test]
async fn a_mirror_that_a_power_loss_damaged_is_cloned_again() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 7] = [
        ("HEAD is empty", |mirror| fs::write(mirror.join("HEAD"), "").unwrap()),
        ("the configuration is zeroes", |mirror| fs::write(mirror.join("config"), [0; 66]).unwrap()),
        ("packed-refs is zeroes", |mirror| fs::write(mirror.join("packed-refs"), [0; 300]).unwrap()),
        ("the packs are cut short", |mirror| packs(mirror, "pack").iter().for_each(|pack| truncate(pack))),
        ("the indices are empty", |mirror| {
            for index in packs(mirror, "idx") {
                fs::remove_file(&index).unwrap();
                fs::write(&index, "").unwrap();
            }
        }),
        ("the packs never arrived", |mirror| {
            packs(mirror, "pack").iter().for_each(|pack| fs::remove_file(pack).unwrap());
        }),
        ("nothing is in it", |mirror| {
            fs::remove_dir_all(mirror).unwrap();
            fs::create_dir(mirror).unwrap();
        }),
    ];
    for (name, damage) in damages {
        let (home, upstream) = (Home::new(), Upstream::small());
        let (node, before) = home.start_published(&upstream).await;
        node.running.cut().await;
        damage(&mirror(&home));
        let node = home.start(home.config(&upstream.url())).await;
        assert_eq!(node.descriptor().await.bytes(), before.bytes(), "{name}: served meanwhile");
        node.tarball(&before).await;
        follows_again(&home, &node, &upstream, name).await;
        node.stop().await;
    }
}

#[tokio::test]
async fn corrupt_objects_of_a_running_origin_are_fetched_again() {
    let (home, upstream, node, _) = started().await;
    packs(&mirror(&home), "pack").iter().for_each(|pack| corrupt(pack));
    // Only the new file comes with the push; the other one is read from the mirror.
    let commit = upstream.push("deploy/db.yaml", b"size: 3\n");
    node.running.trigger_poll(&crate::node::repository());
    let descriptor = node.published(|d| commit_of(d) == commit).await;
    assert_eq!(crate::node::names(&node.tarball(&descriptor).await), ["app.yaml", "db.yaml"]);
    assert_eq!(node.metric(SET_ASIDE).await, 1.0);
    let siblings = || fs::read_dir(home.data_dir().join("mirrors/shop")).unwrap().count();
    until(async || siblings() == 1).await;
    node.stop().await;
}

#[tokio::test]
async fn a_damaged_mirror_stays_while_the_upstream_is_away_and_published_versions_are_served() {
    let (home, upstream, node, before) = started().await;
    node.stop().await;
    upstream.take_away();
    fs::write(mirror(&home).join("HEAD"), "").unwrap();
    let node = home.start(home.config(&upstream.url())).await;
    node.repository(|state| state.applied_polls > 0 && !state.mirrored).await;
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    node.tarball(&before).await;
    upstream.give_back();
    follows_again(&home, &node, &upstream, "the upstream was away").await;
    node.stop().await;
}

#[tokio::test]
async fn a_malformed_tree_of_the_upstream_is_not_damage() {
    let (_home, upstream, node, before) = started().await;
    let commit = upstream.push_tree_with_a_name_twice("deploy");
    node.poll().await;
    node.poll().await;
    let condition = node.running.condition(&service()).unwrap().borrow().clone();
    assert!(format!("{condition:?}").contains("is invalid: the tree"), "{condition:?} {commit}");
    assert_eq!(node.descriptor().await.bytes(), before.bytes());
    assert_eq!(node.metric(SET_ASIDE).await, 0.0);
    assert_eq!(node.metric("weir_origin_builds_total{result=\"failed\"}").await, 1.0, "not tried again and again");
    node.stop().await;
}
