//! A clock that is not that of the servers.

use std::time::SystemTime;

use crate::node::Home;
use crate::prelude::*;
use crate::smart_http::{HttpBehavior, SmartHttp};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_origin_with_a_clock_far_from_its_upstreams_is_degraded() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), None);
    let date = |behind: u64| httpdate::fmt_http_date(SystemTime::now() - Duration::from_secs(behind));
    let answer = |behind: u64| HttpBehavior {
        status: Some(503),
        header: Some(format!("Date: {}", date(behind))),
        ..HttpBehavior::default()
    };
    server.set_behavior(answer(72 * 3600));
    let node = home.start(home.config(&server.url("shop.git"))).await;
    node.poll().await;
    let (_, reply) = node.admin("/readyz").await;
    assert!(reply.contains("the clock of this machine is 3days"), "{reply}");
    let ahead = node.metric("weir_origin_clock_ahead_seconds").await;
    assert!((72.0 * 3600.0..73.0 * 3600.0).contains(&ahead), "{ahead}");
    server.set_behavior(answer(60));
    node.poll().await;
    let (_, reply) = node.admin("/readyz").await;
    assert!(!reply.contains("clock"), "{reply}");
    node.stop().await;
}
