//! Signatures, from the command that makes the key to what an edge passes on.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use http_body_util::BodyExt;
use weir_loadtest::processes::{binary, until};
use weir_protocol::access_list::AccessList;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::token::PublicKey;

use crate::site::{Client, Plan, Site, service};

/// Runs `weir-origin keys` in a folder, and reads what it prints as a reader does.
pub(crate) fn keys(dir: &Path, arguments: &str) -> anyhow::Result<Vec<PublicKey>> {
    let arguments = arguments.split_whitespace();
    let run = Command::new(binary("weir-origin")?).arg("keys").args(arguments).current_dir(dir).output()?;
    ensure!(run.status.success(), "weir-origin keys: {}", String::from_utf8_lossy(&run.stderr));
    let mut list = AccessList::default();
    list.add_key_file(&String::from_utf8(run.stdout)?)?;
    Ok(list.keys().cloned().collect())
}

pub(crate) async fn descriptor(client: &Client, service: &str) -> anyhow::Result<Descriptor> {
    let answer = client.send("GET", &format!("/v1/services/{service}"), &[]).await?;
    ensure!(answer.status() == 200, "{}", answer.status());
    Ok(Descriptor::parse(answer.into_body().collect().await?.to_bytes())?)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_forwards_signatures_unchanged_also_of_a_new_key() -> anyhow::Result<()> {
    let signing = "[signing]\nkeys = ['old.key']\n";
    let services = format!("{signing}{}", service("shop-prod", "main", "deploy/prod"));
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan { services, ..Plan::default() }).await?;
    let dir = site.path("");
    let old = keys(&dir, "new old.key")?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    let client = site.client()?;
    let passed_on = descriptor(&client, "shop-prod").await?;
    assert_eq!(passed_on.publication_signed_by(&old[0]).as_ref(), Some(passed_on.publication()));
    assert_eq!(passed_on.envelope().map(|envelope| envelope.key_ids().count()), Some(1));

    // The key is changed: the publication stays, and what edges hold is signed with both.
    let new = keys(&dir, "new new.key")?;
    let config = fs::read_to_string(dir.join("origin.toml"))?;
    fs::write(dir.join("origin.toml"), config.replace("['old.key']", "['old.key', 'new.key']"))?;
    assert_eq!(keys(&dir, "--config origin.toml")?.len(), 2);
    site.origin.terminate().await?;
    site.origin.start().await?;
    until("the edge holds what was signed with the new key", async || {
        descriptor(&client, "shop-prod").await.is_ok_and(|current| current.publication_signed_by(&new[0]).is_some())
    })
    .await?;
    let both = descriptor(&client, "shop-prod").await?;
    assert!(both.publication_signed_by(&old[0]).is_some());
    assert_eq!(both.publication(), passed_on.publication());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_accepts_only_what_its_keys_signed_and_proves_that_it_is_current() -> anyhow::Result<()> {
    let services = format!("[signing]\nkeys = ['old.key']\n{}", service("shop-prod", "main", "deploy/prod"));
    let plan = Plan {
        services,
        auth: "mode = 'required'\nclient_ca = 'ca.pem'\n[[auth.certificate]]\nagents = '*'\nservices = ['*']\n",
        agent: "client_certificate = 'agent.pem'\nclient_key = 'agent.key'\n\
                trust = [{ services = '*', keys = 'trusted.pub' }]\n",
        ..Plan::default()
    };
    let publish = |upstream: &weir_loadtest::git_repository::GitRepository, version: &str| {
        upstream.write("deploy/prod/version", version)?;
        upstream.commit_and_push(version).map(drop)
    };
    let mut site = Site::new(|upstream| publish(upstream, "1"), plan).await?;
    let dir = site.path("");
    for key in ["old", "new"] {
        keys(&dir, &format!("new {key}.key"))?;
    }
    fs::copy(dir.join("old.key.pub"), dir.join("trusted.pub"))?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    // Signed by the origin, requested by the edge, judged by the agent.
    site.until_counter(&site.agent, "weir_agent_proof_current_timestamp_seconds", &[], 1.0).await?;

    // The origin signs with a key that the agent was not given.
    let config = fs::read_to_string(dir.join("origin.toml"))?;
    fs::write(dir.join("origin.toml"), config.replace("['old.key']", "['new.key']"))?;
    site.origin.terminate().await?;
    site.origin.start().await?;
    publish(&site.upstream, "2")?;
    site.until_counter(&site.agent, "weir_agent_proof_failures_total", &["reason=\"signature\""], 0.0).await?;
    assert_eq!(fs::read_to_string(site.current("shop-prod").join("version"))?, "1");
    fs::copy(dir.join("new.key.pub"), dir.join("trusted.pub"))?;
    site.until_released("shop-prod", "version", "2").await
}
