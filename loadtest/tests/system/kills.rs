//! `kill -9` of each role in the middle of its work: nothing torn is ever served or switched to.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{bail, ensure};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, nightly, until};
use weir_loadtest::tree::{self, Entry};
use weir_protocol::digest::ObjectDigest;

use crate::site::{Plan, Site};

const FILES: usize = 160;

/// Between two looks at the release.
const PAUSE: Duration = Duration::from_millis(5);

/// The bytes of a file: all together they are several frames, and do not compress.
const FILE_BYTES: usize = 40 << 10;

/// Every file of a commit is that commit's own and is different from its neighbour: a mixture shows.
fn contents(version: &str, file: usize) -> Vec<u8> {
    let mut bytes = vec![0; FILE_BYTES];
    blake3::Hasher::new().update(format!("{version} {file}").as_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

fn write_version(upstream: &GitRepository, version: usize) -> anyhow::Result<()> {
    let version = version.to_string();
    for file in 0..FILES {
        upstream.write(format!("deploy/prod/{:02}/{file}", file % 20), contents(&version, file))?;
    }
    upstream.write("deploy/prod/version", &version)?;
    upstream.commit_and_push(&version).map(drop)
}

/// Reads a release as a user of it would: through `current`, resolved once. The version it is, or what is wrong with it.
fn check(current: &Path) -> anyhow::Result<Option<String>> {
    let Ok(release) = fs::canonicalize(current) else {
        return Ok(None);
    };
    let Ok(tree) = tree::read(&release) else {
        // Pruned while it was read: a reader that is this slow holds a release that is several switches old.
        return Ok(None);
    };
    let Some(Entry::File { contents, .. }) = tree.get(&b"version"[..]) else {
        bail!("{} has no version", release.display())
    };
    let version = String::from_utf8(contents.clone())?;
    for file in 0..FILES {
        let path = format!("{:02}/{file}", file % 20);
        match tree.get(path.as_bytes()) {
            Some(Entry::File { contents, .. }) => {
                ensure!(*contents == self::contents(&version, file), "{path} of {version} is torn");
            }
            other => bail!("{path} of {version} is {other:?}"),
        }
    }
    Ok(Some(version))
}

/// The files in the edge's cache: objects by their names, and those that are being written.
fn cached(objects: &Path) -> Vec<PathBuf> {
    let files = |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    files(objects).collect::<Vec<_>>().iter().flat_map(|folder| files(folder)).collect()
}

fn is_object(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.len() == 64)
}

/// Waits until the edge is in the middle of a fill. False when that was over sooner than it was seen.
async fn meets_a_fill(objects: &Path, current: &Path, version: usize) -> anyhow::Result<bool> {
    let before = cached(objects).len();
    loop {
        if cached(objects).len() > before {
            return Ok(true);
        }
        let released = fs::read_to_string(current.join("version"));
        if released.is_ok_and(|released| released == version.to_string()) {
            return Ok(false);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_at_any_moment_leaves_no_torn_release() -> anyhow::Result<()> {
    let mut site = Site::new(|upstream| write_version(upstream, 0), Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "0").await?;

    // A reader that never stops looking.
    let current: PathBuf = site.current("shop-prod");
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (current, stop) = (current.clone(), stop.clone());
        tokio::task::spawn_blocking(move || {
            let mut seen = 0;
            while !stop.load(Ordering::Relaxed) {
                seen += usize::from(check(&current)?.is_some());
                std::thread::sleep(PAUSE);
            }
            Ok::<_, anyhow::Error>(seen)
        })
    };

    let objects = site.path("edge-cache/objects");
    // Each role once, or three times; more until an edge was killed in the middle of a fill.
    let rounds = if nightly() { 9 } else { 3 };
    let (mut round, mut fills_met) = (0, 0);
    while round < rounds || fills_met == 0 {
        round += 1;
        ensure!(round < 30, "no kill fell into a fill");
        write_version(&site.upstream, round)?;
        let node: &mut Node = match round % 3 {
            2 => {
                fills_met += usize::from(meets_a_fill(&objects, &current, round).await?);
                &mut site.edge
            }
            other => {
                // The kill falls somewhere within fetch, build or unpack: later in each round.
                tokio::time::sleep(Duration::from_millis(150 * round as u64)).await;
                if other == 0 { &mut site.origin } else { &mut site.agent }
            }
        };
        node.kill()?;
        node.start().await?;
        site.until_released("shop-prod", "version", &round.to_string()).await?;
    }
    stop.store(true, Ordering::Relaxed);
    let seen = reader.await??;
    assert!(seen > 0, "the reader saw no release");
    assert_eq!(check(&current)?, Some(round.to_string()));

    // Nor is anything torn in the edge's cache.
    until("nothing half-written is left behind", async || cached(&objects).iter().all(|path| is_object(path))).await?;
    for path in cached(&objects) {
        assert_eq!(path.file_name(), Some(ObjectDigest::of(&fs::read(&path)?).hex().as_ref()));
    }

    // Nothing half-done is left behind once the agent has tidied up.
    let releases = site.path("agent-data/shop-prod/releases");
    let is_release = |entry: std::io::Result<fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("b3-")))
    };
    until("only releases are left", async || fs::read_dir(&releases).is_ok_and(|mut all| all.all(is_release))).await?;
    let incoming = fs::read_dir(site.path("agent-data/shop-prod/incoming"))?;
    assert_eq!(incoming.count(), 0, "a download was left behind");
    Ok(())
}
