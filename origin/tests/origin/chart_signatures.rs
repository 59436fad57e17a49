//! Charts with a provenance (`.prov`), by real OpenPGP keys.

use weir_protocol::digest::Sha256;

use crate::commit_policy::Desk;
use crate::helm_repository::{Charts, failure, is_version};
use crate::prelude::*;

/// The keys of alice and mallory, and a keyring with that of alice.
pub(crate) fn desk() -> (Desk, PathBuf) {
    let desk = Desk::new();
    for name in ["alice", "mallory"] {
        desk.pgp_key(name, name, "", "never");
    }
    let keyring = desk.file("keyring.gpg");
    export(&desk, "alice", &keyring);
    (desk, keyring)
}

fn export(desk: &Desk, who: &str, keyring: &Path) {
    fs::remove_file(keyring).ok();
    desk.gpg(who, &["--output", keyring.to_str().unwrap(), "--export"]);
}

fn publish(charts: &Charts, chart: &str, version: &str, setting: &str) {
    charts.publish(chart, version, &[(&format!("{chart}/values.yaml"), setting.as_bytes())]);
}

/// The text that helm would sign for the newest entry of the index.
pub(crate) fn statement(charts: &Charts) -> String {
    let (chart, version, digest) = charts.entries.lock().unwrap().last().unwrap().clone();
    let metadata = format!("apiVersion: v2\nkeywords:\n- one\nname: {chart}\nversion: {version}\n");
    format!("{metadata}\n...\nfiles:\n  {chart}-{version}.tgz: sha256:{digest}\n")
}

/// Puts a signed text alongside an archive.
pub(crate) fn sign(desk: &Desk, who: &str, charts: &Charts, archive: &str, statement: &str) {
    let (text, signed) = (desk.file("text"), charts.dir.path().join(format!("{archive}.tgz.prov")));
    fs::write(&text, statement).unwrap();
    fs::remove_file(&signed).ok();
    desk.gpg(who, &["--output", signed.to_str().unwrap(), "--clearsign", text.to_str().unwrap()]);
}

pub(crate) fn config(charts: &Charts, home: &Home, names: &[&str], keyring: Option<&Path>) -> Config {
    let mut config = charts.config(home, names);
    let policy = |keyring| serde_json::from_value(json!({ "pgp_keyring": keyring })).unwrap();
    config.repositories[0].verify = keyring.map(policy);
    config
}

fn count(answers: &[String], end: &str) -> usize {
    answers.iter().filter(|answer| answer.ends_with(end)).count()
}

#[tokio::test]
async fn only_charts_that_a_listed_key_signed_are_published() {
    let ((desk, keyring), home, charts) = (desk(), Home::new(), Charts::start());
    publish(&charts, "shop", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "shop-1.0.0", &statement(&charts));
    publish(&charts, "foreign", "1.0.0", "a: 1");
    sign(&desk, "mallory", &charts, "foreign-1.0.0", &statement(&charts));
    publish(&charts, "replaced", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "replaced-1.0.0", &statement(&charts));
    publish(&charts, "replaced", "1.0.0", "a: 2");
    // An old version under the name of a new one, with the signature of the old one.
    publish(&charts, "old", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "old-1.1.0", &statement(&charts));
    publish(&charts, "old", "1.1.0", "a: 1");
    publish(&charts, "edited", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "edited-1.0.0", &statement(&charts));
    let edited = charts.dir.path().join("edited-1.0.0.tgz.prov");
    fs::write(&edited, fs::read_to_string(&edited).unwrap().replace("one", "two")).unwrap();
    publish(&charts, "unsigned", "1.0.0", "a: 1");
    publish(&charts, "odd", "1.0.0", "a: 1");
    fs::write(charts.dir.path().join("odd-1.0.0.tgz.prov"), statement(&charts)).unwrap();
    publish(&charts, "endless", "1.0.0", "a: 1");
    fs::write(charts.dir.path().join("endless-1.0.0.tgz.prov"), vec![b'x'; 300_000]).unwrap();

    let bad = ["foreign", "replaced", "old", "edited", "unsigned", "odd", "endless"];
    let node = home.start(config(&charts, &home, &[&bad[..], &["shop"]].concat(), Some(&keyring))).await;
    node.published_of("shop", |_| true).await;
    for (service, reason) in [
        ("foreign", " is not in `pgp_keyring`"),
        ("replaced", ", but its signer states `"),
        ("old", "chart `old` 1.1.0: the signed text is of chart `old` 1.0.0"),
        ("edited", " does not match"),
        (
            "unsigned",
            "has no provenance (`.prov`) alongside its archive (it answered 404): sign it with `helm package --sign`",
        ),
        ("odd", "is not a signed text"),
        ("endless", "has a provenance (`.prov`) of more than 262144 bytes"),
    ] {
        let shown = failure(&node, service).await;
        assert!(shown.starts_with(&format!("[verify] chart `{service}` 1.")) && shown.contains(reason), "{shown}");
    }
    let answers = charts.answers();
    assert_eq!((count(&answers, ".tgz"), count(&answers, ".prov")), (1, 8), "{answers:?}");
    node.poll().await;
    assert_eq!(count(&charts.answers(), "/shop-1.0.0.tgz.prov"), 0, "once for each policy and digest");
    let series = |result: &str| format!("weir_origin_verifications_total{{repository=\"shop\",result=\"{result}\"}}");
    assert_eq!(node.metric(&series("verified")).await, 1.0);
    assert!(node.metric(&series("refused")).await >= 7.0);

    // With another keyring, everything is verified again.
    export(&desk, "mallory", &keyring);
    node.poll().await;
    node.published_of("foreign", |_| true).await;
    let reason = failure(&node, "shop").await;
    assert!(reason.contains("is not in `pgp_keyring` (it was published before, and stays published)"), "{reason}");
    assert_eq!(node.metric(&series("failed")).await, 0.0);
    fs::remove_file(&keyring).unwrap();
    charts.answers();
    node.poll().await;
    until(async || failure(&node, "foreign").await.contains("`pgp_keyring` cannot be read: No such file")).await;
    assert_eq!(charts.answers(), ["304 /index.yaml"]);
    node.stop().await;
}

#[tokio::test]
async fn a_new_policy_keeps_published_charts_and_reports_it() {
    let ((desk, keyring), home, charts) = (desk(), Home::new(), Charts::start());
    publish(&charts, "shop", "1.0.0", "a: 1");
    let node = home.start(config(&charts, &home, &["shop"], None)).await;
    let first = node.published_of("shop", |_| true).await;
    assert_eq!(count(&charts.answers(), ".prov"), 0);

    let file = home.write_config(&format!(
        "[[repository]]\nname = \"shop\"\nkind = \"helm\"\nurl = {:?}\npoll_interval = \"1h\"\n\
         verify = {{ pgp_keyring = {keyring:?} }}\n[[service]]\nname = \"shop\"\nrepository = \"shop\"\n\
         chart = \"shop\"\nref = \"semver:^1\"\n",
        charts.url()
    ));
    node.running.reload_file(&file).await.unwrap();
    until(async || failure(&node, "shop").await.contains("has no provenance")).await;
    let reason = failure(&node, "shop").await;
    assert!(reason.ends_with("(it was published before, and stays published)"), "{reason}");
    node.stop().await;

    charts.answers();
    let node = home.start(config(&charts, &home, &["shop"], Some(&keyring))).await;
    until(async || failure(&node, "shop").await.contains("has no provenance")).await;
    let answers = charts.answers();
    assert_eq!((count(&answers, ".tgz"), count(&answers, ".tgz.prov")), (0, 1), "{answers:?}");
    assert_eq!(node.published_of("shop", |_| true).await.bytes(), first.bytes());
    publish(&charts, "shop", "1.1.0", "a: 2");
    sign(&desk, "alice", &charts, "shop-1.1.0", &statement(&charts));
    node.poll().await;
    node.published_of("shop", is_version("1.1.0")).await;
    let condition = node.running.condition(&"shop".parse().unwrap()).unwrap().borrow().clone();
    assert_eq!(condition, Condition::Following);
    node.stop().await;
}

#[tokio::test]
async fn a_removed_key_does_not_count_even_while_the_index_cannot_be_read() {
    let ((desk, keyring), home, charts) = (desk(), Home::new(), Charts::start());
    publish(&charts, "shop", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "shop-1.0.0", &statement(&charts));
    let node = home.start(config(&charts, &home, &["shop"], Some(&keyring))).await;
    node.published_of("shop", |_| true).await;
    export(&desk, "mallory", &keyring);
    charts.answer_with("index.yaml", "500");
    node.poll().await;
    // Another service follows the same chart.
    let service = |name: &str| {
        format!("[[service]]\nname = {name:?}\nrepository = \"shop\"\nchart = \"shop\"\nref = \"semver:^1\"\n")
    };
    let file = home.write_config(&format!(
        "[[repository]]\nname = \"shop\"\nkind = \"helm\"\nurl = {:?}\npoll_interval = \"1h\"\n\
         verify = {{ pgp_keyring = {keyring:?} }}\n{}{}",
        charts.url(),
        service("shop"),
        service("too")
    ));
    node.running.reload_file(&file).await.unwrap();
    node.poll().await;
    let condition = node.running.condition(&"too".parse().unwrap()).unwrap().borrow().clone();
    assert!(!matches!(condition, Condition::Following), "{condition:?}");
    fs::remove_file(charts.dir.path().join("index.yaml.status")).unwrap();
    node.poll().await;
    let reason = failure(&node, "too").await;
    assert!(reason.starts_with("[verify] ") && reason.contains("is not in `pgp_keyring`"), "{reason}");
    node.stop().await;
}

#[tokio::test]
async fn without_a_digest_in_the_index_the_signed_one_counts() {
    let ((desk, keyring), home, charts) = (desk(), Home::new(), Charts::start());
    publish(&charts, "shop", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "shop-1.0.0", &statement(&charts));
    let digest = charts.entries.lock().unwrap().last().unwrap().2.clone();
    charts.index("shop", "1.0.0", "");
    publish(&charts, "other", "1.0.0", "a: 1");
    sign(&desk, "alice", &charts, "other-1.0.0", &statement(&charts));
    publish(&charts, "other", "1.0.0", "a: 2");
    charts.index("other", "1.0.0", "");
    let node = home.start(config(&charts, &home, &["shop", "other"], Some(&keyring))).await;
    let published = node.published_of("shop", |_| true).await;
    assert_eq!(published.publication().revision_id.as_str(), format!("helm:1.0.0+sha256:{digest}"));
    let reason = failure(&node, "other").await;
    assert!(reason.starts_with("[fetch] chart `other` 1.0.0 has the SHA-256 digest `"), "{reason}");
    assert!(reason.contains("but its signer states `"), "{reason}");

    // Signed again.
    charts.index(
        "other",
        "1.0.0",
        &Sha256::of(&fs::read(charts.dir.path().join("other-1.0.0.tgz")).unwrap()).to_string(),
    );
    let signed = statement(&charts);
    charts.index("other", "1.0.0", "");
    sign(&desk, "alice", &charts, "other-1.0.0", &signed);
    // Once its back-off ends.
    until(async || {
        node.poll().await;
        node.running.condition(&"other".parse().unwrap()).unwrap().borrow().clone() == Condition::Following
    })
    .await;
    node.published_of("other", |_| true).await;
    node.stop().await;
}

#[tokio::test]
async fn a_provenance_that_cannot_be_fetched_stops_no_other_chart() {
    let ((desk, keyring), home, charts) = (desk(), Home::new(), Charts::start());
    for chart in ["hidden", "limited", "shop"] {
        publish(&charts, chart, "1.0.0", "a: 1");
        sign(&desk, "alice", &charts, &format!("{chart}-1.0.0"), &statement(&charts));
    }
    charts.answer_with("hidden-1.0.0.tgz.prov", "403");
    // The server of the index demands a pause, each time.
    charts.answer_with("limited-1.0.0.tgz.prov", "429");
    let node = home.start(config(&charts, &home, &["limited", "hidden", "shop"], Some(&keyring))).await;
    node.poll().await;
    node.published_of("shop", |_| true).await;
    let expected = "[verify] the provenance (`.prov`) of chart `hidden` 1.0.0 cannot be fetched, or is missing: ";
    until(async || failure(&node, "hidden").await.starts_with(expected)).await;
    until(async || failure(&node, "limited").await.contains("the upstream answered 429")).await;
    node.stop().await;
}
