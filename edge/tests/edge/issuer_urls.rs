//! Keys of issuers that are fetched from a URL, named by the configuration or by an origin.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use prometheus::Registry;
use serde_json::json;
use tokio::net::TcpListener;
use weir_edge::config::{IssuerConfig, KeySource};
use weir_protocol::access_list::{AccessList, Entries, Fleet};
use weir_protocol::event::EventKind;
use weir_protocol::issuer::Issuer;
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth};

use crate::issuers::{ClusterKey, ISSUER, decided, issuer, jwks, prepare, status};
use crate::site::{Site, TARBALL};

/// A server of key sets.
#[derive(Clone, Default)]
struct KeyServer {
    keys: Arc<Mutex<String>>,
    requests: Arc<AtomicUsize>,
}

impl Handler for KeyServer {
    async fn handle(&self, _request: Request<RequestBody>, _peer: Arc<Peer>) -> Response<Body> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Response::new(Body::from(self.keys.lock().unwrap().clone().into_bytes()))
    }
}

/// A running server of key sets, with its URL.
async fn serve_keys(site: &Site, keys: &[&ClusterKey]) -> (KeyServer, String, Drain) {
    let file = |name: &str| site.pki().join(name);
    let server = KeyServer::default();
    *server.keys.lock().unwrap() = jwks(keys);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}/openid/v1/jwks", listener.local_addr().unwrap());
    let tls = tls::server_config(&file("edge.pem"), &file("edge.key"), ClientAuth::None).unwrap();
    let (drain, metrics) = (Drain::new(), HttpMetrics::register(&Registry::new()).unwrap());
    serve::tcp(listener, Some(tls), server.clone(), metrics.listener("keys"), &drain);
    (server, url, drain)
}

#[tokio::test]
async fn keys_of_an_issuer_of_an_origin_are_fetched_from_allowed_hosts_alone() {
    let mut site = prepare().await;
    let (old, new) = (ClusterKey::new("old"), ClusterKey::new("new"));
    let (server, url, drain) = serve_keys(&site, &[&old]).await;
    let ca = fs::read_to_string(site.pki().join("ca.pem")).unwrap();
    let entry = |name: &str, url: &str| -> Issuer {
        let entry = json!({ "name": name, "issuer": ISSUER, "audience": "weir",
            "subjects": ["system:serviceaccount:weir:agent"], "jwks": { "url": url, "ca": ca },
            "agent": name, "services": ["shop*"] });
        serde_json::from_value(entry).unwrap()
    };
    let list = |revision, urls: &[(&str, &str)]| {
        let (mut list, entries) = (AccessList::default(), urls.iter().map(|(name, url)| entry(name, url)));
        let issuers = Entries::new(revision, entries, []).unwrap();
        list.set_fleet(Fleet { issuers, ..Fleet::default() });
        EventKind::Access(list.json().get().as_bytes().to_vec().into())
    };
    let requests = || server.requests.load(Ordering::Relaxed);
    let (present, next) = (old.bearer("weir", "weir"), new.bearer("weir", "weir"));
    site.origin.serve_events();
    site.config.auth.keys_from_origins = true;
    site.start_edge().await;
    site.in_step().await;
    site.origin.send_event(list(1, &[("cluster-1", &url)]));
    let not_fetched = |site: &Site| site.metric("weir_edge_access_issuers_not_fetched", &[("reason", "host")]);
    site.until("the entry is known", async || not_fetched(&site) == 1.0).await;
    let mut client = site.client("h2").await;
    let refused = client.get(TARBALL, &[("authorization", &present)]).await;
    let detail = refused.problem()["detail"].to_string();
    assert!(refused.status == 401 && detail.contains("key_hosts"), "{detail}");
    assert_eq!((decided(&site, "keys_not_fetched"), requests()), (1.0, 0), "no host is allowed by default");
    site.stop_edge().await;

    site.config.auth.key_hosts = vec!["127.0.0.1".to_owned()].try_into().unwrap();
    site.start_edge().await;
    site.in_step().await;
    let mut client = site.client("h2").await;
    // A token of an unknown key would be a reason to fetch them again.
    let applied = || site.metric("weir_edge_access_key_set_fetches_total", &[("result", "applied")]);
    site.until("the keys are fetched", async || applied() == 1.0).await;
    assert_eq!(status(&mut client, &present).await, 200);
    assert_eq!((not_fetched(&site), site.in_use("issuer_urls")), (0.0, 1.0));
    *server.keys.lock().unwrap() = jwks(&[&old, &new]);
    assert_eq!(status(&mut client, &next).await, 200, "the first token of a new key waits for it");

    // Another cluster whose host does not answer takes nothing from this one, and is of no interest when its entry is gone.
    let fetched = requests();
    let failing = || site.metric("weir_edge_access_issuers_failing", &[]);
    site.origin.send_event(list(2, &[("cluster-1", &url), ("cluster-2", "https://127.0.0.1:1/jwks")]));
    site.until("its keys cannot be fetched", async || failing() == 1.0).await;
    assert_eq!((status(&mut client, &present).await, site.in_use("issuer_urls")), (200, 2.0));
    site.origin.send_event(list(3, &[("cluster-1", &url)]));
    site.until("it is gone", async || failing() == 0.0).await;
    assert_eq!((status(&mut client, &next).await, requests()), (200, fetched), "what is fetched stays");
    site.origin.send_event(list(4, &[]));
    site.until("the issuer is gone", async || status(&mut client, &present).await == 401).await;
    assert_eq!(site.in_use("issuer_urls"), 0.0);
    drain.cut().await;
}

#[tokio::test]
async fn keys_are_fetched_for_an_unknown_kid_once_a_minute() {
    let mut site = prepare().await;
    let file = |name: &str| site.pki().join(name);
    let (old, new) = (ClusterKey::new("old"), ClusterKey::new("new"));
    let (server, url, drain) = serve_keys(&site, &[&old]).await;
    let fetched = issuer(KeySource::Url(url.parse().unwrap()), "cluster-1");
    site.config.auth.issuers = vec![IssuerConfig { ca: Some(file("ca.pem")), ..fetched }];
    site.start_edge().await;
    let mut client = site.client("h3").await;
    let (present, next) = (old.bearer("weir", "weir"), new.bearer("weir", "weir"));
    // A token of an unknown key would be a reason to fetch them again.
    let applied = || site.metric("weir_edge_access_key_set_fetches_total", &[("result", "applied")]);
    site.until("the keys are fetched", async || applied() == 1.0).await;
    assert_eq!(status(&mut client, &present).await, 200);
    assert_eq!(server.requests.load(Ordering::Relaxed), 1);

    *server.keys.lock().unwrap() = jwks(&[&old, &new]);
    assert_eq!(status(&mut client, &next).await, 200, "the first token of a new key waits for it");
    assert_eq!(server.requests.load(Ordering::Relaxed), 2);
    let other = ClusterKey::new("other");
    for namespace in ["a", "b", "c"] {
        assert_eq!(status(&mut client, &other.bearer(namespace, "weir")).await, 401);
    }
    assert_eq!((status(&mut client, &present).await, status(&mut client, &next).await), (200, 200));
    assert_eq!(server.requests.load(Ordering::Relaxed), 2, "at most one a minute");
    assert_eq!(site.metric("weir_edge_access_key_set_fetches_total", &[("result", "applied")]), 2.0);
    drain.cut().await;
}
