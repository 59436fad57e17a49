//! An artifact in a registry, from a push to the directory of an agent.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use weir_loadtest::cluster::{Cluster, Plan};
use weir_loadtest::processes::until;
use weir_loadtest::scrape;
use weir_source::ServiceConfig;
use weir_upstream::RepositoryConfig;

use crate::docker_registry::DockerRegistry;

const NAME: &str = "acme/manifests/shop";

#[tokio::test(flavor = "multi_thread")]
async fn an_artifact_is_followed_to_an_agent_and_its_registry_may_be_down() -> anyhow::Result<()> {
    let Some(mut registry) = DockerRegistry::start().await? else { return Ok(()) };
    let first = registry.push(NAME, "v1.0.0", &[("map.yaml", "a: 1"), ("sub/more.yaml", "b: 1")])?;
    registry.push(NAME, "2.0.0", &[("map.yaml", "a: 9")])?;
    let repository: RepositoryConfig = serde_json::from_value(json!({
        "name": "manifests", "kind": "oci", "url": format!("oci://{}/{NAME}", registry.address), "insecure": true,
        "poll_interval": "1s", "min_poll_interval": "0s",
    }))?;
    let service = |name: &str, followed: &str| -> anyhow::Result<ServiceConfig> {
        Ok(serde_json::from_value(json!({ "name": name, "repository": "manifests", "ref": followed }))?)
    };
    let services = vec![service("shop", "semver:^1")?, service("pinned", &first)?];
    let plan = Plan { repositories: vec![repository], services, agents: 1, ..Plan::default() };
    let cluster = Cluster::start(plan).await?;
    let read = |name: &str, file: &str| {
        let current = cluster.current(0, &name.parse().expect("a valid name"));
        fs::read_to_string(current.join(file)).unwrap_or_default()
    };
    until("the agent has both services", async || {
        ["shop", "pinned"].iter().all(|name| read(name, "map.yaml") == "a: 1" && read(name, "sub/more.yaml") == "b: 1")
    })
    .await?;
    let admin = cluster.origin.admin_address().context("it has an admin listener")?;
    let published = async |name: &str| {
        let status = scrape::status(admin).await?;
        let services = status["services"].as_array().context("it has services")?;
        let service = services.iter().find(|each| each["name"] == name).context("the service is there")?;
        Ok::<_, anyhow::Error>(service["published"].clone())
    };
    let shop = published("shop").await?;
    assert_eq!(shop["revision_id"], format!("oci:{first}"));
    assert_eq!((shop["version"].as_str(), shop["commit"].is_null()), (Some("v1.0.0"), true));
    assert_eq!(published("pinned").await?["revision_id"], format!("oci:{first}"));

    let second = registry.push(NAME, "v1.1.0", &[("map.yaml", "a: 2"), ("sub/more.yaml", "b: 1")])?;
    until("the agent has the new version", async || read("shop", "map.yaml") == "a: 2").await?;
    assert_eq!(published("shop").await?["revision_id"], format!("oci:{second}"));
    assert_eq!(read("pinned", "map.yaml"), "a: 1");

    // With the registry down, a new agent gets the artifact.
    registry.stop();
    let edge = format!("https://{}", cluster.edges[0].address());
    let root = tempfile::tempdir()?;
    let mut agent = weir_agent::config::Config::new(vec![edge.parse()?], cluster.ca(), root.path().to_owned());
    agent.services = vec![weir_agent::config::ServiceConfig::new(&"shop".parse()?)];
    let agent = weir_agent::start(agent).await?;
    until("the new agent has the artifact", async || {
        fs::read_to_string(root.path().join("shop/current/map.yaml")).is_ok_and(|it| it == "a: 2")
    })
    .await?;
    ensure!(agent.drain(Duration::from_secs(10)).await, "the agent does not drain");
    Ok(())
}

/// Runs a client of registries in a folder, without its public services. `None`: there is none.
fn client(name: &str, folder: &Path, arguments: &[&str]) -> anyhow::Result<Option<()>> {
    Ok(output(name, folder, arguments)?.map(drop))
}

/// The same, and what it writes. It trusts the authority in the folder, if there is one.
pub(crate) fn output(name: &str, folder: &Path, arguments: &[&str]) -> anyhow::Result<Option<Vec<u8>>> {
    let mut command = Command::new(name);
    command.args(arguments).current_dir(folder).env("HOME", folder).env("COSIGN_PASSWORD", "");
    command.env("SSL_CERT_FILE", folder.join("ca.pem")).env_remove("DOCKER_CONFIG");
    let Ok(ran) = command.output() else {
        ensure!(std::env::var_os("WEIR_NIGHTLY").is_none(), "there is no {name}");
        eprintln!("SKIPPED: there is no {name}, which `.ci/nightly` downloads");
        return Ok(None);
    };
    ensure!(ran.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
    Ok(Some(ran.stdout))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_oras_and_crane_push_is_followed() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let run = |name: &str, arguments: &[&str]| client(name, dir.path(), arguments);
    let (Some(()), Some(())) = (run("oras", &["version"])?, run("crane", &["version"])?) else { return Ok(()) };
    let Some(registry) = DockerRegistry::start().await? else { return Ok(()) };
    let write = |contents: &str| fs::write(dir.path().join("map.yaml"), contents);
    let at = |name: &str| format!("{}/acme/{name}", registry.address);

    // A file, and the folder that has it.
    write("a: 1")?;
    let push = |tag: &str, what: &str| run("oras", &["push", "--plain-http", &at(tag), "--artifact-type", "x/y", what]);
    push("file:v1", "map.yaml:application/yaml")?;
    push("folder:v1", ".:application/vnd.oci.image.layer.v1.tar+gzip")?;
    // Images for two platforms, and their index.
    for platform in ["arm64", "amd64"] {
        write(platform)?;
        let packed = Command::new("tar").args(["-czf", "layer.tgz", "map.yaml"]).current_dir(dir.path()).status()?;
        ensure!(packed.success(), "tar: {packed}");
        let (image, of) = (at(&format!("images:{platform}")), format!("linux/{platform}"));
        run("crane", &["append", "--insecure", "-t", &image, "-f", "layer.tgz"])?;
        run("crane", &["mutate", "--insecure", "--set-platform", &of, &image, "-t", &image])?;
    }
    let (one, other, index) = (at("images:arm64"), at("images:amd64"), at("images:1.0.0"));
    run("crane", &["index", "append", "--insecure", "-m", &one, "-m", &other, "-t", &index])?;

    let repository = |name: &str, keys: serde_json::Value| -> anyhow::Result<RepositoryConfig> {
        let mut document = json!({
            "name": name, "kind": "oci", "url": format!("oci://{}", at(name)), "insecure": true,
            "poll_interval": "1s", "min_poll_interval": "0s",
        });
        document.as_object_mut().context("an object")?.extend(keys.as_object().context("an object")?.clone());
        Ok(serde_json::from_value(document)?)
    };
    let layer = "application/vnd.docker.image.rootfs.diff.tar.gzip";
    let repositories = vec![
        repository("file", json!({ "layer": { "operation": "copy" } }))?,
        repository("folder", json!({}))?,
        repository("images", json!({ "layer": { "media_type": layer }, "platform": "linux/arm64" }))?,
    ];
    let followed = [("file", "v1"), ("folder", "v1"), ("images", "semver:^1")];
    let services =
        followed.map(|(name, of)| serde_json::from_value(json!({ "name": name, "repository": name, "ref": of })));
    let services = services.into_iter().collect::<Result<Vec<ServiceConfig>, _>>()?;
    let cluster = Cluster::start(Plan { repositories, services, agents: 1, ..Plan::default() }).await?;
    for (name, contents) in [("file", "a: 1"), ("folder", "a: 1"), ("images", "arm64")] {
        let file = cluster.current(0, &name.parse()?).join("map.yaml");
        until(name, async || fs::read_to_string(&file).is_ok_and(|it| it == contents)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_artifacts_that_cosign_signed_are_followed() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let Some(()) = client("cosign", dir.path(), &["generate-key-pair"])? else { return Ok(()) };
    let Some(mut registry) = DockerRegistry::start().await? else { return Ok(()) };
    let sign = |digest: &str, formats: &[&str]| {
        let fixed = ["sign", "--yes", "--key", "cosign.key", "--tlog-upload=false", "--use-signing-config=false"];
        let artifact = format!("{}/{NAME}@{digest}", registry.address);
        client("cosign", dir.path(), &[&fixed, formats, &["--allow-http-registry", artifact.as_str()]].concat())
    };
    sign(&registry.push(NAME, "v1.0.0", &[("map.yaml", "a: 1")])?, &["--new-bundle-format=false"])?;
    let repository: RepositoryConfig = serde_json::from_value(json!({
        "name": "manifests", "kind": "oci", "url": format!("oci://{}/{NAME}", registry.address), "insecure": true,
        "poll_interval": "1s", "min_poll_interval": "0s", "verify": { "cosign_keys": [dir.path().join("cosign.pub")] },
    }))?;
    let service = json!({ "name": "shop", "repository": "manifests", "ref": "semver:^1", "oci": true });
    let service = serde_json::from_value(service)?;
    let plan = Plan { repositories: vec![repository], services: vec![service], agents: 1, ..Plan::default() };
    let cluster = Cluster::start(plan).await?;
    let read = || {
        let current = cluster.current(0, &"shop".parse().expect("a valid name"));
        fs::read_to_string(current.join("map.yaml")).unwrap_or_default()
    };
    until("the agent has what was signed as before cosign 3", async || read() == "a: 1").await?;
    let second = registry.push(NAME, "v1.1.0", &[("map.yaml", "a: 2")])?;
    let admin = cluster.origin.admin_address().context("it has an admin listener")?;
    until("the version without a signature is refused", async || {
        scrape::status(admin).await.is_ok_and(|status| status["services"][0]["failure"]["step"] == "verify")
    })
    .await?;
    assert_eq!(read(), "a: 1");
    sign(&second, &[])?;
    until("the agent has what was signed by a bundle", async || read() == "a: 2").await?;

    // The edge has the signatures of both, and cosign accepts them there.
    registry.stop();
    fs::copy(cluster.ca(), dir.path().join("ca.pem"))?;
    for tag in ["v1.0.0", "v1.1.0"] {
        let artifact = format!("{}/weir/shop:{tag}", cluster.edges[0].address());
        let arguments = ["verify", "--key", "cosign.pub", "--insecure-ignore-tlog=true", &artifact];
        client("cosign", dir.path(), &arguments)?;
    }
    Ok(())
}
