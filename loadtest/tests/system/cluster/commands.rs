//! The commands of operators, at an origin that does not own what they are about.

use std::fs;
use std::time::Duration;

use anyhow::{Context, ensure};
use weir_loadtest::processes::until;

use super::engine::EngineKind;
use super::network::{Part, isolated};
use super::site::{Plan, Site};
use super::{on_machines, until_settled};
use crate::weir::Weir;

const REPOSITORIES: usize = 4;

#[test]
fn an_origin_that_owns_nothing_of_it_answers_commands() -> anyhow::Result<()> {
    let parts: [Part<'_>; 1] = [("on a bucket", || on_machines(commands()))];
    isolated("cluster::commands::an_origin_that_owns_nothing_of_it_answers_commands", &parts)
}

async fn commands() -> anyhow::Result<()> {
    let plan = Plan {
        engine: EngineKind::Bucket,
        origins: 2,
        edges: 1,
        repositories: REPOSITORIES,
        composed: 0,
        ttl: Duration::from_secs(15),
        poll_interval: Duration::from_secs(60),
        fresh: Duration::from_secs(1),
    };
    let Some(mut site) = Site::start(&plan).await? else { return Ok(()) };
    until_settled(&site).await?;
    until("all have an owner", async || site.owners(REPOSITORIES).await.is_some()).await?;
    let owners = site.owners(REPOSITORIES).await.context("one lost its owner")?;
    let (name, owner) = owners.first_key_value().context("there are repositories")?;
    let other = site.origins[..2].iter().find(|origin| origin.name != *owner).context("there are two origins")?;
    let weir = Weir::new(&site.path(""), other.operators())?;
    let at = site.upstreams.iter().position(|upstream| upstream.name == *name).context("it has an upstream")?;
    let first = site.upstreams[at].newest.clone();

    weir.says("get members -o wide", &["origin-1", "origin-2", name]).await?;
    weir.says(&format!("describe member {owner}"), &["active", name, "healthy"]).await?;
    weir.until("describe edge edge-1", "none of its agents").await?;
    weir.says(&format!("get services {name}"), &["following", &first[..12]]).await?;
    weir.says(&format!("describe repository {name}"), &["healthy", name]).await?;
    weir.says("get repositories", &["healthy"]).await?;
    site.upstreams[at].push()?;
    let second = site.upstreams[at].newest.clone();
    weir.says(&format!("refresh {name}"), &["is polled"]).await?;
    weir.until(&format!("get services {name}"), &second[..12]).await?;
    weir.says(&format!("history {name}"), &[&first[..12], &second[..12]]).await?;
    weir.says(&format!("diff {name}"), &["~ version", "1 changed"]).await?;
    weir.says(&format!("diff {name} --patch"), &["--- a/version", "+++ b/version", "@@ "]).await?;

    let back = format!("rollback {name} previous --reason INC-42");
    weir.says(&back, &[&first[..12]]).await?;
    let (status, again) = weir.run(&back).await?;
    ensure!(status == Some(1) && again.contains("rolled back already"), "{status:?} {again}");
    weir.says(&format!("describe service {name}"), &["pinned", "INC-42", "token"]).await?;
    weir.says(&format!("unpin {name} --reason mended"), &["follows again"]).await?;
    weir.until(&format!("get services {name}"), &second[..12]).await?;
    weir.says(&format!("history {name}"), &["INC-42", "mended"]).await?;
    weir.says(&format!("pin {name}"), &[&second[..12]]).await?;
    weir.says(&format!("unpin {name}"), &["follows again"]).await?;

    let document =
        format!("[[service]]\nname = \"more\"\nrepository = \"{name}\"\nref = \"main\"\nfolder = \"deploy\"\n");
    fs::write(site.path("more.toml"), document)?;
    weir.says("apply -f more.toml --dry-run", &["more would be created", "1 entry"]).await?;
    weir.says("apply -f more.toml", &["service more created"]).await?;
    weir.until("get services more", &second[..12]).await?;
    weir.says("delete service more", &["deleted"]).await?;
    let (status, gone) = weir.run("describe service more").await?;
    ensure!(status == Some(1) && gone.contains("no service `more`"), "{status:?} {gone}");
    Ok(())
}
