//! Many first requests of one large tarball are one request to the origin.

use anyhow::Context;
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::PATIENCE;
use weir_loadtest::scrape::Metrics;
use weir_shared::descriptor::Descriptor;
use weir_shared::digest::TarballDigest;
use weir_shared::encoding::Encoding;

use crate::site::{Client, Plan, Site, header, noise};

const CLIENTS: usize = 50;
const MEGABYTES: usize = 64;

#[tokio::test(flavor = "multi_thread")]
async fn fifty_first_requests_of_64_mb_are_one_and_killing_the_first_client_disturbs_nobody() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/noise", noise(MEGABYTES << 20))?;
        upstream.commit_and_push("noise").map(drop)
    };
    let mut site = Site::new(fill, Plan { fresh: "10m", ..Plan::default() }).await?;
    site.origin.start().await?;
    site.edge.start().await?;
    // The catalog has the service, the cache none of its objects.
    let mut descriptor = site.client()?.send("GET", "/v1/services/shop-prod", &[]).await?;
    let is_there = async {
        while descriptor.status() != StatusCode::OK {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            descriptor = site.client()?.send("GET", "/v1/services/shop-prod", &[]).await?;
        }
        anyhow::Ok(())
    };
    tokio::time::timeout(PATIENCE, is_there).await.context("the service is not served")??;
    let descriptor = Descriptor::parse(descriptor.into_body().collect().await?.to_bytes())?;
    let representation = descriptor.representation(Encoding::Zstd).context("it is stored as zstd")?.clone();

    let get = |client: Client| async move {
        client.send("GET", "/v1/services/shop-prod/tarball", &[("accept-encoding", "zstd")]).await
    };
    // The first client has begun the fill when the edge counts it; then it dies.
    let first = tokio::spawn(get(site.client()?));
    site.until_counter(&site.edge, "weir_edge_origin_requests_total", &["kind=\"object\""], 0.0)
        .await
        .or_else(|_| anyhow::bail!("the fill was not seen to begin"))?;
    first.abort();

    let mut clients = JoinSet::new();
    for _ in 1..CLIENTS {
        let client = site.client()?;
        clients.spawn(async move {
            let response = get(client).await?;
            anyhow::ensure!(response.status() == StatusCode::OK, "{}", response.status());
            anyhow::ensure!(header(&response, "content-encoding") == "zstd");
            let mut hasher = blake3::Hasher::new();
            let mut body = response.into_body();
            while let Some(frame) = body.frame().await {
                if let Ok(data) = frame?.into_data() {
                    hasher.update(&data);
                }
            }
            anyhow::Ok(hasher.finalize())
        });
    }
    let body = get(site.client()?).await?.into_body().collect().await?.to_bytes();
    assert_eq!(TarballDigest::of(&zstd::decode_all(&body[..])?), descriptor.publication().digest);
    while let Some(client) = clients.join_next().await {
        assert_eq!(client??, blake3::hash(&body), "wrong bytes");
    }
    let metrics = Metrics::read(site.origin.admin()).await?;
    // Each frame once, and their manifest.
    let objects = f64::from(representation.frames + 1);
    assert_eq!(metrics.sum("weir_origin_object_requests_total", &[]), objects, "the origin served one more than once");
    let sent = metrics.sum("weir_origin_object_sent_bytes_total", &[]) - representation.size as f64;
    assert!((0.0..200.0 * objects).contains(&sent), "{sent} bytes beside the frames");
    Ok(())
}
