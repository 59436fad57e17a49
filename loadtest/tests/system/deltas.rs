//! An agent that has the version before fetches what has changed, and no more.

use std::fs;

use anyhow::{Context, ensure};
use http_body_util::BodyExt;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::until;
use weir_loadtest::scrape::Metrics;
use weir_protocol::descriptor::{Descriptor, Representation};
use weir_protocol::digest::ObjectDigest;
use weir_protocol::encoding::Encoding;

use crate::site::{Client, Plan, Site};

const FILES: usize = 200;
const COMMITS: usize = 10;

/// About 8 kB of text, of which half is words.
fn text(file: usize, version: usize) -> String {
    let line = |line: usize| {
        let digest = ObjectDigest::of(format!("{file} {} {line}", if line % 40 == 3 { version } else { 0 }).as_bytes());
        format!("the value of this line is {} and no other\n", &digest.hex()[..24])
    };
    (0..120).map(line).collect()
}

fn write_file(upstream: &GitRepository, file: usize, version: usize) -> anyhow::Result<()> {
    upstream.write(format!("deploy/prod/part-{}/file-{file}", file % 9), text(file, version))
}

/// The edge's descriptor of a commit, if it has a delta.
async fn descriptor_with_delta(client: &Client, commit: &str) -> Option<Descriptor> {
    let answer = client.send("GET", "/v1/services/shop-prod", &[]).await.ok()?;
    let descriptor = Descriptor::parse(answer.into_body().collect().await.ok()?.to_bytes()).ok()?;
    let is_of_commit = descriptor.publication().commit.as_ref().is_some_and(|of| of.as_str() == commit);
    (is_of_commit && descriptor.representations().iter().any(is_delta)).then_some(descriptor)
}

fn is_delta(representation: &Representation) -> bool {
    representation.encoding == Encoding::Dcz
}

#[tokio::test(flavor = "multi_thread")]
async fn commits_of_one_file_cost_an_agent_a_twentieth() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        (0..FILES).try_for_each(|file| write_file(upstream, file, 0))?;
        upstream.commit_and_push("first").map(drop)
    };
    let mut site = Site::new(fill, Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "part-0/file-0", &text(0, 0)).await?;
    let client = site.client()?;
    let (mut with, mut without) = (0.0, 0.0);
    for version in 1..=COMMITS {
        // The agent comes back when the delta is made: it polls faster than that.
        site.agent.terminate().await?;
        let file = 17 * version % FILES;
        write_file(&site.upstream, file, version)?;
        let commit = site.upstream.commit_and_push("a change")?;
        let made = async || descriptor_with_delta(&client, &commit).await.is_some();
        until("the edge knows a delta of the version", made).await.with_context(|| site.logs())?;
        let descriptor = descriptor_with_delta(&client, &commit).await.context("it has just been there")?;
        site.agent.start().await?;
        site.until_released("shop-prod", &format!("part-{}/file-{file}", file % 9), &text(file, version)).await?;
        let metrics = Metrics::read(site.agent.admin()).await?;
        ensure!(metrics.sum("weir_agent_deltas_total", &["result=\"applied\""]) == 1.0, "{}", site.logs());
        with += metrics.sum("weir_agent_fetched_bytes_total", &[]);
        without += descriptor.representation(Encoding::Zstd).map_or(0.0, |zstd| zstd.size as f64);
    }
    println!("{COMMITS} commits of 1 of {FILES} files: {with} bytes with deltas, {without} without");
    ensure!(with <= 0.05 * without, "{with} bytes with deltas, {without} without");
    for file in 0..FILES {
        let path = format!("part-{}/file-{file}", file % 9);
        let expected = fs::read(site.upstream.work().join("deploy/prod").join(&path))?;
        ensure!(fs::read(site.current("shop-prod").join(&path))? == expected, "{path}");
    }
    Ok(())
}
