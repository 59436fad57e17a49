//! Who gets in, what the paths answer, and certificates that end or are replaced while the origin serves.

use crate::node::Edge;
use crate::prelude::*;
use crate::stored_state::{pages, private_object, record};

#[tokio::test]
async fn only_certificates_of_edges_are_accepted() {
    let (home, _upstream, node, descriptor) = started().await;
    for role in ["agent", "operator"] {
        let client = Edge { client: home.client(role), origin: node.running.address().to_string() };
        for path in [
            &format!("/v1/services/{SERVICE}"),
            &object_path(&object_of(&descriptor)),
            "/",
            "/v1/services/no",
            "/v1/events",
        ] {
            let answer = client.get(path).await;
            assert_eq!(answer.status, 401, "{role} {path}");
            assert_eq!(answer.problem().0, "unauthorized");
        }
    }
    let stranger = Home::new();
    for file in ["ca.pem", "ca.key"] {
        fs::remove_file(stranger.file(file)).unwrap();
    }
    certificates::write(&stranger.file(""), &[]).unwrap();
    let foreign = stranger.client("edge-client");
    let uri = format!("https://{}/v1/services/{SERVICE}", node.running.address());
    assert!(foreign.get(uri.parse().unwrap()).await.is_err(), "an authority that nobody named");
    node.stop().await;
}

#[tokio::test]
async fn unknown_paths_and_methods_are_refused() {
    let (_home, _upstream, node, descriptor) = started().await;
    let digest = TarballDigest::of(b"no tarball");
    for (path, status, kind) in [
        ("/v1/services/nobody".to_owned(), 404, "no-such-service"),
        ("/v1/services/nobody/versions".to_owned(), 404, "no-such-service"),
        (format!("/v1/services/nobody/versions/{digest}"), 404, "no-such-service"),
        (format!("/v1/services/{SERVICE}/versions/{digest}"), 404, "no-such-version"),
        (object_path(&ObjectDigest::of(b"no object")), 404, "no-such-object"),
        (format!("/v1/objects/nobody/{}", object_of(&descriptor)), 404, "no-such-object"),
        (format!("/v1/services/{SERVICE}/tarball"), 404, "no-such-path"),
        ("/v1/events/more".to_owned(), 404, "no-such-path"),
        ("/v1/objects/shop/x".to_owned(), 400, "malformed-request"),
    ] {
        let answer = node.get(&path).await;
        assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (status, kind), "{path}");
    }
    let head = node.request(Method::HEAD, "/v1/services/nobody", &[]).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (404, 0));
    for path in [format!("/v1/services/{SERVICE}"), object_path(&object_of(&descriptor))] {
        let answer = node.request(Method::DELETE, &path, &[]).await;
        assert_eq!((answer.status.as_u16(), answer.header("allow")), (405, "GET, HEAD"));
    }
    node.stop().await;
}

#[tokio::test]
async fn objects_are_immutable_and_private_ones_are_not_served() {
    let (home, _upstream, node, descriptor) = started().await;
    let path = object_path(&object_of(&descriptor));
    let whole = node.get(&path).await;
    let (etag, size) = (whole.header("etag").to_owned(), whole.body.len());
    assert_eq!(etag, format!("\"{}\"", object_of(&descriptor)));
    assert_eq!(whole.header("content-type"), "application/octet-stream");
    assert!(whole.header("cache-control").contains("immutable"));
    assert_eq!(whole.header("content-length"), size.to_string());

    let head = node.request(Method::HEAD, &path, &[]).await;
    assert_eq!((head.status.as_u16(), head.body.len()), (200, 0));
    assert_eq!((head.header("content-length"), head.header("etag")), (size.to_string().as_str(), etag.as_str()));
    let known = node.request(Method::GET, &path, &[("if-none-match", &etag)]).await;
    assert_eq!((known.status.as_u16(), known.body.len()), (304, 0));
    assert_eq!(node.metric("weir_origin_object_sent_bytes_total").await, size as f64);

    let pages = pages(&record(&home));
    assert!(!pages.is_empty() && pages.iter().all(|page| private_object(&home, page).exists()));
    for page in pages {
        let answer = node.get(&object_path(&page)).await;
        assert_eq!((answer.status.as_u16(), answer.problem().0.as_str()), (404, "no-such-object"));
    }
    node.stop().await;
}

#[tokio::test]
async fn the_access_list_for_edges_follows_the_files() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    let deny = home.file("denied");
    std::fs::write(&deny, "token t1\n").unwrap();
    config.access.deny = Some(deny.clone());
    let node = home.start(config.clone()).await;
    let mut received = node.running.access();
    let denied = |received: &weir_origin::SentList| {
        received.list().denied_tokens(0).map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(denied(&received.borrow_and_update()), ["t1"]);
    std::fs::write(&deny, "token t1\ntoken t2\n").unwrap();
    received.changed().await.unwrap();
    assert_eq!(denied(&received.borrow_and_update()), ["t1", "t2"]);
    assert_eq!(node.metric("weir_origin_access_files_readable").await, 1.0);
    assert!(!node.admin("/readyz").await.1.contains("denials"));
    std::fs::write(&deny, "tokn t1\n").unwrap();
    until(async || node.metric("weir_origin_access_files_readable").await == 0.0).await;
    let (status, received) = node.admin("/readyz").await;
    assert!(status == 200 && received.contains("degraded") && received.contains("keys or denials"), "{received}");
    node.stop().await;

    let found = config.check_files();
    let [error] = found.errors.as_slice() else { panic!("{found:?}") };
    assert!(error.contains("[access]") && error.contains("line 1"), "{error}");
    let error = weir_origin::start(config).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("deny file") && error.contains("line 1"), "{error}");
}

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
async fn a_reload_replaces_the_certificate_and_keeps_connections() {
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
    assert!(node.metric("weir_origin_reloads_total{result=\"applied\"}").await >= 1.0);
    node.stop().await;
}

#[tokio::test]
async fn a_changed_certificate_is_loaded_without_a_signal() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    let authority_ends = "weir_origin_authority_not_after_timestamp_seconds{listener=\"edge\"}";
    assert!(node.metric(authority_ends).await > now() + 300.0 * 86_400.0);
    let reloads = async |result| node.metric(&format!("weir_origin_reloads_total{{result=\"{result}\"}}")).await;
    let key = std::fs::read(home.file("origin.key")).unwrap();
    std::fs::write(home.file("origin.key"), "torn").unwrap();
    until(async || reloads("refused").await == 1.0).await;
    let (status, reply) = node.admin("/readyz").await;
    assert!(
        status == 200 && reply.contains("degraded: the last reload was refused") && reply.contains("origin.key"),
        "{reply}"
    );
    assert_eq!(node.metric("weir_origin_reload_refused").await, 1.0);
    // What was refused is as it was before.
    std::fs::write(home.file("origin.key"), key).unwrap();
    until(async || node.metric("weir_origin_reload_refused").await == 0.0).await;
    assert!(!node.admin("/readyz").await.1.contains("reload"));
    for file in ["ca.pem", "ca.key"] {
        std::fs::remove_file(home.file(file)).unwrap();
    }
    certificates::write(&home.file(""), &[]).unwrap();
    until(async || reloads("applied").await == 2.0).await;
    assert_eq!(Operator::of(&home, &node).get("/v1/services").await.status, 200);
    assert_eq!(reloads("refused").await, 1.0, "told once");
    node.stop().await;
}

#[tokio::test]
async fn an_expired_certificate_is_reported_and_never_loaded() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = home.start(config(&home, &upstream)).await;
    node.published(|_| true).await;
    write_file(&home, &upstream);
    certificates::write_expired(&home.file(""), "origin").unwrap();
    let error = reload(&home, &node).await.unwrap_err();
    assert!(error.contains("origin.pem") && error.contains("it expired on"), "{error}");
    certificates::write_not_yet_valid(&home.file(""), "origin").unwrap();
    let error = reload(&home, &node).await.unwrap_err();
    assert!(error.contains("origin.pem") && error.contains("not valid before"), "{error}");
    std::fs::write(home.file("origin.key"), "").unwrap();
    assert!(reload(&home, &node).await.unwrap_err().contains("origin.key"));
    let (status, reply) = node.admin("/readyz").await;
    assert!(status == 200 && reply.contains("the last reload was refused"), "{reply}");
    let client = home.client("edge-client");
    let uri = format!("https://{}/v1/services/shop-prod", node.running.address());
    let body = http_body_util::Empty::<bytes::Bytes>::new();
    client.request(http::Request::builder().uri(uri).body(body).unwrap()).await.unwrap();
    assert!(node.metric("weir_origin_reloads_total{result=\"refused\"}").await >= 3.0);
    node.stop().await;

    let config: Config = config(&home, &upstream);
    certificates::write_not_yet_valid(&home.file(""), "origin").unwrap();
    let errors = config.check_files().errors;
    assert!(errors.len() == 1 && errors[0].contains("[tls]") && errors[0].contains("not valid before"), "{errors:?}");
    certificates::write_expired(&home.file(""), "origin").unwrap();
    let errors = config.check_files().errors;
    assert!(errors.len() == 1 && errors[0].contains("[tls]") && errors[0].contains("it expired on"), "{errors:?}");
    let node = home.start(config).await;
    assert!(node.metric(&format!("{ENDS}{{listener=\"edge\"}}")).await < now());
    let (status, reason) = node.admin("/readyz").await;
    assert!(status == 503 && reason.contains("certificate that edges see has expired"), "{reason}");
    node.stop().await;
}
