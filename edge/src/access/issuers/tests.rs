use super::*;
use http::{Request, Response, StatusCode, header};
use prometheus::Registry;
use tokio::net::TcpListener;
use weir_protocol::token::SigningKey;
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody};
use weir_runtime::{certificates, tls};

pub(super) fn jwks(kids: &[&str]) -> JwkSet {
    let key = SigningKey::generate().unwrap().0.public().encoded();
    let key = |kid: &&str| format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"{kid}","x":"{key}"}}"#);
    let keys: Vec<_> = kids.iter().map(key).collect();
    JwkSet::parse(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes()).unwrap()
}

pub(super) fn entry(issuer: &str, agent: &str, kids: &[&str]) -> IssuerEntry {
    let issuer = IssuerPolicy {
        issuer: issuer.to_owned(),
        audience: "weir".to_owned(),
        subjects: vec!["*".to_owned()],
        agent: agent.parse().unwrap(),
        services: vec!["*".parse().unwrap()],
    };
    let source = format!("source of {agent}");
    let unknown_key = Some(Arc::default());
    IssuerEntry { source, created: 0, issuer: issuer.into(), keys: jwks(kids).into(), keys_at: None, unknown_key }
}

/// The table of an edge that has seen none of these keys before.
fn table(entries: Vec<IssuerEntry>) -> (IssuerTable, Vec<KeyConflict>) {
    let mut owners = KeyOwners::default();
    owners.update(&entries);
    IssuerTable::of(entries, &owners)
}

fn found<'t>(table: &'t IssuerTable, issuer: &str, kid: &str) -> Option<&'t str> {
    table.find(issuer, kid).map(|(issuer, _)| issuer.agent.as_str()).next()
}

#[tokio::test]
async fn a_key_belongs_to_one_entry_and_clusters_may_share_an_issuer() {
    let first = entry("https://k8s", "c1", &["a", "b"]);
    let asked = first.unknown_key.clone().unwrap();
    let copied = IssuerEntry { keys: first.keys.clone(), ..entry("https://k8s", "c2", &["c"]) };
    let original = first.clone();
    let (found_in, conflicts) = table(vec![first, entry("https://k8s", "c2", &["c"]), entry("https://o", "o", &["a"])]);
    assert!(conflicts.is_empty() && found_in.has("https://o") && !found_in.has("https://none"));
    for (issuer, kid, agent) in
        [("https://k8s", "a", "c1"), ("https://k8s", "b", "c1"), ("https://k8s", "c", "c2"), ("https://o", "a", "o")]
    {
        assert_eq!(found(&found_in, issuer, kid), Some(agent), "{issuer} {kid}");
    }
    assert_eq!((found(&found_in, "https://o", "c"), found(&found_in, "https://k8s", "d")), (None, None));
    found_in.request_keys("https://k8s");
    tokio::time::timeout(Duration::from_secs(5), asked.notified()).await.unwrap();

    let (found_in, conflicts) = table(vec![original, copied]);
    let of_copy = conflicts.iter().all(|conflict| conflict.entry == "source of c2");
    assert!(of_copy && conflicts.len() == 2, "its keys are copies: {conflicts:?}");
    assert!(conflicts[0].to_string().contains("`a` of the issuer https://k8s"), "{}", conflicts[0]);
    assert_eq!((found(&found_in, "https://k8s", "a"), found_in.find("https://k8s", "a").count()), (Some("c1"), 1));
    let claimed = (0..10).map(|n| entry("https://k8s", &format!("c{n}"), &["a"])).collect();
    let (found_in, conflicts) = table(claimed);
    assert_eq!((found_in.find("https://k8s", "a").count(), conflicts.len()), (8, 2));
}

#[test]
fn who_had_a_key_first_keeps_it_whoever_copies_it_and_over_restarts() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("owners");
    let victim = entry("https://k8s", "victim", &["a"]);
    let unread = |entry: &IssuerEntry| IssuerEntry { keys: Arc::default(), ..entry.clone() };
    let copy = IssuerEntry { keys: victim.keys.clone(), ..entry("https://k8s", "copy", &["b"]) };
    // The copy comes first in the configuration, and its keys may be read first.
    for (entries, expected) in [
        (vec![unread(&copy), victim.clone()], Some("victim")),
        (vec![copy.clone(), victim.clone()], Some("victim")),
        (vec![copy.clone(), unread(&victim)], None),
        (vec![copy.clone(), victim.clone()], Some("victim")),
        (vec![copy.clone(), entry("https://k8s", "victim", &["c"])], Some("copy")),
        (vec![copy.clone(), victim.clone()], Some("copy")),
        (vec![victim.clone()], Some("victim")),
    ] {
        let mut owners = KeyOwners::read(&file);
        owners.update(&entries);
        owners.write(&file).unwrap();
        let (table, _) = IssuerTable::of(entries, &owners);
        assert_eq!(found(&table, "https://k8s", "a"), expected);
    }
    std::fs::write(&file, "damaged").unwrap();
    assert_eq!(KeyOwners::read(&file), KeyOwners::default());
}

#[test]
fn of_two_entries_with_a_creation_the_older_has_a_key_whatever_an_edge_saw_first() {
    let of = |agent, created, keys: &IssuerEntry| IssuerEntry {
        created,
        keys: keys.keys.clone(),
        ..entry("https://k8s", agent, &["b"])
    };
    let key = entry("https://k8s", "any", &["a"]);
    let (old, young, unknown) = (of("old", 3, &key), of("young", 7, &key), of("unknown", 0, &key));
    let same = of("same", 7, &key);
    for (seen, now, expected) in [
        (vec![young.clone()], vec![old.clone(), young.clone()], "old"),
        (vec![old.clone()], vec![young.clone(), old.clone()], "old"),
        (vec![], vec![young.clone(), old.clone()], "old"),
        (vec![young.clone()], vec![young.clone(), same], "same"),
        (vec![young.clone()], vec![unknown.clone(), young], "young"),
        (vec![unknown.clone()], vec![unknown, old], "unknown"),
    ] {
        let mut owners = KeyOwners::default();
        owners.update(&seen);
        owners.update(&now);
        let (table, conflicts) = IssuerTable::of(now, &owners);
        assert_eq!((found(&table, "https://k8s", "a"), conflicts.len()), (Some(expected), 1));
    }
}

#[test]
fn a_document_comes_forth_when_its_entry_of_a_file_goes() {
    let issuer = |audience: &str| -> Issuer {
        let key = SigningKey::generate().unwrap().0.public().encoded();
        let keys = serde_json::json!([{"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": key}]);
        serde_json::from_value(serde_json::json!({ "name": "x", "issuer": "https://i", "audience": audience,
            "subjects": ["s"], "jwks": { "keys": keys }, "agent": "a", "services": ["*"] }))
        .unwrap()
    };
    let both = Table::new(1, [issuer("document")], [issuer("file")]).unwrap();
    let mut alone = both.clone();
    alone.set_file(&Table::default());
    let mut announced = AnnouncedIssuers::default();
    for (table, expected) in [(&both, "file"), (&alone, "document"), (&both, "file")] {
        let entries = announced.entries(table);
        let audiences: Vec<_> = entries.iter().map(|entry| &*entry.issuer.audience).collect();
        assert_eq!(audiences, [expected]);
    }
}

#[test]
fn a_failure_is_reported_once() {
    let failures = KeyFailures::default();
    assert!(!failures.note("a", None));
    assert!(failures.note("a", Some("gone")) && !failures.note("a", Some("gone")) && failures.note("a", Some("torn")));
    assert_eq!((failures.all(), failures.len()), (vec!["torn".to_owned()], 1));
    assert!(failures.note("a", None) && failures.all().is_empty());
}

/// A server of what a fetch must refuse, by path.
#[derive(Clone)]
struct Answers;

impl Handler for Answers {
    async fn handle(&self, request: Request<RequestBody>, _peer: Arc<Peer>) -> Response<Body> {
        let key = SigningKey::generate().unwrap().0.public().encoded();
        let set = format!(r#"{{"keys":[{{"kty":"OKP","crv":"Ed25519","kid":"k","x":"{key}"}}]}}"#);
        let (status, body) = match request.uri().path() {
            "/moved" => (StatusCode::FOUND, set),
            "/gone" => (StatusCode::NOT_FOUND, set),
            "/large" => (StatusCode::OK, set + &" ".repeat(MAX_JWK_SET_BYTES)),
            "/torn" => (StatusCode::OK, set[..20].to_owned()),
            _ => (StatusCode::OK, set),
        };
        let mut response = Response::new(Body::from(body.into_bytes()));
        *response.status_mut() = status;
        response.headers_mut().insert(header::LOCATION, "/keys".parse().unwrap());
        response
    }
}

#[tokio::test]
async fn a_fetch_is_bounded_and_follows_no_redirect() {
    let pki = tempfile::tempdir().unwrap();
    certificates::write(pki.path(), &[]).unwrap();
    let file = |name: &str| pki.path().join(name);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = tls::server_config(&file("edge.pem"), &file("edge.key"), tls::ClientAuth::None).unwrap();
    let (drain, metrics) = (Drain::new(), HttpMetrics::register(&Registry::new()).unwrap());
    serve::tcp(listener, Some(tls), Answers, metrics.listener("keys"), &drain);
    let fetch = async |path: &str, ca: &str| {
        let url = format!("https://{address}{path}").parse().unwrap();
        fetch::fetch(&Location::OfFile(url, file(ca)))
            .await
            .map(|keys| keys.keys().count())
            .map_err(|error| format!("{error:#}"))
    };
    assert_eq!(fetch("/keys", "ca.pem").await, Ok(1));
    for (path, ca, reason) in [
        ("/moved", "ca.pem", "302 Found, and redirects are not followed"),
        ("/gone", "ca.pem", "404"),
        ("/large", "ca.pem", "longer than the limit"),
        ("/torn", "ca.pem", "cannot be read"),
        ("/keys", "none.pem", "none.pem"),
    ] {
        let error = fetch(path, ca).await.unwrap_err();
        assert!(error.contains(reason), "{path}: {error}");
    }
    let other = tempfile::tempdir().unwrap();
    certificates::write(other.path(), &[]).unwrap();
    std::fs::copy(other.path().join("ca.pem"), file("other.pem")).unwrap();
    assert!(fetch("/keys", "other.pem").await.is_err(), "another authority");
    drain.cut().await;
}
