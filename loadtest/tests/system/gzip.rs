//! A client that knows gzip and nothing better.

use std::io::Read;

use http::StatusCode;
use http_body_util::BodyExt;
use weir_loadtest::scrape::Metrics;

use crate::site::{Plan, Site, header};

#[tokio::test(flavor = "multi_thread")]
async fn gzip_is_made_at_the_origin_when_it_is_first_asked_for_and_gives_the_tarball() -> anyhow::Result<()> {
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/text", "the same again and again ".repeat(50_000))?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan { fresh: "10m", ..Plan::default() }).await?;
    site.origin.start().await?;
    site.until_status(&site.origin, "the service is published", |status| status.to_string().contains("b3-")).await?;
    site.edge.start().await?;
    let client = site.client()?;
    let path = "/v1/services/shop-prod/tarball";
    let accept = ("accept-encoding", "gzip, identity;q=0");
    for expected in ["fwd=miss", "hit"] {
        let response = client.send("GET", path, &[accept]).await?;
        assert_eq!((response.status(), header(&response, "content-encoding")), (StatusCode::OK, "gzip"));
        assert!(header(&response, "cache-status").contains(expected), "{}", header(&response, "cache-status"));
        let digest = header(&response, "weir-digest").to_owned();
        let coded = response.into_body().collect().await?.to_bytes();
        let mut tar = Vec::new();
        flate2::read::GzDecoder::new(&coded[..]).read_to_end(&mut tar)?;
        assert_eq!(format!("b3-{}", blake3::hash(&tar)), digest);
    }
    let made = Metrics::read(site.origin.admin()).await?.sum("weir_origin_gzips_total", &["result=\"made\""]);
    assert_eq!(made, 1.0);
    Ok(())
}
