//! Clients that begin a large download and take nothing of it, at night two thousand of them: the edge serves them
//! within a stated memory, and everybody else as if they were not there.

use std::sync::Arc;

use anyhow::{Context, ensure};
use http::StatusCode;
use http_body_util::BodyExt;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::poller::Version;
use weir_loadtest::processes::{nightly, until};
use weir_loadtest::slow_reader::SlowReader;
use weir_runtime::tls;

use crate::site::{Plan, Site, header, noise};

/// How many readers of each round come over each version of HTTP. The versions take turns, so that the last readers of each
/// have begun a short time ago: the edge resets a response of which the client takes nothing for a minute.
const READERS: [(Version, usize); 3] = [(Version::Http1, 3), (Version::Http2, 5), (Version::Http3, 2)];

/// What the edge may hold for each of them, in KiB: its connection, what was read ahead of the reader, and what was
/// handed to the connection and not yet to the system. The manual states it.
const MAX_KIB_PER_READER: u64 = 640;

/// What the edge may hold besides, in KiB: a debug build with all its threads, and its memory tier.
const MAX_KIB_BESIDES: u64 = 512 << 10;

const TARBALL: &str = "/v1/services/shop-prod/tarball";
const MEGABYTES: usize = 32;

/// The memory of a process that is its own, in KiB.
fn resident_kib(pid: u32) -> anyhow::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("the kernel says RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// Both ends of each connection are on this machine, and the processes that are started inherit the limit.
fn allow_many_files() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("up to the hard limit");
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_readers_are_served_within_the_memory_limit() -> anyhow::Result<()> {
    allow_many_files();
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/noise", noise(MEGABYTES << 20))?;
        upstream.commit_and_push("noise").map(drop)
    };
    let mut site = Site::new(fill, Plan { fresh: "10m", ..Plan::default() }).await?;
    site.origin.start().await?;
    site.edge.start().await?;
    let client = site.client()?;
    let whole = async |client: &crate::site::Client| {
        let response = client.send("GET", TARBALL, &[("accept-encoding", "zstd")]).await?;
        let (status, etag) = (response.status(), header(&response, "etag").to_owned());
        anyhow::Ok((status, etag, response.into_body().collect().await?.to_bytes()))
    };
    until("the tarball is served", async || whole(&client).await.is_ok_and(|answer| answer.0 == StatusCode::OK))
        .await?;
    let answer = whole(&client).await?;
    let body = blake3::hash(&answer.2);

    let tls = tls::client_config(&site.path("ca.pem"), None)?;
    let at_a_time = Arc::new(Semaphore::new(32));
    let mut beginning = JoinSet::new();
    let rounds = if nightly() { 200 } else { 20 };
    let round = READERS.iter().flat_map(|(version, readers)| std::iter::repeat_n(*version, *readers));
    for version in std::iter::repeat_n(round, rounds).flatten() {
        let (tls, at_a_time, server) = (tls.clone(), at_a_time.clone(), site.edge_address);
        beginning.spawn(async move {
            let _turn = at_a_time.acquire().await?;
            let reader = SlowReader::begin(version, server, TARBALL, tls).await;
            anyhow::Ok((version, reader.with_context(|| format!("a reader over {version:?}"))?))
        });
    }
    let mut readers = Vec::new();
    while let Some(begun) = beginning.join_next().await {
        readers.push(begun?.with_context(|| site.logs())?);
    }

    // Everybody else is served.
    let (status, _, bytes) = whole(&site.client()?).await?;
    assert_eq!((status, blake3::hash(&bytes)), (StatusCode::OK, body));
    let poll = client.send("HEAD", TARBALL, &[("if-none-match", &answer.1)]).await?;
    assert_eq!(poll.status(), StatusCode::NOT_MODIFIED);

    let resident = resident_kib(site.edge.pid().context("the edge runs")?)?;
    let count = readers.len() as u64;
    println!("{count} slow readers of {MEGABYTES} MiB: the edge holds {resident} KiB, {} for each", resident / count);
    ensure!(
        resident <= MAX_KIB_BESIDES + count * MAX_KIB_PER_READER,
        "the edge holds {resident} KiB for {count} slow readers"
    );

    // None was forgotten: some of each kind go on, and get everything.
    let mut finishing = JoinSet::new();
    for (version, _) in READERS {
        for _ in 0..8 {
            // The last ones: the edge may have reset the first ones by now.
            let at = readers.iter().rposition(|(of, _)| *of == version).context("there are more of them")?;
            let (_, reader) = readers.swap_remove(at);
            finishing.spawn(async move {
                let mut hasher = blake3::Hasher::new();
                let hash = |part: &[u8]| {
                    hasher.update(part);
                };
                reader.finish(hash).await.with_context(|| format!("{version:?}"))?;
                anyhow::Ok(hasher.finalize())
            });
        }
    }
    while let Some(finished) = finishing.join_next().await {
        assert_eq!(finished??, body);
    }
    Ok(())
}
