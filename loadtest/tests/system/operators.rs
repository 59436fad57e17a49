//! An origin that starts with nothing: operators define what it mirrors and publishes, with curl.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use weir_loadtest::git_server;
use weir_loadtest::processes::{free_address, until};

use crate::site::{Plan, Site};

const TOKEN: &str = "the-operators-own-token";

/// An operator with curl.
#[derive(Clone)]
struct Operator {
    base: String,
    ca: PathBuf,
}

/// What curl was answered.
#[derive(Debug)]
struct Told {
    status: u16,
    body: Value,
}

impl Operator {
    /// Sends a request; curl is run on a thread of its own, because the roles' sockets are served by this process too.
    async fn ask(&self, method: &str, path: &str, headers: &[&str], body: Option<Value>) -> anyhow::Result<Told> {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--write-out",
            "\n%{http_code}",
            "--request",
            method,
        ]);
        curl.arg("--cacert").arg(&self.ca).args(["--header", &format!("Authorization: Bearer {TOKEN}")]);
        for header in headers {
            curl.args(["--header", header]);
        }
        if let Some(body) = body {
            curl.args(["--data", &body.to_string()]);
        }
        curl.arg(format!("{}{path}", self.base));
        let output = tokio::task::spawn_blocking(move || curl.output()).await?.context("the tests need curl")?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let text = String::from_utf8(output.stdout)?;
        let (body, status) = text.rsplit_once('\n').context("curl writes the status")?;
        let body = if body.is_empty() { Value::Null } else { serde_json::from_str(body)? };
        Ok(Told { status: status.parse()?, body })
    }

    async fn put(&self, path: &str, document: Value) -> anyhow::Result<Told> {
        self.ask("PUT", path, &[], Some(document)).await
    }
}

/// A site whose origin has an operators' listener and nothing in its file.
async fn site() -> anyhow::Result<(Site, Operator)> {
    let site = Site::new(
        |upstream| {
            upstream.write("deploy/prod/version", "1")?;
            upstream.write("deploy/stage/version", "stage")?;
            upstream.commit_and_push("one")?;
            Ok(())
        },
        Plan { services: String::new(), ..Plan::default() },
    )
    .await?;
    let operators = free_address()?;
    let configuration = fs::read_to_string(site.path("origin.toml"))?;
    let (before, rest) = configuration.split_once("[[repository]]").context("there is a repository")?;
    let (_, after) = rest.split_once("[access]").context("there is an [access]")?;
    let with_operators = before.replacen("data_dir", &format!("operator_listen = \"{operators}\"\ndata_dir"), 1);
    // The upstream of a test is on this machine.
    let section = "[operator]\noperator_token_file = \"operator-token\"\nsecrets_dir = \"secrets\"\n\n[upstreams]\nprivate_addresses = true\n";
    fs::write(site.path("origin.toml"), format!("{with_operators}{section}[access]{after}"))?;
    fs::write(site.path("operator-token"), TOKEN)?;
    fs::create_dir_all(site.path("secrets/localhost"))?;
    fs::copy(site.path("git-ca.pem"), site.path("secrets/localhost/ca.pem"))?;
    fs::copy(site.path("git-password"), site.path("secrets/localhost/password"))?;
    let operator = Operator { base: format!("https://{operators}"), ca: site.path("ca.pem") };
    Ok((site, operator))
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_defines_changes_and_deletes_what_agents_follow() -> anyhow::Result<()> {
    let (mut site, operator) = site().await?;
    site.start().await?;
    let url = site.git.as_ref().context("the Git server runs")?.url("shop");
    let repository = json!({
        "url": url, "poll_interval": "1s", "ca": "ca.pem", "username": git_server::USERNAME, "password_file": "password",
    });

    // What cannot be is refused, with all that is wrong.
    let bad = operator.put("/v1/repositories/shop", json!({ "url": "/etc", "poll_interval": "often", "x": 1 })).await?;
    assert_eq!((bad.status, bad.body["errors"].as_array().map(Vec::len)), (400, Some(3)), "{bad:?}");
    let local = operator.put("/v1/repositories/shop", json!({ "url": "/etc" })).await?;
    assert_eq!((local.status, &local.body["errors"][0]["field"]), (400, &json!("url")), "{local:?}");
    let early = operator.put("/v1/services/shop-prod", json!({ "repository": "shop" })).await?;
    assert_eq!(early.status, 409, "{early:?}");

    let created = operator.put("/v1/repositories/shop", repository.clone()).await?;
    assert_eq!(created.status, 201, "{created:?}");
    let service = json!({ "repository": "shop", "ref": "main", "folder": "deploy/prod" });
    let created = operator.put("/v1/services/shop-prod", service).await?;
    assert_eq!(created.status, 201, "{created:?}");
    site.until_released("shop-prod", "version", "1").await?;
    let polls = operator.ask("POST", "/v1/repositories/shop/refresh", &[], None).await?;
    assert_eq!(polls.status, 202, "{polls:?}");

    // Another folder. Whoever read it before and writes now has lost.
    let read = operator.ask("GET", "/v1/services/shop-prod", &[], None).await?.body;
    let mut changed = read.clone();
    changed["folder"] = "deploy/stage".into();
    assert_eq!(operator.put("/v1/services/shop-prod", changed).await?.status, 200);
    site.until_released("shop-prod", "version", "stage").await?;
    assert_eq!(operator.put("/v1/services/shop-prod", read.clone()).await?.status, 409);
    let stale = format!("If-Match: \"{}\"", read["version"].as_str().context("a version")?);
    assert_eq!(operator.ask("DELETE", "/v1/services/shop-prod", &[&stale], None).await?.status, 412);

    // A restart that nobody prepared.
    site.origin.kill()?;
    site.origin.start().await?;
    let read = operator.ask("GET", "/v1/services/shop-prod", &[], None).await?.body;
    assert_eq!((&read["folder"], &read["defined_by"]), (&json!("deploy/stage"), &json!("api")));
    site.upstream.write("deploy/stage/version", "later")?;
    site.upstream.commit_and_push("later")?;
    site.until_released("shop-prod", "version", "later").await?;

    // A deletion reaches those who ask the edge; what the agent has stays.
    assert_eq!(operator.ask("DELETE", "/v1/repositories/shop", &[], None).await?.status, 409);
    assert_eq!(operator.ask("DELETE", "/v1/repositories/shop?cascade=true", &[], None).await?.status, 204);
    let client = site.client()?;
    until("the edge says that it is gone", async || {
        let asked = client.send("HEAD", "/v1/services/shop-prod/tarball", &[]).await;
        asked.is_ok_and(|answer| answer.status() == 404)
    })
    .await
    .with_context(|| site.logs())?;
    assert_eq!(fs::read_to_string(site.current("shop-prod").join("version"))?, "later");
    until("the mirror is gone", async || !site.path("origin-data/mirrors/shop").exists()).await?;

    // It comes again, newer than before.
    assert_eq!(operator.put("/v1/repositories/shop", repository).await?.status, 201);
    let service = json!({ "repository": "shop", "folder": "deploy/prod" });
    assert_eq!(operator.put("/v1/services/shop-prod", service).await?.status, 201);
    site.until_released("shop-prod", "version", "1").await?;

    // The file takes the name.
    let file = fs::read_to_string(site.path("origin.toml"))?;
    let entry = format!("{file}\n[[repository]]\nname = \"shop\"\nurl = \"{}\"\n", site.upstream.bare().display());
    fs::write(site.path("origin.toml"), entry)?;
    site.origin.hang_up()?;
    until("the repository is the file's", async || {
        let read = operator.ask("GET", "/v1/repositories/shop", &[], None).await;
        read.is_ok_and(|read| read.body["defined_by"] == "file")
    })
    .await?;
    assert_eq!(operator.ask("DELETE", "/v1/repositories/shop?cascade=true", &[], None).await?.status, 409);
    let log = site.origin.log();
    assert!(!log.contains(git_server::PASSWORD) && !log.contains(TOKEN), "{log}");
    site.origin.terminate().await?;
    Ok(())
}
