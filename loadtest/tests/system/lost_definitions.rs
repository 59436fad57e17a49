//! The first hour of a hub, and the loss of its volume: edges go on serving what operators had defined.

use std::fs;

use anyhow::Context;
use http::StatusCode;
use serde_json::json;
use weir_loadtest::git_server;
use weir_loadtest::processes::until;
use weir_loadtest::scrape::{self, Metrics};

use crate::operators::{curl, site};
use crate::site::{Client, Site};

async fn status_of(client: &Client, service: &str) -> anyhow::Result<StatusCode> {
    Ok(client.send("HEAD", &format!("/v1/services/{service}/tarball"), &[]).await?.status())
}

/// What the probe and the gauge of the origin say.
async fn degraded(site: &Site) -> anyhow::Result<(String, f64)> {
    let admin = site.origin.admin();
    let missing = Metrics::read(admin).await?.sum("weir_origin_definitions_missing", &[]);
    Ok((scrape::get(admin, "/readyz").await?.1, missing))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_hub_does_not_page_and_a_lost_volume_denies_nothing_that_an_edge_serves() -> anyhow::Result<()> {
    let (mut site, base) = site().await?;
    site.start().await?;
    let (client, ca) = (site.client()?, site.path("ca.pem"));
    let put =
        async |path: &str, document| anyhow::Ok(curl(&ca, "PUT", format!("{base}{path}"), Some(document)).await?.0);
    assert_eq!(put("/v1/agents/cluster-9", json!({})).await?, 201);
    assert_eq!(status_of(&client, "shop-porf").await?, StatusCode::NOT_FOUND);
    assert_eq!(degraded(&site).await?, ("ready\n".to_owned(), 0.0));
    assert!(!site.origin.log().contains("WARN"), "{}", site.origin.log());

    let url = site.git.as_ref().context("the Git server runs")?.url("shop");
    let repository = json!({
        "url": url, "poll_interval": "1s", "ca": "ca.pem", "username": git_server::USERNAME, "password_file": "password",
    });
    assert_eq!(put("/v1/repositories/shop", repository).await?, 201);
    let service = json!({ "repository": "shop", "ref": "main", "folder": "deploy/prod" });
    assert_eq!(put("/v1/services/shop-prod", service).await?, 201);
    site.until_released("shop-prod", "version", "1").await?;

    site.origin.terminate().await?;
    fs::remove_dir_all(site.path("origin-data"))?;
    site.origin.start().await?;
    until("the origin suspects a loss", async || degraded(&site).await.is_ok_and(|(_, missing)| missing == 1.0))
        .await?;
    // An automated registration comes first.
    assert_eq!(put("/v1/agents/cluster-9", json!({})).await?, 201);
    assert_eq!(status_of(&client, "shop-prod").await?, StatusCode::OK);
    // The edge has not asked for this one yet.
    assert_eq!(status_of(&client, "shop-prdo").await?, StatusCode::SERVICE_UNAVAILABLE);
    let (ready, missing) = degraded(&site).await?;
    assert!(ready.contains("no trace") && missing == 1.0, "{ready}");

    // Operators begin again.
    assert_eq!(put("/v1/repositories/blog", json!({ "url": "https://git.example/blog.git" })).await?, 201);
    until("the edge drops the service", async || {
        status_of(&client, "shop-prod").await.is_ok_and(|status| status == StatusCode::NOT_FOUND)
    })
    .await
    .with_context(|| site.logs())?;
    assert_eq!(degraded(&site).await?.1, 0.0);
    Ok(())
}
