//! An agent of a large service fetches the frames that it lacks, and no more.

use std::fs;

use anyhow::{Context, ensure};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::scrape::Metrics;
use weir_protocol::digest::ObjectDigest;

use crate::site::{Plan, Site, noise};

const FILES: usize = 160;

const FILE_BYTES: usize = 64 << 10;

/// Two frames of about 1 MiB, of which the second is cut in another place, and the manifests.
const ONE_CHANGE: f64 = (4 << 20) as f64;

fn write_file(upstream: &GitRepository, file: usize, version: usize) -> anyhow::Result<()> {
    let seed = ObjectDigest::of(format!("{file} {version}").as_bytes());
    let contents: Vec<u8> = noise(FILE_BYTES).iter().zip(seed.as_bytes().iter().cycle()).map(|(a, b)| a ^ b).collect();
    upstream.write(path(file), contents)
}

fn path(file: usize) -> String {
    format!("deploy/prod/part-{}/file-{file}", file % 9)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_of_one_file_costs_an_agent_its_frames() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        (0..FILES).try_for_each(|file| write_file(upstream, file, 0))?;
        upstream.write("deploy/prod/version", "0")?;
        upstream.commit_and_push("first").map(drop)
    };
    let mut site = Site::new(fill, Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "0").await?;
    let mut before = 0.0;
    for (version, files) in [(1, vec![17]), (2, vec![80]), (3, vec![]), (4, vec![0, 159])] {
        files.iter().try_for_each(|file| write_file(&site.upstream, *file, version))?;
        site.upstream.write("deploy/prod/version", version.to_string())?;
        site.upstream.commit_and_push("a change")?;
        site.until_released("shop-prod", "version", &version.to_string()).await?;
        let metrics = Metrics::read(site.agent.admin()).await?;
        let applied = metrics.sum("weir_agent_frame_updates_total", &["result=\"applied\""]);
        ensure!(applied == version as f64, "{applied} of {version}: {}", site.logs());
        let fetched = metrics.sum("weir_agent_fetched_bytes_total", &["kind=\"frames\""]);
        println!("version {version}: {} bytes of {}", fetched - before, FILES * FILE_BYTES);
        ensure!(fetched - before < ONE_CHANGE * files.len().max(1) as f64, "{}", fetched - before);
        before = fetched;
        for file in 0..FILES {
            let expected = fs::read(site.upstream.work().join(path(file)))?;
            let released = path(file).replace("deploy/prod/", "");
            ensure!(fs::read(site.current("shop-prod").join(&released))? == expected, "{released}");
        }
    }
    let metrics = Metrics::read(site.agent.admin()).await.context("the agent answers")?;
    ensure!(metrics.sum("weir_agent_frame_updates_total", &["result=\"abandoned\""]) == 0.0, "{}", site.logs());
    Ok(())
}
