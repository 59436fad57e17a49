//! How long an edge takes until it serves with many objects in its cache, and how much memory it takes for each.
//!
//! `cargo run --release -p weir-edge --example start_with_many_objects -- 1000000`

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use prometheus::Registry;
use weir_edge::config::{CacheConfig, Config, OriginConfig, TlsConfig};
use weir_protocol::digest::ObjectDigest;
use weir_runtime::certificates;

fn main() -> anyhow::Result<()> {
    let objects: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |count| count.parse())?;
    let dir = tempfile::tempdir()?;
    certificates::write(dir.path(), &[])?;
    let cache = dir.path().join("cache");
    fill(&cache, objects)?;
    tokio::runtime::Runtime::new()?.block_on(start(dir.path(), objects))
}

/// Files whose names are right and whose bytes are few: what an edge finds after a restart.
fn fill(cache: &Path, objects: u64) -> anyhow::Result<()> {
    for group in 0..=255 {
        fs::create_dir_all(cache.join(format!("objects/{group:02x}")))?;
    }
    for number in 0..objects {
        let bytes = number.to_le_bytes();
        let hex = ObjectDigest::of(&bytes).hex();
        fs::write(cache.join("objects").join(&hex[..2]).join(&hex), bytes)?;
    }
    Ok(())
}

async fn start(dir: &Path, objects: u64) -> anyhow::Result<()> {
    let file = |name: &str| dir.join(name);
    let origin = OriginConfig::new(
        "https://127.0.0.1:9".to_owned(),
        file("ca.pem"),
        file("edge-client.pem"),
        file("edge-client.key"),
    );
    let tls = TlsConfig { certificate: file("edge.pem"), key: file("edge.key") };
    let mut cache = CacheConfig::new(dir.join("cache"));
    cache.disk = ByteSize::gib(16);
    let config = Config::new("edge".parse()?, "127.0.0.1:0".parse()?, tls, cache, vec![origin]);
    let before = resident()?;
    let begun = Instant::now();
    let edge = weir_edge::start(config).await?;
    println!("{objects} objects: serving after {:.3} s", begun.elapsed().as_secs_f64());
    while gauge(edge.registry(), "weir_edge_cache_scanning") != 0.0 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let grown = resident()?.saturating_sub(before);
    println!("all are known after {:.3} s", begun.elapsed().as_secs_f64());
    println!("resident memory grew by {} bytes, {} for each object", grown, grown / objects.max(1));
    edge.drain(Duration::from_secs(5)).await;
    Ok(())
}

fn gauge(registry: &Registry, name: &str) -> f64 {
    let families = registry.gather();
    families
        .iter()
        .find(|family| family.name() == name)
        .map_or(0.0, |family| family.get_metric()[0].get_gauge().get_value())
}

/// The process's resident memory, in bytes.
fn resident() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
