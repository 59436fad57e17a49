//! A real edge gets SIGHUP while a real agent polls it; and no process gets one, because they watch their files.

use std::fs;

use weir_loadtest::processes::{binary, until};
use weir_loadtest::scrape::Metrics;
use weir_runtime::certificates;

use crate::site::{Plan, Site, service};

#[tokio::test(flavor = "multi_thread")]
async fn an_edge_reloads_its_certificate_on_sighup_without_an_error_of_its_agent() -> anyhow::Result<()> {
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one")?;
        Ok(())
    };
    let mut site = Site::new(fill, Plan::default()).await?;
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    // Before the first publication its polls failed.
    let errors = async || anyhow::Ok(Metrics::read(site.agent.admin()).await?.sum("weir_agent_errors_total", &[]));
    let errors_before = errors().await?;
    let old = fs::read(site.path("edge.pem"))?;
    certificates::write(&site.path(""), &[])?;
    assert_ne!(fs::read(site.path("edge.pem"))?, old);
    site.edge.hang_up()?;
    site.until_counter(&site.edge, "weir_edge_reloads_total", &["result=\"applied\""], 0.0).await?;

    // What makes no sense is refused, and the edge goes on.
    fs::write(site.path("edge.key"), "no key")?;
    site.edge.hang_up()?;
    site.until_counter(&site.edge, "weir_edge_reloads_total", &["result=\"refused\""], 0.0).await?;
    assert!(site.edge.log().contains("edge.key"), "{}", site.edge.log());
    certificates::write(&site.path(""), &[])?;
    let config = fs::read_to_string(site.path("edge.toml"))?;
    fs::write(site.path("edge.toml"), format!("no_such_key = 1\n{config}"))?;
    let refused = Metrics::read(site.edge.admin()).await?.sum("weir_edge_reloads_total", &["result=\"refused\""]);
    site.edge.hang_up()?;
    site.until_counter(&site.edge, "weir_edge_reloads_total", &["result=\"refused\""], refused).await?;
    assert!(site.edge.log().contains("no_such_key"), "{}", site.edge.log());

    let polls = |metrics: &Metrics| metrics.sum("weir_agent_polls_total", &["result=\"unchanged\""]);
    let before = polls(&Metrics::read(site.agent.admin()).await?);
    until("the agent has polled on", async || {
        Metrics::read(site.agent.admin()).await.is_ok_and(|metrics| polls(&metrics) > before + 1.0)
    })
    .await?;
    assert_eq!(errors().await?, errors_before, "{}", site.logs());
    // New connections are served too.
    assert_eq!(site.client()?.send("GET", "/v1/services/shop-prod/tarball", &[]).await?.status(), 200);
    site.edge.terminate().await?;
    Ok(())
}

/// Replaces a file as Kubernetes replaces those of a ConfigMap: at once.
fn replace(site: &Site, name: &str, text: &str) -> anyhow::Result<()> {
    fs::write(site.path("changed"), text)?;
    Ok(fs::rename(site.path("changed"), site.path(name))?)
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_that_watch_their_files_need_no_signal_unless_much_is_gone() -> anyhow::Result<()> {
    let fill = |upstream: &weir_loadtest::git_repository::GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.write("deploy/test/version", "2")?;
        upstream.commit_and_push("one")?;
        Ok(())
    };
    let mut site = Site::new(fill, Plan::default()).await?;
    for name in ["origin.toml", "edge.toml", "agent.toml"] {
        let text = fs::read_to_string(site.path(name))?;
        fs::write(site.path(name), format!("watch_config = true\n{text}"))?;
    }
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;

    let (origin, agent) = (fs::read_to_string(site.path("origin.toml"))?, fs::read_to_string(site.path("agent.toml"))?);
    replace(&site, "origin.toml", &format!("{origin}{}", service("shop-test", "main", "deploy/test")))?;
    replace(&site, "agent.toml", &format!("{agent}[[service]]\nname = \"shop-test\"\n"))?;
    site.until_released("shop-test", "version", "2").await?;
    let edge = fs::read_to_string(site.path("edge.toml"))?;
    replace(&site, "edge.toml", &format!("no_such_key = 1\n{edge}"))?;
    site.until_counter(&site.edge, "weir_edge_reloads_total", &["result=\"refused\""], 0.0).await?;
    replace(&site, "edge.toml", &edge)?;
    site.until_counter(&site.edge, "weir_edge_reloads_total", &["result=\"applied\""], 0.0).await?;

    // Files that are cut off are valid, and half of the services are gone.
    replace(&site, "origin.toml", &origin)?;
    replace(&site, "agent.toml", &agent)?;
    for (node, role) in [(&site.origin, "origin"), (&site.agent, "agent")] {
        site.until_counter(node, &format!("weir_{role}_reloads_total"), &["result=\"refused\""], 0.0).await?;
        assert!(node.log().contains("1 of 2 services"), "{}", node.log());
        assert_eq!(Metrics::read(node.admin()).await?.sum(&format!("weir_{role}_reload_refused"), &[]), 1.0);
        let (code, text) = status(&site, role)?;
        assert!(
            code == Some(0) && text.starts_with("ready, but degraded\n") && text.contains("1 of 2 services"),
            "{text}"
        );
    }
    // A signal confirms it.
    for (node, role) in [(&site.origin, "origin"), (&site.agent, "agent")] {
        node.hang_up()?;
        until("the signal is obeyed", async || {
            let metrics = Metrics::read(node.admin()).await;
            metrics.is_ok_and(|metrics| metrics.sum(&format!("weir_{role}_reload_refused"), &[]) == 0.0)
        })
        .await?;
    }
    let (code, text) = status(&site, "edge")?;
    assert!(code == Some(0) && text.starts_with("ready\nrole: edge\nname: edge-1\n"), "{text}");
    // As in a ConfigMap, which holds nothing but the file.
    fs::create_dir(site.path("config"))?;
    fs::copy(site.path("edge.toml"), site.path("config/edge.toml"))?;
    let elsewhere = |base: &str| {
        let mut command = std::process::Command::new(binary("weir-edge")?);
        command.arg("status").arg("--config").arg(site.path("config/edge.toml")).env("WEIR_BASE_DIR", base);
        anyhow::Ok(command.output()?.status.code())
    };
    assert_eq!((elsewhere("..")?, elsewhere("")?), (Some(0), Some(2)));
    site.edge.terminate().await?;
    assert_eq!(status(&site, "edge")?.0, Some(2), "nobody answers");
    Ok(())
}

/// `status` of a role's program: its exit code and what it prints.
fn status(site: &Site, role: &str) -> anyhow::Result<(Option<i32>, String)> {
    let mut command = std::process::Command::new(binary(&format!("weir-{role}"))?);
    let output = command.arg("status").arg("--config").arg(site.path(&format!("{role}.toml"))).output()?;
    Ok((output.status.code(), String::from_utf8(output.stdout)?))
}
