//! A commit travels from a Git server through origin and edge into an agent's directory, and nothing of it is lost.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::tree;

use crate::site::{Plan, Site};

/// Everything that a folder without attributes can hold.
fn fill(upstream: &GitRepository) -> anyhow::Result<()> {
    let folder = Path::new("deploy/prod");
    upstream.write("README.md", "outside the folder\n")?;
    upstream.write("deploy/prod-not/x", "a sibling that shares the prefix\n")?;
    upstream.write(folder.join("version"), "1")?;
    upstream.write(folder.join("empty"), "")?;
    upstream.write(folder.join("binary"), (0..=255).cycle().take(100_000).collect::<Vec<u8>>())?;
    upstream.write(folder.join("crlf"), "a\r\nb\n")?;
    upstream.write_executable(folder.join("bin/run.sh"), "#!/bin/sh\necho run\n")?;
    upstream.link(folder.join("bin/latest"), "run.sh")?;
    upstream.link(folder.join("version-link"), "./bin/../version")?;
    upstream.link(folder.join("folder-link"), "bin")?;
    upstream.link(folder.join("dangling"), "no/such/file")?;
    for name in
        ["with space", "-rf", "quote'\"", "new\nline", "käse", "日本語", "back\\slash", "~", "%41", "a.", "...", "con"]
    {
        upstream.write(folder.join("odd").join(name), name)?;
    }
    upstream.write(folder.join("odd").join(OsStr::from_bytes(b"latin-1-\xe9\xff")), "not UTF-8")?;
    upstream.link(folder.join("odd/link-to-latin"), OsStr::from_bytes(b"latin-1-\xe9\xff"))?;
    let long = "l".repeat(255);
    upstream.write(folder.join(&long), "a component of 255 bytes")?;
    upstream.write(folder.join("d".repeat(120)).join("e".repeat(120)).join(&long), "a path of 500 bytes")?;
    upstream.link(folder.join("long-link"), Path::new(&"d".repeat(120)).join("e".repeat(120)).join(&long))?;
    // Orders that a sort of paths and a sort of tree entries disagree about, if one forgets a directory's slash.
    for name in ["order/a/x", "order/a-b", "order/a.b", "order/a0", "order/ab/x"] {
        upstream.write(folder.join(name), name)?;
    }
    upstream.commit_and_push("everything")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agents_directory_equals_git_archive_also_after_the_origin_lost_everything() -> anyhow::Result<()> {
    let mut site = Site::new(fill, Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;

    let expected = site.path("expected");
    site.upstream.archive("main", "deploy/prod", &expected)?;
    assert_eq!(tree::read(&site.current("shop-prod"))?, tree::read(&expected)?);
    let digest = site.current_digest("shop-prod").unwrap();

    // The origin loses all it had: the same content has the same digest after a new clone.
    site.origin.terminate().await?;
    fs::remove_dir_all(site.path("origin-data"))?;
    site.origin.start().await?;
    site.until_status(&site.origin, "the service is published again with the same digest", |status| {
        status.to_string().contains(&digest)
    })
    .await?;

    // And agents keep following: the generations went on from where they were.
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.until_released("shop-prod", "version", "2").await?;
    assert!(!site.logs().contains("s3cret-pa55"), "a password was logged");

    // Every role drains cleanly.
    site.agent.terminate().await?;
    site.edge.terminate().await?;
    site.origin.terminate().await?;
    Ok(())
}
