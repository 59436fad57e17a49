//! How long an origin takes to start over few and over many blobs: `start_with_many_blobs DIR [ROUNDS]`.
//!
//! Makes two data directories below `DIR`, of 1,000 and of 100,000 retained versions, each with its blob and all its rows,
//! and starts an origin over one and the other in turn. Everything in `DIR` is this program's. Built with optimisations: with
//! its debug assertions the database goes through all of its pages when it is opened.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, ensure};
use redb::{Database, TableDefinition};
use weir_origin::config::{Config, RepositoryConfig, ServiceConfig, TlsConfig};
use weir_shared::descriptor::{Descriptor, DescriptorFields, FORMAT, Publication, Representation};
use weir_shared::digest::{BlobDigest, Sha256, TarballDigest};
use weir_shared::encoding::Encoding;
use weir_shared::process::certificates;

const SERVICES: u64 = 10;
const SIZES: [u64; 2] = [1_000, 100_000];
const CURRENT: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("current_v1");
const GENERATION: TableDefinition<'_, &str, u64> = TableDefinition::new("generation_v1");
type Version = (&'static str, &'static [u8; 32]);
const SUPERSEDED: TableDefinition<'_, Version, (u64, &[u8])> = TableDefinition::new("history_v1");

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().context("which directory?")?;
    let rounds: usize = arguments.next().map_or(Ok(5), |number| number.parse())?;
    let dir = Path::new(&dir);
    fs::create_dir_all(dir)?;
    certificates::write(dir, &[])?;
    for versions in SIZES {
        if !data_dir(dir, versions).exists() {
            make(&data_dir(dir, versions), versions)?;
        }
        // It writes down which version names which blob, once.
        let began = start(dir, versions).await?;
        println!("{versions} versions: the first start, which makes the index, took {began:?}");
    }
    for round in 1..=rounds {
        let [few, many] = [start(dir, SIZES[0]).await?, start(dir, SIZES[1]).await?];
        println!("round {round}: ready after {few:?} with {} versions, after {many:?} with {}", SIZES[0], SIZES[1]);
    }
    Ok(())
}

fn data_dir(dir: &Path, versions: u64) -> std::path::PathBuf {
    dir.join(format!("data-{versions}"))
}

/// Writes the blobs, and the versions as rows; all else the origin makes of them.
fn make(data: &Path, versions: u64) -> anyhow::Result<()> {
    for group in 0..=u8::MAX {
        fs::create_dir_all(data.join(format!("blobs/{group:02x}")))?;
    }
    // Without it the origin would take it for lost.
    drop(Database::create(data.join("catalog.redb"))?);
    let database = Database::create(data.join("state.redb"))?;
    let transaction = database.begin_write()?;
    {
        let mut superseded = transaction.open_table(SUPERSEDED)?;
        let mut current = transaction.open_table(CURRENT)?;
        let mut generations = transaction.open_table(GENERATION)?;
        for number in 0..versions {
            let service = format!("service-{}", number % SERVICES);
            let bytes = number.to_le_bytes().repeat(20);
            let blob = BlobDigest::of(&bytes);
            fs::write(data.join("blobs").join(&blob.hex()[..2]).join(blob.hex()), &bytes)?;
            let descriptor = descriptor(&service, number, blob, bytes.len() as u64)?;
            let (generation, digest) = (descriptor.publication().generation, descriptor.publication().digest);
            if number + SERVICES < versions {
                let row = (unix_milliseconds(), descriptor.bytes().as_ref());
                superseded.insert((service.as_str(), digest.as_bytes()), row)?;
            } else {
                current.insert(service.as_str(), descriptor.bytes().as_ref())?;
                generations.insert(service.as_str(), generation)?;
            }
        }
    }
    Ok(transaction.commit()?)
}

fn descriptor(service: &str, number: u64, blob: BlobDigest, size: u64) -> anyhow::Result<Descriptor> {
    Ok(Descriptor::new(DescriptorFields {
        publication: Publication {
            service: service.parse()?,
            repository: "shop".parse()?,
            generation: 1_700_000_000_000 + number,
            digest: TarballDigest::of(&number.to_le_bytes()),
            sha256: Sha256::from_bytes([7; 32]),
            size: 10_240,
            commit: format!("{number:040x}").parse()?,
            published_at: UNIX_EPOCH + Duration::from_secs(1_700_000_000),
            format: FORMAT,
            omitted: Vec::new(),
        },
        revision: 1,
        representations: vec![Representation { encoding: Encoding::Zstd, dictionary: None, digest: blob, size }],
    }))
}

/// Starts an origin, and stops it when it is ready: what is published is served from then on.
async fn start(dir: &Path, versions: u64) -> anyhow::Result<Duration> {
    let file = |name: &str| dir.join(name);
    let tls = TlsConfig { certificate: file("origin.pem"), key: file("origin.key"), client_ca: file("ca.pem") };
    let mut config = Config::new("origin-1".parse()?, data_dir(dir, versions), tls);
    config.retention.versions = 10_000;
    let mut repository = RepositoryConfig::new("shop".parse()?, "file:///nowhere");
    repository.poll_interval = Duration::from_secs(3600);
    let repository_name = repository.name.clone();
    config.repositories = vec![repository];
    for number in 0..SERVICES {
        config.services.push(ServiceConfig::new(format!("service-{number}").parse()?, repository_name.clone()));
    }
    let begun = Instant::now();
    let origin = weir_origin::start(config).await?;
    let began = begun.elapsed();
    for number in 0..SERVICES {
        let service = origin.service(&format!("service-{number}").parse()?).context("it is defined")?;
        ensure!(service.borrow().is_some(), "it is not served at once");
    }
    origin.drain(Duration::from_secs(60)).await;
    Ok(began)
}

fn unix_milliseconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}
