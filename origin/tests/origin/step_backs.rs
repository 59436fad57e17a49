//! Upstreams of which one copy lags, and refs that really move back.

use crate::composed::has_part;
use crate::helm_repository::{Charts, publish};
use crate::prelude::*;
use crate::registry_server::RegistryServer;
use crate::webhooks::{SECRET, hex_hmac, send};
use crate::{artifacts, composed};

const NAME: &str = "acme/shop";

/// An upstream with an old and a new version, which answers as the copy that has the one or the other.
enum Lagging {
    Git(Upstream, [String; 2]),
    Helm(Charts),
    Oci(RegistryServer),
}

impl Lagging {
    fn all() -> Vec<Self> {
        let upstream = Upstream::small();
        let old = upstream.git(&["rev-parse", "HEAD"]);
        let new = upstream.push("deploy/app.yaml", b"replicas: 2\n");
        let charts = Charts::start();
        publish(&charts, "1.0.0", "a: 1");
        publish(&charts, "1.1.0", "a: 2");
        let registry = RegistryServer::start(None);
        registry.push_archive(NAME, "1.0.0", &[("map.yaml", "a: 1")]);
        vec![Self::Git(upstream, [old, new]), Self::Helm(charts), Self::Oci(registry)]
    }

    fn answers_as(&self, is_new: bool) {
        match self {
            Self::Git(upstream, commits) => move_to(upstream, &commits[usize::from(is_new)]),
            Self::Helm(charts) => {
                let mut all = charts.entries.lock().unwrap();
                let whole = all.clone();
                all.truncate(if is_new { 2 } else { 1 });
                drop(all);
                charts.write_index("2026-01-01T00:00:00Z");
                *charts.entries.lock().unwrap() = whole;
            }
            Self::Oci(registry) if is_new => {
                registry.push_archive(NAME, "1.1.0", &[("map.yaml", "a: 2")]);
            }
            Self::Oci(registry) => registry.untag(NAME, "1.1.0"),
        }
    }

    /// One service, `shop-prod`, of which operators are served.
    fn config(&self, home: &Home) -> Config {
        let mut of = match self {
            Self::Git(upstream, _) => home.config(&upstream.url()),
            Self::Helm(charts) => charts.config(home, &["shop"]),
            Self::Oci(registry) => {
                let services = [("shop-prod", "semver:^1")];
                artifacts::config(home, &registry.url(NAME), &json!({ "insecure": true }), &services)
            }
        };
        of.services[0].name = service();
        let mut config = empty_config(home);
        (config.repositories, config.services) = (of.repositories, of.services);
        config
    }
}

fn move_to(upstream: &Upstream, commit: &str) {
    upstream.git(&["push", "--quiet", "--force", "origin", &format!("{commit}:refs/heads/main")]);
}

async fn current(node: &Node) -> String {
    node.descriptor().await.publication().revision_id.to_string()
}

async fn history(operator: &Operator) -> Vec<String> {
    let history = operator.get("/v1/services/shop-prod/history").await.body;
    let why = history["publications"].as_array().unwrap().iter().map(|line| line["why"].as_str().unwrap().to_owned());
    why.collect()
}

/// Two commits of one upstream, of which the service is at the newer one; and an operator.
async fn of_two_commits(home: &Home, upstream: &Upstream, of: Config) -> (Node, [String; 2]) {
    let old = upstream.git(&["rev-parse", "HEAD"]);
    let mut config = empty_config(home);
    (config.repositories, config.services) = (of.repositories, of.services);
    let node = home.start(config).await;
    node.published(|_| true).await;
    let new = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    node.poll().await;
    (node, [old, new])
}

/// What a reader read after each poll, of an upstream of which every second answer is from an older copy.
async fn read(lagging: &Lagging, step_back_after: &str) -> Vec<&'static str> {
    let home = Home::new();
    lagging.answers_as(false);
    let mut config = lagging.config(&home);
    config.repositories[0].step_back_after = humantime::parse_duration(step_back_after).unwrap();
    let node = home.start(config).await;
    node.published(|_| true).await;
    node.repository(|state| state.applied_polls > 0).await;
    let (old, mut read) = (current(&node).await, Vec::new());
    for is_new in [true, false, true, false, true, false] {
        lagging.answers_as(is_new);
        node.poll().await;
        read.push(if current(&node).await == old { "old" } else { "new" });
    }
    let status = node.status().await["services"][0].clone();
    if step_back_after != "0s" {
        assert_eq!(status["stepping_back"]["revision_id"], *old, "{status}");
        assert_eq!((&status["condition"], &status["failure"]), (&json!("following"), &Value::Null), "{status}");
        assert_ne!(status["seen"]["revision_id"], *old, "no event says what is held back: {status}");
        assert_eq!(node.metric("weir_origin_step_backs_total{repository=\"shop\",result=\"held\"}").await, 3.0);
        // The next answer is of a copy that is up to date.
        lagging.answers_as(true);
        node.poll().await;
        assert_eq!(node.status().await["services"][0]["stepping_back"], Value::Null);
    } else {
        assert_eq!(status["stepping_back"], Value::Null);
    }
    node.stop().await;
    read
}

#[tokio::test]
async fn a_copy_that_lags_takes_no_reader_back() {
    for lagging in Lagging::all() {
        assert_eq!(Box::pin(read(&lagging, "0s")).await, ["new", "old", "new", "old", "new", "old"]);
        assert_eq!(Box::pin(read(&lagging, "5m")).await, ["new", "new", "new", "new", "new", "new"]);
    }
}

#[tokio::test]
async fn what_every_poll_finds_is_published_and_a_restart_only_delays_it() {
    for lagging in Lagging::all() {
        let home = Home::new();
        lagging.answers_as(false);
        let mut config = lagging.config(&home);
        let node = home.start(config.clone()).await;
        node.published(|_| true).await;
        let old = current(&node).await;
        lagging.answers_as(true);
        node.poll().await;
        node.published(|now| now.publication().revision_id.as_str() != old).await;
        lagging.answers_as(false);
        node.poll().await;
        assert_eq!(node.status().await["services"][0]["stepping_back"]["revision_id"], *old);
        node.stop().await;

        let node = home.start(config.clone()).await;
        node.repository(|state| state.applied_polls > 0).await;
        let status = node.status().await["services"][0].clone();
        assert_eq!(status["stepping_back"]["revision_id"], *old);
        assert_eq!(status["condition"], "following", "{status}");
        assert_ne!(current(&node).await, old);
        node.stop().await;

        config.repositories[0].poll_interval = Duration::from_secs(1);
        config.repositories[0].step_back_after = Duration::from_millis(1);
        let node = home.start(config).await;
        node.published(|now| now.publication().revision_id.as_str() == old).await;
        assert_eq!(history(&Operator::of(&home, &node)).await, ["stepped-back", "followed", "followed"]);
        node.stop().await;
    }
}

#[tokio::test]
async fn what_an_operator_asks_for_is_not_held_back() {
    for lagging in Lagging::all() {
        let home = Home::new();
        lagging.answers_as(true);
        let node = home.start(lagging.config(&home)).await;
        let new = node.published(|_| true).await;
        let operator = Operator::of(&home, &node);
        lagging.answers_as(false);
        node.poll().await;
        assert_eq!(current(&node).await, new.publication().revision_id.as_str());
        assert_eq!(operator.post("/v1/repositories/shop/refresh").await.status, 202);
        let old = node.published(|now| now.publication().revision_id != new.publication().revision_id).await;

        // Once: the next answer is another one's.
        lagging.answers_as(true);
        node.poll().await;
        assert_eq!(current(&node).await, old.publication().revision_id.as_str(), "it was followed before");
        assert_eq!(history(&operator).await, ["refreshed", "followed"]);

        // Until the end of a pin, the ref may move wherever it wants to.
        assert_eq!(operator.send(Method::PUT, "/v1/services/shop-prod/pin", &[], None).await.status, 200);
        node.poll().await;
        assert_eq!(operator.delete("/v1/services/shop-prod/pin").await.status, 200);
        node.published(|now| now.publication().digest == new.publication().digest).await;
        assert_eq!(history(&operator).await, ["followed", "refreshed", "followed"]);
        node.stop().await;
    }
}

/// The bytes of a version are replaced twice between two polls, and a copy lags by one.
#[tokio::test]
async fn an_older_index_is_a_step_back_whatever_it_has() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    let mut config = charts.config(&home, &["shop"]);
    config.services[0].name = service();
    let node = home.start(config).await;
    node.published(|_| true).await;
    publish(&charts, "1.0.0", "a: 3");
    charts.write_index("2026-03-03T00:00:00+01:00");
    node.poll().await;
    let new = node.descriptor().await;
    publish(&charts, "1.0.0", "a: 2");
    for (made_at, stays) in [("2026-03-02T22:59:59Z", true), ("2026-03-02T23:00:00Z", false)] {
        charts.write_index(made_at);
        node.poll().await;
        let (now, status) = (node.descriptor().await, node.status().await["services"][0]["stepping_back"].clone());
        assert_eq!(now.version() == new.version(), stays, "{status}");
        assert_eq!(status["reason"] == "its index is older than the last one", stays, "{status}");
    }
    node.stop().await;
}

#[tokio::test]
async fn a_version_that_cannot_be_read_ends_the_time_of_an_older_one() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    publish(&charts, "1.1.0", "a: 2");
    let mut config = charts.config(&home, &["shop"]);
    config.services[0].name = service();
    let node = home.start(config).await;
    let new = node.published(|_| true).await;
    charts.entries.lock().unwrap().truncate(1);
    for (bad, condition) in [(false, "following"), (true, "unhealthy"), (false, "following")] {
        if bad {
            charts.index("shop", "1.2.0", &"0".repeat(64));
        } else {
            charts.entries.lock().unwrap().truncate(1);
            charts.write_index("2026-01-01T00:00:00Z");
        }
        node.poll().await;
        let status = node.status().await["services"][0].clone();
        assert_eq!((&status["condition"], status["stepping_back"].is_null()), (&json!(condition), bad), "{status}");
    }
    assert_eq!(node.descriptor().await.version(), new.version());
    node.stop().await;
}

#[tokio::test]
async fn a_composed_service_steps_back_as_its_parts_do() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    let upstream = Upstream::small();
    let config = composed::config(&home, &charts, &upstream);
    let (node, [old, new]) = Box::pin(of_two_commits(&home, &upstream, config)).await;
    let (old_id, new_id) = (format!("sha1:{old}"), format!("sha1:{new}"));
    let second = node.published(has_part("a/values", &new_id)).await;
    // The other part moves on, so the two old ones together are nothing that was published before.
    publish(&charts, "1.1.0", "a: 2");
    assert!(node.running.trigger_poll(&"charts".parse().unwrap()));
    let third = node.published(|now| now.version() > second.version()).await;
    move_to(&upstream, &old);
    node.poll().await;
    until(async || !node.status().await["services"][0]["stepping_back"].is_null()).await;
    let waits = node.status().await["services"][0]["stepping_back"]["reason"].clone();
    assert_eq!(waits, json!(format!("part `a/values`: commit {old} is an ancestor of {new}")));
    assert_eq!(node.descriptor().await.version(), third.version());
    let operator = Operator::of(&home, &node);
    assert_eq!(operator.post("/v1/repositories/shop/refresh").await.status, 202);
    node.published(has_part("a/values", &old_id)).await;
    assert_eq!(history(&operator).await, ["refreshed", "followed", "followed", "followed"]);
    node.stop().await;
}

#[tokio::test]
async fn another_definition_is_followed_at_once() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let config = home.config(&upstream.url());
    let (node, [old, new]) = Box::pin(of_two_commits(&home, &upstream, config)).await;
    node.published(|now| commit_of(now) == new).await;
    upstream.git(&["push", "--quiet", "origin", &format!("{old}:refs/heads/stable")]);
    node.poll().await;
    let more = format!(
        "operator_listen = \"127.0.0.1:0\"\n[[repository]]\nname = \"shop\"\nurl = {:?}\npoll_interval = \"1h\"\n\
         [[service]]\nname = \"shop-prod\"\nrepository = \"shop\"\nref = \"stable\"\nfolder = \"deploy\"\n",
        upstream.url()
    );
    node.running.reload_file(&home.write_config(&more)).await.unwrap();
    node.published(|now| commit_of(now) == old).await;
    assert_eq!(history(&Operator::of(&home, &node)).await, ["followed", "followed", "followed"]);
    node.stop().await;
}

#[tokio::test]
async fn a_webhook_that_names_the_revision_publishes_it_once() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let first = upstream.git(&["rev-parse", "HEAD"]);
    fs::write(home.file("webhook"), SECRET).unwrap();
    let mut config = empty_config(&home);
    let of = home.config(&upstream.url());
    (config.repositories, config.services) = (of.repositories, of.services);
    config.repositories[0].webhook_secret_files = vec![home.file("webhook")];
    let node = home.start(config).await;
    node.published(|_| true).await;
    // Between two polls, so that the origin has not seen it.
    let unseen = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    let second = upstream.push("deploy/app.yaml", b"replicas: 3\n");
    node.poll().await;
    let is_at = |commit: &str| {
        let commit = commit.to_owned();
        move |descriptor: &Descriptor| commit_of(descriptor) == commit
    };
    node.published(is_at(&second)).await;
    let push = async |before: &str, after: &str| {
        move_to(&upstream, after);
        let body = format!(r#"{{"ref": "refs/heads/main", "before": "{before}", "after": "{after}"}}"#);
        let signature = format!("sha256={}", hex_hmac(SECRET, &body));
        let headers = [("X-GitHub-Event", "push"), ("X-Hub-Signature-256", signature.as_str())];
        assert_eq!(send(&home, &node, "github/shop", &headers, body).await.0, 202);
    };
    move_to(&upstream, &unseen);
    node.poll().await;
    let status = node.status().await["services"][0]["stepping_back"].clone();
    assert_eq!(status["reason"], json!(format!("commit {unseen} is an ancestor of {second}")), "{status}");
    push(&second, &first).await;
    node.published(is_at(&first)).await;
    move_to(&upstream, &second);
    node.poll().await;
    push(&second, &second).await;
    node.published(is_at(&second)).await;
    // A copy that lags answers with what an earlier delivery named.
    move_to(&upstream, &first);
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), second);

    // Another history is no step back; the end of the one before it is, from then on.
    upstream.git(&["checkout", "--quiet", "--orphan", "anew"]);
    let forced = upstream.push("deploy/app.yaml", b"replicas: 4\n");
    move_to(&upstream, &forced);
    node.poll().await;
    node.published(is_at(&forced)).await;
    move_to(&upstream, &second);
    node.poll().await;
    assert_eq!(commit_of(&node.descriptor().await), forced);
    let operator = Operator::of(&home, &node);
    let expected = ["followed", "named-by-webhook", "named-by-webhook", "followed", "followed"];
    assert_eq!(history(&operator).await, expected);

    node.stop().await;
}
