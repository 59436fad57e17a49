//! A real edge gets SIGHUP while a real agent polls it.

use std::fs;

use weir_loadtest::processes::until;
use weir_loadtest::scrape::Metrics;
use weir_runtime::certificates;

use crate::site::{Plan, Site};

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
