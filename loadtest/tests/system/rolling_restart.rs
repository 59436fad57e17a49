//! Two edges are restarted one after the other while clients poll and fetch without a pause: no request fails.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, bail, ensure};
use http::StatusCode;
use http_body_util::BodyExt;
use tokio::task::JoinSet;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, free_address, until};
use weir_loadtest::scrape::Metrics;
use weir_protocol::digest::TarballDigest;

use crate::site::{Client, Plan, Site, header, noise};

const TARBALL: &str = "/v1/services/shop-prod/tarball";
const CLIENTS: usize = 8;
const ROUNDS: usize = 2;

/// What a client has done so far.
#[derive(Default)]
struct Done {
    polls: AtomicU64,
    downloads: AtomicU64,
    moved: AtomicU64,
}

/// A client as the agents are: it stays with one edge, and goes to the other when it is not let in. Anything else that
/// goes wrong is a failed request.
async fn follow(edges: [Client; 2], first: usize, stop: &AtomicBool, done: &Done) -> anyhow::Result<()> {
    let mut at = first;
    let mut etag = String::new();
    let mut refused_in_a_row = 0;
    while !stop.load(Ordering::Relaxed) {
        let poll = !etag.is_empty() && !done.polls.load(Ordering::Relaxed).is_multiple_of(4);
        let (method, headers) = if poll {
            ("HEAD", [("accept-encoding", "zstd"), ("if-none-match", etag.as_str())])
        } else {
            ("GET", [("accept-encoding", "zstd"), ("x-request", "download")])
        };
        let response = match edges[at].send(method, TARBALL, &headers).await {
            Ok(response) => response,
            Err(error) if was_rejected(&error) => {
                refused_in_a_row += 1;
                ensure!(refused_in_a_row < 2, "neither edge lets anybody in");
                at = 1 - at;
                done.moved.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            Err(error) => return Err(error.context(format!("a {method} failed at edge {at}"))),
        };
        refused_in_a_row = 0;
        if poll {
            ensure!(response.status() == StatusCode::NOT_MODIFIED, "a poll was answered {}", response.status());
        } else {
            ensure!(response.status() == StatusCode::OK, "a download was answered {}", response.status());
            etag = header(&response, "etag").to_owned();
            let bytes = response.into_body().collect().await.context("a download broke off")?.to_bytes();
            let named = etag.split_once("+zstd.").map(|(digest, _)| digest.trim_start_matches('"'));
            let digest = TarballDigest::of(&zstd::decode_all(&bytes[..])?).to_string();
            ensure!(named == Some(&*digest), "a download has other bytes than its tag says");
            done.downloads.fetch_add(1, Ordering::Relaxed);
        }
        done.polls.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Whether nobody listened, or the connection was going away and had not taken up the request: its last stream is named in
/// GOAWAY, and what comes behind it can be asked again (RFC 9113 section 6.8). Nobody had promised anything yet. A connection
/// that the kernel had accepted is a promise.
fn was_rejected(error: &anyhow::Error) -> bool {
    let mut causes = error.chain();
    causes.any(|cause| {
        let nobody_listens = cause
            .downcast_ref::<std::io::Error>()
            .is_some_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        let goes_away = cause.downcast_ref::<h2::Error>().is_some_and(|error| {
            error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR)
        });
        nobody_listens || goes_away
    })
}

/// The second edge: like the first, at addresses and in a directory of its own.
fn second_edge(site: &Site, dir: &Path) -> anyhow::Result<(Node, Client)> {
    let (listen, admin) = (free_address()?, free_address()?);
    let config = std::fs::read_to_string(dir.join("edge.toml"))?;
    let config = config
        .replace("edge-1", "edge-2")
        .replace("edge-cache", "edge-cache-2")
        .replace(&site.edge_address.to_string(), &listen.to_string())
        .replace(&site.edge.admin().to_string(), &admin.to_string());
    Ok((Node::new(dir, "edge_2", admin, &config)?, Client::new(&dir.join("ca.pem"), listen)?))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_load_fails_no_request() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/noise", noise(4 << 20))?;
        upstream.commit_and_push("noise").map(drop)
    };
    let mut site = Site::new(fill, Plan::default()).await?;
    let dir = site.path("");
    let (mut edge_2, client_2) = second_edge(&site, &dir)?;
    // The agent, which goes by HTTP/3, knows both.
    let agent = std::fs::read_to_string(dir.join("agent.toml"))?;
    let both = format!("edges = [\"https://{}\", \"{}\"]", site.edge_address, client_2.base());
    std::fs::write(
        dir.join("agent.toml"),
        agent.replace(&format!("edges = [\"https://{}\"]", site.edge_address), &both),
    )?;
    site.start().await?;
    edge_2.start().await?;
    let edges = [site.client()?, client_2];
    for edge in &edges {
        until("both edges serve it", async || {
            edge.send("HEAD", TARBALL, &[]).await.is_ok_and(|response| response.status() == StatusCode::OK)
        })
        .await?;
    }

    // Polls that failed; before the first publication they may.
    let agent = site.agent.admin();
    let failed = async || anyhow::Ok(Metrics::read(agent).await?.sum("weir_agent_polls_total", &["result=\"error\""]));
    let failed_before = failed().await?;
    let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(Done::default()));
    let mut clients = JoinSet::new();
    for number in 0..CLIENTS {
        // Each with connections of its own.
        let own = [edges[0].another(&dir.join("ca.pem"))?, edges[1].another(&dir.join("ca.pem"))?];
        let (stop, done) = (stop.clone(), done.clone());
        clients.spawn(async move { follow(own, number % 2, &stop, &done).await });
    }
    for _ in 0..ROUNDS {
        for number in 0..2 {
            let before = done.downloads.load(Ordering::Relaxed);
            until("clients download", async || done.downloads.load(Ordering::Relaxed) > before + CLIENTS as u64)
                .await?;
            let edge = if number == 0 { &mut site.edge } else { &mut edge_2 };
            // Its exit is clean: nothing had to be cut.
            let moved = done.moved.load(Ordering::Relaxed);
            edge.terminate().await?;
            until("a client is not let in", async || done.moved.load(Ordering::Relaxed) > moved).await?;
            edge.start().await?;
            until("the edge is ready again", async || {
                weir_loadtest::scrape::get(edge.admin(), "/readyz")
                    .await
                    .is_ok_and(|(status, _)| status == StatusCode::OK)
            })
            .await?;
        }
    }
    stop.store(true, Ordering::Relaxed);
    while let Some(ended) = clients.join_next().await {
        if let Err(error) = ended? {
            bail!("{error:#}\n{}\nedge 2:\n{}", site.logs(), edge_2.log());
        }
    }

    let metrics = Metrics::read(site.agent.admin()).await?;
    assert!(metrics.sum("weir_agent_polls_total", &[]) > 0.0);
    assert_eq!(failed().await?, failed_before, "{}", site.logs());
    Ok(())
}
