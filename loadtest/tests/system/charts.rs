//! A chart of a Helm repository, from `helm package` to the directory of an agent.

use std::collections::hash_map::DefaultHasher;
use std::fs;
use std::hash::{Hash, Hasher};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, ensure};
use tempfile::TempDir;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::git_server::{self, GitServer};
use weir_loadtest::processes::until;
use weir_loadtest::scrape;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

use crate::docker_registry::{self, DockerRegistry};

/// Signs the charts.
const SIGNER: &str = "signer@example.org";

/// A Helm repository: a folder that helm indexes, behind a server of static files.
struct Repository {
    dir: TempDir,
    address: SocketAddr,
    /// Whether the server closes each connection without an answer.
    is_down: Arc<AtomicBool>,
    /// The paths that were answered, each with its status.
    answered: Arc<Mutex<Vec<String>>>,
}

impl Repository {
    /// `None`: there is no helm.
    fn start() -> anyhow::Result<Option<Self>> {
        if Command::new("helm").arg("version").output().is_err() {
            ensure!(std::env::var_os("CI").is_none(), "there is no helm");
            eprintln!("SKIPPED: there is no helm");
            return Ok(None);
        }
        let dir = tempfile::tempdir()?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let (is_down, answered) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<String>>>::default());
        let one = Self { dir, address: listener.local_addr()?, is_down, answered };
        fs::create_dir(one.published())?;
        one.gpg(&["--quick-generate-key", SIGNER, "ed25519", "sign", "never"])?;
        one.gpg(&["--output", "secret.gpg", "--export-secret-keys"])?;
        one.gpg(&["--output", "keyring.gpg", "--export"])?;
        let (folder, is_down, answered) = (one.published(), one.is_down.clone(), one.answered.clone());
        std::thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                if !is_down.load(Ordering::Relaxed)
                    && let Ok(answer) = answer(&folder, socket)
                {
                    answered.lock().unwrap().push(answer);
                }
            }
        });
        Ok(Some(one))
    }

    fn published(&self) -> PathBuf {
        self.dir.path().join("published")
    }

    /// Runs helm as `helm package` and `helm repo index`.
    fn publish(&self, chart: &str, version: &str, setting: &str) -> anyhow::Result<()> {
        let source = self.dir.path().join(chart);
        fs::create_dir_all(source.join("templates"))?;
        fs::write(source.join("Chart.yaml"), format!("apiVersion: v2\nname: {chart}\nversion: {version}\n"))?;
        fs::write(source.join("values.yaml"), format!("setting: {setting}\n"))?;
        fs::write(source.join("templates/map.yaml"), "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: map}\n")?;
        let signed = ["--sign", "--key", SIGNER, "--keyring", "secret.gpg"];
        self.helm(&[&["package", chart, "--destination", "published"][..], &signed].concat())?;
        self.helm(&["repo", "index", "published"])
    }

    fn helm(&self, arguments: &[&str]) -> anyhow::Result<()> {
        self.run("helm", arguments)
    }

    fn gpg(&self, arguments: &[&str]) -> anyhow::Result<()> {
        let quiet = ["--homedir", ".", "--batch", "--quiet", "--pinentry-mode", "loopback", "--passphrase", ""];
        self.run("gpg", &[&quiet[..], arguments].concat())
    }

    fn run(&self, program: &str, arguments: &[&str]) -> anyhow::Result<()> {
        let ran =
            Command::new(program).args(arguments).current_dir(self.dir.path()).env("HOME", self.dir.path()).output();
        let ran = ran.with_context(|| program.to_owned())?;
        ensure!(ran.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        Ok(())
    }

    /// How often a path was answered with this status.
    fn count(&self, answer: &str) -> usize {
        self.answered.lock().unwrap().iter().filter(|each| *each == answer).count()
    }
}

impl Drop for Repository {
    fn drop(&mut self) {
        let _ = Command::new("gpgconf")
            .args(["--homedir", ".", "--kill", "gpg-agent"])
            .current_dir(self.dir.path())
            .output();
    }
}

/// Answers one request for a file. Returns the path and the status.
fn answer(folder: &Path, mut socket: TcpStream) -> anyhow::Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        socket.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let head = String::from_utf8(head)?.to_ascii_lowercase();
    let path = head.split(' ').nth(1).context("a request has a path")?;
    let body = fs::read(folder.join(path.trim_start_matches('/')));
    let mut hash = DefaultHasher::new();
    body.as_ref().ok().hash(&mut hash);
    let etag = format!("\"{:x}\"", hash.finish());
    let (status, body) = match body {
        Err(_) => (404, Vec::new()),
        Ok(_) if head.contains(&format!("if-none-match: {etag}")) => (304, Vec::new()),
        Ok(body) => (200, body),
    };
    let length = body.len();
    write!(socket, "HTTP/1.1 {status} x\r\netag: {etag}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n")?;
    socket.write_all(&body)?;
    Ok(format!("{status} {path}"))
}

fn service(chart: &str) -> anyhow::Result<ServiceConfig> {
    Ok(serde_json::from_value(serde_json::json!({
        "name": chart, "repository": "charts", "chart": chart, "ref": "semver:^1",
    }))?)
}

async fn cluster(charts: &Repository) -> anyhow::Result<Cluster> {
    let repository: RepositoryConfig = serde_json::from_value(serde_json::json!({
        "name": "charts", "kind": "helm", "url": format!("http://{}", charts.address),
        "poll_interval": "1s", "min_poll_interval": "0s",
        "verify": { "pgp_keyring": charts.dir.path().join("keyring.gpg") }, "oci": true,
    }))?;
    let services = vec![service("shop")?, service("other")?];
    Cluster::start(Plan { repositories: vec![repository], services, agents: 1, ..Plan::default() }).await
}

async fn status(cluster: &Cluster, service: &str) -> anyhow::Result<serde_json::Value> {
    let admin = cluster.origin.admin_address().context("it has an admin listener")?;
    let status = scrape::status(admin).await?;
    let services = status["services"].as_array().context("it has services")?;
    Ok(services.iter().find(|each| each["name"] == service).context("the service is there")?.clone())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_is_followed_to_an_agent_and_its_repository_may_be_down() -> anyhow::Result<()> {
    let Some(charts) = Repository::start()? else { return Ok(()) };
    charts.publish("shop", "1.0.0", "one")?;
    charts.publish("other", "1.0.0", "one")?;
    let cluster = cluster(&charts).await?;
    let read = |agent: usize, name: &str, file: &str| {
        let current = cluster.current(agent, &name.parse().expect("a valid name"));
        fs::read_to_string(current.join(file)).unwrap_or_default()
    };
    until("the agent has both charts", async || {
        ["shop", "other"].iter().all(|name| read(0, name, "values.yaml") == "setting: one\n")
    })
    .await?;
    assert!(read(0, "shop", "templates/map.yaml").contains("ConfigMap"), "without the chart's top folder");
    let published = status(&cluster, "shop").await?["published"].clone();
    let revision_id = published["revision_id"].as_str().context("it has a revision")?;
    assert!(revision_id.starts_with("helm:1.0.0+sha256:"), "{revision_id}");
    assert_eq!((published["version"].as_str(), published["commit"].is_null()), (Some("1.0.0"), true));

    // The archive of another version of `other` is not the one of the index: `shop` goes on.
    charts.publish("other", "1.1.0", "two")?;
    let index = fs::read_to_string(charts.published().join("index.yaml"))?;
    fs::write(charts.published().join("other-1.1.0.tgz"), "no chart")?;
    charts.publish("shop", "1.1.0", "two")?;
    fs::write(charts.published().join("index.yaml"), {
        let now = fs::read_to_string(charts.published().join("index.yaml"))?;
        let other = |index: &str| index[index.find("  other:").unwrap()..index.find("  shop:").unwrap()].to_owned();
        now.replace(&other(&now), &other(&index))
    })?;
    until("the agent has the new version", async || read(0, "shop", "values.yaml") == "setting: two\n").await?;
    until("the other service is unhealthy", async || {
        status(&cluster, "other").await.is_ok_and(|other| other["condition"] == "unhealthy")
    })
    .await?;
    let reason = status(&cluster, "other").await?["failure"]["reason"].to_string();
    assert!(reason.contains("chart `other` 1.1.0") && reason.contains("but the index says"), "{reason}");
    assert_eq!(read(0, "other", "values.yaml"), "setting: one\n", "its last publication stays");

    // Polls without a change cost no more than a conditional request.
    let (polls, fetched) = (charts.count("304 /index.yaml"), charts.count("200 /shop-1.1.0.tgz"));
    until("two more polls", async || charts.count("304 /index.yaml") >= polls + 2).await?;
    assert_eq!((fetched, charts.count("200 /shop-1.1.0.tgz"), charts.count("200 /shop-1.0.0.tgz")), (1, 1, 1));

    // With the repository down, a new agent gets the chart.
    charts.is_down.store(true, Ordering::Relaxed);
    let edge = format!("https://{}", cluster.edges[0].address());
    let root = tempfile::tempdir()?;
    let mut agent = weir_agent::config::Config::new(vec![edge.parse()?], cluster.ca(), root.path().to_owned());
    agent.services = vec![weir_agent::config::ServiceConfig::new(&"shop".parse()?)];
    let agent = weir_agent::start(agent).await?;
    until("the new agent has the chart", async || {
        fs::read_to_string(root.path().join("shop/current/Chart.yaml")).is_ok_and(|it| it.contains("version: 1.1.0"))
    })
    .await?;
    ensure!(agent.drain(Duration::from_secs(10)).await, "the agent does not drain");

    // And helm pulls it from the edge, byte for byte.
    let (edge, ca) = (format!("oci://{}/weir/shop", cluster.edges[0].address()), cluster.ca().display().to_string());
    charts.helm(&["pull", &edge, "--version", "1.1.0", "--prov", "--ca-file", &ca])?;
    for file in ["shop-1.1.0.tgz", "shop-1.1.0.tgz.prov"] {
        let (pulled, published) = (charts.dir.path().join(file), charts.published().join(file));
        assert!(fs::read(pulled)? == fs::read(published)?, "{file}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn charts_that_helm_signs_and_pushes_to_a_registry_are_followed_to_an_agent() -> anyhow::Result<()> {
    let Some(charts) = Repository::start()? else { return Ok(()) };
    let Some(registry) = DockerRegistry::start().await? else { return Ok(()) };
    let url = format!("oci://{}/acme/charts", registry.address);
    let archive = |chart: &str, version: &str| charts.published().join(format!("{chart}-{version}.tgz"));
    let push = |chart: &str, version: &str, to: &str| -> anyhow::Result<()> {
        let archive = archive(chart, version).display().to_string();
        charts.helm(&["push", &archive, &format!("{url}{to}"), "--plain-http"])
    };
    let publish = |version: &str, setting: &str| -> anyhow::Result<()> {
        charts.publish("shop", version, setting)?;
        push("shop", version, "/team")
    };
    publish("1.0.0+up1.2", "one")?;
    publish("2.0.0", "no")?;
    charts.publish("other", "1.0.0", "one")?;
    fs::remove_file(charts.published().join("other-1.0.0.tgz.prov"))?;
    push("other", "1.0.0", "")?;
    let repository: RepositoryConfig = serde_json::from_value(serde_json::json!({
        "name": "charts", "kind": "helm", "url": url, "insecure": true, "poll_interval": "1s", "min_poll_interval": "0s",
        "verify": { "pgp_keyring": charts.dir.path().join("keyring.gpg") },
    }))?;
    let shop = serde_json::json!({ "name": "shop", "repository": "charts", "chart": "team/shop", "ref": "semver:^1" });
    let services = vec![serde_json::from_value(shop)?, service("other")?];
    let cluster =
        Cluster::start(Plan { repositories: vec![repository], services, agents: 1, ..Plan::default() }).await?;
    let read = |file: &str| {
        let current = cluster.current(0, &"shop".parse().expect("a valid name"));
        fs::read_to_string(current.join(file)).unwrap_or_default()
    };
    until("the agent has the chart", async || read("values.yaml") == "setting: one\n").await?;
    assert!(read("templates/map.yaml").contains("ConfigMap"), "without the chart's top folder");
    let published = status(&cluster, "shop").await?["published"].clone();
    let digest = docker_registry::sha256(&fs::read(archive("shop", "1.0.0+up1.2"))?);
    assert_eq!(published["revision_id"], format!("helm:1.0.0+up1.2+{digest}"));
    assert_eq!(published["version"].as_str(), Some("1.0.0+up1.2"));
    publish("1.0.0+up1.10", "two")?;
    until("the agent has the next build", async || read("values.yaml") == "setting: two\n").await?;
    let unsigned = status(&cluster, "other").await?;
    let reason = unsigned["failure"]["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("has no provenance") && unsigned["published"].is_null(), "{unsigned}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chart_and_values_of_git_are_composed_and_follow_each_other_s_outages() -> anyhow::Result<()> {
    let Some(charts) = Repository::start()? else { return Ok(()) };
    // Several frames.
    let mut large = vec![0; 3 << 20];
    blake3::Hasher::new().finalize_xof().fill(&mut large);
    fs::create_dir_all(charts.dir.path().join("shop/files"))?;
    fs::write(charts.dir.path().join("shop/files/large"), large)?;
    charts.publish("shop", "1.0.0", "one")?;
    let dir = tempfile::tempdir()?;
    let values = GitRepository::create(dir.path(), "config")?;
    let push = |replicas: &str| -> anyhow::Result<String> {
        values.write("prod/shop.yaml", replicas)?;
        values.commit_and_push(replicas)
    };
    push("replicas: 1\n")?;
    let git = GitServer::start(dir.path(), &dir.path().join("git-certificates")).await?;
    fs::write(dir.path().join("git-password"), git_server::PASSWORD)?;
    let polled = serde_json::json!({ "poll_interval": "1s", "min_poll_interval": "0s" });
    let repository = |more: serde_json::Value| -> anyhow::Result<RepositoryConfig> {
        let mut document = polled.clone();
        document.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Ok(serde_json::from_value(document)?)
    };
    let repositories = vec![
        repository(serde_json::json!({
            "name": "charts", "kind": "helm", "url": format!("http://{}", charts.address),
        }))?,
        repository(serde_json::json!({
            "name": "config", "url": git.url("config"), "ca": git.ca(), "username": git_server::USERNAME,
            "password_file": dir.path().join("git-password"),
        }))?,
    ];
    let shop = serde_json::json!({ "name": "shop", "parts": [
        { "repository": "charts", "chart": "shop", "ref": "semver:^1", "to": "chart" },
        { "repository": "config", "ref": "main", "folder": "prod", "to": "values" },
    ]});
    let services = vec![serde_json::from_value(shop)?];
    let cluster = Cluster::start(Plan { repositories, services, agents: 1, ..Plan::default() }).await?;
    let read = |file: &str| {
        let current = cluster.current(0, &"shop".parse().expect("a valid name"));
        fs::read_to_string(current.join(file)).unwrap_or_default()
    };
    let has = |setting: &str, replicas: &str| {
        read("chart/values.yaml") == format!("setting: {setting}\n") && read("values/shop.yaml") == replicas
    };
    until("the agent has both parts", async || has("one", "replicas: 1\n")).await?;
    let published = async || Ok::<_, anyhow::Error>(status(&cluster, "shop").await?["published"].clone());
    let first = published().await?;
    assert!(first["revision_id"].as_str().is_some_and(|id| id.starts_with("parts:")), "{first}");
    assert!(first["commit"].is_null() && first["version"].is_null(), "{first}");

    // The values move alone: their frame is built, the chart is not downloaded again, and there is one publication.
    let admin = cluster.origin.admin_address().context("it has an admin listener")?;
    let frames = async |result: &str| {
        let label = format!("result=\"{result}\"");
        Ok::<_, anyhow::Error>(scrape::Metrics::read(admin).await?.sum("weir_origin_frames_total", &[&label]))
    };
    let (built, reused) = (frames("built").await?, frames("reused").await?);
    let commit = push("replicas: 2\n")?;
    until("the agent has the new values", async || has("one", "replicas: 2\n")).await?;
    let second = published().await?;
    assert_eq!(second["parts"][0], first["parts"][0]);
    assert_eq!(second["parts"][1]["revision_id"], format!("sha1:{commit}"));
    assert_eq!((frames("built").await?, frames("reused").await?), (built + 1.0, reused + 2.0));
    let polls = charts.count("304 /index.yaml");
    until("two more polls", async || charts.count("304 /index.yaml") >= polls + 2).await?;
    assert_eq!(
        (published().await?["generation"].clone(), charts.count("200 /shop-1.0.0.tgz")),
        (second["generation"].clone(), 1)
    );

    // While one upstream is down, the other part goes on.
    charts.is_down.store(true, Ordering::Relaxed);
    until("the chart's repository is down", async || {
        let failure = status(&cluster, "shop").await.map(|shop| shop["failure"]["repository"].clone());
        failure.is_ok_and(|repository| repository == "charts")
    })
    .await?;
    push("replicas: 3\n")?;
    until("the agent has the values of the outage", async || has("one", "replicas: 3\n")).await?;
    charts.is_down.store(false, Ordering::Relaxed);
    git.stop().await;
    charts.publish("shop", "1.1.0", "two")?;
    until("the agent has the chart of the other outage", async || has("two", "replicas: 3\n")).await
}
