//! Each part goes away and comes back; nobody lends a hand.

use anyhow::Context;
use http::StatusCode;
use http_body_util::BodyExt;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{PATIENCE, until};

use crate::site::{Plan, Site, header, seen};

#[tokio::test(flavor = "multi_thread")]
async fn published_versions_are_served_through_every_outage() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    let digest = site.current_digest("shop-prod").unwrap();

    // Git stops. The origin says so and serves on, to a new edge too, also after a restart of its own.
    let git = site.git.take().unwrap();
    git.stop().await;
    site.until_status(&site.origin, "the origin says that its upstream cannot be reached", |status| {
        status.to_string().contains("connect")
    })
    .await?;
    site.origin.terminate().await?;
    site.origin.start().await?;
    site.edge.terminate().await?;
    std::fs::remove_dir_all(site.path("edge-cache"))?;
    site.edge.start().await?;
    let path = "/v1/services/shop-prod/tarball";
    let response = site.client()?.send("GET", path, &[]).await?;
    assert_eq!((response.status(), header(&response, "weir-digest")), (StatusCode::OK, &*digest));
    let tar = response.into_body().collect().await?.to_bytes();
    assert_eq!(format!("b3-{}", blake3::hash(&tar)), digest);
    let client = site.client()?;
    until("readers learn that the upstream does not answer", async || {
        seen(&client).await.is_ok_and(|seen| seen["upstream_unreachable_since"].is_string())
    })
    .await?;

    // The origin stops too, and the edge is restarted: it serves what it holds, and marks it.
    site.origin.terminate().await?;
    site.edge.terminate().await?;
    site.edge.start().await?;
    let is_marked = async {
        let mut status = String::new();
        while !status.contains("ttl=-") {
            let response = site.client()?.send("GET", path, &[]).await?;
            assert_eq!((response.status(), header(&response, "weir-digest")), (StatusCode::OK, &*digest));
            status = header(&response, "cache-status").to_owned();
            let age: u64 = header(&response, "age").parse()?;
            let tar = response.into_body().collect().await?.to_bytes();
            assert_eq!(format!("b3-{}", blake3::hash(&tar)), digest, "at age {age}");
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, is_marked).await.context("what is held is not marked")??;

    // The edge stops: the agent keeps its release and counts.
    site.edge.terminate().await?;
    site.until_counter(&site.agent, "weir_agent_polls_total", &["result=\"error\""], 0.0).await?;
    assert_eq!(site.current_digest("shop-prod").as_deref(), Some(&*digest));

    // A push during the outage, then everything comes back.
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.edge.start().await?;
    site.origin.start().await?;
    site.git = Some(git.restart().await?);
    site.until_released("shop-prod", "version", "2").await
}
