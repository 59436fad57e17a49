use super::*;
use weir_protocol::token::{IssuerPolicy, SigningKey};

fn jwks(kids: &[&str]) -> JwkSet {
    let key = SigningKey::generate().unwrap().0.public().encoded();
    let key = |kid: &&str| format!(r#"{{"kty":"OKP","crv":"Ed25519","kid":"{kid}","x":"{key}"}}"#);
    let keys: Vec<_> = kids.iter().map(key).collect();
    JwkSet::parse(format!(r#"{{"keys":[{}]}}"#, keys.join(",")).as_bytes()).unwrap()
}

fn entry(issuer: &str, agent: &str, kids: &[&str]) -> IssuerEntry {
    let issuer = IssuerPolicy {
        issuer: issuer.to_owned(),
        audience: "weir".to_owned(),
        subjects: vec!["*".to_owned()],
        agent: agent.parse().unwrap(),
        services: vec!["*".parse().unwrap()],
    };
    IssuerEntry { issuer: issuer.into(), keys: jwks(kids).into(), unknown_key: Some(Arc::default()) }
}

fn found<'t>(table: &'t IssuerTable, issuer: &str, kid: &str) -> Option<&'t str> {
    table.find(issuer, kid).map(|(issuer, _)| issuer.agent.as_str())
}

#[tokio::test]
async fn a_key_belongs_to_one_entry_and_clusters_may_share_an_issuer() {
    let first = entry("https://k8s", "c1", &["a", "b"]);
    let asked = first.unknown_key.clone().unwrap();
    let (table, conflicts) =
        IssuerTable::of(vec![first, entry("https://k8s", "c2", &["c"]), entry("https://o", "o", &["a"])]);
    assert!(conflicts.is_empty() && table.has("https://o") && !table.has("https://none"));
    for (issuer, kid, agent) in
        [("https://k8s", "a", "c1"), ("https://k8s", "b", "c1"), ("https://k8s", "c", "c2"), ("https://o", "a", "o")]
    {
        assert_eq!(found(&table, issuer, kid), Some(agent), "{issuer} {kid}");
    }
    assert_eq!((found(&table, "https://o", "c"), found(&table, "https://k8s", "d")), (None, None));
    tokio::time::timeout(Duration::from_secs(5), asked.notified()).await.unwrap();

    let (table, conflicts) =
        IssuerTable::of(vec![entry("https://k8s", "c1", &["a"]), entry("https://k8s", "c2", &["a", "b"])]);
    assert_eq!(conflicts.len(), 1);
    assert!(conflicts[0].to_string().contains("`a` of the issuer https://k8s"), "{}", conflicts[0]);
    assert_eq!((found(&table, "https://k8s", "a"), found(&table, "https://k8s", "b")), (Some("c1"), Some("c2")));
}

#[test]
fn a_failure_is_reported_once() {
    let failures = KeyFailures::default();
    assert!(!failures.note(1, None));
    assert!(failures.note(1, Some("gone")) && !failures.note(1, Some("gone")) && failures.note(1, Some("torn")));
    assert_eq!((failures.all(), failures.len()), (vec!["torn".to_owned()], 1));
    assert!(failures.note(1, None) && failures.all().is_empty());
}
