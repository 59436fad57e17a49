//! The admin listener.

use weir_agent::config::{HttpMode, ServiceConfig};
use weir_protocol::observed::HookState;
use weir_protocol::observed::Phase;

use crate::agent_under_test::{Agent, World, shop};
use crate::edge::{Fault, PATIENCE};
use crate::tarball::with_content;

#[tokio::test]
async fn a_release_makes_the_agent_ready_and_status_shows_it() {
    let (world, edge) = World::with_edge().await;
    let mut config = world.config(&[edge.url()]);
    config.admin_listen = Some("127.0.0.1:0".parse().unwrap());
    config.metrics_by_service = true;
    config.http = HttpMode::H3;
    config.services[0].exec = Some("true".into());
    let mut agent = Agent::start(config).await;
    agent.until("the first poll has ended", |status| status.polls > 0).await;
    assert_eq!(agent.admin("/livez").await.0, 200);
    let (status, body) = agent.admin("/readyz").await;
    assert!(status == 503 && body.contains("shop"), "{body}");

    let (digest, generation) = edge.answers.publish(&shop(), with_content("one"));
    agent.poll().await;
    agent.until("exec has run", |status| status.hook_runs == 1 && status.phase() == Phase::Current).await;
    assert_eq!(agent.admin("/readyz").await, (200, "ready\n".to_owned()));
    let status = agent.shown().await;
    let service = &status["services"]["shop"];
    assert_eq!(status["name"], "cluster-1");
    let first: Vec<_> = status.as_object().unwrap().keys().take(6).map(String::as_str).collect();
    assert_eq!(first, ["role", "name", "version", "started", "ready", "reasons"], "what matters first stands first");
    assert_eq!((&status["ready"], &status["reasons"]), (&true.into(), &serde_json::json!([])));
    assert_eq!(status["edges"][0]["url"], edge.url());
    assert_eq!(status["edges"][0]["http3_usable"], true);
    assert_eq!(service["release"]["digest"], digest.to_string());
    assert_eq!(service["release"]["generation"], generation);
    assert_eq!((&service["phase"], &service["problem"]), (&"current".into(), &serde_json::Value::Null));
    assert_eq!(service["desired"], serde_json::json!({ "digest": digest.to_string(), "generation": generation }));
    assert_eq!(service["protocol"], "h3");
    assert_eq!(service["hook"]["state"], "succeeded");
    let metrics = agent.admin("/metrics").await.1;
    edge.answers.fail_always(Fault::Status(401, None));
    agent.poll().await;
    let (status, body) = agent.admin("/readyz").await;
    assert!(
        status == 200 && body.contains("degraded: the last poll of shop failed: ") && body.contains("401"),
        "{body}"
    );
    let problem = &agent.shown().await["services"]["shop"]["problem"];
    assert_eq!(problem["kind"], "unauthorized", "{problem}");
    for line in [
        "weir_agent_polls_total{result=\"changed\",service=\"shop\"} 1",
        "weir_agent_hook_runs_total{result=\"success\",service=\"shop\"} 1",
        &format!("weir_agent_http3_usable{{edge=\"{}\"}} 1", edge.url()),
        &format!("weir_agent_edge_preferred{{edge=\"{}\"}} 1", edge.url()),
        "weir_agent_switches_total{service=\"shop\"} 1",
        "weir_agent_update_seconds_count{part=\"fetch\"} 1",
        "weir_agent_update_seconds_count{part=\"unpack\"} 1",
        "weir_agent_update_seconds_count{part=\"sync\"} 1",
        "weir_agent_update_seconds_count{part=\"switch\"} 1",
        "weir_agent_update_seconds_count{part=\"hook\"} 1",
        "weir_agent_last_success_timestamp_seconds{service=\"shop\"} ",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
    agent.stop().await;
}

#[tokio::test]
async fn metrics_have_no_service_label_by_default() {
    let (world, edge) = World::with_edge().await;
    let mut config = world.config(&[edge.url()]);
    config.services[0].exec = Some("true".into());
    config.services.push(ServiceConfig::new(&"bakery".parse().unwrap()));
    let mut agent = Agent::start(config).await;
    let bakery = "bakery".parse().unwrap();
    let mut other = agent.running.service(&bakery).unwrap();
    agent.until("the first poll has ended", |status| status.polls > 0).await;
    tokio::time::timeout(PATIENCE, other.wait_for(|status| status.polls > 0)).await.unwrap().unwrap();
    edge.answers.publish(&shop(), with_content("one"));
    agent.poll().await;
    agent.until("exec has run", |status| status.hook == HookState::Succeeded).await;
    let last_success = "weir_agent_last_success_timestamp_seconds";
    assert_eq!(agent.metric(last_success, &[]), 0.0, "one of them never succeeded");
    edge.answers.publish(&bakery, with_content("two"));
    agent.running.poll_now(&bakery);
    tokio::time::timeout(PATIENCE, other.wait_for(|status| status.switches > 0)).await.unwrap().unwrap();
    assert!(agent.metric(last_success, &[]) > 0.0);
    assert_eq!(agent.metric("weir_agent_switches_total", &[]), 2.0);
    assert_eq!(agent.metric("weir_agent_polls_total", &[("result", "changed")]), 2.0);
    assert_eq!(agent.metric("weir_agent_hook_pending", &[]), 0.0);
    let hook = agent.metric("weir_agent_hook_last_success_timestamp_seconds", &[]);
    assert!(hook > 0.0, "a service without an exec is none that never succeeded");
    for family in agent.running.registry().gather() {
        assert_ne!(family.name(), "weir_agent_generation");
        for metric in family.get_metric() {
            assert!(metric.get_label().iter().all(|label| label.name() != "service"), "{}", family.name());
        }
    }
    agent.stop().await;
}
