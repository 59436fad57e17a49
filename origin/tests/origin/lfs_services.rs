//! Services with LFS files in their tarballs.

use weir_git::lfs::LfsObjects;
use weir_git::tree::{content_key, lfs_files};
use weir_upstream::Upstream;

use crate::lfs::{fetch_from, file};
use crate::lfs_server::LfsBehavior;
use crate::prelude::*;
use crate::tar_reading::{Frames, build_into};

pub(crate) const ATTRIBUTES: &str = "*.bin filter=lfs diff=lfs merge=lfs -text\n";

fn with_lfs() -> Selection {
    Selection { lfs: true, ..Selection::default() }
}

fn files_of(git: &Git, commit: &CommitId, selection: &Selection) -> Result<Vec<String>, TarballError> {
    let repo = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
    let files = lfs_files(&repo, commit, selection, &Limits::default(), &AtomicBool::new(false))?;
    Ok(files.into_iter().map(|file| file.path).collect())
}

#[test]
fn a_file_is_omitted_without_the_option_or_without_a_valid_pointer() {
    let dir = tempfile::tempdir().unwrap();
    let (git, server) = (Git::init(dir.path()), LfsServer::start(dir.path(), None));
    git.write(".gitattributes", ATTRIBUTES);
    git.write("a.bin", server.store(b"x"));
    git.write("again.bin", server.store(b"x"));
    git.write("extended.bin", server.store(b"x").replace("oid ", "ext-0-foo sha256:00\noid "));
    // These are the files themselves.
    git.write("no-filter.txt", server.store(b"x"));
    git.write("no-pointer.bin", "version 1\n");
    let commit = git.commit_file("too-long.bin", server.store(b"x") + &"z".repeat(1000));
    assert!(files_of(&git, &commit, &Selection::default()).unwrap().is_empty());
    let (built, _) = build_tar(&git.dir, &commit, &Selection::default(), 1).unwrap();
    let omitted: Vec<_> = built.omitted.iter().map(|omission| (omission.path.as_str(), omission.reason)).collect();
    assert_eq!(omitted, ["a.bin", "again.bin", "extended.bin"].map(|path| (path, OmissionReason::LfsPointer)));

    assert_eq!(files_of(&git, &commit, &with_lfs()).unwrap(), ["a.bin"], "each object once");
    let error = build_tar(&git.dir, &commit, &with_lfs(), 1).unwrap_err();
    assert!(matches!(&error, TarballError::Lfs { path, .. } if path == "a.bin"), "{error}");
    let wanted = [file("a.bin", &server.store(b"x"))];
    fetch_from(&Upstream::new(server.url("x")), &git.dir, &wanted).unwrap();
    let (built, tar) = build_tar(&git.dir, &commit, &with_lfs(), 1).unwrap();
    assert_eq!(built.omitted.len(), 1);
    let contents = |path: &str| read_tar(&tar).into_iter().find(|entry| entry.path == path).unwrap().contents;
    assert_eq!([contents("a.bin"), contents("again.bin")], [b"x", b"x"]);
    assert!(contents("no-filter.txt").starts_with(b"version https://git-lfs"));
    assert_eq!(contents("no-pointer.bin"), b"version 1\n");
    assert!(contents("too-long.bin").len() > 1000);

    // Too large: refused before anything is fetched.
    let huge = format!("version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize 5000000000\n", "a".repeat(64));
    git.write("huge.bin", huge);
    let error = files_of(&git, &git.commit("huge"), &with_lfs()).unwrap_err();
    assert!(matches!(&error, TarballError::FileTooLarge { path, .. } if path == "huge.bin"), "{error}");
}

#[test]
fn a_content_key_depends_on_the_options_and_the_codec_only() {
    let git = Git::new();
    let commit = git.commit_file("a", "a");
    let repo = gix::open_opts(&git.dir, gix::open::Options::isolated()).unwrap();
    let key = |selection: &Selection| content_key(&repo, &commit, &"shop".parse().unwrap(), selection).unwrap();
    let without = key(&Selection::default());
    let with_gzip = Selection { gzip: true, ..Selection::default() };
    assert!(key(&with_lfs()) != without && key(&with_gzip) != without && key(&with_gzip) != key(&with_lfs()));
    // It changes with the codec only, so that an upgrade of the origin causes no other builds.
    let hex: String = without.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, "213114457180c9608d4b03965f46b8bc25c547ac017093b248b04090ea66472b");
}

#[test]
fn frames_with_lfs_are_reused_and_equal_those_of_a_full_build() {
    let dir = tempfile::tempdir().unwrap();
    let (git, server) = (Git::init(dir.path()), LfsServer::start(dir.path(), None));
    git.write(".gitattributes", ATTRIBUTES);
    let upstream = Upstream::new(server.url("x"));
    // Not the working tree: the objects next to the mirror would be committed as files.
    let mirror = git.dir.join(".git");
    let put = |number: u32, seed: u32| {
        let contents: Vec<u8> = (0..1_500_000u32).map(|at| (at.wrapping_mul(seed + 77) >> 13) as u8).collect();
        let pointer = server.store(&contents);
        git.write(format!("{number:02}.bin"), &pointer);
        fetch_from(&upstream, &mirror, &[file("x", &pointer)]).unwrap();
    };
    (0..12).for_each(|number| put(number, number));
    git.write("small.txt", "small");
    let build = |frames: &Frames, commit: &CommitId, selection: &Selection, base: Option<&Base>| {
        build_into(frames, &mirror, commit, selection, 2, &Limits::default(), base).unwrap().0
    };
    let (first, frames) = (git.commit("first"), Frames::default());
    let built = build(&frames, &first, &with_lfs(), None);
    let base = frames.base(&built);
    assert!(built.zstd.len() > 10);
    for (number, change) in [(7, 100), (0, 200), (11, 300)] {
        put(number, change);
        let commit = git.commit("changed");
        let from_nothing = build(&Frames::default(), &commit, &with_lfs(), None);
        let reusing = build(&frames, &commit, &with_lfs(), Some(&base));
        assert!(reusing.reused_frames > 0, "{reusing:?}");
        assert_eq!((reusing.digest, reusing.zstd), (from_nothing.digest, from_nothing.zstd));
    }
    // The same pointers without the option share no frames with it.
    let without = build(&frames, &first, &Selection::default(), Some(&base));
    assert_eq!((without.omitted.len(), without.reused_frames), (12, 0));
}

/// A repository with an LFS file in a folder.
pub(crate) struct Shop {
    pub(crate) home: Home,
    pub(crate) server: LfsServer,
    pub(crate) git: Git,
}

impl Shop {
    /// Behind TLS with a private authority and a password.
    pub(crate) fn new() -> Self {
        let home = Home::new();
        let root = home.file("git");
        let server = LfsServer::start(&root, Some(&home.file("")));
        let git = Git::init(&root.join("shop.git"));
        git.write(".gitattributes", ATTRIBUTES);
        git.write("deploy/app.yaml", "replicas: 1\n");
        git.commit_file("deploy/model.bin", server.store(b"the model itself"));
        std::fs::write(home.file("password"), "s3cret\n").unwrap();
        let shop = Self { home, server, git };
        shop.set_behavior(LfsBehavior::default());
        shop
    }

    pub(crate) fn set_behavior(&self, behavior: LfsBehavior) {
        self.server.set_behavior(LfsBehavior { authorization: Some("Basic Y2k6czNjcmV0".to_owned()), ..behavior });
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = self.home.config(&self.server.url("shop.git"));
        config.repositories[0].ca = Some(self.home.file("ca.pem"));
        config.repositories[0].username = Some("ci".to_owned());
        config.repositories[0].password_file = Some(self.home.file("password"));
        config.services[0].lfs = true;
        config
    }

    pub(crate) fn mirror(&self) -> PathBuf {
        let mut mirrors = std::fs::read_dir(self.home.data_dir().join("mirrors/shop")).unwrap();
        mirrors.next().unwrap().unwrap().path()
    }

    /// The only object on disk.
    pub(crate) fn object(&self) -> PathBuf {
        let mut found = self.mirror().join("lfs/objects");
        while found.is_dir() {
            found = std::fs::read_dir(found).unwrap().next().unwrap().unwrap().path();
        }
        found
    }
}

/// Why the service cannot follow its ref, once it cannot.
pub(crate) async fn failure(node: &Node) -> Value {
    let mut condition = node.running.condition(&service()).unwrap();
    in_time(condition.wait_for(|condition| matches!(condition, Condition::Unhealthy { .. }))).await.unwrap();
    shown(node).await
}

async fn shown(node: &Node) -> Value {
    let status = node.status().await;
    let service = status["services"].as_array().unwrap().iter().find(|each| each["name"] == SERVICE).unwrap();
    service["failure"].clone()
}

#[tokio::test]
async fn a_service_with_lfs_keeps_its_last_version_when_an_object_is_missing() {
    let shop = Shop::new();
    let mut config = shop.config();
    let node = shop.home.start(config.clone()).await;
    let descriptor = node.published(|_| true).await;
    assert!(descriptor.publication().omitted.is_empty());
    let tar = read_tar(&node.tarball(&descriptor).await);
    assert_eq!(tar.iter().find(|entry| entry.path == "model.bin").unwrap().contents, b"the model itself");
    assert_eq!(node.metric("weir_origin_lfs_objects_fetched_total").await, 1.0);
    assert_eq!(node.metric("weir_origin_lfs_bytes_fetched_total").await, 16.0);

    // A pointer to an object that the server does not have.
    shop.git.commit_file("deploy/other.bin", shop.server.store(b"x").replace("size 1", "size 2"));
    node.poll().await;
    let failed = failure(&node).await;
    assert_eq!(failed["step"], "lfs");
    assert!(failed["reason"].as_str().unwrap().contains("`other.bin`"), "{failed}");
    assert_eq!(node.descriptor().await.version(), descriptor.version());
    assert!(node.metric("weir_origin_lfs_failures_total").await >= 1.0);

    // The object is pushed.
    shop.git.commit_file("deploy/other.bin", shop.server.store(b"x"));
    node.poll().await;
    let mended = node.published(|published| published.version() != descriptor.version()).await;
    assert_eq!(read_tar(&node.tarball(&mended).await).len(), 3);
    assert_eq!(node.metric("weir_origin_lfs_objects_fetched_total").await, 2.0);
    node.stop().await;

    // A service without LFS has other content, and lists the omissions.
    config.services[0].lfs = false;
    let node = shop.home.start(config).await;
    let without = node.published(|published| published.version() != mended.version()).await;
    let omitted: Vec<_> = without.publication().omitted.iter().map(|o| (o.path.as_str(), o.reason)).collect();
    assert_eq!(omitted, [("model.bin", OmissionReason::LfsPointer), ("other.bin", OmissionReason::LfsPointer)]);
    node.stop().await;
}

#[tokio::test]
async fn a_pause_of_the_server_is_respected() {
    let shop = Shop::new();
    shop.set_behavior(LfsBehavior {
        api_response: Some(("429 Slow down", "Retry-After: 3600\r\n")),
        ..LfsBehavior::default()
    });
    let node = shop.home.start(shop.config()).await;
    node.repository(|state| state.lfs.as_ref().is_some_and(|lfs| lfs.held_until.is_some())).await;
    let reported = failure(&node).await;
    assert!(reported["reason"].as_str().unwrap().contains("answered 429"), "{reported}");
    shop.server.take_requests();
    shop.git.commit_file("deploy/other.bin", shop.server.store(b"y"));
    node.poll().await;
    let asked = shop.server.take_requests();
    assert!(!asked.is_empty() && asked.iter().all(|head| !head.contains("/info/lfs")), "{asked:?}");
    assert_eq!(failure(&node).await["reason"], reported["reason"]);
    node.stop().await;
}

#[tokio::test]
async fn objects_have_a_limit_and_unneeded_ones_are_removed_first() {
    for (versions, fits) in [(1, false), (0, true)] {
        let shop = Shop::new();
        let mut config = shop.config();
        config.upstreams.max_mirror = bytesize::ByteSize::mib(1);
        config.retention.versions = versions;
        let node = shop.home.start(config).await;
        node.published(|_| true).await;
        let mut last = node.descriptor().await.version();
        for number in 1..=3u8 {
            shop.git.write("deploy/model.bin", shop.server.store(&[number; 400_000]));
            shop.git.commit("another model");
            node.poll().await;
            if number < 3 || fits {
                last = node.published(|published| published.version() != last).await.version();
            }
        }
        assert_eq!(node.descriptor().await.version(), last);
        if fits {
            assert!(shown(&node).await.is_null());
        } else {
            let failed = failure(&node).await;
            let reason = failed["reason"].as_str().unwrap();
            assert!(reason.contains("`[upstreams] max_mirror`") && reason.contains("1 LFS objects"), "{reason}");
        }
        let mirror = shop.mirror();
        let holds =
            |contents: &[u8]| LfsObjects::of_mirror(&mirror).contains(&file("x", &shop.server.store(contents)).pointer);
        let held = [1, 2, 3].map(|number| holds(&[number; 400_000]));
        assert_eq!(held, if fits { [false, true, true] } else { [true, true, false] });
        assert!(!holds(b"the model itself"), "a version that is kept no longer needs it");
        node.stop().await;
    }
}

#[tokio::test]
async fn a_lost_frame_is_rebuilt_and_a_corrupt_object_is_fetched_again() {
    let shop = Shop::new();
    let node = shop.home.start(shop.config()).await;
    let descriptor = node.published(|_| true).await;
    let stored = shop.home.object(&object_of(&descriptor));
    std::fs::remove_file(&stored).unwrap();
    node.tarball(&descriptor).await;
    assert_eq!(node.metric("weir_origin_lfs_objects_fetched_total").await, 1.0);
    // The reader detects the corruption, and the next fetch brings the object.
    flip_a_bit(&shop.object());
    let mut bytes = Vec::new();
    let pointer = file("x", &shop.server.store(b"the model itself")).pointer;
    assert!(LfsObjects::of_mirror(&shop.mirror()).read(&pointer, &mut bytes).is_err());
    std::fs::remove_file(&stored).unwrap();
    node.tarball(&descriptor).await;
    assert_eq!(node.metric("weir_origin_lfs_objects_fetched_total").await, 2.0);
    node.stop().await;
}
