//! A flipped bit on the origin's disk, on the edge's disk and on the wire: seen, counted, repaired, never delivered.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use http_body_util::BodyExt;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::until;
use weir_loadtest::relay::Relay;
use weir_loadtest::scrape::Metrics;
use weir_loadtest::tree;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::encoding::Encoding;

use crate::site::{Addresses, Plan, Site};

/// More than passes through a damaged wire before a bit is flipped.
fn write_version(upstream: &GitRepository, version: &str) -> anyhow::Result<()> {
    let mut noise = vec![0; 1 << 20];
    blake3::Hasher::new().update(version.as_bytes()).finalize_xof().fill(&mut noise);
    upstream.write("deploy/prod/noise", noise)?;
    upstream.write("deploy/prod/version", version)?;
    upstream.commit_and_push(version).map(drop)
}

/// The files in a folder.
fn files(folder: &Path) -> Vec<PathBuf> {
    fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn flip_a_bit(path: &Path) -> anyhow::Result<()> {
    let mut bytes = fs::read(path)?;
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    Ok(fs::write(path, bytes)?)
}

async fn assert_delivered(site: &Site, version: &str) -> anyhow::Result<()> {
    site.until_released("shop-prod", "version", version).await?;
    let expected = site.path(&format!("expected-{version}"));
    site.upstream.archive("main", "deploy/prod", &expected)?;
    assert_eq!(tree::read(&site.current("shop-prod"))?, tree::read(&expected)?);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_corrupt_on_the_origins_disk_are_rebuilt_from_git() -> anyhow::Result<()> {
    let mut site = Site::new(|upstream| write_version(upstream, "1"), Plan::default()).await?;
    site.origin.start().await?;
    site.until_status(&site.origin, "the service is published", |status| status.to_string().contains("b3-")).await?;
    for object in files(&site.path("origin-data/objects/shop/public")) {
        flip_a_bit(&object)?;
    }
    site.edge.start().await?;
    site.agent.start().await?;
    assert_delivered(&site, "1").await?;
    let metrics = Metrics::read(site.origin.admin()).await?;
    assert!(metrics.sum("weir_origin_store_corrupt_objects_total", &[]) >= 1.0);
    Ok(())
}

/// The objects on the edge's disk, all of those that the tarball is made of: they are served before they are written.
async fn on_the_edges_disk(site: &Site) -> anyhow::Result<Vec<PathBuf>> {
    let answer = site.client()?.send("GET", "/v1/services/shop-prod", &[]).await?;
    let descriptor = Descriptor::parse(answer.into_body().collect().await?.to_bytes())?;
    // The frames and their manifest.
    let representation = descriptor.representation(Encoding::Zstd).context("it is stored as zstd")?;
    let count = representation.frames as usize + usize::from(representation.frames > 1);
    let objects = || -> Vec<PathBuf> {
        let all = files(&site.path("edge-cache/objects")).into_iter().flat_map(|folder| files(&folder));
        all.filter(|path| path.file_name().is_some_and(|name| name.len() == 64)).collect()
    };
    until("the edge has written its objects", async || objects().len() >= count).await?;
    Ok(objects())
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_that_are_corrupt_on_the_edges_disk_are_fetched_again() -> anyhow::Result<()> {
    let mut site = Site::new(|upstream| write_version(upstream, "1"), Plan::default()).await?;
    site.start().await?;
    assert_delivered(&site, "1").await?;
    // The objects were verified when they came; then their files are written to. A restart empties the edge's memory.
    for object in on_the_edges_disk(&site).await? {
        flip_a_bit(&object)?;
    }
    site.edge.terminate().await?;
    site.edge.start().await?;
    site.agent.terminate().await?;
    fs::remove_dir_all(site.path("agent-data"))?;
    site.agent.start().await?;
    assert_delivered(&site, "1").await?;
    let edge = Metrics::read(site.edge.admin()).await?;
    assert!(edge.sum("weir_edge_verify_failures_total", &["tier=\"disk\""]) >= 1.0, "the edge saw nothing wrong");
    let agent = Metrics::read(site.agent.admin()).await?;
    assert_eq!(agent.sum("weir_agent_verify_failures_total", &[]), 0.0, "an agent was given a wrong byte");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bit_flipped_on_the_wire_is_never_unpacked() -> anyhow::Result<()> {
    let addresses = Addresses::free()?;
    let before_origin = Relay::start(addresses.origin).await?;
    let before_edge = Relay::start(addresses.edge).await?;
    let plan =
        Plan { origin_at: Some(before_origin.address()), edge_at: Some(before_edge.address()), ..Plan::default() };
    let mut site = Site::at(&addresses, |upstream| write_version(upstream, "1"), plan).await?;
    site.start().await?;
    assert_delivered(&site, "1").await?;

    for (number, relay, node) in [(2, &before_origin, "edge"), (3, &before_edge, "agent")] {
        let (node, counter, result) = match node {
            "edge" => (&site.edge, "weir_edge_fills_total", "result=\"broken\""),
            _ => (&site.agent, "weir_agent_polls_total", "result=\"error\""),
        };
        let before = Metrics::read(node.admin()).await?.sum(counter, &[result]);
        relay.damage(true);
        write_version(&site.upstream, &number.to_string())?;
        // The reader of the damaged stream sees it and counts it.
        site.until_counter(node, counter, &[result], before).await?;
        assert!(relay.flipped() > 0);
        assert_eq!(fs::read_to_string(site.current("shop-prod").join("version"))?, (number - 1).to_string());
        relay.damage(false);
        assert_delivered(&site, &number.to_string()).await?;
    }
    Ok(())
}
