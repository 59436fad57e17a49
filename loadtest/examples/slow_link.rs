//! How busy an edge keeps a long line to its origin while a reader fetches what the edge does not hold.
//!
//! `cargo run --release -p weir-loadtest --example slow_link -- [MEGABYTES [DELAY [MBIT/S]]]`: 50 MB that do not compress, a
//! delay of 50 ms and 200 Mbit/s when nothing is given. The first byte takes two round trips, one for the manifest and one for
//! the first frame; from then on a line that is never idle carries the body in its size divided by its width.

use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{PATIENCE, until};
use weir_loadtest::relay::Line;
use weir_runtime::config::duration;
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let megabytes: usize = arguments.next().as_deref().unwrap_or("50").parse()?;
    let delay = duration::parse(arguments.next().as_deref().unwrap_or("50ms")).map_err(anyhow::Error::msg)?;
    let width = arguments.next().as_deref().unwrap_or("200").parse::<u64>()? * 125_000;

    let dir = tempfile::tempdir()?;
    let upstream = GitRepository::create(dir.path(), "shop")?;
    let mut noise = vec![0; megabytes * 1_000_000];
    blake3::Hasher::new().finalize_xof().fill(&mut noise);
    upstream.write("noise", noise)?;
    upstream.commit_and_push("noise")?;
    let cluster = Cluster::start(Plan {
        repositories: vec![RepositoryConfig::new("shop".parse()?, upstream.bare().to_str().context("UTF-8")?)],
        services: vec![ServiceConfig::new("shop".parse()?, "shop".parse()?)],
        fresh: Duration::from_secs(3600),
        line: Some(Line { delay, bytes_per_second: Some(width) }),
        prefetch: false,
        ..Plan::default()
    })
    .await?;
    let client = http2_client(tls::client_config(&cluster.ca(), None)?);
    let uri = format!("https://{}/v1/services/shop/tarball", cluster.edges[0].address());
    until("the edge serves the service", async || {
        ask(&client, "HEAD", &uri).await.is_ok_and(|answer| answer.status() == StatusCode::OK)
    })
    .await?;

    let begun = Instant::now();
    let answer = ask(&client, "GET", &uri).await?;
    ensure!(answer.status() == StatusCode::OK, "answered {}", answer.status());
    let mut body = answer.into_body();
    let (mut first_byte, mut size) = (None, 0);
    while let Some(part) = body.frame().await {
        size += part?.data_ref().map_or(0, Bytes::len);
        first_byte.get_or_insert_with(Instant::now);
    }
    let first_byte = first_byte.context("there is a body")?;
    let (waited, took) = (first_byte - begun, first_byte.elapsed());
    let busy = size as f64 / width as f64 / took.as_secs_f64();
    println!("{size} bytes over a line of {} Mbit/s and a round trip of {delay:?}", width / 125_000);
    println!("first byte after {waited:.0?}, {:.1} round trips", waited.as_secs_f64() / delay.as_secs_f64());
    println!("the rest in {took:.0?}: the line was busy {:.0} % of that time", 100.0 * busy);
    ensure!(cluster.drain(PATIENCE).await, "something had to be cut");
    Ok(())
}

async fn ask(client: &Http2Client, method: &str, uri: &str) -> anyhow::Result<http::Response<Incoming>> {
    let request = Request::builder().method(method).uri(uri).header("accept-encoding", "zstd");
    Ok(client.request(request.body(Empty::<Bytes>::new())?).await?)
}
