//! A certificate that is replaced while the edge serves.

use std::path::Path;

use weir_edge::config::{AuthConfig, AuthMode, CertificateRule, Config, TlsConfig};
use weir_shared::process::certificates;

use crate::client::Client;
use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

/// A certificate of another authority.
fn another() -> (tempfile::TempDir, TlsConfig) {
    let pki = tempfile::tempdir().unwrap();
    certificates::write(pki.path(), &[]).unwrap();
    let tls = of(pki.path());
    (pki, tls)
}

fn of(pki: &Path) -> TlsConfig {
    TlsConfig { certificate: pki.join("edge.pem"), key: pki.join("edge.key") }
}

/// Whether one who trusts this authority alone can connect.
async fn is_trusted(site: &Site, version: &'static str, pki: &Path) -> bool {
    let (address, pki) = (site.edge().address(), pki.to_owned());
    // Over QUIC the client panics when it cannot connect.
    let asked = tokio::spawn(async move {
        let mut client = Client::connect(version, address, &pki).await;
        client.head(TARBALL, &[]).await.status
    });
    asked.await.is_ok_and(|status| status == 200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_connections_get_the_new_certificate_and_old_ones_live_on() {
    let site = Site::start().await;
    let tarball = Tarball::random(1, 4 << 20);
    site.origin.publish("shop", 7, 1, &tarball);
    let (pki, tls) = another();
    let before = site.metric("weir_edge_certificate_not_after_timestamp_seconds", &[]);
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
    assert!(before > now + 300.0 * 86_400.0, "{before}");

    let mut under_way = Vec::new();
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        let mut download = client.begin("GET", TARBALL, &[ZSTD]).await;
        let first = download.next().await.unwrap().unwrap().len();
        under_way.push((version, client, download, first));
    }
    site.edge().reload(Config { tls, ..site.config.clone() }).await.unwrap();
    for version in ["h1", "h2", "h3"] {
        assert!(is_trusted(&site, version, pki.path()).await, "{version}");
        assert!(!is_trusted(&site, version, site.pki()).await, "{version}");
    }
    for (version, mut client, download, read) in under_way {
        assert_eq!(download.finish().await.bytes(), &tarball.zstd.slice(read..), "{version}");
        // On the same connection: it would get no other. Over HTTP/1.1 the client may not have it back yet.
        if version != "h1" {
            assert_eq!(client.head(TARBALL, &[]).await.status, 200, "{version}");
        }
    }
    assert_eq!(site.metric("weir_edge_reloads_total", &[("result", "applied")]), 1.0);
    assert!(site.metric("weir_edge_certificate_not_after_timestamp_seconds", &[]) >= before);
}

#[tokio::test]
async fn what_cannot_be_used_changes_nothing() {
    let site = Site::start().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 100));
    let (pki, good) = another();
    let file = |name: &str| pki.path().join(name);
    std::fs::write(file("torn.pem"), &std::fs::read(file("edge.pem")).unwrap()[..200]).unwrap();
    std::fs::write(file("empty.pem"), "").unwrap();
    let mut tried = 0.0;
    for (tls, complaint) in [
        (TlsConfig { certificate: file("none.pem"), ..good.clone() }, "none.pem"),
        (TlsConfig { certificate: file("torn.pem"), ..good.clone() }, "torn.pem"),
        (TlsConfig { certificate: file("empty.pem"), ..good.clone() }, "empty.pem"),
        (TlsConfig { key: file("empty.pem"), ..good.clone() }, "empty.pem"),
        (TlsConfig { key: file("agent.key"), ..good.clone() }, "edge.pem"),
    ] {
        let error = site.edge().reload(Config { tls, ..site.config.clone() }).await.unwrap_err();
        assert!(format!("{error:#}").contains(complaint), "{error:#}");
        tried += 1.0;
        for version in ["h2", "h3"] {
            assert!(is_trusted(&site, version, site.pki()).await, "{complaint} {version}");
            assert!(!is_trusted(&site, version, pki.path()).await, "{complaint} {version}");
        }
    }
    // Not even the half that is right: what origins are called with is read before anything changes.
    let mut half = Config { tls: good.clone(), ..site.config.clone() };
    half.origins[0].client_key = site.pki().join("agent.key");
    let error = site.edge().reload(half).await.unwrap_err();
    assert!(format!("{error:#}").contains("edge-client.pem"), "{error:#}");
    tried += 1.0;
    assert!(is_trusted(&site, "h2", site.pki()).await && !is_trusted(&site, "h2", pki.path()).await);
    let mut senseless = site.config.clone();
    senseless.origins.clear();
    senseless.tls = good;
    assert!(site.edge().reload(senseless).await.is_err());
    let missing = site.edge().reload_file(&file("edge.toml")).await.unwrap_err();
    assert!(format!("{missing:#}").contains("edge.toml"), "{missing:#}");
    assert!(is_trusted(&site, "h2", site.pki()).await);
    assert_eq!(site.metric("weir_edge_reloads_total", &[("result", "refused")]), tried + 2.0);
    assert_eq!(site.metric("weir_edge_reloads_total", &[("result", "applied")]), 0.0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn origins_are_called_with_the_new_certificate() {
    let mut site = Site::start().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 100));
    let mut client = site.client("h2").await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 200);
    // Everybody gets certificates of another authority, under the names of the old ones.
    for file in ["ca.pem", "ca.key"] {
        std::fs::remove_file(site.pki().join(file)).unwrap();
    }
    certificates::write(site.pki(), &[]).unwrap();
    let ends = "weir_edge_origin_client_certificate_not_after_timestamp_seconds";
    let before = site.metric(ends, &[]);
    site.origin.go_down().await;
    site.origin.go_up().await;
    site.until("it sees that it cannot call", async || {
        client.head("/v1/services/other/tarball", &[]).await;
        site.metric("weir_edge_origin_up", &[]) == 0.0
    })
    .await;
    site.edge().reload(site.config.clone()).await.unwrap();
    assert!(site.metric(ends, &[]) >= before && before > 1e9);
    site.until("it can call", async || site.metric("weir_edge_origin_up", &[]) == 1.0).await;
    site.origin.publish("other", 7, 1, &Tarball::random(2, 100));
    site.until("new services are found", async || client.head("/v1/services/other/tarball", &[]).await.status == 200)
        .await;
}

#[tokio::test]
async fn what_certificates_open_is_taken_over_with_whose_are_believed() {
    let auth = |pki: &Path, service: &str| AuthConfig {
        mode: AuthMode::Required,
        client_ca: Some(pki.join("ca.pem")),
        certificates: vec![CertificateRule {
            agents: "cluster-*".parse().unwrap(),
            services: vec![service.parse().unwrap()],
        }],
        ..AuthConfig::default()
    };
    let mut site = Site::prepare().await;
    site.config.auth = auth(site.pki(), "other");
    site.start_edge().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 100));
    let mut client = site.client_as("agent", "h2").await;
    assert_eq!(client.head(TARBALL, &[]).await.status, 404);
    let opened = Config { auth: auth(site.pki(), "shop"), ..site.config.clone() };
    site.edge().reload(opened.clone()).await.unwrap();
    assert_eq!(client.head(TARBALL, &[]).await.status, 200);

    let mut mixed = Config { auth: auth(site.pki(), "other"), ..site.config.clone() };
    mixed.auth.keys_from_origins = true;
    let error = site.edge().reload(mixed).await.unwrap_err();
    assert!(format!("{error:#}").contains("keys_from_origins"), "{error:#}");
    let open = Config { auth: AuthConfig::default(), ..site.config.clone() };
    assert!(site.edge().reload(open).await.is_err());
    assert_eq!(client.head(TARBALL, &[]).await.status, 200, "nothing was taken over");
    // What has nothing to do with certificates waits for a restart, and stands in nobody's way.
    let mut waiting = opened;
    waiting.auth.remembered_tokens = 7;
    site.edge().reload(waiting).await.unwrap();
}
