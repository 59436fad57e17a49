//! Clients of registries that others wrote pull from an edge what agents get.

use std::fs;
use std::path::Path;

use anyhow::Context;
use http_body_util::BodyExt;
use weir_loadtest::processes::until;
use weir_protocol::digest::Sha256;

use crate::access::token;
use crate::artifacts::output;
use crate::site::{Plan, Site, service};

#[tokio::test(flavor = "multi_thread")]
async fn oras_and_crane_pull_with_tokens_while_git_and_the_origin_are_down() -> anyhow::Result<()> {
    let plan = Plan {
        services: format!("{}oci = true\n", service("shop-prod", "main", "deploy/prod")),
        auth: "mode = 'required'\nkeys = ['fleet.key.pub']",
        agent: "token_file = 'agent.token'",
        ..Plan::default()
    };
    let mut site = Site::new(
        |upstream| {
            upstream.write("deploy/prod/version", "1")?;
            upstream.commit_and_push("one")?;
            Ok(())
        },
        plan,
    )
    .await?;
    let dir = site.path("");
    let run = |name: &str, arguments: &[&str]| output(name, &dir, arguments);
    let (Some(_), Some(_)) = (run("oras", &["version"])?, run("crane", &["version"])?) else { return Ok(()) };
    token(&dir, "key --out fleet.key")?;
    token(&dir, "issue --key fleet.key --subject cluster-1 --service shop-* --out agent.token")?;
    let secret = fs::read_to_string(dir.join("agent.token"))?.trim().to_owned();
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;

    let edge = site.edge_address.to_string();
    let name = format!("{edge}/weir/shop-prod");
    let latest = format!("{name}:latest");
    let login = ["auth", "login", &edge, "--username", "anyone", "--password", &secret];
    run("crane", &login)?.context("crane is there")?;
    let text = |name: &str, arguments: &[&str]| -> anyhow::Result<String> {
        Ok(String::from_utf8(run(name, arguments)?.context("the client is there")?)?)
    };
    let first = text("crane", &["digest", &latest])?.trim().to_owned();
    site.upstream.write("deploy/prod/version", "2")?;
    let commit = site.upstream.commit_and_push("two")?;
    site.until_released("shop-prod", "version", "2").await?;
    until("the edge has the new version", async || {
        text("crane", &["digest", &latest]).is_ok_and(|now| now.trim() != first)
    })
    .await?;
    let second = text("crane", &["digest", &latest])?.trim().to_owned();
    let tags = text("crane", &["ls", &name])?;
    // Digits alone are no tag.
    let has_letter = commit[..12].bytes().any(|b| b.is_ascii_alphabetic());
    let of_commit = tags.lines().any(|tag| commit.starts_with(tag));
    assert!(tags.lines().any(|tag| tag == "latest") && of_commit == has_letter, "{tags}");

    // The layer is the gzip that the edge sends to agents.
    let bearer = format!("Bearer {secret}");
    let gzip = [("accept-encoding", "gzip"), ("authorization", &*bearer)];
    let tarball = site.client()?.send("GET", "/v1/services/shop-prod/tarball", &gzip).await?;
    let gzip = tarball.into_body().collect().await?.to_bytes();
    let layer = format!("{name}@sha256:{}", Sha256::of(&gzip));
    let pull = |from: &str, to: &str| {
        let layout = format!("{to}:pulled");
        let login = ["--from-username", "anyone", "--from-password", &secret, "--from-ca-file", "ca.pem"];
        run("oras", &[&["copy", "--to-oci-layout", from, &layout], &login[..]].concat())
    };
    // What is pulled now is cached for later: both versions, by digest.
    for (digest, to) in [(&first, "first"), (&second, "second")] {
        pull(&format!("{name}@{digest}"), to)?;
    }

    site.git = None;
    site.origin.terminate().await?;
    for (from, to) in [(latest.clone(), "third"), (format!("{name}@{first}"), "fourth")] {
        pull(&from, to)?;
    }
    assert!(run("crane", &["blob", &layer])?.context("crane is there")? == gzip);
    assert_eq!(text("crane", &["digest", &latest])?.trim(), second);
    let blobs = |layout: &str| -> anyhow::Result<Vec<String>> {
        let files = fs::read_dir(dir.join(layout).join("blobs/sha256"))?;
        let mut names = files.map(|file| Ok(file?.file_name().to_string_lossy().into_owned()));
        let mut names = names.by_ref().collect::<anyhow::Result<Vec<_>>>()?;
        names.sort_unstable();
        Ok(names)
    };
    assert_eq!((blobs("third")?, blobs("fourth")?), (blobs("second")?, blobs("first")?));
    assert!(blobs("second")?.contains(&Sha256::of(&gzip).to_string()));
    assert!(is_refused(&dir, &name)?, "without a password nothing is pulled");
    Ok(())
}

/// Whether a client without a credential is refused.
fn is_refused(dir: &Path, name: &str) -> anyhow::Result<bool> {
    fs::remove_dir_all(dir.join(".docker"))?;
    Ok(output("crane", dir, &["manifest", &format!("{name}:latest")])
        .is_err_and(|error| error.to_string().contains("UNAUTHORIZED")))
}
