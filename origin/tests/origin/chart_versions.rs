//! What operators and edges see of charts: versions, pins, webhooks, credentials, outages and the cost of a change.

use crate::helm_repository::{Charts, is_version, publish};
use crate::prelude::*;
use crate::webhooks::{SECRET, hex_hmac, send};

#[tokio::test]
async fn versions_of_a_chart_are_announced_compared_and_rolled_back() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    fs::write(home.file("webhook"), SECRET).unwrap();
    let mut config = empty_config(&home);
    let of = charts.config(&home, &["shop"]);
    (config.repositories, config.services) = (of.repositories, of.services);
    config.repositories[0].webhook_secret_files = vec![home.file("webhook")];
    let node = home.start(config).await;
    let old = node.published_of("shop", |_| true).await;

    publish(&charts, "1.1.0", "a: 2");
    let body = r#"{"anything": 1}"#.to_owned();
    let signature = format!("sha256={}", hex_hmac(SECRET, &body));
    let (status, answer) = send(&home, &node, "generic/shop", &[("X-Signature", &signature)], body).await;
    assert_eq!((status, &answer["result"]), (202, &"triggered".into()));
    let new = node.published_of("shop", is_version("1.1.0")).await;

    let operator = Operator::of(&home, &node);
    let (from, to) = (old.publication().digest, new.publication().digest);
    let history = operator.get("/v1/services/shop/history").await.body;
    let revisions = [&new, &old].map(|one| json!(one.publication().revision_id.as_str()));
    for (line, (version, revision)) in ["1.1.0", "1.0.0"].iter().zip(&revisions).enumerate() {
        let line = &history["publications"][line];
        assert_eq!((&line["version"], &line["revision_id"]), (&json!(version), revision), "{history}");
        assert_eq!(line["commit"], Value::Null, "{history}");
    }
    let diff = operator.get(&format!("/v1/services/shop/diff?from={from}&to={to}")).await.body;
    assert_eq!(
        (&diff["changed"], &diff["differences"][0]["path"]),
        (&json!(1), &json!("templates/map.yaml")),
        "{diff}"
    );

    let order = json!({ "digest": from, "generation": new.publication().generation });
    let back = operator.send(Method::POST, "/v1/services/shop/rollback", &[], Some(order)).await;
    assert_eq!((back.status.as_u16(), &back.body["status"]["condition"]), (200, &json!("pinned")), "{back:?}");
    assert_eq!(back.body["status"]["published"]["version"], "1.0.0");
    publish(&charts, "1.2.0", "a: 3");
    charts.answers();
    node.poll().await;
    assert_eq!(charts.answers(), ["200 /index.yaml"], "nothing is built of the new version");
    let shown = operator.get("/v1/services/shop").await.body;
    let without_pin = shown["status"]["pinned"].to_string();
    assert!(without_pin.contains("helm:1.2.0+sha256:"), "{shown}");
    assert_eq!(operator.delete("/v1/services/shop/pin").await.status, 200);
    node.published_of("shop", is_version("1.2.0")).await;
    node.stop().await;
}

#[tokio::test]
async fn a_private_repository_gets_the_token_and_the_certificate() {
    let home = Home::new();
    let charts = Charts::start_private(&home.file(""));
    publish(&charts, "1.0.0", "a: 1");
    fs::write(home.file("token"), "known\n").unwrap();
    fs::write(home.file("old"), "old\n").unwrap();
    let mut config = charts.config(&home, &["shop"]);
    let one = &mut config.repositories[0];
    one.ca = Some(home.file("ca.pem"));
    one.client_certificate = Some(home.file("edge-client.pem"));
    one.client_key = Some(home.file("edge-client.key"));
    one.token_file = Some(home.file("token"));
    let wrong: [(fn(&mut RepositoryConfig), _); 3] = [
        (|one| one.ca = None, "[connect] the upstream cannot be trusted"),
        (|one| (one.client_certificate, one.client_key) = (None, None), "client certificate"),
        (|one| one.token_file.as_mut().unwrap().set_file_name("old"), "[authenticate] the upstream denies access: "),
    ];
    for (change, reason) in wrong {
        let mut config = config.clone();
        change(&mut config.repositories[0]);
        let node = home.start(config).await;
        let failed = node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await.health;
        let Health::Unhealthy { failure, .. } = failed else { unreachable!() };
        let shown = format!("[{}] {}", failure.step, failure.reason);
        assert!(shown.contains(reason), "{shown} / {reason}");
        node.stop().await;
    }
    let node = home.start(config).await;
    node.published_of("shop", is_version("1.0.0")).await;
    node.stop().await;
}

#[tokio::test]
async fn a_chart_shows_the_failed_poll_after_a_start_until_it_is_looked_up() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    let config = charts.config(&home, &["shop"]);
    let node = home.start(config.clone()).await;
    let published = node.published_of("shop", |_| true).await;
    node.stop().await;
    charts.is_down.store(true, Ordering::Relaxed);
    let node = home.start(config.clone()).await;
    node.repository(|state| matches!(state.health, Health::Unhealthy { .. })).await;
    let shown = node.status().await["services"][0].clone();
    let Value::String(reason) = &shown["failure"]["reason"] else { panic!("{shown}") };
    assert_eq!((&shown["failure"]["of"], &shown["failure"]["step"]), (&json!("repository"), &json!("list")));
    assert!(reason.starts_with("listing the upstream's versions failed: "), "{reason}");
    assert_eq!(node.published_of("shop", |_| true).await.bytes(), published.bytes(), "its publication stays");
    charts.is_down.store(false, Ordering::Relaxed);
    assert!(node.running.trigger_poll(&repository()));
    let mut condition = node.running.condition(&"shop".parse().unwrap()).unwrap();
    in_time(condition.wait_for(|condition| *condition == Condition::Following)).await.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn the_archives_of_a_former_url_are_removed() {
    let home = Home::new();
    for (url, setting) in ["a: 1", "a: 2"].iter().enumerate() {
        let charts = Charts::start();
        publish(&charts, &format!("1.{url}.0"), setting);
        let node = home.start(charts.config(&home, &["shop"])).await;
        node.published_of("shop", is_version(&format!("1.{url}.0"))).await;
        let folders = || fs::read_dir(home.file("data/mirrors/shop")).unwrap().count();
        until(async || folders() == 1).await;
        node.stop().await;
    }
}

/// What edges and agents fetch of a version is named by its contents: of equal files they fetch the same.
#[tokio::test]
async fn a_change_of_one_file_costs_the_same_as_in_git() {
    let (home, charts, upstream) = (Home::new(), Charts::start(), Upstream::empty());
    let text = |file: usize, version: usize| -> String {
        let line = |line| format!("{}\n", ObjectDigest::of(format!("{file} {version} {line}").as_bytes()).hex());
        (0..150).map(line).collect()
    };
    let publish = |version: usize| {
        let mut files = vec![("Chart.yaml".to_owned(), format!("name: shop\nversion: 1.{version}.0\n"))];
        files.extend(
            (0..300).map(|file| (format!("templates/{file:03}.yaml"), text(file, if file == 7 { version } else { 0 }))),
        );
        let members: Vec<_> =
            files.iter().map(|(path, contents)| (format!("shop/{path}"), contents.as_bytes())).collect();
        let members: Vec<_> = members.iter().map(|(path, contents)| (path.as_str(), *contents)).collect();
        charts.publish("shop", &format!("1.{version}.0"), &members);
        let work = upstream.work().join("deploy");
        fs::create_dir_all(work.join("templates")).unwrap();
        files.iter().for_each(|(path, contents)| fs::write(work.join(path), contents).unwrap());
        upstream.push("commit", version.to_string().as_bytes());
    };
    publish(0);
    let mut config = charts.config(&home, &["shop"]);
    let git = home.config(&upstream.url());
    let mut one = git.repositories[0].clone();
    one.name = "git".parse().unwrap();
    config.repositories.push(one);
    config.services.push(ServiceConfig { repository: Some("git".parse().unwrap()), ..git.services[0].clone() });
    let node = home.start(config).await;
    let of = async |is: &dyn Fn(&Descriptor) -> bool| [node.published_of("shop", is).await, node.published(is).await];
    let before = of(&|_| true).await;
    publish(1);
    assert!(node.running.trigger_poll(&"git".parse().unwrap()));
    node.poll().await;
    let delta =
        |of: &Descriptor| of.representations().iter().find(|one| one.encoding == Encoding::Dcz).map(|one| one.size);
    let after = of(&|of| delta(of).is_some()).await;
    let mut costs = Vec::new();
    for [chart, git] in [&before, &after] {
        assert_eq!(chart.publication().digest, git.publication().digest, "the same files");
        assert_eq!(chart.representations(), git.representations(), "the same frames and deltas");
    }
    for (old, new) in before.iter().zip(&after) {
        let frames = async |of: &Descriptor| {
            let manifest = node.object(&of.publication().repository, &object_of(of)).await;
            Manifest::parse(&manifest).unwrap().frames().to_vec()
        };
        let (old, frames) = (frames(old).await, frames(new).await);
        let fetched: u64 = frames.iter().filter(|frame| !old.contains(frame)).map(|frame| frame.size).sum();
        let whole = new.representation(Encoding::Zstd).unwrap().size;
        let delta = delta(new).unwrap();
        assert!(fetched * 2 < whole && delta * 20 < whole, "{fetched} and {delta} of {whole} bytes");
        costs.push((fetched, delta, whole));
    }
    println!("of an edge, of an agent, whole: {costs:?} bytes");
    assert_eq!(costs[0], costs[1]);
    node.stop().await;
}
