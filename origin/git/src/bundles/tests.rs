//! Bundles of real mirrors of a real upstream, with the store in memory.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use weir_model::ServerClocks;
use weir_model::stored_mirror::StoredLfsObject;
use weir_protocol::digest::ObjectDigest;
use weir_upstream::{FetchProgress, RepositoryConfig, UpstreamsConfig};

use super::*;
use crate::lfs::{LfsFile, LfsOid, Pointer};
use crate::mirror::Poll;

const MINUTE: u64 = 60_000;
static RUN: AtomicBool = AtomicBool::new(false);

/// The git program in a folder, without anybody's configuration.
fn git(dir: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new("git");
    command.current_dir(dir).env_clear().envs(std::env::var_os("PATH").map(|path| ("PATH", path)));
    command.envs([("GIT_CONFIG_NOSYSTEM", "1"), ("GIT_CONFIG_GLOBAL", "/dev/null")]);
    command.args(["-c", "user.name=A", "-c", "user.email=a@example.com"]).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// An upstream, and the objects of its stored mirror.
struct Hub {
    dir: TempDir,
    upstream: RepositoryConfig,
    stored: MirrorManifest,
    objects: RefCell<HashMap<ObjectDigest, Bytes>>,
    max_part: u64,
}

/// An origin's mirror in a data directory of its own.
struct Node {
    dir: TempDir,
    handle: MirrorHandle,
    upstream: Upstream,
    memory: FetchMemory,
}

impl Hub {
    fn new(format: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let url = dir.path().join("upstream").display().to_string();
        let hub = Self {
            upstream: RepositoryConfig::new("shop".parse().unwrap(), url.as_str()),
            stored: MirrorManifest::default(),
            objects: RefCell::default(),
            max_part: 64 << 20,
            dir,
        };
        git(hub.dir.path(), &["init", "-q", "-b", "main", "--object-format", format, "upstream"]);
        hub.commit("first");
        hub
    }

    fn git(&self, arguments: &[&str]) -> String {
        git(&self.dir.path().join("upstream"), arguments)
    }

    /// Commits a file whose contents do not compress.
    fn commit(&self, name: &str) -> String {
        let words: String = (0..200)
            .map(|number: u32| blake3::hash(format!("{name}{number}").as_bytes()).to_hex().to_string())
            .collect();
        fs::write(self.dir.path().join("upstream").join(name), words).unwrap();
        self.git(&["add", "."]);
        self.git(&["commit", "-q", "-m", name]);
        self.git(&["rev-parse", "HEAD"])
    }

    fn take_away(&self) {
        fs::rename(self.dir.path().join("upstream"), self.dir.path().join("away")).unwrap();
    }

    fn give_back(&self) {
        fs::rename(self.dir.path().join("away"), self.dir.path().join("upstream")).unwrap();
    }

    fn read(&self, part: &Part) -> Result<Bytes, String> {
        self.objects.borrow().get(&part.digest).cloned().ok_or("it is missing".to_owned())
    }

    fn try_bundle(&mut self, node: &Node, minutes: u64, at_once: bool) -> Result<Bundled, BundleError> {
        let request = BundleRequest {
            stored: &self.stored,
            read: &|part| self.read(part),
            write: &|bytes| {
                let digest = ObjectDigest::of(&bytes);
                self.objects.borrow_mut().insert(digest, bytes);
                Ok(digest)
            },
            now: minutes * MINUTE,
            at_once,
            max_mirror: 1 << 30,
            max_part: self.max_part,
        };
        node.handle.write_bundle(&request, node.upstream.limits.max_refs, &|_| Ok(()), &RUN)
    }

    /// Writes the bundle that is due: whether it is a full one.
    fn bundle(&mut self, node: &Node, minutes: u64) -> bool {
        match self.try_bundle(node, minutes, false).unwrap() {
            Bundled::Written(written) => {
                self.stored = written.stored;
                written.is_full
            }
            other => panic!("{other:?}"),
        }
    }

    fn hydrate(&self, node: &Node, update: bool) -> Result<usize, BundleError> {
        let request = HydrateRequest {
            config: &self.upstream,
            stored: &self.stored,
            read: &|part| self.read(part),
            update,
            on_mirror_replaced: &|_| {},
        };
        node.handle.hydrate(&request, &node.upstream, &node.memory, &RUN)
    }

    /// The bytes of a bundle as one file.
    fn file(&self, bundle: &Bundle) -> Vec<u8> {
        bundle.parts.iter().flat_map(|part| self.read(part).unwrap()).collect()
    }

    /// A new node with a mirror of the upstream.
    fn cloned(&self) -> Node {
        let node = Node::new(self);
        assert!(matches!(node.poll(), Ok(Poll::Changed { .. })));
        node
    }
}

impl Node {
    fn new(hub: &Hub) -> Self {
        Self::at(hub, tempfile::tempdir().unwrap())
    }

    fn at(hub: &Hub, dir: TempDir) -> Self {
        let upstream = Upstream::of(&hub.upstream, &UpstreamsConfig::default(), ServerClocks::default());
        let handle = MirrorHandle::new(dir.path().join("mirrors/shop/0.git"), upstream.limits.max_object.as_u64());
        Self {
            dir,
            handle,
            memory: FetchMemory::new(upstream.limits.max_object.as_u64(), upstream.limits.max_objects),
            upstream,
        }
    }

    fn poll(&self) -> Result<Poll, MirrorError> {
        let mirror = self.handle.for_poll(Instant::now())?.mirror;
        mirror.poll_with(&self.upstream, &HashSet::new(), &FetchProgress::default(), &self.memory, &RUN, &|| true)
    }

    fn git(&self, arguments: &[&str]) -> String {
        let mirrors = self.dir.path().join("mirrors/shop");
        git(&fs::read_dir(mirrors).unwrap().next().unwrap().unwrap().path(), arguments)
    }

    fn refs(&self) -> String {
        self.git(&["fsck", "--full", "--strict", "--connectivity-only"]);
        self.git(&["for-each-ref", "--format=%(refname) %(objectname)"])
    }

    fn packed_objects(&self) -> usize {
        let counted = self.git(&["count-objects", "-v"]);
        counted.lines().find_map(|line| line.strip_prefix("in-pack: ")).unwrap().parse().unwrap()
    }
}

fn hydrates_without_the_upstream_and_then_fetches_only_what_is_newer(format: &str) {
    let mut hub = Hub::new(format);
    hub.commit("another");
    let owner = hub.cloned();
    assert!(hub.bundle(&owner, 0));
    hub.git(&["checkout", "-q", "-b", "topic/one"]);
    hub.commit("second");
    hub.git(&["tag", "-a", "v1", "-m", "v1"]);
    owner.poll().unwrap();
    assert!(matches!(hub.try_bundle(&owner, 9, false), Ok(Bundled::NotYet)));
    assert!(!hub.bundle(&owner, 10));
    // Nothing new but refs: a branch in place of a folder, and a deletion.
    hub.git(&["checkout", "-q", "--detach"]);
    hub.git(&["branch", "-D", "topic/one"]);
    hub.git(&["branch", "topic"]);
    owner.poll().unwrap();
    assert!(!hub.bundle(&owner, 20));
    assert!(matches!(hub.try_bundle(&owner, 99, true), Ok(Bundled::UpToDate)));
    assert_eq!(hub.stored.bundles.len(), 2, "incremental ones were combined");

    hub.take_away();
    let taker = Node::new(&hub);
    assert_eq!(hub.hydrate(&taker, false).unwrap(), 2);
    assert_eq!(taker.refs(), owner.refs());
    assert!(taker.refs().contains("refs/weir/HEAD") && taker.refs().contains("refs/tags/v1"));
    assert_eq!(taker.git(&["rev-parse", "--show-object-format"]), format);
    assert_eq!(hub.hydrate(&taker, false).unwrap(), 0, "there is a mirror");
    assert!(taker.poll().is_err());

    hub.give_back();
    assert!(matches!(taker.poll(), Ok(Poll::Unchanged { .. })));
    hub.git(&["checkout", "-q", "main"]);
    hub.commit("third");
    let before = taker.packed_objects();
    assert!(matches!(taker.poll(), Ok(Poll::Changed { .. })));
    assert_eq!(taker.packed_objects() - before, 3, "a commit, a tree and a blob");
}

#[test]
fn a_mirror_is_made_from_bundles() {
    hydrates_without_the_upstream_and_then_fetches_only_what_is_newer("sha1");
}

#[test]
fn a_mirror_of_sha256_is_made_from_bundles() {
    hydrates_without_the_upstream_and_then_fetches_only_what_is_newer("sha256");
}

#[test]
fn a_bundle_in_parts_is_what_git_reads() {
    let mut hub = Hub::new("sha1");
    hub.max_part = 1000;
    let owner = hub.cloned();
    assert!(hub.bundle(&owner, 0));
    assert!(
        hub.stored.bundles[0].parts.len() > 5
            && hub.stored.bundles[0].parts.iter().skip(1).all(|part| part.size <= 1000)
    );
    hub.commit("second");
    owner.poll().unwrap();
    assert!(!hub.bundle(&owner, 10));
    let dir = tempfile::tempdir().unwrap();
    for (number, bundle) in hub.stored.bundles.iter().enumerate() {
        fs::write(dir.path().join(number.to_string()), hub.file(bundle)).unwrap();
    }
    git(dir.path(), &["clone", "-q", "--bare", "0", "clone"]);
    git(&dir.path().join("clone"), &["bundle", "verify", "../1"]);
    git(&dir.path().join("clone"), &["fetch", "-q", "../1", "+refs/*:refs/*"]);
    assert_eq!(git(&dir.path().join("clone"), &["rev-parse", "main"]), hub.git(&["rev-parse", "main"]));
    let taker = Node::new(&hub);
    assert_eq!(hub.hydrate(&taker, false).unwrap(), 2);
    assert_eq!(taker.refs(), owner.refs());
}

#[test]
fn a_prepared_mirror_takes_newer_bundles_only() {
    let mut hub = Hub::new("sha1");
    let (owner, taker) = (hub.cloned(), Node::new(&hub));
    assert!(hub.bundle(&owner, 0));
    assert_eq!(hub.hydrate(&taker, true).unwrap(), 1);
    hub.commit("second");
    owner.poll().unwrap();
    let Bundled::Written(written) = hub.try_bundle(&owner, 1, true).unwrap() else { panic!("nothing moved") };
    assert!(!written.is_full);
    hub.stored = written.stored;
    assert_eq!(hub.hydrate(&taker, true).unwrap(), 1);
    assert_eq!(hub.hydrate(&taker, true).unwrap(), 0);
    assert_eq!(taker.refs(), owner.refs());
}

#[test]
fn rewritten_history_goes_with_the_next_full_bundle() {
    let mut hub = Hub::new("sha1");
    let first = hub.git(&["rev-parse", "HEAD"]);
    let dropped = hub.commit("secret");
    let owner = hub.cloned();
    assert!(hub.bundle(&owner, 0));
    hub.git(&["reset", "-q", "--hard", &first]);
    hub.commit("better");
    owner.poll().unwrap();
    assert!(!hub.bundle(&owner, 10), "an incremental one carries it meanwhile");
    hub.commit("more");
    owner.poll().unwrap();
    assert!(!hub.bundle(&owner, 2 * 24 * 60), "what the last one has was not rewritten");
    hub.git(&["reset", "-q", "--hard", &first]);
    owner.poll().unwrap();
    assert!(hub.bundle(&owner, 3 * 24 * 60));
    let taker = Node::new(&hub);
    hub.hydrate(&taker, false).unwrap();
    assert_eq!(taker.refs(), owner.refs());
    assert_eq!(taker.packed_objects(), 3, "without {dropped}");
}

#[test]
fn a_hostile_or_damaged_bundle_is_refused_and_the_repository_is_cloned() {
    type Change = fn(&mut Vec<u8>);
    let changes: [(&str, usize, Change); 5] = [
        ("a bit of the pack", 1, |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 1;
        }),
        ("the end of the pack", 1, |bytes| bytes.truncate(100)),
        ("another pack", 1, |bytes| *bytes = b"PACK\0\0\0\x02\0\0\0\0".to_vec()),
        ("a ref to a missing object", 0, |bytes| {
            let at = bytes.len() - 2;
            bytes.truncate(at);
            bytes.extend_from_slice(format!("\n{} refs/heads/x\n\n", "1".repeat(40)).as_bytes());
        }),
        ("a ref outside", 0, |bytes| *bytes = [&bytes[..57], b" ../../config\n\n"].concat()),
    ];
    let mut hub = Hub::new("sha1");
    let owner = hub.cloned();
    assert!(hub.bundle(&owner, 0));
    for (name, part, change) in changes {
        let digest = hub.stored.bundles[0].parts[part].digest;
        let intact = hub.objects.borrow()[&digest].clone();
        let mut bytes = intact.to_vec();
        change(&mut bytes);
        hub.objects.borrow_mut().insert(digest, bytes.into());
        let taker = Node::new(&hub);
        let error = hub.hydrate(&taker, false).unwrap_err();
        assert!(matches!(error, BundleError::Failed(_)), "{name}: {error}");
        // A ref that cannot be followed does not keep others from it.
        assert!(["", &owner.refs()].contains(&taker.refs().as_str()), "{name}");
        taker.poll().unwrap();
        assert_eq!(taker.refs(), owner.refs(), "{name}");
        hub.objects.borrow_mut().insert(digest, intact);
    }
    hub.objects.borrow_mut().clear();
    let error = hub.hydrate(&Node::new(&hub), false).unwrap_err().to_string();
    assert!(error.contains("it is missing"), "{error}");
    assert!(hub.bundle(&owner, 1), "lost bundles are replaced by a full one");
}

#[test]
fn a_damaged_mirror_is_made_again_without_the_upstream() {
    let mut hub = Hub::new("sha1");
    let owner = hub.cloned();
    assert!(hub.bundle(&owner, 0));
    let (refs, dir) = (owner.refs(), owner.dir.path().join("mirrors/shop"));
    let mirror = fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
    fs::write(mirror.join("HEAD"), "").unwrap();
    let owner = Node::at(&hub, owner.dir);
    hub.take_away();
    assert_eq!(hub.hydrate(&owner, false).unwrap(), 1);
    fs::remove_dir_all(mirror.with_extension("damaged")).unwrap();
    assert_eq!(owner.refs(), refs);
}

#[test]
fn a_mirror_that_is_too_large_is_not_stored() {
    let mut hub = Hub::new("sha1");
    let owner = hub.cloned();
    let request = BundleRequest {
        stored: &MirrorManifest::default(),
        read: &|part| hub.read(part),
        write: &|_| panic!("nothing is written"),
        now: 0,
        at_once: false,
        max_mirror: 1000,
        max_part: 1000,
    };
    let refused = owner.handle.write_bundle(&request, owner.upstream.limits.max_refs, &|_| Ok(()), &RUN);
    assert!(matches!(refused, Err(BundleError::TooLarge { limit: 1000, .. })), "{refused:?}");
    assert!(hub.bundle(&owner, 0));
}

#[test]
fn lfs_objects_are_taken_from_the_store_when_they_are_needed() {
    let mut hub = Hub::new("sha1");
    let owner = hub.cloned();
    hub.max_part = 1000;
    assert!(hub.bundle(&owner, 0));
    let contents: Vec<u8> = (0..2500u32).map(|number| (number / 10) as u8).collect();
    let hex: String = ring::digest::digest(&ring::digest::SHA256, &contents)
        .as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let pointer = Pointer { oid: LfsOid::from_hex(hex.as_bytes()).unwrap(), size: 2500 };
    let mut writer = owner.handle.lfs_objects().create(&pointer).unwrap();
    writer.write(&contents).unwrap();
    writer.commit().unwrap();
    assert!(!hub.bundle(&owner, 10), "an object is new, although no ref moved");
    assert!(matches!(hub.try_bundle(&owner, 20, false), Ok(Bundled::UpToDate)));

    let page = hub.read(hub.stored.lfs.as_ref().unwrap()).unwrap();
    let mut stored: Vec<StoredLfsObject> = serde_json::from_slice(&page).unwrap();
    assert_eq!(stored[0].parts.len(), 3);
    let taker = Node::new(&hub);
    let take = |stored: &[StoredLfsObject]| {
        let request = StoredLfsRequest {
            repository: &hub.upstream.name,
            files: &[LfsFile { path: "a.bin".to_owned(), pointer }],
            stored,
            read: &|part| hub.read(part),
            max_object: 1 << 20,
        };
        take_stored_lfs(&taker.handle.lfs_objects(), &request, &RUN)
    };
    stored[0].parts.swap(0, 2);
    assert_eq!(take(&stored), 0, "its SHA-256 differs");
    stored[0].parts.swap(0, 2);
    assert_eq!(take(&stored), 1);
    let mut read = Vec::new();
    taker.handle.lfs_objects().read(&pointer, &mut read).unwrap();
    assert_eq!(read, contents);
}
