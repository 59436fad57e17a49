//! `kill -9` of each role in the middle of its work: nothing torn is ever served or switched to.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{bail, ensure};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, until};
use weir_loadtest::tree::{self, Entry};

use crate::site::{Plan, Site};

const FILES: usize = 400;
const ROUNDS: usize = 9;

/// Every file of a commit says the commit's number and is different from its neighbour: a mixture shows.
fn write_version(upstream: &GitRepository, version: usize) -> anyhow::Result<()> {
    for file in 0..FILES {
        let line = format!("{version} {file}\n");
        upstream.write(format!("deploy/prod/{:02}/{file}", file % 20), line.repeat(300))?;
    }
    upstream.write("deploy/prod/version", version.to_string())?;
    upstream.commit_and_push(&version.to_string()).map(drop)
}

/// Reads a release as a user of it would: through `current`, resolved once. The version it is, or what is wrong with it.
fn check(current: &Path) -> anyhow::Result<Option<String>> {
    let Ok(release) = std::fs::canonicalize(current) else {
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
        let expected = format!("{version} {file}\n").repeat(300);
        match tree.get(path.as_bytes()) {
            Some(Entry::File { contents, .. }) => {
                ensure!(*contents == expected.as_bytes(), "{path} of {version} is torn");
            }
            other => bail!("{path} of {version} is {other:?}"),
        }
    }
    Ok(Some(version))
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
            }
            Ok::<_, anyhow::Error>(seen)
        })
    };

    for round in 1..=ROUNDS {
        write_version(&site.upstream, round)?;
        // The kill falls somewhere within fetch, build, fill or unpack: later in each round.
        tokio::time::sleep(std::time::Duration::from_millis(150 * round as u64)).await;
        let node: &mut Node = match round % 3 {
            0 => &mut site.origin,
            1 => &mut site.agent,
            _ => &mut site.edge,
        };
        node.kill()?;
        node.start().await?;
        site.until_released("shop-prod", "version", &round.to_string()).await?;
    }
    stop.store(true, Ordering::Relaxed);
    let seen = reader.await??;
    assert!(seen > 0, "the reader saw no release");
    assert_eq!(check(&current)?, Some(ROUNDS.to_string()));

    // Nothing half-done is left behind once the agent has tidied up.
    let releases = site.path("agent-data/shop-prod/releases");
    let is_release = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with("b3-")))
    };
    until("only releases are left", async || std::fs::read_dir(&releases).is_ok_and(|mut all| all.all(is_release)))
        .await?;
    let incoming = std::fs::read_dir(site.path("agent-data/shop-prod/incoming"))?;
    assert_eq!(incoming.count(), 0, "a download was left behind");
    Ok(())
}
