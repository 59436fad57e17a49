//! An origin that starts with nothing: operators define with curl what it mirrors and publishes, and agents follow.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, ensure};
use http::StatusCode;
use serde_json::{Value, json};
use weir_loadtest::git_server;
use weir_loadtest::processes::{free_address, until};

use crate::site::{Plan, Site};

pub(crate) const TOKEN: &str = "the-operators-own-token";
const REPOSITORY: &str = "/v1/repositories/shop";
const SERVICE: &str = "/v1/services/shop-prod";

/// A site whose origin has nothing in its file but an operators' listener, and the URL of that.
pub(crate) async fn site() -> anyhow::Result<(Site, String)> {
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.write("deploy/stage/version", "stage")?;
        upstream.commit_and_push("one").map(drop)
    };
    let site = Site::new(fill, Plan { services: String::new(), ..Plan::default() }).await?;
    let listen = free_address()?;
    let file = fs::read_to_string(site.path("origin.toml"))?;
    let (nothing, _) = file.split_once("[[repository]]").context("there is a repository")?;
    // The upstream of a test is on this machine.
    let operators = "[operator_api]\noperator_token_file = \"operator-token\"\nsecrets_dir = \"secrets\"\n\
                     [upstreams]\nprivate_addresses = true\n";
    fs::write(site.path("origin.toml"), format!("operator_listen = \"{listen}\"\n{nothing}{operators}"))?;
    fs::write(site.path("operator-token"), TOKEN)?;
    fs::set_permissions(site.path("operator-token"), Permissions::from_mode(0o600))?;
    let git = site.git.as_ref().context("the Git server runs")?.url("shop");
    let (host, _) = git.trim_start_matches("https://").split_once('/').context("a URL has a path")?;
    let secrets = site.path("secrets").join(format!("https_{}", host.replace(':', "_")));
    fs::create_dir_all(&secrets)?;
    fs::copy(site.path("git-ca.pem"), secrets.join("ca.pem"))?;
    fs::copy(site.path("git-password"), secrets.join("password"))?;
    Ok((site, format!("https://{listen}")))
}

/// What curl was answered: the status, and the document.
pub(crate) async fn curl(
    ca: &Path,
    method: &str,
    url: String,
    document: Option<Value>,
) -> anyhow::Result<(u16, Value)> {
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--show-error", "--write-out", "\n%{http_code}", "--request", method]);
    curl.arg("--cacert").arg(ca).args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
    if let Some(document) = document {
        curl.args(["--json", &document.to_string()]);
    }
    curl.arg(url);
    let output = tokio::task::spawn_blocking(move || curl.output()).await?.context("the tests need curl")?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    let (body, status) = text.rsplit_once('\n').context("curl writes the status")?;
    Ok((status.parse()?, if body.is_empty() { Value::Null } else { serde_json::from_str(body)? }))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_defines_changes_and_deletes_services_that_agents_follow() -> anyhow::Result<()> {
    let (mut site, base) = site().await?;
    site.start().await?;
    let url = site.git.as_ref().context("the Git server runs")?.url("shop");
    let repository = json!({
        "url": url, "poll_interval": "1s", "ca": "ca.pem", "username": git_server::USERNAME, "password_file": "password",
    });
    let service = |folder: &str| json!({ "repository": "shop", "ref": "main", "folder": folder });
    let ca = site.path("ca.pem");
    let put = async |path: &str, document: Value| {
        anyhow::Ok(curl(&ca, "PUT", format!("{base}{path}"), Some(document)).await?.0)
    };

    assert_eq!(put(SERVICE, service("deploy/prod")).await?, 409, "it has no repository");
    assert_eq!(put(REPOSITORY, repository.clone()).await?, 201);
    assert_eq!(put(SERVICE, service("deploy/prod")).await?, 201);
    site.until_released("shop-prod", "version", "1").await?;
    assert_eq!(put(SERVICE, service("deploy/stage")).await?, 200);
    site.until_released("shop-prod", "version", "stage").await?;

    // A restart that nobody prepared.
    site.origin.kill()?;
    site.origin.start().await?;
    let (status, read) = curl(&ca, "GET", format!("{base}{SERVICE}"), None).await?;
    assert_eq!((status, &read["folder"], &read["defined_by"]), (200, &json!("deploy/stage"), &json!("api")));
    site.upstream.write("deploy/stage/version", "later")?;
    site.upstream.commit_and_push("later")?;
    site.until_released("shop-prod", "version", "later").await?;

    // A deletion reaches those who ask the edge; what the agent has stays.
    let deleted = curl(&ca, "DELETE", format!("{base}{REPOSITORY}?cascade=true"), None).await?;
    assert_eq!(deleted.0, 204, "{deleted:?}");
    let client = site.client()?;
    until("the edge says that it is gone", async || {
        let asked = client.send("HEAD", "/v1/services/shop-prod/tarball", &[]).await;
        asked.is_ok_and(|answer| answer.status() == StatusCode::NOT_FOUND)
    })
    .await
    .with_context(|| site.logs())?;
    site.until_status(&site.agent, "the agent reports it", |status| {
        let error = status["services"]["shop-prod"]["last_error"].as_str().unwrap_or_default();
        error.contains("404")
    })
    .await?;
    assert_eq!(fs::read_to_string(site.current("shop-prod").join("version"))?, "later");

    // It comes again, newer than before.
    assert_eq!(put(REPOSITORY, repository).await?, 201);
    assert_eq!(put(SERVICE, service("deploy/prod")).await?, 201);
    site.until_released("shop-prod", "version", "1").await?;
    assert!(![git_server::PASSWORD, TOKEN].iter().any(|secret| site.logs().contains(secret)), "{}", site.logs());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_says_what_a_batch_was_and_has_changed() -> anyhow::Result<()> {
    let (mut site, base) = site().await?;
    site.origin.start().await?;
    let (ca, name) = (site.path("ca.pem"), "cluster-1");
    for ring in ["canary", "stable"] {
        let batch = json!({ "agents": [{ "name": name, "labels": { "ring": ring } }, { "name": "cluster-2" }] });
        assert_eq!(curl(&ca, "POST", format!("{base}/v1/batch"), Some(batch)).await?.0, 200);
    }
    let lines = |message: &str| -> Vec<Value> {
        let log = site.origin.log();
        let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.filter(|line| line["message"] == message).collect()
    };
    until("both are logged", async || lines("operator request").len() == 2).await?;
    let documents: Vec<_> = lines("operator request").iter().map(|line| line["documents"].clone()).collect();
    assert_eq!(documents, [2, 2]);
    let each = lines("operator request: a document of a batch");
    let of_one: Vec<_> = each.iter().filter(|line| line["name"] == name).collect();
    let [created, changed] = of_one[..] else { anyhow::bail!("{each:?}") };
    for (line, outcome) in [(created, "created"), (changed, "changed")] {
        assert_eq!([&line["outcome"], &line["by"], &line["role"]], [outcome, "token", "admin"], "{line}");
    }
    assert!(created["before"].is_null() && changed["before"].is_string(), "{changed}");
    assert!(changed["before"] == created["after"] && changed["after"] != changed["before"], "{changed}");
    Ok(())
}
