//! Certificates that end, and that are replaced while the origin serves.

use reqwest::Method;
use weir_origin::config::Config;
use weir_runtime::certificates;

use crate::node::{Home, Node};
use crate::operator::{Operator, config};
use crate::upstream::Upstream;

const ENDS: &str = "weir_origin_certificate_not_after_timestamp_seconds";

/// The configuration as a file, for a reload.
fn write_file(home: &Home, upstream: &Upstream) {
    home.write_config(&format!(
        "[[repository]]\nname = \"shop\"\nurl = \"{}\"\npoll_interval = \"1h\"\n[[service]]\nname = \"shop-prod\"\n\
         repository = \"shop\"\nref = \"main\"\nfolder = \"deploy\"\n",
        upstream.url()
    ));
}

fn now() -> f64 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64()
}

async fn reload(home: &Home, node: &Node) -> Result<(), String> {
    node.running.reload_file(&home.file("origin.toml")).await.map_err(|error| format!("{error:#}"))
}

#[tokio::test]
async fn a_reload_shows_the_new_certificate_and_connections_live_on() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    for listener in ["edge", "operators"] {
        assert!(node.metric(&format!("{ENDS}{{listener=\"{listener}\"}}")).await > now() + 300.0 * 86_400.0);
    }
    let old = Operator::of(&home, &node);
    assert_eq!(old.get("/v1/services").await.status, 200);
    node.descriptor().await;
    // Everybody gets certificates of another authority, under the names of the old ones.
    for file in ["ca.pem", "ca.key"] {
        std::fs::remove_file(home.file(file)).unwrap();
    }
    certificates::write(&home.file(""), &[]).unwrap();
    let knows = async || {
        let client = home.client("edge-client");
        let uri = format!("https://{}/v1/services/shop-prod", node.running.address());
        let body = http_body_util::Empty::<bytes::Bytes>::new();
        client.request(http::Request::builder().uri(uri).body(body).unwrap()).await.is_ok()
    };
    assert!(!knows().await, "it still shows the old one");
    write_file(&home, &upstream);
    reload(&home, &node).await.unwrap();
    assert!(knows().await, "it shows the new one");
    assert_eq!(Operator::of(&home, &node).get("/v1/services").await.status, 200);
    // On the connections of before: their authority would get no other.
    node.descriptor().await;
    assert_eq!(old.send(Method::GET, "/v1/services", &[], None).await.status, 200);
    assert_eq!(node.metric("weir_origin_reloads_total{result=\"applied\"}").await, 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_certificate_that_has_ended_is_seen_and_never_taken_over() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    write_file(&home, &upstream);
    certificates::write_ended(&home.file(""), "origin").unwrap();
    let error = reload(&home, &node).await.unwrap_err();
    assert!(error.contains("origin.pem") && error.contains("has ended"), "{error}");
    std::fs::write(home.file("origin.key"), "").unwrap();
    assert!(reload(&home, &node).await.unwrap_err().contains("origin.key"));
    assert_eq!(node.admin("/readyz").await.0, 200);
    let client = home.client("edge-client");
    let uri = format!("https://{}/v1/services/shop-prod", node.running.address());
    let body = http_body_util::Empty::<bytes::Bytes>::new();
    client.request(http::Request::builder().uri(uri).body(body).unwrap()).await.unwrap();
    assert_eq!(node.metric("weir_origin_reloads_total{result=\"refused\"}").await, 2.0);
    node.stop().await;

    certificates::write_ended(&home.file(""), "origin").unwrap();
    let config: Config = config(&home, &upstream);
    let faults = config.check_files().faults;
    assert!(faults.len() == 1 && faults[0].contains("[tls]") && faults[0].contains("it ended on"), "{faults:?}");
    let node = home.start(config).await;
    assert!(node.metric(&format!("{ENDS}{{listener=\"edge\"}}")).await < now());
    let (status, reason) = node.admin("/readyz").await;
    assert!(status == 503 && reason.contains("certificate that edges see has expired"), "{reason}");
    node.stop().await;
}
