//! Many services of one repository.

use crate::node::Home;
use crate::upstream::Upstream;

const SERVICES: usize = 60;

#[tokio::test]
async fn the_services_of_one_commit_share_few_writes_of_the_record() {
    let (home, upstream) = (Home::new(), Upstream::small());
    for number in 1..SERVICES {
        std::fs::create_dir(upstream.work().join(format!("s{number}"))).unwrap();
        std::fs::write(upstream.work().join(format!("s{number}/app.yaml")), format!("number: {number}\n")).unwrap();
    }
    upstream.push("s0/app.yaml", b"number: 0\n");
    let mut config = home.config(&upstream.url());
    let one = config.services[0].clone();
    config.services.clear();
    for number in 0..SERVICES {
        let (name, folder) = (format!("shop-{number}").parse().unwrap(), format!("s{number}").parse().unwrap());
        config.services.push(weir_origin::config::ServiceConfig { name, folder, ..one.clone() });
    }
    let node = home.start(config).await;
    node.repository(|state| state.attempts > 0).await;
    assert_eq!(node.metric("weir_origin_publications_total").await, SERVICES as f64);
    let writes = node.metric("weir_origin_record_writes_total{result=\"done\"}").await;
    assert!(writes > 0.0 && writes < SERVICES as f64 / 2.0, "{writes} writes of the record");
    let services = node.status().await["services"].clone();
    let follows = |service: &serde_json::Value| service["condition"] == "following" && !service["seen"].is_null();
    assert!(services.as_array().unwrap().iter().all(follows), "{services}");
    node.stop().await;
}
