//! A steady fleet costs the origin nothing.

use http::StatusCode;
use weir_loadtest::scrape::Metrics;

use crate::site::{Plan, Site, header};

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_polls_of_an_unchanged_service_are_304_and_the_origin_sees_none() -> anyhow::Result<()> {
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan { fresh: "10m", ..Plan::default() }).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    let client = site.client()?;
    let path = "/v1/services/shop-prod/tarball";
    let response = client.send("HEAD", path, &[]).await?;
    assert_eq!(response.status(), StatusCode::OK);
    let etag = header(&response, "etag").to_owned();

    let asked = |metrics: &Metrics| metrics.sum("weir_origin_descriptor_requests_total", &[]);
    let before = asked(&Metrics::read(site.origin.admin()).await?);
    for _ in 0..1000 {
        let response = client.send("HEAD", path, &[("if-none-match", &etag)]).await?;
        assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(header(&response, "cache-status"), "edge-1; hit");
        assert_eq!(header(&response, "etag"), etag);
    }
    let after = asked(&Metrics::read(site.origin.admin()).await?);
    assert_eq!(before, after, "the origin was asked");
    Ok(())
}
