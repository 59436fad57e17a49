//! Charts of a Helm repository, whose index and archives a test writes.

use crate::helm_repository::{Charts, failure, is_version, publish};
use crate::prelude::*;

#[tokio::test]
async fn a_chart_is_followed_and_what_is_published_is_never_fetched_again() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    publish(&charts, "1.1.0", "a: 2");
    publish(&charts, "2.0.0", "a: 3");
    let config = charts.config(&home, &["shop"]);
    let node = home.start(config.clone()).await;
    let first = node.published_of("shop", |_| true).await;
    let digest = charts.entries.lock().unwrap()[1].2.clone();
    let publication = first.publication();
    assert_eq!(publication.revision_id.as_str(), format!("helm:1.1.0+sha256:{digest}"));
    assert!(is_version("1.1.0")(&first) && publication.commit.is_none());
    assert_eq!(names(&node.tarball(&first).await), ["Chart.yaml", "templates/", "templates/map.yaml"]);
    // After the permit to fetch, the index is requested again.
    let answers = charts.answers();
    assert_eq!(answers.last().unwrap(), "200 /shop-1.1.0.tgz");
    assert!(answers.iter().filter(|answer| answer.ends_with(".tgz")).count() == 1, "{answers:?}");

    node.poll().await;
    assert_eq!(charts.answers(), ["304 /index.yaml"], "a poll without a change");
    charts.write_index("2026-02-02T00:00:00Z");
    node.poll().await;
    assert_eq!(charts.answers(), ["200 /index.yaml"], "the time of an index is no change");
    let unchanged = "weir_origin_polls_total{repository=\"shop\",result=\"unchanged\"}";
    assert_eq!(node.metric(unchanged).await, 2.0);

    publish(&charts, "1.2.0", "a: 4");
    node.poll().await;
    let second = node.published_of("shop", is_version("1.2.0")).await;
    assert_eq!(charts.answers().last().unwrap(), "200 /shop-1.2.0.tgz");
    // Another version with the same files is the same publication.
    publish(&charts, "1.2.1", "a: 4");
    node.poll().await;
    assert_eq!(node.published_of("shop", |_| true).await.publication().digest, second.publication().digest);
    charts.answers();
    node.stop().await;

    let node = home.start(config.clone()).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(charts.answers().last().unwrap(), "200 /shop-1.2.1.tgz", "its revision is not the published one");
    publish(&charts, "1.3.0", "a: 5");
    node.poll().await;
    let third = node.published_of("shop", is_version("1.3.0")).await;
    charts.answers();
    node.stop().await;

    let node = home.start(config.clone()).await;
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(charts.answers(), ["200 /index.yaml"], "a restart downloads nothing that is published");
    assert_eq!(node.published_of("shop", |_| true).await.version(), third.version());
    node.stop().await;

    // Another folder of the published version needs its archive.
    let mut config = config;
    config.services[0].folder = "templates".parse().unwrap();
    let node = home.start(config).await;
    let folder = node.published_of("shop", |now| now.publication().digest != third.publication().digest).await;
    assert_eq!(names(&node.tarball(&folder).await), ["map.yaml"]);
    assert!(charts.answers().contains(&"200 /shop-1.3.0.tgz".to_owned()));
    node.stop().await;
}

#[tokio::test]
async fn one_bad_chart_stops_no_other_service_of_its_repository() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    charts.publish("out", "1.0.0", &[("out/Chart.yaml", b"x"), ("out/../../x", b"x")]);
    charts.publish("bomb", "1.0.0", &[("bomb/zeros", &vec![0; 3 << 20])]);
    charts.publish("large", "1.0.0", &[("large/zeros", &vec![0; 600 << 10])]);
    charts.publish("loose", "1.0.0", &[("Chart.yaml", b"x")]);
    charts.publish("stale", "1.0.0", &[("stale/Chart.yaml", b"x")]);
    let good = charts.entries.lock().unwrap().last().unwrap().2.clone();
    let wrong = "ab".repeat(32);
    charts.index("stale", "1.0.0", &wrong);
    fs::write(charts.dir.path().join("page-1.0.0.tgz"), "<html>Sign in</html>").unwrap();
    charts.index("page", "1.0.0", &wrong);
    charts.index("gone", "1.0.0", &wrong);
    charts.index("later", "2.0.0", &wrong);
    charts.index("busy", "1.0.0", &wrong);
    charts.index("shop", "1.0.0.1", &wrong);
    let bad = ["busy", "out", "bomb", "large", "loose", "stale", "gone", "later", "none", "page"];
    let mut config = charts.config(&home, &[&bad[..], &["shop"]].concat());
    config.repositories[0].redirects = serde_json::from_value(json!(["127.0.0.1"])).unwrap();
    config.upstreams.max_unpacked = bytesize::ByteSize::mib(2);
    config.limits.max_file = bytesize::ByteSize::kib(500);
    let node = home.start(config).await;
    node.published_of("shop", |_| true).await;
    for (service, reason) in [
        ("busy", "[fetch] chart `busy` 1.0.0 cannot be fetched: ".to_owned()),
        ("out", "[fetch] chart `out` 1.0.0 has the member `out/../../x`, which leads out of it".to_owned()),
        ("bomb", "[fetch] chart `bomb` 1.0.0 has the file `bomb/zeros` of 3145728 bytes".to_owned()),
        (
            "large",
            "[fetch] chart `large` 1.0.0 has the file `large/zeros` of 614400 bytes, more than `[limits]".to_owned(),
        ),
        ("loose", "has `Chart.yaml` outside of its folder: package it with `helm package`".to_owned()),
        (
            "stale",
            format!("has the SHA-256 digest `{good}`, but the index says `{wrong}`: publish it again, or repair"),
        ),
        ("gone", "[fetch] chart `gone` 1.0.0 is in the index, but not at its URL: it answered 404".to_owned()),
        ("later", "[resolve] no version of chart `later` in `semver:^1`: 1 version; highest `2.0.0`".to_owned()),
        ("page", "[fetch] chart `page` 1.0.0 is not an archive: the server sent a page (`text/html`): ".to_owned()),
        ("none", "[resolve] the index has no chart `none`".to_owned()),
    ] {
        let shown = failure(&node, service).await;
        assert!(shown.contains(&reason), "{shown} / {reason}");
    }
    assert_eq!(node.metric("weir_origin_index_entries_skipped_total").await, 1.0);
    assert!(node.metric("weir_origin_mirror_bytes{repository=\"shop\"}").await > 0.0);
    let healthy = node.repository(|state| state.applied_polls > 0).await;
    assert!(matches!(healthy.health, Health::Healthy { .. }), "{healthy:?}");
    let left_out = node.status().await["repositories"][0]["left_out_refs"].clone();
    let reason = "chart `shop` `1.0.0.1` is not a version as helm reads it: a lower version is followed";
    assert_eq!(left_out, json!([{ "ref": "chart `shop` `1.0.0.1`", "reason": reason }]));
    assert_eq!(node.metric("weir_origin_refs_left_out{repository=\"shop\"}").await, 1.0);
    charts.answers();
    node.poll().await;
    // Those that may be mended without another index are downloaded again after a back-off of seconds.
    let again = |answer: &String| {
        answer.ends_with(".tgz") && !["/stale", "/gone", "/page"].iter().any(|each| answer.contains(each))
    };
    let answers = charts.answers();
    assert!(!answers.iter().any(again) && answers[0] == "304 /index.yaml", "{answers:?}");

    charts.index("stale", "1.0.0", &good);
    publish(&charts, "1.0.1", "a: 2");
    node.poll().await;
    node.published_of("stale", |_| true).await;
    node.published_of("shop", is_version("1.0.1")).await;
    assert_eq!(node.metric("weir_origin_archives_fetched_total{result=\"fetched\"}").await, 3.0);
    node.stop().await;
}

#[tokio::test]
async fn a_pause_that_the_server_demands_ends_the_poll_and_what_came_before_is_published() {
    let (home, charts) = (Home::new(), Charts::start());
    for chart in ["a", "b", "c"] {
        charts.publish(chart, "1.0.0", &[(&format!("{chart}/values.yaml"), b"a: 1")]);
    }
    charts.answer_with("b-1.0.0.tgz", "429");
    let node = home.start(charts.config(&home, &["a", "b", "c"])).await;
    node.published_of("a", |_| true).await;
    // The poll that published something is no failure, but one before the pause has passed is, without a request.
    node.poll().await;
    node.published_of("c", |_| true).await;
    let answers = charts.answers();
    assert_eq!(answers[..3], ["200 /index.yaml", "200 /a-1.0.0.tgz", "429 /b-1.0.0.tgz"], "{answers:?}");
    assert_eq!(answers[3..5], ["304 /index.yaml", "200 /c-1.0.0.tgz"], "what failed is the last of the next poll");
    node.stop().await;
}

#[tokio::test]
async fn a_lost_object_is_rebuilt_of_an_archive_that_is_fetched_for_it() {
    let (home, charts) = (Home::new(), Charts::start());
    publish(&charts, "1.0.0", "a: 1");
    let config = charts.config(&home, &["shop"]);
    let node = home.start(config.clone()).await;
    let published = node.published_of("shop", |_| true).await;
    node.stop().await;
    fs::remove_file(home.object(&object_of(&published))).unwrap();
    let node = home.start(config).await;
    node.repository(|state| state.applied_polls > 0).await;
    charts.answers();
    until(async || {
        let answer = node.try_request(Method::GET, &object_path(&object_of(&published)), &[]).await;
        answer.is_some_and(|answer| answer.status == StatusCode::OK)
    })
    .await;
    let fetched = || charts.answers().into_iter().filter(|answer| answer.ends_with(".tgz")).count();
    assert_eq!(fetched(), 1, "once for all requests");

    // An unpacked archive that is damaged is fetched again.
    let mirrors = fs::read_dir(home.file("data/mirrors/shop")).unwrap();
    for spool in mirrors.flat_map(|folder| fs::read_dir(folder.unwrap().path()).unwrap()) {
        fs::write(spool.unwrap().path(), "damaged").unwrap();
    }
    fs::remove_file(home.object(&object_of(&published))).unwrap();
    until(async || {
        let answer = node.try_request(Method::GET, &object_path(&object_of(&published)), &[]).await;
        answer.is_some_and(|answer| answer.status == StatusCode::OK)
    })
    .await;
    assert_eq!(fetched(), 1);
    assert_eq!(node.published_of("shop", |_| true).await.bytes(), published.bytes());
    node.stop().await;
}
