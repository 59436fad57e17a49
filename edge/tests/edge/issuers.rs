//! Tokens of issuers beside Weir, made by the rules of a cluster's projected tokens, with keys of OpenSSL.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use ring::hmac;
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair, RsaPublicKeyComponents};
use serde_json::{Value, json};
use weir_edge::config::{AuthMode, CertificateRule, IssuerConfig, KeySource};
use weir_protocol::access_list::{AccessList, Entries, Fleet};
use weir_protocol::event::EventKind;
use weir_protocol::token::unix_seconds;
use weir_runtime::certificates;
use weir_runtime::identity::TrustDomain;

use crate::client::Client;
use crate::site::{Site, TARBALL};
use crate::test_origin::Tarball;

pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// A signing key of a cluster's API server.
pub(crate) struct ClusterKey {
    kid: &'static str,
    pair: RsaKeyPair,
}

impl ClusterKey {
    pub(crate) fn new(kid: &'static str) -> Self {
        let made =
            Command::new("openssl").args(["genpkey", "-algorithm", "RSA", "-pkeyopt", "rsa_keygen_bits:2048"]).output();
        let pem = String::from_utf8(made.unwrap().stdout).unwrap();
        let der: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        Self { kid, pair: RsaKeyPair::from_pkcs8(&STANDARD.decode(der).unwrap()).unwrap() }
    }

    fn jwk(&self) -> String {
        let RsaPublicKeyComponents { n, e } = RsaPublicKeyComponents::<Vec<u8>>::from(self.pair.public());
        let (n, e, kid) = (URL_SAFE_NO_PAD.encode(n), URL_SAFE_NO_PAD.encode(e), self.kid);
        format!(r#"{{"use":"sig","kty":"RSA","kid":"{kid}","alg":"RS256","n":"{n}","e":"{e}"}}"#)
    }

    /// `Authorization` with a projected token of the service account `agent` in a namespace.
    pub(crate) fn bearer(&self, namespace: &str, audience: &str) -> String {
        self.signed(&claims(namespace, audience))
    }

    /// The same with any claims.
    fn signed(&self, claims: &Value) -> String {
        bearer(&json!({ "alg": "RS256", "kid": self.kid }), claims, |message| {
            let mut signature = vec![0; self.pair.public().modulus_len()];
            self.pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), message, &mut signature).unwrap();
            signature
        })
    }
}

/// The claims of a projected token.
fn claims(namespace: &str, audience: &str) -> Value {
    let now = unix_seconds(std::time::SystemTime::now());
    json!({
        "aud": [audience], "exp": now + 3607, "iat": now, "nbf": now, "iss": ISSUER,
        "jti": "0d2b4b4c-5c35-4d4b-8b8c-9b0c6b7b7d6e", "sub": format!("system:serviceaccount:{namespace}:agent"),
        "kubernetes.io": {
            "namespace": namespace, "node": {"name": "n1", "uid": "4c1e"}, "pod": {"name": "agent-0", "uid": "58b3"},
            "serviceaccount": {"name": "agent", "uid": "21cd"}, "warnafter": now,
        },
    })
}

/// `Authorization` with a token of any kind.
fn bearer(header: &Value, claims: &Value, sign: impl FnOnce(&[u8]) -> Vec<u8>) -> String {
    let message = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
    let signature = URL_SAFE_NO_PAD.encode(sign(message.as_bytes()));
    format!("Bearer {message}.{signature}")
}

pub(crate) fn jwks(keys: &[&ClusterKey]) -> String {
    format!(r#"{{"keys":[{}]}}"#, keys.iter().map(|key| key.jwk()).collect::<Vec<_>>().join(","))
}

pub(crate) fn issuer(jwks: KeySource, agent: &str) -> IssuerConfig {
    IssuerConfig {
        issuer: ISSUER.to_owned(),
        audience: "weir".to_owned(),
        jwks,
        ca: None,
        subjects: vec!["system:serviceaccount:*:agent".to_owned()],
        agent: agent.parse().unwrap(),
        services: vec!["shop*".parse().unwrap()],
    }
}

/// An origin with the service `shop`, and an edge that is not started yet.
pub(crate) async fn prepare() -> Site {
    let mut site = Site::prepare().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 50_000));
    site.config.auth.mode = AuthMode::Required;
    site
}

pub(crate) async fn status(client: &mut Client, bearer: &str) -> u16 {
    client.head(TARBALL, &[("authorization", bearer)]).await.status
}

pub(crate) fn decided(site: &Site, result: &str) -> f64 {
    site.metric("weir_edge_authorisations_total", &[("result", result)])
}

#[tokio::test]
async fn projected_tokens_of_clusters_that_share_an_issuer_name_are_told_apart() {
    let mut site = prepare().await;
    let (first, second) = (ClusterKey::new("key-1"), ClusterKey::new("key-2"));
    let file = |name: &str| site.pki().join(name);
    let (one, two, denied) = (file("one.json"), file("two.json"), file("denied"));
    fs::write(&one, jwks(&[&first])).unwrap();
    fs::write(&two, jwks(&[&second])).unwrap();
    fs::write(&denied, "").unwrap();
    site.origin.serve_events();
    site.config.auth.deny = Some(denied.clone());
    site.config.auth.issuers = vec![
        issuer(KeySource::File(one), "cluster-1"),
        issuer(KeySource::File(two.clone()), "{kubernetes.io/namespace}"),
    ];
    site.start_edge().await;
    let unknown = ClusterKey::new("key-3");
    let impostor = ClusterKey { kid: "key-1", ..ClusterKey::new("key-3") };
    for version in ["h1", "h2", "h3"] {
        let mut client = site.client(version).await;
        for (bearer, expected) in [
            (first.bearer("weir", "weir"), 200),
            (second.bearer("team-a", "weir"), 200),
            (first.bearer("weir", "https://kubernetes.default.svc"), 401),
            (unknown.bearer("weir", "weir"), 401),
            (impostor.bearer("weir", "weir"), 401),
            (second.bearer("Team/A", "weir"), 401),
            (second.bearer("a:b", "weir").replace('.', ".."), 401),
        ] {
            assert_eq!(status(&mut client, &bearer).await, expected, "{version} {bearer}");
        }
        let other = client.head("/v1/services/bank/tarball", &[("authorization", &first.bearer("weir", "weir"))]).await;
        assert_eq!(other.status, 404, "the entry does not open it");
    }
    for result in ["wrong_audience", "unknown_key", "bad_signature", "no_agent", "malformed", "out_of_scope"] {
        assert_eq!(decided(&site, result), 3.0, "{result}");
    }
    assert_eq!(site.in_use("issuers"), 2.0);

    // A denial by the agent's name is one of all its tokens, and of no other agent.
    fs::write(&denied, "agent team-a\n").unwrap();
    let mut client = site.client("h2").await;
    let (a, b) = (second.bearer("team-a", "weir"), second.bearer("team-b", "weir"));
    site.until("the agent is denied", async || status(&mut client, &a).await == 401).await;
    assert_eq!((status(&mut client, &b).await, site.metric("weir_edge_access_denied_agents", &[])), (200, 1.0));

    // One key in two entries stays with the first, and the other keys of the second apply.
    let third = ClusterKey::new("key-3");
    fs::write(&two, jwks(&[&second, &first, &third])).unwrap();
    let failing = || site.metric("weir_edge_access_issuers_failing", &[]);
    site.until("the key is refused", async || failing() == 1.0).await;
    for bearer in [&b, &first.bearer("weir", "weir"), &third.bearer("team-b", "weir")] {
        assert_eq!(status(&mut client, bearer).await, 200);
    }
    // Ready once the origin has sent its list.
    site.origin.send_event(EventKind::Access(AccessList::default().json().get().as_bytes().to_vec().into()));
    site.until("it says why it is degraded", async || {
        let (_, ready) = site.admin("/readyz").await;
        ready.contains("`key-1`") && ready.contains("the entry that had it first keeps it")
    })
    .await;
}

#[tokio::test]
async fn a_cluster_that_lists_the_key_id_of_another_takes_no_token_of_it() {
    let mut site = prepare().await;
    let (victim, other) = (ClusterKey::new("key-1"), ClusterKey::new("key-1"));
    let file = |name: &str| site.pki().join(name);
    let (one, two) = (file("one.json"), file("two.json"));
    fs::write(&one, jwks(&[&other])).unwrap();
    fs::write(&two, jwks(&[&victim])).unwrap();
    let entry = |file: &PathBuf, service: &str| IssuerConfig {
        services: vec![service.parse().unwrap()],
        ..issuer(KeySource::File(file.clone()), "cluster-1")
    };
    let entries = [entry(&one, "bank"), entry(&two, "shop")];
    for order in [[0, 1], [1, 0]] {
        site.config.auth.issuers = order.map(|index| entries[index].clone()).into();
        site.start_edge().await;
        let mut client = site.client("h2").await;
        let of = |key: &ClusterKey| key.bearer("weir", "weir");
        let statuses = (status(&mut client, &of(&victim)).await, status(&mut client, &of(&other)).await);
        assert_eq!(statuses, (200, 404), "each opens what its own entry opens: {order:?}");
        site.stop_edge().await;
    }
}

#[tokio::test]
async fn a_thousand_issuers_that_an_origin_announces_are_told_apart() {
    let mut site = prepare().await;
    site.origin.serve_events();
    site.config.auth.keys_from_origins = true;
    site.start_edge().await;
    site.in_step().await;
    let (key, next) = (ClusterKey::new("key-1"), ClusterKey::new("key-2"));
    let keys: serde_json::Value = serde_json::from_str(&jwks(&[&key, &next])).unwrap();
    // The last one is that of the tokens.
    let entries = (0..1000).map(|n| {
        let entry = serde_json::json!({
            "name": format!("cluster-{n}"), "issuer": if n == 999 { ISSUER.to_owned() } else { format!("{ISSUER}/{n}") },
            "audience": "weir", "subjects": ["system:serviceaccount:weir:agent"], "jwks": keys,
            "agent": format!("cluster-{n}"), "services": ["shop*"],
        });
        serde_json::from_value(entry).unwrap()
    });
    let mut list = AccessList::default();
    list.set_fleet(Fleet { issuers: Entries::new(1, entries, []).unwrap(), ..Fleet::default() });
    site.origin.send_event(EventKind::Access(list.json().get().as_bytes().to_vec().into()));
    let mut client = site.client("h2").await;
    let bearers = [key.bearer("weir", "weir"), next.bearer("weir", "weir")];
    site.until("they are known", async || status(&mut client, &bearers[0]).await == 200).await;
    assert_eq!((status(&mut client, &bearers[1]).await, site.in_use("issuers")), (200, 1000.0));
    assert_eq!(status(&mut client, &key.bearer("other", "weir")).await, 401, "its subject is another");

    // An edge that takes no keys from origins says so.
    site.stop_edge().await;
    site.config.auth.keys_from_origins = false;
    // Certificates open something.
    let services = vec!["shop".parse().unwrap()];
    site.config.auth.certificates = vec![CertificateRule { agents: "*".parse().unwrap(), services }];
    site.config.auth.client_ca = Some(site.config.origins[0].ca.clone());
    site.start_edge().await;
    site.in_step().await;
    let mut client = site.client("h2").await;
    let refused = client.get(TARBALL, &[("authorization", &bearers[0])]).await;
    let detail = refused.problem()["detail"].to_string();
    assert!(refused.status == 401 && detail.contains("keys_from_origins"), "{detail}");
    assert_eq!(decided(&site, "key_of_origins"), 1.0);
}

#[tokio::test]
async fn one_projected_token_is_accepted_and_every_other_one_refused_with_its_reason() {
    let mut site = prepare().await;
    let (key, other) = (ClusterKey::new("key-1"), ClusterKey::new("other-1"));
    for (name, keys) in [("one.json", &key), ("other.json", &other)] {
        fs::write(site.pki().join(name), jwks(&[keys])).unwrap();
    }
    let file = |name: &str| KeySource::File(site.pki().join(name));
    let elsewhere = IssuerConfig { issuer: "https://oidc.example".to_owned(), ..issuer(file("other.json"), "laptop") };
    let subjects = vec!["system:serviceaccount:weir:agent".to_owned()];
    let own = IssuerConfig { subjects, ..issuer(file("one.json"), "cluster-1") };
    site.config.auth.issuers = vec![own, elsewhere];
    site.start_edge().await;

    let now = unix_seconds(std::time::SystemTime::now());
    let with = |changes: Value| {
        let mut claims = claims("weir", "weir");
        for (name, value) in changes.as_object().unwrap() {
            claims[name] = value.clone();
        }
        claims
    };
    let without = |name: &str| {
        let mut claims = claims("weir", "weir");
        claims.as_object_mut().unwrap().remove(name).unwrap();
        claims
    };
    let algorithm = |name: &str, sign: &dyn Fn(&[u8]) -> Vec<u8>| {
        bearer(&json!({ "alg": name, "kid": "key-1" }), &claims("weir", "weir"), sign)
    };
    // A public key as everybody may read it, used as the secret of an HMAC.
    let der = key.pair.public().as_ref().to_vec();
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{}\n-----END PUBLIC KEY-----\n", STANDARD.encode(&der));
    let hmac = |secret: &[u8]| {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, secret);
        algorithm("HS256", &|message| hmac::sign(&secret, message).as_ref().to_vec())
    };
    let mut client = site.client("h2").await;
    for (token, result) in [
        (key.signed(&claims("weir", "weir")), "token"),
        (key.signed(&with(json!({ "aud": ["https://kubernetes.default.svc", "weir"] }))), "token"),
        (key.signed(&with(json!({ "aud": ["https://kubernetes.default.svc"] }))), "wrong_audience"),
        (key.signed(&without("aud")), "malformed"),
        (key.signed(&with(json!({ "sub": "system:serviceaccount:weir:other" }))), "wrong_subject"),
        (key.signed(&with(json!({ "sub": "system:serviceaccount:other:agent" }))), "wrong_subject"),
        (key.signed(&with(json!({ "sub": "system:serviceaccount:weir:agent:x" }))), "wrong_subject"),
        (key.signed(&with(json!({ "exp": now - 120, "iat": now - 3600, "nbf": now - 3600 }))), "expired"),
        (key.signed(&without("exp")), "malformed"),
        (key.signed(&with(json!({ "iat": now + 600, "nbf": now + 600 }))), "not_yet_valid"),
        (ClusterKey { kid: "key-2", ..ClusterKey::new("") }.signed(&claims("weir", "weir")), "unknown_key"),
        (ClusterKey { kid: "key-1", ..ClusterKey::new("") }.signed(&claims("weir", "weir")), "bad_signature"),
        // The key of another issuer, by its own id and by that of this one; and the other way round.
        (other.signed(&claims("weir", "weir")), "unknown_key"),
        (ClusterKey { kid: "key-1", pair: other.pair }.signed(&claims("weir", "weir")), "bad_signature"),
        (key.signed(&with(json!({ "iss": "https://oidc.example" }))), "unknown_key"),
        (key.signed(&with(json!({ "iss": "https://nobody.example" }))), "unknown_key"),
        (hmac(&der), "malformed"),
        (hmac(pem.as_bytes()), "malformed"),
        (hmac(key.jwk().as_bytes()), "malformed"),
        (algorithm("none", &|_| Vec::new()), "malformed"),
        (algorithm("nOnE", &|_| Vec::new()), "malformed"),
        (algorithm("RS256", &|_| Vec::new()), "bad_signature"),
        (algorithm("ES256", &|_| vec![1; 64]), "malformed"),
    ] {
        let before = decided(&site, result);
        let expected = if result == "token" { 200 } else { 401 };
        assert_eq!(
            (status(&mut client, &token).await, decided(&site, result)),
            (expected, before + 1.0),
            "{result}: {token}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_rotate_under_load_without_a_failed_poll() {
    let mut site = prepare().await;
    let (old, new) = (ClusterKey::new("old"), ClusterKey::new("new"));
    // As a mounted volume: files are links through a link that is swapped.
    let path = |name: &str| site.pki().join(name);
    for (version, keys) in [("v1", jwks(&[&old])), ("v2", jwks(&[&old, &new])), ("v3", jwks(&[&new]))] {
        fs::create_dir(path(version)).unwrap();
        fs::write(path(version).join("jwks.json"), keys).unwrap();
    }
    let data = path("..data");
    let swap = |version: &str| {
        let temporary = data.with_file_name("..new");
        std::os::unix::fs::symlink(version, &temporary).unwrap();
        fs::rename(&temporary, &data).unwrap();
    };
    swap("v1");
    let file: PathBuf = path("jwks.json");
    std::os::unix::fs::symlink("..data/jwks.json", &file).unwrap();
    site.config.auth.issuers = vec![issuer(KeySource::File(file), "cluster-1")];
    site.start_edge().await;
    // The agent's token: what it polls with until its cluster gives it the next.
    let token = Arc::new(Mutex::new(old.bearer("weir", "weir")));
    let (stopped, polls) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let agents: Vec<_> = ["h1", "h2", "h3"]
        .map(|version| {
            let (token, stopped, polls) = (token.clone(), stopped.clone(), polls.clone());
            let (address, pki) = (site.edge().address(), site.pki().to_owned());
            tokio::spawn(async move {
                let mut client = Client::connect(version, address, &pki).await;
                while !stopped.load(Ordering::Relaxed) {
                    let bearer = token.lock().unwrap().clone();
                    assert_eq!(status(&mut client, &bearer).await, 200, "{version}");
                    polls.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .into();
    let mut client = site.client("h2").await;
    let next = new.bearer("weir", "weir");
    assert_eq!(status(&mut client, &next).await, 401);
    swap("v2");
    site.until("the new key is read", async || status(&mut client, &next).await == 200).await;
    *token.lock().unwrap() = next;
    let before = polls.load(Ordering::Relaxed);
    site.until("all use it", async || polls.load(Ordering::Relaxed) > before + 30).await;
    swap("v3");
    let past = old.bearer("weir", "weir");
    site.until("the old key is gone", async || status(&mut client, &past).await == 401).await;
    stopped.store(true, Ordering::Relaxed);
    for agent in agents {
        agent.await.unwrap();
    }
}

#[tokio::test]
async fn certificates_prove_roles_in_the_trust_domain_of_the_edge() {
    let mut site = prepare().await;
    let domain: TrustDomain = "fleet.example".parse().unwrap();
    certificates::write_agent_in(site.pki(), &"cluster-9".parse().unwrap(), domain.clone()).unwrap();
    site.config.trust_domain = domain;
    site.config.auth.client_ca = Some(site.pki().join("ca.pem"));
    let services = vec!["shop".parse().unwrap()];
    let rule = weir_edge::config::CertificateRule { agents: "cluster-*".parse().unwrap(), services };
    site.config.auth.certificates = vec![rule];
    site.start_edge().await;
    for version in ["h1", "h2", "h3"] {
        let foreign = site.client_as("agent", version).await.head(TARBALL, &[]).await.status;
        let own = site.client_as("agent-cluster-9", version).await.head(TARBALL, &[]).await.status;
        assert_eq!((foreign, own), (401, 200), "{version}");
    }
}
