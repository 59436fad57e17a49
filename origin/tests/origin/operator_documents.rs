//! Documents of operators: what is wrong with them, and what they may name.

use serde_json::json;
use weir_runtime::certificates;

use crate::node::Home;
use crate::operator::{Operator, config, empty_config};
use crate::smart_http::SmartHttp;
use crate::upstream::Upstream;

#[tokio::test]
async fn a_bad_document_is_refused_with_all_its_faults() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    config.limits.max_services = 2;
    config.operator.secrets_dir = Some(home.file("secrets"));
    std::fs::create_dir(home.file("secrets")).unwrap();
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let told = operator.put("/v1/services/a", json!({ "ref": "a..b", "folder": "../etc", "colour": 1 })).await;
    assert_eq!((told.status.as_u16(), told.problem().0), (400, "invalid-document"));
    let fields: Vec<_> = told.body["errors"].as_array().unwrap().iter().map(|each| each["field"].as_str()).collect();
    for field in ["repository", "ref", "folder", "colour"] {
        assert!(fields.contains(&Some(field)), "{field}: {told:?}");
    }
    assert_eq!(told.body["object"], json!({ "kind": "service", "name": "a" }));
    for (document, field) in [
        (json!({ "url": "file:///etc" }), "url"),
        (json!({ "url": "https://git.example/x?private_token=s3cret" }), "url"),
        (json!({ "url": "https://git.example/x", "ca": "/etc/shadow" }), "ca"),
    ] {
        let told = operator.put("/v1/repositories/a", document.clone()).await;
        assert_eq!(told.status, 400, "{document}");
        assert!(told.problem().1.contains(&format!("`{field}`")), "{document}: {told:?}");
        assert!(!told.body.to_string().contains("s3cret"), "{told:?}");
    }
    let long = json!({ "repository": "x".repeat(300 << 10) });
    assert_eq!(operator.put("/v1/services/a", long).await.problem().0, "too-large");
    assert_eq!(operator.put("/v1/services/a", json!({ "repository": "shop" })).await.status, 201);
    let told = operator.put("/v1/services/b", json!({ "repository": "shop" })).await;
    assert_eq!((told.status.as_u16(), told.problem().0), (429, "limit-reached"));
    assert!(told.problem().1.contains("`max_services`"), "{told:?}");
    assert_eq!(node.metric("weir_origin_catalog_limit{kind=\"service\"}").await, 2.0);
    node.stop().await;
}

#[tokio::test]
async fn a_document_that_leads_to_a_neighbour_is_refused_before_anything_is_polled() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = config(&home, &upstream);
    config.upstreams.private_addresses = false;
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    for url in ["http://127.0.0.1:9/x", "https://169.254.169.254/latest", "git://10.0.0.1/x"] {
        let told = operator.put("/v1/repositories/a", json!({ "url": url })).await;
        assert_eq!((told.status.as_u16(), told.problem().0), (400, "invalid-document"), "{url}");
        assert_eq!(told.body["errors"][0]["field"], "url");
        assert!(told.problem().1.contains("`[upstreams] private_addresses`"), "{told:?}");
    }
    let proxied = json!({ "url": "https://git.example/x", "proxy": "http://192.168.0.1:3128" });
    assert_eq!(operator.put("/v1/repositories/a", proxied).await.body["errors"][0]["field"], "proxy");
    // What a name leads to is seen when it is looked up.
    let named = json!({ "url": "http://localhost:9/x", "poll_interval": "1h" });
    assert_eq!(operator.put("/v1/repositories/a", named).await.status, 201);
    node.stop().await;
}

#[tokio::test]
async fn a_secret_is_used_for_the_host_that_it_was_put_there_for() {
    let (home, upstream) = (Home::new(), Upstream::small());
    std::fs::create_dir(home.file("git")).unwrap();
    certificates::write(&home.file("git"), &[]).unwrap();
    let server = SmartHttp::start(upstream.bare().parent().unwrap(), Some(&home.file("git")));
    // `ci:pass` in base64.
    server.behave(crate::smart_http::Manner {
        authorization: Some("Basic Y2k6cGFzcw==".to_owned()),
        ..Default::default()
    });
    let secrets = home.file("secrets");
    std::fs::create_dir_all(secrets.join("localhost")).unwrap();
    std::fs::create_dir_all(secrets.join("127.0.0.1")).unwrap();
    std::fs::copy(home.file("git").join("ca.pem"), secrets.join("localhost/ca.pem")).unwrap();
    std::fs::write(secrets.join("localhost/token"), "pass\n").unwrap();
    let mut config = empty_config(&home, &upstream);
    config.operator.secrets_dir = Some(secrets);
    let node = home.start(config).await;
    let operator = Operator::of(&home, &node);
    let document = |host: &str| {
        json!({
            "url": format!("https://{host}:{}/bare.git", server.address.port()), "poll_interval": "1h",
            "ca": "ca.pem", "username": "ci", "password_file": "token",
        })
    };
    // The same server by another name, for which there is no secret.
    assert_eq!(operator.put("/v1/repositories/shop", document("127.0.0.1")).await.status, 201);
    assert_eq!(operator.put("/v1/services/shop-prod", json!({ "repository": "shop" })).await.status, 201);
    node.repository(|state| state.attempts > 0).await;
    assert_eq!(operator.get("/v1/repositories/shop").await.body["status"]["health"], "unhealthy");
    assert!(server.take_requests().iter().all(|head| !head.contains("Y2k6cGFzcw==")));
    assert_eq!(operator.put("/v1/repositories/shop", document("localhost")).await.status, 200);
    node.published(|_| true).await;
    let shown = operator.get("/v1/repositories/shop").await.body;
    assert_eq!(shown["password_file"], "token", "as it was written");
    node.stop().await;
}
