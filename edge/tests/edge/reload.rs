//! Certificates, keys and a configuration that are replaced while the edge serves.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use weir_edge::config::AuthMode;
use weir_protocol::access_list::key_line;
use weir_protocol::token::{Claims, SigningKey, unix_seconds};
use weir_runtime::certificates;

use crate::client::Client;
use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

/// Certificates of another authority, elsewhere.
fn another() -> tempfile::TempDir {
    let pki = tempfile::tempdir().unwrap();
    certificates::write(pki.path(), &[]).unwrap();
    pki
}

/// Puts files of one place under their names in another.
fn copy(from: &Path, to: &Path, names: &[&str]) {
    for name in names {
        fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

/// Whether one who trusts this authority alone can connect.
async fn is_trusted(site: &Site, version: &'static str, pki: &Path) -> bool {
    let (address, pki) = (site.edge().address(), pki.to_owned());
    // Over QUIC the client panics when it cannot connect.
    let requests = tokio::spawn(async move {
        let mut client = Client::connect(version, address, &pki).await;
        client.head(TARBALL, &[]).await.status
    });
    requests.await.is_ok_and(|status| status == 200)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_gives_new_connections_the_new_certificate_and_keeps_old_ones() {
    let (site, tarball) = Site::serving(4 << 20).await;
    let pki = another();
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
    copy(pki.path(), site.pki(), &["edge.pem", "edge.key"]);
    site.edge().reload(Ok(site.config.clone())).await.unwrap();
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
    assert!(site.metric("weir_edge_reloads_total", &[("result", "applied")]) >= 1.0);
    assert!(site.metric("weir_edge_certificate_not_after_timestamp_seconds", &[]) >= before);
}

#[tokio::test]
async fn a_failed_reload_changes_nothing() {
    let (site, _) = Site::serving(100).await;
    let (good, other) = (another(), another());
    copy(site.pki(), good.path(), &["ca.pem", "edge.pem", "edge.key", "edge-client.key"]);
    let of_other = |name: &str| fs::read(other.path().join(name)).unwrap();
    let mut tried = 0.0;
    for (file, bytes, complaint) in [
        ("edge.pem", of_other("edge.pem")[..200].to_vec(), "edge.pem"),
        ("edge.pem", Vec::new(), "edge.pem"),
        ("edge.key", Vec::new(), "edge.key"),
        ("edge.key", of_other("edge.key"), "edge.pem"),
    ] {
        fs::write(site.pki().join(file), bytes).unwrap();
        let error = site.edge().reload(Ok(site.config.clone())).await.unwrap_err();
        assert!(format!("{error:#}").contains(complaint), "{error:#}");
        tried += 1.0;
        for version in ["h2", "h3"] {
            assert!(is_trusted(&site, version, good.path()).await, "{complaint} {version}");
        }
        copy(good.path(), site.pki(), &[file]);
    }
    // Not even the half that is right: what origins are called with is read before anything changes.
    copy(other.path(), site.pki(), &["edge.pem", "edge.key", "edge-client.key"]);
    let error = site.edge().reload(Ok(site.config.clone())).await.unwrap_err();
    assert!(format!("{error:#}").contains("edge-client.pem"), "{error:#}");
    assert!(is_trusted(&site, "h2", good.path()).await && !is_trusted(&site, "h2", other.path()).await);
    // Files that stay unusable are found without a call too.
    assert!(site.metric("weir_edge_reloads_total", &[("result", "refused")]) >= tried + 1.0);
    assert_eq!(site.metric("weir_edge_reloads_total", &[("result", "applied")]), 0.0);
}

#[tokio::test]
async fn a_reload_takes_new_key_files_and_refuses_what_cannot_be_used() {
    let mut site = Site::prepare().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 100));
    let [old, new] = ["old", "new"].map(|name| {
        let (key, file) = (SigningKey::generate().unwrap().0, site.pki().join(name));
        fs::write(&file, key_line(key.public()) + "\n").unwrap();
        let claims = Claims {
            subject: "cluster-1".parse().unwrap(),
            id: Some(name.parse().unwrap()),
            labels: Default::default(),
            services: vec!["shop".parse().unwrap()],
            expires: unix_seconds(SystemTime::now()) + 3600,
            not_before: None,
            issued_at: None,
        };
        (file, format!("Bearer {}", key.issue(&claims).unwrap()))
    });
    site.config.auth.mode = AuthMode::Required;
    site.config.auth.keys = vec![old.0.clone()];
    site.start_edge().await;
    let mut client = site.client("h2").await;
    let mut status = async |bearer: &str| client.head(TARBALL, &[("authorization", bearer)]).await.status;
    let reloads = |result| site.metric("weir_edge_reloads_total", &[("result", result)]);

    let mut config = site.config.clone();
    config.auth.keys = vec![site.pki().join("missing")];
    assert!(site.edge().reload(Ok(config.clone())).await.unwrap_err().to_string().contains("missing"));
    assert!(site.edge().reload(Err(anyhow::anyhow!("unknown field"))).await.is_err());
    assert_eq!((status(&old.1).await, status(&new.1).await), (200, 401));
    assert_eq!((reloads("applied"), reloads("refused")), (0.0, 2.0));
    assert_eq!(site.metric("weir_edge_reload_refused", &[]), 1.0);

    config.auth.keys = vec![new.0.clone()];
    site.edge().reload(Ok(config)).await.unwrap();
    assert_eq!(site.metric("weir_edge_reload_refused", &[]), 0.0);
    assert_eq!((status(&old.1).await, status(&new.1).await, reloads("applied")), (401, 200, 1.0));
    // The new file is followed from now on.
    fs::copy(&old.0, &new.0).unwrap();
    site.until("its change is applied", async || status(&old.1).await == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reload_replaces_the_client_certificate_for_origins() {
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
    site.edge().reload(Ok(site.config.clone())).await.unwrap();
    assert!(site.metric(ends, &[]) >= before && before > 1e9);
    site.until("it can call", async || site.metric("weir_edge_origin_up", &[]) == 1.0).await;
    site.origin.publish("other", 7, 1, &Tarball::random(2, 100));
    site.until("new services are found", async || client.head("/v1/services/other/tarball", &[]).await.status == 200)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_and_authorities_rotate_under_load_without_a_signal_or_a_failed_poll() {
    let mut site = Site::prepare().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 100));
    let (old, new) = (site.pki().to_owned(), another());
    let both = [&*old, new.path()].map(|pki| fs::read_to_string(pki.join("ca.pem")).unwrap()).concat();
    let (mount, agents) = (old.join("mount"), old.join("agents"));
    // Each version of a folder is complete, and a link is swapped, as Kubernetes mounts Secrets.
    let version = |folder: &Path, name: &str, pki: &Path, files: &[&str], ca: &str| {
        let version = folder.join(name);
        fs::create_dir_all(&version).unwrap();
        copy(pki, &version, files);
        fs::write(version.join("ca.pem"), ca).unwrap();
    };
    let swap = |folder: &Path, name: &str| {
        std::os::unix::fs::symlink(name, folder.join("..new")).unwrap();
        fs::rename(folder.join("..new"), folder.join("..data")).unwrap();
    };
    let (server, agent) = (["edge.pem", "edge.key"], ["agent.pem", "agent.key"]);
    let new_ca = fs::read_to_string(new.path().join("ca.pem")).unwrap();
    version(&mount, "v1", &old, &server, &fs::read_to_string(old.join("ca.pem")).unwrap());
    version(&mount, "v2", &old, &server, &both);
    version(&mount, "v3", new.path(), &server, &new_ca);
    version(&agents, "v1", &old, &agent, &both);
    version(&agents, "v2", new.path(), &agent, &both);
    swap(&mount, "v1");
    swap(&agents, "v1");
    let mounted = |name: &str| {
        std::os::unix::fs::symlink(Path::new("..data").join(name), mount.join(name)).unwrap();
        mount.join(name)
    };
    site.config.tls.certificate = mounted("edge.pem");
    site.config.tls.key = mounted("edge.key");
    let auth = &mut site.config.auth;
    auth.mode = weir_edge::config::AuthMode::Required;
    auth.client_ca = Some(mounted("ca.pem"));
    let services = vec!["shop".parse().unwrap()];
    auth.certificates = vec![weir_edge::config::CertificateRule { agents: "cluster-*".parse().unwrap(), services }];
    site.start_edge().await;

    let (stopped, polls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let load: Vec<_> = ["h1", "h2", "h3"]
        .into_iter()
        .map(|version| {
            let (stopped, polls, folder) = (stopped.clone(), polls.clone(), agents.join("..data"));
            let address = site.edge().address();
            tokio::spawn(async move {
                while !stopped.load(Ordering::Relaxed) {
                    // A connection for each poll, with the files as they are now.
                    let files = folder.canonicalize().unwrap();
                    let mut client = Client::connect_as(Some("agent"), version, address, &files).await;
                    assert_eq!(client.head(TARBALL, &[]).await.status, 200, "{version}");
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    let applied = async |times: f64| {
        let reloads = || site.metric("weir_edge_reloads_total", &[("result", "applied")]);
        site.until("the files are reloaded", async || reloads() == times).await;
        let before = polls.load(Ordering::Relaxed);
        site.until("all have polled", async || polls.load(Ordering::Relaxed) > before + 12).await;
    };
    swap(&mount, "v2");
    applied(1.0).await;
    swap(&agents, "v2");
    applied(1.0).await;
    swap(&mount, "v3");
    applied(2.0).await;
    stopped.store(true, Ordering::Relaxed);
    for agent in load {
        agent.await.unwrap();
    }
    assert_eq!(site.metric("weir_edge_reloads_total", &[("result", "refused")]), 0.0);
    assert!(site.metric("weir_edge_authority_not_after_timestamp_seconds", &[("authority", "agents")]) > 1e9);
    let mut agent = Client::connect_as(Some("agent"), "h2", site.edge().address(), new.path()).await;
    assert_eq!(agent.head(TARBALL, &[]).await.status, 200, "the old authority is not needed");
}
