use std::fs;

use weir_runtime::certificates;

use crate::mount::Mount;
use crate::site::{Site, TARBALL};
use crate::test_origin::Tarball;

#[tokio::test]
async fn a_directory_is_used_by_one_edge() {
    let site = Site::start().await;
    let error = weir_edge::start(site.config.clone()).await.map(|_| ()).unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("in use by another process") && message.contains("edge-cache"), "{message}");
}

#[tokio::test]
async fn an_invalid_configuration_is_refused_with_the_reason() {
    let site = Site::prepare().await;
    let mut config = site.config.clone();
    config.listen = "0.0.0.0:0".parse().unwrap();
    let error = weir_edge::start(config.clone()).await.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("allow_anonymous"), "{error}");
    config.auth.allow_anonymous = true;
    weir_edge::start(config).await.unwrap().cut().await;

    let mut config = site.config.clone();
    config.tls.key = site.pki().join("nowhere.key");
    let error = weir_edge::start(config).await.map(|_| ()).unwrap_err();
    assert!(format!("{error:#}").contains("nowhere.key"), "{error:#}");
    let mut config = site.config.clone();
    config.origins[0].client_key = site.pki().join("origin.key");
    assert!(weir_edge::start(config).await.is_err());
}

#[tokio::test]
async fn check_config_finds_the_errors_of_each_table() {
    let site = Site::prepare().await;
    assert_eq!(weir_edge::check::files(&site.config).errors, [""; 0]);
    let mut config = site.config.clone();
    let file = |name: &str, text: &str| {
        let path = site.pki().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    config.tls.certificate = file("garbage.pem", "garbage");
    config.origins[0].ca = site.pki().join("nowhere.pem");
    config.auth.mode = weir_edge::config::AuthMode::Required;
    config.auth.keys = vec![file("wrong.pub", "no key")];
    config.cache.dir = file("a-file", "").join("cache");
    let errors = weir_edge::check::files(&config).errors;
    let all = errors.join("\n");
    for named in ["garbage.pem", "nowhere.pem", "wrong.pub", "a-file"] {
        assert!(all.contains(named), "{named}: {all}");
    }
    assert_eq!(errors.len(), 4, "{all}");
    assert!(weir_edge::start(config).await.is_err());
    // Good each by itself, and not together.
    let mut config = site.config.clone();
    config.tls.key = site.pki().join("origin.key");
    assert_eq!(weir_edge::check::files(&config).errors.len(), 1);
    assert!(weir_edge::start(config).await.is_err());
}

#[tokio::test]
async fn check_config_finds_expired_certificates_and_read_only_directories() {
    let site = Site::prepare().await;
    type Write = fn(&std::path::Path, &str) -> anyhow::Result<()>;
    let writes: [(Write, &str); 2] =
        [(certificates::write_not_yet_valid, "not valid before"), (certificates::write_expired, "it expired on")];
    for (write, reason) in writes {
        write(site.pki(), "edge").unwrap();
        write(site.pki(), "edge-client").unwrap();
        let errors = weir_edge::check::files(&site.config).errors;
        assert_eq!(errors.len(), 2, "{errors:?}");
        let files = [("[tls]", "edge.pem"), ("[[origin]]", "edge-client.pem")];
        for (error, (called, file)) in errors.iter().zip(files) {
            assert!(error.contains(called) && error.contains(file) && error.contains(reason), "{error}");
        }
    }
    let mut site = site;
    site.start_edge().await;
    let (status, reason) = site.admin("/readyz").await;
    assert!(status == 503 && reason.contains("has expired"), "{status} {reason}");
    site.cut_edge().await;
    certificates::write(site.pki(), &[]).unwrap();
    let Some(_mount) = Mount::tmpfs(&site.pki().join("disk"), "ro") else { return };
    let mut config = site.config.clone();
    config.cache.dir = site.pki().join("disk/cache");
    let errors = weir_edge::check::files(&config).errors;
    assert!(errors.len() == 1 && errors[0].contains("[cache] dir") && errors[0].contains("Read-only"), "{errors:?}");
}

#[tokio::test]
async fn an_edge_without_anything_is_ready_once_an_origin_was_reached() {
    let mut site = Site::prepare().await;
    site.origin.go_down().await;
    site.start_edge().await;
    let (status, reason) = site.admin("/readyz").await;
    assert_eq!(status, 503);
    assert!(reason.contains("no origin has been reached"), "{reason}");
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 502);
    site.origin.go_up().await;
    site.until("the edge finds it by itself", async || site.admin("/readyz").await.0 == 200).await;
}

#[tokio::test]
async fn status_and_metrics_show_the_cache() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 300_000);
    site.origin.publish("shop", 7, 2, &tarball);
    let mut client = site.client("h2").await;
    client.get(TARBALL, &[]).await;
    site.settled().await;
    client.get(TARBALL, &[]).await;
    let (code, body) = site.admin("/status?service=shop").await;
    let status: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!((code, status["name"].as_str(), status["ready"].as_bool()), (200, Some("edge-1"), Some(true)));
    let first: Vec<_> = status.as_object().unwrap().keys().take(6).map(String::as_str).collect();
    assert_eq!(first, ["role", "name", "version", "started", "ready", "reasons"], "what matters first stands first");
    let service = &status["services"][0];
    assert_eq!(service["service"], "shop");
    assert_eq!(service["digest"], tarball.digest().to_string());
    assert_eq!((service["generation"].as_u64(), service["freshness"].as_str()), (Some(7), Some("fresh")));
    assert!(site.origin.url().ends_with(service["origin"].as_str().unwrap()));
    assert_eq!((status["cache"]["objects"].as_u64(), status["origins"][0]["up"].as_bool()), (Some(1), Some(true)));
    assert_eq!((status["services_total"].as_u64(), &status["next_after"]), (Some(1), &serde_json::Value::Null));
    for wrong in ["page=2", "limit=0", "after=A"] {
        assert_eq!(site.admin(&format!("/status?{wrong}")).await.0, 400, "{wrong}");
    }
    let (_, metrics) = site.admin("/metrics").await;
    for line in [
        "weir_edge_requests_total{cache=\"hit\",method=\"GET\",route=\"tarball\",status=\"200\"} 1",
        "weir_edge_requests_total{cache=\"miss\",method=\"GET\",route=\"tarball\",status=\"200\"} 1",
        "weir_edge_origin_requests_total{kind=\"object\",status=\"200\"} 1",
        "weir_edge_fills_total{result=\"ok\"} 1",
        "weir_edge_sent_bytes_total{encoding=\"identity\",kind=\"full\",tier=\"origin\"} 300000",
        "weir_edge_sent_bytes_total{encoding=\"identity\",kind=\"full\",tier=\"memory\"} 300000",
        "weir_edge_tarballs_served_total{tier=\"memory\"} 1",
        "weir_edge_served_publication_age_seconds_count 2",
        "weir_bound_limit{bound=\"queries\"} 1024",
        "weir_bound_in_use{bound=\"services\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\n{metrics}");
    }
}
