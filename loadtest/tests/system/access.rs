//! Tokens, from the command that makes them to the agent that is turned away.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::ensure;
use weir_loadtest::processes::binary;

use crate::site::{Plan, Site};

/// Runs `weir token` in a folder.
pub(crate) fn token(dir: &Path, arguments: &str) -> anyhow::Result<()> {
    let run = Command::new(binary("weir")?).arg("token").args(arguments.split(' ')).current_dir(dir).output()?;
    ensure!(run.status.success(), "weir token {arguments}: {}", String::from_utf8_lossy(&run.stderr));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_follows_with_its_token_until_it_is_revoked() -> anyhow::Result<()> {
    let plan = Plan {
        auth: "mode = 'required'\nkeys = ['fleet.key.pub']",
        access: "deny = 'denied'",
        agent: "token_file = 'agent.token'",
        ..Plan::default()
    };
    let mut site = Site::new(
        |upstream| {
            upstream.write("deploy/prod/version", "1")?;
            upstream.commit_and_push("one")?;
            Ok(())
        },
        plan,
    )
    .await?;
    let dir = site.path("");
    fs::write(dir.join("denied"), "")?;
    token(&dir, "key --out fleet.key")?;
    token(&dir, "issue --key fleet.key --subject cluster-1 --service shop-* --id first --out agent.token")?;
    let first = fs::read_to_string(dir.join("agent.token"))?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    let anonymous = site.client()?.send("HEAD", "/v1/services/shop-prod/tarball", &[]).await?;
    assert_eq!(anonymous.status(), 401);

    // The origin's file: the edge hears of it on the event stream.
    fs::write(dir.join("denied"), "token first\n")?;
    site.until_status(&site.agent, "the agent says that its token was revoked", |status| {
        let error = status["services"]["shop-prod"]["last_error"].as_str().unwrap_or_default();
        error.contains("401 Unauthorized: The token was revoked") && error.contains("agent.token")
    })
    .await?;

    // What stands in the file counts with the next request: nobody restarts anything.
    fs::remove_file(dir.join("agent.token"))?;
    token(&dir, "issue --key fleet.key --subject cluster-1 --service shop-* --id second --out agent.token")?;
    let second = fs::read_to_string(dir.join("agent.token"))?;
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.until_released("shop-prod", "version", "2").await?;
    for secret in [first.trim(), second.trim()] {
        let (_, signature) = secret.rsplit_once('.').unwrap_or_default();
        assert!(!site.logs().contains(signature), "a token was logged");
    }
    Ok(())
}
