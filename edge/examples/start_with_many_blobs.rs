//! How long an edge takes to start over a directory of many blobs: `start_with_many_blobs DIR [BLOBS]`.
//!
//! Makes a million empty-looking files (sparse, no space) named like blobs below `DIR`, starts an edge over them without
//! an index, stops it, and starts it again with one. Everything in `DIR` is this program's.

use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use weir_edge::config::{CacheConfig, Config, OriginConfig, TlsConfig};
use weir_shared::digest::BlobDigest;
use weir_shared::process::certificates;

/// More than a small blob has.
const BYTES: u64 = 300_000;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or_else(|| anyhow::anyhow!("which directory?"))?;
    let blobs: u64 = arguments.next().map_or(Ok(1_000_000), |number| number.parse())?;
    let dir = Path::new(&dir);
    fs::create_dir_all(dir)?;
    certificates::write(dir, &[])?;
    let begun = Instant::now();
    make(&dir.join("cache/blobs"), blobs)?;
    println!("{blobs} files made in {:.1} s", begun.elapsed().as_secs_f64());
    start(dir, blobs, "without an index").await?;
    start(dir, blobs, "with its index").await
}

fn make(dir: &Path, blobs: u64) -> anyhow::Result<()> {
    for group in 0..=255u8 {
        fs::create_dir_all(dir.join(format!("{group:02x}")))?;
    }
    for number in 0..blobs {
        let name = BlobDigest::of(&number.to_le_bytes()).hex();
        File::create(dir.join(&name[..2]).join(&name))?.set_len(BYTES)?;
    }
    Ok(())
}

async fn start(dir: &Path, blobs: u64, what: &str) -> anyhow::Result<()> {
    let file = |name: &str| dir.join(name);
    let origin =
        OriginConfig::new("https://127.0.0.1:1", file("ca.pem"), file("edge-client.pem"), file("edge-client.key"));
    let tls = TlsConfig { certificate: file("edge.pem"), key: file("edge.key") };
    let mut cache = CacheConfig::new(file("cache"));
    cache.disk = ByteSize(2 * blobs * BYTES);
    cache.small = Some(ByteSize::mib(32));
    cache.scrub = Duration::ZERO;
    let config = Config::new("edge-1".parse()?, "127.0.0.1:0".parse()?, tls, cache, vec![origin]);
    let begun = Instant::now();
    let edge = weir_edge::start(config).await?;
    let serving = begun.elapsed();
    let known_at_once = entries(&edge);
    while entries(&edge) < blobs as f64 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let all = begun.elapsed();
    println!(
        "{what}: serving after {:.2} s with {known_at_once} blobs known, all known after {:.2} s, {}",
        serving.as_secs_f64(),
        all.as_secs_f64(),
        resident()?,
    );
    let begun = Instant::now();
    anyhow::ensure!(edge.drain(Duration::from_secs(60)).await, "the drain was cut");
    println!("{what}: stopped in {:.2} s", begun.elapsed().as_secs_f64());
    Ok(())
}

fn entries(edge: &weir_edge::Running) -> f64 {
    let families = edge.registry().gather();
    let family = families.iter().find(|family| family.name() == "weir_edge_cache_entries");
    family.map_or(0.0, |family| family.get_metric().iter().map(|metric| metric.get_gauge().get_value()).sum())
}

/// The memory of this process.
fn resident() -> anyhow::Result<String> {
    let status = fs::read_to_string("/proc/self/status")?;
    Ok(status.lines().find(|line| line.starts_with("VmRSS")).unwrap_or("no VmRSS").replace('\t', " "))
}
