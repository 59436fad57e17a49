//! How long an origin with many services takes to be ready, how much memory it holds, and what an operator's edit costs then:
//! `start_with_many_services DIR [SERVICES]`.
//!
//! The first run makes a repository with a folder for each service below `DIR`, and has an origin publish them all; each run
//! then starts an origin over that in a process of its own. Everything in `DIR` is this program's. `git` is needed.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use weir_origin::Running;
use weir_origin::config::{Config, TlsConfig};
use weir_protocol::name::ServiceName;
use weir_runtime::{certificates, tls};
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

const TOKEN: &str = "a-token-of-sixteen-bytes";
const EDITS: usize = 50;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().context("which directory?")?;
    let services: usize = arguments.next().map_or(Ok(10_000), |number| number.parse())?;
    let dir = Path::new(&dir).join(services.to_string());
    if arguments.next().is_some() {
        return measure(&dir, services).await;
    }
    if !dir.join("published").exists() {
        make(&dir, services).await?;
    }
    for _ in 0..3 {
        let program = std::env::current_exe()?;
        let run = Command::new(program)
            .arg(dir.parent().context("a folder")?)
            .args([&services.to_string(), "measure"])
            .status()?;
        ensure!(run.success(), "the measurement failed");
    }
    Ok(())
}

/// Starts an origin over what is published.
async fn measure(dir: &Path, services: usize) -> anyhow::Result<()> {
    let begun = Instant::now();
    let origin = weir_origin::start(config(dir, services)?).await?;
    let ready = begun.elapsed();
    for number in 0..services {
        let service = origin.service(&name(number)?).context("it is defined")?;
        ensure!(service.borrow().is_some(), "it is not served at once");
    }
    let memory = private_kib()?;
    let edit = edit(&origin, dir).await?;
    println!("{services} services: ready after {ready:?}, {memory} KiB of private memory, {edit:?} for an edit");
    origin.drain(Duration::from_secs(60)).await;
    Ok(())
}

/// How long an edit takes, on average.
async fn edit(origin: &Running, dir: &Path) -> anyhow::Result<Duration> {
    let config = tls::client_config(&dir.join("ca.pem"), None)?;
    let client = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build()?;
    let address = origin.operator_address().context("operators have a listener")?;
    let mut took = Duration::ZERO;
    for number in 0..EDITS {
        let url = format!("https://{address}/v1/repositories/of-operators");
        let document = format!("{{\"url\": \"https://upstream.example/{number}.git\"}}");
        let begun = Instant::now();
        let answer = client.put(url).bearer_auth(TOKEN).body(document).send().await?;
        took += begun.elapsed();
        ensure!(answer.status().is_success(), "{}", answer.text().await?);
        // The next write of the record need not wait for this one's second.
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    Ok(took / EDITS as u32)
}

fn private_kib() -> anyhow::Result<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup")?;
    let private = rollup.lines().filter(|line| line.starts_with("Private_"));
    private.map(|line| Ok(line.split_whitespace().nth(1).context("a number")?.parse::<u64>()?)).sum()
}

/// Makes the repository, and has everything published.
async fn make(dir: &Path, services: usize) -> anyhow::Result<()> {
    fs::create_dir_all(dir)?;
    certificates::write(dir, &[])?;
    fs::write(dir.join("token"), TOKEN)?;
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.args(arguments).current_dir(dir).stdin(Stdio::piped());
        git
    };
    ensure!(git(&["init", "--quiet", "--bare", "--initial-branch=main", "upstream.git"]).status()?.success());
    let mut import = git(&["--git-dir=upstream.git", "fast-import", "--quiet"]).spawn()?;
    let mut stream = "commit refs/heads/main\ncommitter a <a@example> 0 +0000\ndata 1\na\n".to_owned();
    for number in 0..services {
        let contents = format!("replicas: {number}\n");
        stream += &format!("M 644 inline service-{number}/app.yaml\ndata {}\n{contents}", contents.len());
    }
    import.stdin.take().context("a pipe")?.write_all(stream.as_bytes())?;
    ensure!(import.wait()?.success());
    let begun = Instant::now();
    let origin = weir_origin::start(config(dir, services)?).await?;
    for number in 0..services {
        let mut service = origin.service(&name(number)?).context("it is defined")?;
        service.wait_for(Option::is_some).await?;
    }
    println!("{services} services: built and published in {:?}", begun.elapsed());
    origin.drain(Duration::from_secs(60)).await;
    Ok(fs::write(dir.join("published"), "")?)
}

fn config(dir: &Path, services: usize) -> anyhow::Result<Config> {
    let file = |name: &str| dir.join(name);
    let tls = TlsConfig { certificate: file("origin.pem"), key: file("origin.key"), client_ca: file("ca.pem") };
    let mut config = Config::new("origin-1".parse()?, file("data"), tls);
    config.operator_listen = Some(([127, 0, 0, 1], 0).into());
    config.operator_api.operator_token_file = Some(file("token"));
    let mut repository =
        RepositoryConfig::new("shop".parse()?, file("upstream.git").canonicalize()?.to_str().context("a path")?);
    repository.poll_interval = Duration::from_secs(3600);
    for number in 0..services {
        let mut service = ServiceConfig::new(name(number)?, repository.name.clone());
        service.folder = format!("service-{number}").parse()?;
        config.services.push(service);
    }
    config.repositories = vec![repository];
    Ok(config)
}

fn name(number: usize) -> anyhow::Result<ServiceName> {
    Ok(format!("service-{number}").parse()?)
}
