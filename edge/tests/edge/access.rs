//! Who may read what.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use weir_edge::config::{AuthMode, CertificateRule, Config};
use weir_protocol::access_list::{AccessList, key_line};
use weir_protocol::event::EventKind;
use weir_protocol::token::{Claims, SigningKey, UnixSeconds, unix_seconds};
use weir_runtime::tls;

use crate::client::{Client, Reply};
use crate::site::{Site, TARBALL, ZSTD};
use crate::test_origin::Tarball;

fn now() -> UnixSeconds {
    unix_seconds(SystemTime::now())
}

pub(crate) fn claims(id: &str, services: &[&str]) -> Claims {
    Claims {
        subject: "cluster-1".parse().unwrap(),
        id: Some(id.parse().unwrap()),
        labels: Default::default(),
        services: services.iter().map(|glob| glob.parse().unwrap()).collect(),
        expires: now() + 3600,
        not_before: None,
        issued_at: None,
    }
}

/// Lets an edge take tokens of this key.
pub(crate) fn trust(config: &mut Config, key: &SigningKey) {
    let keys = config.origins[0].ca.with_file_name("keys");
    fs::write(&keys, key_line(key.public())).unwrap();
    config.auth.keys = vec![keys];
}

/// An edge that needs credentials, the key of its tokens, and the service `shop`.
pub(crate) struct Guarded {
    pub(crate) site: Site,
    key: SigningKey,
    tarball: Tarball,
}

impl Guarded {
    pub(crate) async fn start() -> Self {
        let mut guarded = Self::prepare().await;
        guarded.site.start_edge().await;
        guarded
    }

    async fn prepare() -> Self {
        let mut site = Site::prepare().await;
        let (key, _) = SigningKey::generate().unwrap();
        let tarball = Tarball::random(1, 50_000);
        site.origin.publish("shop", 7, 1, &tarball);
        let (keys, deny) = (site.pki().join("keys"), site.pki().join("denied"));
        let auth = &mut site.config.auth;
        auth.mode = AuthMode::Required;
        auth.keys = vec![keys];
        auth.deny = Some(deny);
        let guarded = Self { site, key, tarball };
        fs::write(guarded.keys(), key_line(guarded.key.public()) + "\n").unwrap();
        fs::write(guarded.denied(), "# nothing yet\n").unwrap();
        guarded
    }

    fn keys(&self) -> PathBuf {
        self.site.pki().join("keys")
    }

    fn denied(&self) -> PathBuf {
        self.site.pki().join("denied")
    }

    pub(crate) fn bearer(&self, claims: &Claims) -> String {
        format!("Bearer {}", self.key.issue(claims).unwrap())
    }

    fn decided(&self, result: &str) -> f64 {
        self.site.metric("weir_edge_authorisations_total", &[("result", result)])
    }

    /// Polls until the answer is this one.
    async fn until_status(&self, client: &mut Client, bearer: &str, status: u16) -> Reply {
        let mut reply = client.get(TARBALL, &[("authorization", bearer)]).await;
        self.site
            .until("the change is in force", async || {
                reply = client.get(TARBALL, &[("authorization", bearer)]).await;
                reply.status == status
            })
            .await;
        reply
    }
}

#[tokio::test]
async fn a_token_grants_its_services_over_every_version_of_http() {
    let guarded = Guarded::start().await;
    let site = &guarded.site;
    let (stranger, _) = SigningKey::generate().unwrap();
    let good = guarded.bearer(&claims("good", &["shop*"]));
    let (signed, _) = good.rsplit_once('.').unwrap();
    let forged = format!("{signed}.{}", guarded.bearer(&claims("other", &["*"])).rsplit_once('.').unwrap().1);
    let foreign = format!("Bearer {}", stranger.issue(&claims("good", &["*"])).unwrap());
    let expired = guarded.bearer(&Claims { expires: now() - 100, ..claims("old", &["*"]) });
    let early = guarded.bearer(&Claims { not_before: Some(now() + 300), ..claims("new", &["*"]) });
    let immutable = format!("/v1/services/shop/tarballs/{}", guarded.tarball.digest());
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for path in [TARBALL, immutable.as_str(), "/v1/services/shop", "/v1/nothing", "/v1/services/A"] {
            let bare = client.get(path, &[]).await;
            assert_eq!((bare.status, bare.header("www-authenticate")), (401, "Bearer realm=\"weir\""), "{path}");
            assert_eq!(bare.problem()["type"], "urn:weir:problem:unauthorized");
            assert_eq!(client.head(path, &[]).await.status, 401, "{version} {path}");
            for (bad, reason) in [
                (forged.as_str(), "The signature of the token is invalid."),
                (&foreign, "The token is signed with an unknown key."),
                (&expired, "The token or the certificate has expired: use a new one."),
                (&early, "The token is not valid yet."),
                ("Bearer nonsense", "The token cannot be read."),
            ] {
                let reply = client.get(path, &[("authorization", bad)]).await;
                let challenge =
                    format!("Bearer realm=\"weir\", error=\"invalid_token\", error_description=\"{reason}\"");
                assert_eq!((reply.status, reply.header("www-authenticate")), (401, &*challenge), "{version} {path}");
                assert_eq!(
                    (reply.problem()["detail"].as_str(), reply.header("cache-control")),
                    (Some(reason), "no-store")
                );
            }
        }
    }
    assert_eq!(site.metric("weir_edge_origin_requests_total", &[("kind", "service")]), 0.0, "nothing was looked up");
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for (path, cached) in [
            (TARBALL, "private, max-age=15, stale-while-revalidate=60, stale-if-error=31536000"),
            (immutable.as_str(), "private, max-age=31536000, immutable"),
            ("/v1/services/shop", "private, max-age=15, stale-while-revalidate=60, stale-if-error=31536000"),
        ] {
            let reply = client.get(path, &[ZSTD, ("authorization", &good)]).await;
            assert_eq!((reply.status, reply.header("cache-control")), (200, cached), "{version} {path}");
            let tag = reply.header("etag");
            let poll = client.head(path, &[("authorization", &good), ("if-none-match", tag)]).await;
            assert_eq!((poll.status, poll.header("cache-control")), (304, cached), "{version} {path}");
            // What is held is no way around the question.
            assert_eq!(client.get(path, &[ZSTD]).await.status, 401);
            assert_eq!(client.head(path, &[("if-none-match", tag)]).await.status, 401);
        }
        assert_eq!(client.get("/v1/nothing", &[("authorization", &good)]).await.status, 404);
        assert_eq!(client.get("/v1/services/A", &[("authorization", &good)]).await.status, 400);
    }
    assert_eq!(guarded.decided("token"), 3.0 * 8.0);
    assert_eq!(guarded.decided("no_credential"), 3.0 * (10.0 + 6.0));
    for result in ["bad_signature", "unknown_key", "expired", "not_yet_valid", "malformed"] {
        assert_eq!(guarded.decided(result), 15.0, "{result}");
    }
    assert_eq!(site.in_use("cached_tokens"), 3.0, "good, expired and early: all were signed");
}

/// An answer over HTTP/1.1, byte for byte but for its date.
pub(crate) async fn raw(site: &Site, method: &str, path: &str, bearer: &str) -> String {
    let tls = tls::client_config(&site.pki().join("ca.pem"), None).unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(tls));
    let tcp = TcpStream::connect(site.edge().address()).await.unwrap();
    let mut stream = connector.connect("127.0.0.1".try_into().unwrap(), tcp).await.unwrap();
    // A request without an id gets another one each time.
    let headers = format!("host: edge\r\nx-request-id: one\r\nauthorization: {bearer}\r\nconnection: close");
    let request = format!("{method} {path} HTTP/1.1\r\n{headers}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let lines: Vec<&str> = answer.split("\r\n").filter(|line| !line.starts_with("date: ")).collect();
    lines.join("\r\n")
}

#[tokio::test]
async fn an_out_of_scope_service_looks_absent() {
    let guarded = Guarded::start().await;
    let site = &guarded.site;
    site.origin.publish("bank", 7, 1, &guarded.tarball);
    // `nope` is within the scope, and nobody publishes it.
    let bearer = guarded.bearer(&claims("one", &["shop*", "nope"]));
    let all = guarded.bearer(&claims("all", &["*"]));
    let digest = guarded.tarball.digest();
    assert_eq!(site.client("h2").await.get("/v1/services/bank/tarball", &[("authorization", &all)]).await.status, 200);
    let version = format!("/v1/services/{{}}/tarballs/{digest}");
    let frames = format!("{version}/frames");
    for path in ["/v1/services/{}", "/v1/services/{}/tarball", &version, &frames] {
        for method in ["GET", "HEAD", "DELETE"] {
            let unseen = raw(site, method, &path.replace("{}", "bank"), &bearer).await;
            assert!(unseen.starts_with(if method == "DELETE" { "HTTP/1.1 405" } else { "HTTP/1.1 404" }), "{unseen}");
            let unknown = raw(site, method, &path.replace("{}", "nope"), &bearer).await;
            assert_eq!(unseen, unknown.replace("nope", "bank"), "{method} {path}");
        }
        for version in ["h2", "h3"] {
            let mut client = site.client(version).await;
            let auth = ("authorization", bearer.as_str());
            let forced = ("cache-control", "no-cache");
            for headers in [&[auth][..], &[auth, forced], &[auth, ("if-none-match", "*")]] {
                let unseen = client.get(&path.replace("{}", "bank"), headers).await;
                let unknown = client.get(&path.replace("{}", "nope"), headers).await;
                assert_eq!((unseen.status, unseen.headers.len()), (404, unknown.headers.len()), "{version} {path}");
                let unknown = String::from_utf8_lossy(unknown.bytes()).replace("nope", "bank");
                assert_eq!(String::from_utf8_lossy(unseen.bytes()), unknown);
            }
        }
    }
    assert!(guarded.decided("out_of_scope") == 36.0);
}

#[tokio::test]
async fn denials_and_keys_change_while_the_edge_runs() {
    let guarded = Guarded::start().await;
    let site = &guarded.site;
    let (lost, kept) = (guarded.bearer(&claims("lost", &["*"])), guarded.bearer(&claims("kept", &["*"])));
    let mut client = site.client("h3").await;
    for bearer in [&lost, &kept] {
        assert_eq!(client.get(TARBALL, &[("authorization", bearer)]).await.status, 200);
    }
    fs::write(guarded.denied(), "token lost # the laptop of somebody\n").unwrap();
    let refused = guarded.until_status(&mut client, &lost, 401).await;
    assert!(refused.header("www-authenticate").contains("The token was revoked"), "{refused:?}");
    assert_eq!(client.get(TARBALL, &[("authorization", &kept)]).await.status, 200);
    assert_eq!(site.metric("weir_edge_access_denied_tokens", &[]), 1.0);

    // A file that cannot be read changes nothing, and that is seen.
    fs::write(guarded.denied(), "tokn lost\n").unwrap();
    site.until("it is reported", async || site.metric("weir_edge_access_files_readable", &[]) == 0.0).await;
    assert_eq!(client.get(TARBALL, &[("authorization", &lost)]).await.status, 401);

    // The next key is added, and then the old one is revoked.
    let (next, _) = SigningKey::generate().unwrap();
    let new = format!("Bearer {}", next.issue(&claims("new", &["shop"])).unwrap());
    assert_eq!(client.get(TARBALL, &[("authorization", &new)]).await.status, 401);
    fs::write(guarded.denied(), "").unwrap();
    fs::write(guarded.keys(), format!("{}\n{}\n", key_line(guarded.key.public()), key_line(next.public()))).unwrap();
    guarded.until_status(&mut client, &new, 200).await;
    assert_eq!(client.get(TARBALL, &[("authorization", &kept)]).await.status, 200);
    fs::write(guarded.denied(), format!("key {}\n", guarded.key.public().id())).unwrap();
    let refused = guarded.until_status(&mut client, &kept, 401).await;
    assert!(refused.header("www-authenticate").contains("a key that was revoked"), "{refused:?}");
    assert_eq!(client.get(TARBALL, &[("authorization", &new)]).await.status, 200);
    assert_eq!(site.metric("weir_edge_access_keys", &[]), 1.0);
    assert_eq!(site.metric("weir_edge_access_files_readable", &[]), 1.0);
}

#[tokio::test]
async fn a_certificate_grants_the_services_of_its_rule_and_is_optional() {
    let mut guarded = Guarded::prepare().await;
    let auth = &mut guarded.site.config.auth;
    auth.client_ca = Some(auth.keys[0].with_file_name("ca.pem"));
    let services = vec!["shop*".parse().unwrap()];
    auth.certificates = vec![CertificateRule { agents: "cluster-*".parse().unwrap(), services }];
    guarded.site.start_edge().await;
    let site = &guarded.site;
    site.origin.publish("bank", 7, 1, &guarded.tarball);
    let bearer = guarded.bearer(&claims("one", &["bank"]));
    for version in ["h1", "h2", "h3"] {
        let mut agent = site.client_as("agent", version).await;
        assert_eq!(agent.get(TARBALL, &[ZSTD]).await.bytes(), &guarded.tarball.zstd, "{version}");
        assert_eq!(agent.get("/v1/services/bank/tarball", &[]).await.status, 404, "{version}");
        // A token that is shown decides alone.
        let both = [("authorization", bearer.as_str())];
        assert_eq!(agent.get("/v1/services/bank/tarball", &both).await.status, 200, "{version}");
        assert_eq!(agent.get(TARBALL, &both).await.status, 404, "{version}");
        assert_eq!(agent.get(TARBALL, &[("authorization", "Bearer bad")]).await.status, 401, "{version}");
        for role in ["edge-client", "operator"] {
            let mut other = site.client_as(role, version).await;
            assert_eq!(other.get(TARBALL, &[]).await.status, 401, "{version} {role}");
        }
        let mut nobody = site.client(version).await;
        assert_eq!(nobody.get(TARBALL, &[]).await.status, 401, "{version}");
        assert_eq!(nobody.get("/v1/services/bank/tarball", &both).await.status, 200, "{version}");
    }
    assert_eq!(guarded.decided("certificate"), 3.0);
}

#[tokio::test]
async fn an_unusable_file_prevents_the_start() {
    let guarded = Guarded::prepare().await;
    // What a start that failed has begun lets the directory go a moment later.
    let started = async || loop {
        match weir_edge::start(guarded.site.config.clone()).await {
            Err(error) if format!("{error:#}").contains("in use by another process") => tokio::task::yield_now().await,
            started => return started,
        }
    };
    let start = async || started().await.map(|_| ()).unwrap_err();
    fs::write(guarded.keys(), "a-key-without-bytes\n").unwrap();
    let error = format!("{:#}", start().await);
    assert!(error.contains("public keys") && error.contains("line 1"), "{error}");
    fs::write(guarded.keys(), key_line(guarded.key.public())).unwrap();
    fs::remove_file(guarded.denied()).unwrap();
    let error = format!("{:#}", start().await);
    assert!(error.contains("deny file") && error.contains("denied"), "{error}");
    fs::write(guarded.denied(), "").unwrap();
    let lists = guarded.site.config.cache.dir.join("access/lists.json");
    fs::create_dir_all(lists.parent().unwrap()).unwrap();
    fs::write(&lists, "torn").unwrap();
    let error = format!("{:#}", start().await);
    assert!(error.contains("access/lists.json"), "{error}");
    fs::remove_file(lists).unwrap();
    started().await.unwrap().cut().await;
}

#[tokio::test]
async fn the_access_list_of_an_origin_survives_a_restart_without_it() {
    let mut guarded = Guarded::prepare().await;
    guarded.site.config.auth.keys_from_origins = true;
    guarded.site.origin.serve_events();
    guarded.site.start_edge().await;
    let (theirs, _) = SigningKey::generate().unwrap();
    let (lost, kept) = (guarded.bearer(&claims("lost", &["*"])), guarded.bearer(&claims("kept", &["*"])));
    let foreign = format!("Bearer {}", theirs.issue(&claims("foreign", &["*"])).unwrap());
    let mut client = guarded.site.client("h2").await;
    for (bearer, status) in [(&lost, 200), (&kept, 200), (&foreign, 401)] {
        assert_eq!(client.get(TARBALL, &[("authorization", bearer)]).await.status, status);
    }
    let mut list = AccessList::default();
    list.add_key(theirs.public().clone()).unwrap();
    list.deny_token("lost".parse().unwrap(), None).unwrap();
    guarded.site.origin.send_event(EventKind::Access(list.json().get().as_bytes().to_vec().into()));
    guarded.until_status(&mut client, &foreign, 200).await;

    guarded.site.stop_edge().await;
    guarded.site.origin.go_down().await;
    guarded.site.start_edge().await;
    let mut client = guarded.site.client("h2").await;
    for (bearer, status) in [(&lost, 401), (&kept, 200), (&foreign, 200)] {
        assert_eq!(client.get(TARBALL, &[("authorization", bearer)]).await.status, status);
    }
}

#[tokio::test]
async fn one_client_that_reads_nothing_leaves_decoders_to_others() {
    let mut guarded = Guarded::prepare().await;
    guarded.site.config.cache.decoders = 4;
    guarded.site.origin.publish("big", 7, 1, &Tarball::random(1, 24 << 20));
    guarded.site.start_edge().await;
    let bearer = |name: &str| guarded.bearer(&Claims { subject: name.parse().unwrap(), ..claims(name, &["*"]) });
    let begin = async |name: &str| {
        let mut client = guarded.site.client("h1").await;
        let download = client.begin("GET", "/v1/services/big/tarball", &[("authorization", &bearer(name))]).await;
        (download.status.as_u16(), (client, download))
    };
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..6 {
        let (status, download) = begin("cluster-1").await;
        refused += usize::from(status == 503);
        held.push(download);
    }
    assert_eq!((refused, guarded.site.in_use("decoders")), (4, 2.0));
    assert_eq!(begin("cluster-2").await.0, 200, "another client finds one");
}

#[tokio::test]
async fn a_changed_file_that_checks_less_needs_a_signal() {
    let guarded = Guarded::start().await;
    let (site, bearer) = (&guarded.site, guarded.bearer(&claims("one", &["shop*"])));
    let changed = |change: fn(&mut weir_edge::config::AuthConfig)| {
        let mut config = site.config.clone();
        change(&mut config.auth);
        Ok(config)
    };
    let accepts = async || site.client("h1").await.get(TARBALL, &[("authorization", &bearer)]).await.status;
    site.edge().reload_changed(changed(|_| {})).await.unwrap();
    for cut_off in [
        changed(|auth| auth.mode = AuthMode::Open),
        changed(|auth| auth.deny = None),
        changed(|auth| auth.keys[0] = auth.deny.clone().unwrap()),
    ] {
        let error = site.edge().reload_changed(cut_off).await.unwrap_err().to_string();
        assert!(error.contains("it may be cut off"), "{error}");
    }
    assert_eq!((accepts().await, site.metric("weir_edge_reload_refused", &[])), (200, 1.0));
    site.edge().reload(changed(|auth| auth.deny = None)).await.unwrap();
    assert_eq!((accepts().await, site.metric("weir_edge_reload_refused", &[])), (200, 0.0), "a signal confirms it");
}
