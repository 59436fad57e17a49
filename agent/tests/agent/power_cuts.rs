//! Power cuts. In the nightly run only: they need root, loop devices, and the programs that make file systems.
//!
//! The disk of the agent is an image on a file system with clones, so that a copy of it is of one moment. What the agent's file
//! system has not written by then is lost in the copy, as it is when the power is cut. A disk that loses what it has in a cache of
//! its own is not tried.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::TestEdge;
use crate::tarball::Written;
use weir_release::Unchanged;

const CUTS: usize = 40;

const FILES: usize = 400;

/// In each version a tenth of the files differs from the version before.
const TURNS: usize = 10;

fn files(version: usize) -> BTreeMap<String, Vec<u8>> {
    let contents = |file: usize| {
        let changed = (0..=version).rev().find(|at| at % TURNS == file % TURNS).unwrap_or(0);
        let mut contents = vec![0; 1000 + file * 20];
        blake3::Hasher::new().update(format!("{file}/{changed}").as_bytes()).finalize_xof().fill(&mut contents);
        contents
    };
    let named = (0..FILES).map(|file| (format!("{:02}/{file:03}", file / 20), contents(file)));
    named.chain([("version".to_owned(), version.to_string().into_bytes())]).collect()
}

fn run<S: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = S>) {
    let output = Command::new(program).args(arguments).output().unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
}

/// It ends with this value.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, options: &str, at: PathBuf) -> Self {
        fs::create_dir_all(&at).unwrap();
        run("mount", ["-o".as_ref(), options.as_ref(), image.as_os_str(), at.as_os_str()]);
        Self(at)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        run("umount", ["--lazy".as_ref(), self.0.as_os_str()]);
    }
}

fn make(program: &str, image: &Path, bytes: u64) {
    fs::File::create(image).and_then(|file| file.set_len(bytes)).unwrap();
    run(program, [image]);
}

/// The version of `current` on a disk, on which every release must be whole.
fn current(root: &Path) -> Option<usize> {
    let service = root.join(shop().as_str());
    let version = |release: &Path| {
        let number: usize = fs::read_to_string(release.join("version")).unwrap().parse().unwrap();
        for (path, contents) in files(number) {
            let found = fs::read(release.join(&path));
            assert!(found.as_ref().is_ok_and(|found| *found == contents), "{path} of version {number}: {found:?}");
        }
        number
    };
    for release in fs::read_dir(service.join("releases")).unwrap().map(|entry| entry.unwrap().path()) {
        if !release.file_name().unwrap().as_encoded_bytes().starts_with(b".") {
            version(&release);
        }
    }
    let current = service.join("current");
    current.is_symlink().then(|| version(&current))
}

async fn cuts(make_disk: &str, options: &'static str, unchanged: Unchanged) {
    let world = World::new();
    make("mkfs.xfs", &world.path().join("machine"), 4 << 30);
    let machine = Arc::new(Mount::new(&world.path().join("machine"), "loop", world.path().join("machine.mounted")));
    make(make_disk, &machine.path("disk"), 600 << 20);
    let _disk = Mount::new(&machine.path("disk"), options, world.path().join("root"));

    let edge = TestEdge::start(world.path()).await;
    let publish = |edge: &TestEdge, version| {
        let files = files(version);
        let tar = files.iter().fold(Written::default(), |tar, (path, contents)| tar.file(path, contents));
        edge.answers.publish(&shop(), tar.finish());
    };
    publish(&edge, 0);
    let mut config = world.config(&[edge.url()]);
    config.releases.unchanged = unchanged;
    let mut agent = Agent::with_release(config).await;
    let (switched, is_over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let cutting = tokio::task::spawn_blocking({
        let (machine, switched, is_over) = (machine.clone(), switched.clone(), is_over.clone());
        let after = world.path().join("after");
        move || {
            let ended = std::panic::catch_unwind(|| {
                for _ in 0..CUTS {
                    let least = switched.load(Ordering::SeqCst);
                    run(
                        "cp",
                        [
                            "--reflink=always".as_ref(),
                            machine.path("disk").as_os_str(),
                            machine.path("cut").as_os_str(),
                        ],
                    );
                    let disk = Mount::new(&machine.path("cut"), options, after.clone());
                    let current = current(&disk.0);
                    assert!(current >= Some(least), "{current:?} is current, and {least} was");
                }
            });
            is_over.store(true, Ordering::SeqCst);
            ended
        }
    });
    let mut version = 0;
    while !is_over.load(Ordering::SeqCst) {
        version += 1;
        publish(&edge, version);
        assert_eq!(agent.poll().await.last_error, None);
        switched.store(version, Ordering::SeqCst);
    }
    agent.stop().await;
    let ended = cutting.await.unwrap();
    assert!(ended.is_ok() && version > 1, "{make_disk}: {version} versions");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_leaves_whole_releases() {
    if std::env::var_os("WEIR_NIGHTLY").is_none() {
        return;
    }
    // A copy has the identity of the original.
    for (make_disk, options, unchanged) in [
        ("mkfs.ext4", "loop", Unchanged::Auto),
        ("mkfs.xfs", "loop,nouuid", Unchanged::Auto),
        ("mkfs.btrfs", "loop", Unchanged::Clone),
    ] {
        cuts(make_disk, options, unchanged).await;
    }
}
