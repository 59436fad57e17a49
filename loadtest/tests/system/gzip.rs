//! Clients that know gzip and nothing better.

use std::io::Read;

use http::StatusCode;
use http_body_util::BodyExt;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::until;

use crate::site::{Client, Plan, Site, header, service};

const GZIP: (&str, &str) = ("accept-encoding", "gzip, identity;q=0");

/// The tarball as gzip; whether it has a strong tag and a length, and its coded bytes.
async fn fetch(client: &Client, service: &str) -> anyhow::Result<(bool, Vec<u8>)> {
    let response = client.send("GET", &format!("/v1/services/{service}/tarball"), &[GZIP]).await?;
    assert_eq!((response.status(), header(&response, "content-encoding")), (StatusCode::OK, "gzip"));
    let digest = header(&response, "weir-digest").to_owned();
    let is_stored = header(&response, "etag").starts_with(&format!("\"{digest}+gzip."));
    if !is_stored {
        assert_eq!(header(&response, "etag"), format!("W/\"{digest}+gzip\""));
    }
    assert_eq!(header(&response, "content-length").is_empty(), !is_stored);
    assert_eq!(header(&response, "accept-ranges"), if is_stored { "bytes" } else { "none" });
    let coded = response.into_body().collect().await?.to_bytes();
    let mut tar = Vec::new();
    flate2::read::MultiGzDecoder::new(&coded[..]).read_to_end(&mut tar)?;
    assert_eq!(format!("b3-{}", blake3::hash(&tar)), digest);
    Ok((is_stored, coded.to_vec()))
}

#[tokio::test(flavor = "multi_thread")]
async fn gzip_is_made_by_the_edge_or_stored_by_the_origin_and_gives_the_tarball() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/text", "the same again and again ".repeat(100_000))?;
        upstream.commit_and_push("one").map(drop)
    };
    let services = ["shop-prod", "shop-gzip"].map(|name| service(name, "main", "deploy/prod"));
    let plan = Plan { services: services.concat() + "gzip = true\n", fresh: "10m", ..Plan::default() };
    let mut site = Site::new(fill, plan).await?;
    site.origin.start().await?;
    site.edge.start().await?;
    let client = site.client()?;
    for name in ["shop-prod", "shop-gzip"] {
        until("the service is served", async || {
            let path = format!("/v1/services/{name}/tarball");
            client.send("HEAD", &path, &[]).await.is_ok_and(|answer| answer.status() == StatusCode::OK)
        })
        .await?;
    }
    assert!(!fetch(&client, "shop-prod").await?.0);
    let (is_stored, whole) = fetch(&client, "shop-gzip").await?;
    assert!(is_stored);
    let range = [GZIP, ("range", "bytes=100-299")];
    let part = client.send("GET", "/v1/services/shop-gzip/tarball", &range).await?;
    assert_eq!(part.status(), StatusCode::PARTIAL_CONTENT);
    assert_eq!(part.into_body().collect().await?.to_bytes(), &whole[100..300]);
    Ok(())
}
