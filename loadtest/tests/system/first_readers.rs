//! Many first readers of one large tarball are one reader to the origin.

use http::StatusCode;
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use weir_loadtest::processes::{nightly, until};
use weir_protocol::digest::TarballDigest;

use crate::one_service::{OneService, TARBALL};
use crate::site::{Client, header, noise};

const READERS: usize = 50;

const EDGES: usize = 3;

/// Of each edge behind the shield. What has to be shared shows with two; a crowd shows only how busy the machine is, and
/// then edges rightly ask past a shield that keeps them waiting.
const READERS_OF_AN_EDGE: usize = 3;

/// More than the manifest has, and less than a frame.
const BESIDES: usize = 64 << 10;

async fn read(client: Client) -> anyhow::Result<()> {
    let response = client.send("GET", TARBALL, &[("accept-encoding", "identity")]).await?;
    anyhow::ensure!(response.status() == StatusCode::OK, "{}", response.status());
    let digest = header(&response, "weir-digest").to_owned();
    let (mut body, mut hasher) = (response.into_body(), blake3::Hasher::new());
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            hasher.update(&data);
        }
    }
    anyhow::ensure!(TarballDigest::from(hasher.finalize()).to_string() == digest, "wrong bytes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn fifty_concurrent_misses_of_a_large_tarball_fetch_each_object_once() -> anyhow::Result<()> {
    let bytes = (if nightly() { 64 } else { 8 }) << 20;
    let one = OneService::start(noise(bytes), false).await?;
    let first = tokio::spawn(read(one.client()?));
    // The poll at the start has brought the manifest.
    until("the first reader has the edge fetch", async || {
        one.at_origin("weir_origin_object_requests_total").await.is_ok_and(|requests| requests > 1.0)
    })
    .await?;
    let mut readers = JoinSet::new();
    for _ in 1..READERS {
        readers.spawn(read(one.client()?));
    }
    first.abort();
    while let Some(reader) = readers.join_next().await {
        reader??;
    }
    let sent = one.at_origin("weir_origin_object_sent_bytes_total").await?;
    assert!((bytes..bytes + BESIDES).contains(&(sent as usize)), "the origin sent {sent} bytes for {bytes}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn three_edges_behind_a_shield_have_the_origin_send_each_object_once() -> anyhow::Result<()> {
    let (bytes, of_an_edge) = if nightly() { (64 << 20, 16) } else { (8 << 20, READERS_OF_AN_EDGE) };
    let one = OneService::behind_a_shield(noise(bytes), EDGES).await?;
    let mut readers = JoinSet::new();
    for reader in 0..EDGES * of_an_edge {
        readers.spawn(read(one.client_of(1 + reader % EDGES)?));
    }
    while let Some(reader) = readers.join_next().await {
        reader??;
    }
    let sent = one.at_origin("weir_origin_object_sent_bytes_total").await?;
    // Beside other tests the shield may be too slow for an edge, which then asks the origin for a few frames.
    let (beside, is_alone) = if nightly() { (BESIDES, true) } else { (bytes, false) };
    assert!((bytes..bytes + beside).contains(&(sent as usize)), "the origin sent {sent} bytes for {bytes}");
    let (objects, of_shield) = (one.requested("object").await?, one.requested("shield").await?);
    let of_all = EDGES as f64 * objects;
    assert!(objects > 1.0 && of_shield <= of_all, "{objects} objects, {of_shield} from the shield");
    assert!(!is_alone || of_shield == of_all, "{objects} objects, {of_shield} from the shield");
    Ok(())
}
