use super::*;
use std::time::Duration;
use weir_protocol::digest::ObjectDigest;

async fn start(dir: &std::path::Path, drain: &Drain, origins: &[&str]) -> Access {
    let registry = Registry::new();
    Access::start(&AuthConfig::default(), origins, OriginListsFile::at(dir), &registry, drain).await.unwrap()
}

fn denies(access: &Access, ids: [&str; 3]) -> [bool; 3] {
    ids.map(|id| access.inner.key_set().denies(&id.parse().unwrap()))
}

const T123: [&str; 3] = ["t1", "t2", "t3"];

#[tokio::test]
async fn the_last_list_of_an_origin_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let drain = Drain::new();
    // An edge of the release before wrote it.
    let earlier = dir.path().join("access.json");
    std::fs::write(
        &earlier,
        r#"{"b": {"denied_tokens": [{"jti": "t2"}], "agents": {"revision": 1, "documents": [{"name": "one"}]}}}"#,
    )
    .unwrap();
    let access = start(dir.path(), &drain, &["a", "b"]).await;
    assert_eq!((denies(&access, T123), access.fleet().borrow().fleet.agents.iter().count()), ([false, true, false], 1));
    access.set_origin_list("a", br#"{"denied_tokens": [{"jti": "t1"}]}"#);
    access.set_origin_list("b", br#"{"denied_tokens": [{"jti": "t3"}]}"#);
    access.set_origin_list("b", b"{\"denied_tokens\": 3}");
    assert_eq!(access.inner.metrics.lists_refused.get(), 1);
    assert_eq!(access.readiness_errors(&[vec!["c".to_owned()]]), [""; 0], "an open edge needs no keys");
    assert!(drain.finish(Duration::from_secs(5)).await);

    assert!(!earlier.exists());

    let drain = Drain::new();
    let access = start(dir.path(), &drain, &["b", "c", "a"]).await;
    assert_eq!(access.fleet().borrow().fleet.agents.iter().count(), 1);
    assert_eq!(denies(&access, T123), [true, false, true]);
    access.set_origin_list("b", b"{}");
    assert_eq!(denies(&access, T123), [true, false, false], "the last list applies");
    drain.cut().await;

    let drain = Drain::new();
    let access = start(dir.path(), &drain, &["b"]).await;
    assert!(denies(&access, T123)[0], "its origin may be down, and nobody else revokes it");
    drain.cut().await;
}

#[tokio::test]
async fn denials_of_a_first_list_that_lacks_shards_apply_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let agents = r#"{"revision": 1, "documents": [{"name": "one"}]}"#;
    let whole = format!(r#"{{"denied_tokens": [{{"jti": "t1"}}], "agents": {agents}}}"#);
    let whole = AccessList::parse(whole.as_bytes()).unwrap();
    let (clusters, known) = ([vec!["a".to_owned()]], ["a"]);
    let json = whole.sharded_json();
    let sent = AccessList::parse(json.get().as_bytes()).unwrap();
    assert_eq!(sent.sharded_json().get(), json.get(), "what it lacks stays named");
    let digest = sent.lacking().pop_first().unwrap();
    let shard = whole.fleet().shard_json(&digest).unwrap();
    let file = dir.path().join("access").join(digest.to_string());

    let drain = Drain::new();
    let access = start(dir.path(), &drain, &known).await;
    assert_eq!(access.set_origin_list("a", json.get().as_bytes()).len(), 1);
    assert!(denies(&access, T123)[0] && !access.knows_fleet(&clusters));
    assert!(drain.finish(Duration::from_secs(5)).await);
    let drain = Drain::new();
    let access = start(dir.path(), &drain, &known).await;
    assert!(denies(&access, T123)[0] && !access.knows_fleet(&clusters));
    access.set_origin_list("a", json.get().as_bytes());
    assert_eq!((access.add_shard("a", &digest, &shard), access.knows_fleet(&clusters)), (ShardOutcome::Added, true));
    assert!(drain.finish(Duration::from_secs(5)).await);

    // A disk has lost some of it.
    std::fs::write(&file, "[").unwrap();
    let drain = Drain::new();
    let access = start(dir.path(), &drain, &known).await;
    assert!(denies(&access, T123)[0] && !access.knows_fleet(&clusters));
    assert_eq!(access.set_origin_list("a", json.get().as_bytes()).len(), 1, "it is fetched again");
    assert_eq!(access.add_shard("a", &digest, &shard), ShardOutcome::Added);
    assert!(drain.finish(Duration::from_secs(5)).await);
    assert_eq!(std::fs::read(&file).unwrap(), shard);

    let access = start(dir.path(), &Drain::new(), &[]).await;
    assert!(denies(&access, T123)[0], "its origin is not known any longer");
}

#[tokio::test]
async fn of_two_files_the_one_that_was_written_last_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let drain = Drain::new();
    start(dir.path(), &drain, &["a"]).await.set_origin_list("a", br#"{"denied_tokens": [{"jti": "t1"}]}"#);
    assert!(drain.finish(Duration::from_secs(5)).await);
    let now = SystemTime::now();
    let hour = Duration::from_secs(3600);
    for (written, expected) in [(now - hour, [true, false, false]), (now + hour, [false, true, false])] {
        let file = std::fs::File::create(dir.path().join("access.json")).unwrap();
        std::io::Write::write_all(&mut &file, br#"{"a": {"denied_tokens": [{"jti": "t2"}]}}"#).unwrap();
        file.set_modified(written).unwrap();
        let access = start(dir.path(), &Drain::new(), &["a"]).await;
        assert_eq!(denies(&access, T123), expected);
    }
}

#[tokio::test]
async fn an_origin_that_has_departed_brings_no_deleted_document_back() {
    let dir = tempfile::tempdir().unwrap();
    let drain = Drain::new();
    let access = start(dir.path(), &drain, &["a", "b"]).await;
    let send = |access: &Access, origin: &str, cluster: &str, revision: u64, agents: &str| {
        let agents = format!(r#"{{"revision": {revision}, "cluster": "{cluster}", "documents": [{agents}]}}"#);
        access.set_origin_list(origin, format!(r#"{{"agents": {agents}}}"#).as_bytes());
    };
    let agents = |access: &Access| -> Vec<String> {
        access.fleet().borrow().fleet.agents.iter().map(|agent| agent.name.to_string()).collect()
    };
    send(&access, "a", "x", 7, r#"{"name": "one"}"#);
    send(&access, "b", "x", 6, "");
    access.origin_left("a");
    assert_eq!(agents(&access), ["one"], "the one that stays is behind");
    send(&access, "b", "x", 8, "");
    assert_eq!(agents(&access), [""; 0]);
    // Its store was lost, and operators define everything again.
    send(&access, "b", "y", 9, r#"{"name": "two"}"#);
    assert_eq!(agents(&access), ["two"]);
    send(&access, "a", "x", 7, r#"{"name": "one"}"#);
    assert_eq!(agents(&access), ["one", "two"], "it is back");
    assert!(drain.finish(Duration::from_secs(5)).await);

    let drain = Drain::new();
    let access = start(dir.path(), &drain, &["b"]).await;
    assert_eq!(agents(&access), ["two"], "it is not configured any longer");
    drain.cut().await;
    let access = start(dir.path(), &Drain::new(), &["c"]).await;
    assert!(agents(&access).is_empty());
    let clusters = [vec!["a".to_owned(), "c".to_owned()], vec!["d".to_owned()]];
    assert!(!access.knows_fleet(&clusters), "no origin has said anything yet");
    send(&access, "c", "y", 9, "");
    assert!(access.knows_fleet(&clusters[..1]) && !access.knows_fleet(&clusters), "one cluster has");
}

#[tokio::test]
async fn a_damaged_shard_is_fetched_again_and_one_that_cannot_be_read_leaves_the_list_before() {
    let (dir, drain) = (tempfile::tempdir().unwrap(), Drain::new());
    let access = start(dir.path(), &drain, &["a"]).await;
    let list = |revision: u64, names: &[&str]| {
        let documents: Vec<_> = names.iter().map(|name| format!(r#"{{"name": "{name}"}}"#)).collect();
        let json = format!(r#"{{"agents": {{"revision": {revision}, "documents": [{}]}}}}"#, documents.join(","));
        AccessList::parse(json.as_bytes()).unwrap()
    };
    let agents = || access.fleet().borrow().fleet.agents.iter().count();
    access.set_origin_list("a", list(1, &["one"]).json().get().as_bytes());
    let two = list(2, &["one", "two"]);
    let json = two.sharded_json();
    let digest = access.set_origin_list("a", json.get().as_bytes()).pop_first().unwrap();
    let shard = two.fleet().shard_json(&digest).unwrap();
    let refused = || access.inner.metrics.lists_refused.get();
    assert_eq!(access.add_shard("a", &digest, &shard[1..]), ShardOutcome::Damaged);
    assert_eq!((agents(), refused(), access.inner.metrics.lists_incomplete.get()), (1, 1, 1));
    assert_eq!((access.add_shard("a", &digest, &shard), agents()), (ShardOutcome::Added, 2));

    // Of a later version, which this one cannot read.
    let later = br#"[{"entry": {"name": ["of", "parts"]}}]"#;
    let json = json.get().replace(&digest.to_string(), &ObjectDigest::of(later).to_string());
    let json = json.replace(r#""revision":2"#, r#""revision":3"#).replacen('{', r#"{"denied_agents":["lost"],"#, 1);
    let lacking = access.set_origin_list("a", json.as_bytes());
    assert_eq!(lacking, [ObjectDigest::of(later)].into());
    assert_eq!(access.add_shard("a", &ObjectDigest::of(later), later), ShardOutcome::Unusable);
    assert!(access.inner.key_set().denies_agent(&"lost".parse().unwrap()), "denials do not wait");
    assert_eq!((agents(), refused(), access.inner.metrics.lists_incomplete.get()), (2, 2, 1));
    // The next list is a list again.
    access.set_origin_list("a", list(4, &["three"]).json().get().as_bytes());
    assert_eq!((agents(), access.inner.metrics.lists_incomplete.get()), (1, 0));
    drain.cut().await;
}
