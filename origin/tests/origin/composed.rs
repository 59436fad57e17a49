//! Services that are composed of several sources.

use weir_origin::versions::ChangeRequest;
use weir_protocol::part::{self, Part};

use crate::helm_repository::{Charts, failure, publish};
use crate::prelude::*;

/// A chart of the repository `charts`, which publishes, and the folder `deploy` of the Git repository `shop`.
pub(crate) fn config(home: &Home, charts: &Charts, upstream: &Upstream) -> Config {
    let mut config = home.config(&upstream.url());
    let mut of_charts = charts.config(home, &[]).repositories.remove(0);
    of_charts.name = "charts".parse().unwrap();
    config.repositories.push(of_charts);
    let service = json!({ "name": "shop-prod", "parts": [
        { "repository": "charts", "chart": "shop", "ref": "semver:^1", "to": "chart" },
        { "repository": "shop", "ref": "main", "folder": "deploy", "to": "a/values" },
    ]});
    config.services = vec![serde_json::from_value(service).unwrap()];
    config
}

/// A service is published with this revision of a part.
pub(crate) fn has_part(to: &str, revision_id: &str) -> impl Fn(&Descriptor) -> bool {
    let (to, revision_id) = (to.to_owned(), revision_id.to_owned());
    move |descriptor| {
        let mut parts = descriptor.publication().parts.iter();
        parts.any(|part| part.to == to && part.revision_id.as_str() == revision_id)
    }
}

fn archives(charts: &Charts) -> usize {
    charts.answers().iter().filter(|answer| answer.ends_with(".tgz")).count()
}

#[tokio::test]
async fn a_chart_and_values_are_published_together_and_each_change_costs_its_own_source_alone() {
    let (home, charts, upstream) = (Home::new(), Charts::start(), Upstream::small());
    publish(&charts, "1.0.0", "a: 1");
    let node = home.start(config(&home, &charts, &upstream)).await;
    let first = node.published(|_| true).await;
    let publication = first.publication();
    let head = format!("sha1:{}", upstream.git(&["rev-parse", "HEAD"]));
    let digest = charts.entries.lock().unwrap()[0].2.clone();
    let of = |to: &str, repository: &str, revision: &str| {
        Part::of_repository(to.to_owned(), repository.parse().unwrap(), revision.parse().unwrap())
    };
    let chart = of("chart", "charts", &format!("helm:1.0.0+sha256:{digest}"));
    assert_eq!(publication.parts, [of("a/values", "shop", &head), chart.clone()], "in the order of the tarball");
    assert_eq!(publication.revision_id, part::revision_of(&publication.parts));
    assert_eq!((publication.repository.as_str(), &publication.commit, &publication.version), ("charts", &None, &None));
    assert_eq!(first.followed_ref(), "parts:a/values=main,chart=shop@semver:^1");
    let expected = [
        "a/",
        "a/values/",
        "a/values/app.yaml",
        "chart/",
        "chart/Chart.yaml",
        "chart/templates/",
        "chart/templates/map.yaml",
    ];
    assert_eq!(names(&node.tarball(&first).await), expected);
    node.repository(|state| state.applied_polls > 0).await;

    // No poll of the chart's repository is due for an hour: the values alone are read, and published at once.
    charts.answers();
    let head = format!("sha1:{}", upstream.push("deploy/app.yaml", b"replicas: 2\n"));
    node.poll().await;
    let second = node.published(has_part("a/values", &head)).await;
    assert!(second.publication().generation > publication.generation);
    assert_eq!((&second.publication().parts[1], charts.answers().len()), (&chart, 0));
    let status = node.status().await["services"][0].clone();
    assert_eq!((&status["condition"], &status["ref"]), (&json!("following"), &Value::Null), "{status}");
    assert_eq!(status["published"]["parts"][0], json!({ "to": "a/values", "repository": "shop", "revision_id": head }));
    assert_eq!(status["parts"][1]["to"], "a/values");

    // One upstream is down: the other part goes on, from the copy that is here.
    charts.is_down.store(true, Ordering::Relaxed);
    assert!(node.running.trigger_poll(&"charts".parse().unwrap()));
    let mut of_charts = node.running.repository(&"charts".parse().unwrap()).unwrap();
    in_time(of_charts.wait_for(|state| matches!(state.health, Health::Unhealthy { .. }))).await.unwrap();
    let head = format!("sha1:{}", upstream.push("deploy/app.yaml", b"replicas: 3\n"));
    node.poll().await;
    let third = node.published(has_part("a/values", &head)).await;
    let failure = node.status().await["services"][0]["failure"].clone();
    assert_eq!((&failure["of"], &failure["repository"]), (&json!("repository"), &json!("charts")), "{failure}");

    // A rollback by digest, and the history, name the parts.
    let change = ChangeRequest::default();
    let versions = node.running.versions();
    versions.roll_back(&service(), &publication.digest, change.clone()).await.unwrap();
    let back = node.published(|now| now.publication().digest == publication.digest).await;
    assert_eq!(back.publication().parts, publication.parts);
    let page = versions.history(&service(), None, 9).await.unwrap().publications;
    let parts: Vec<_> = page.iter().map(|listed| listed.entry.parts.clone()).collect();
    let of = |descriptor: &Descriptor| descriptor.publication().parts.clone();
    assert_eq!(parts, [of(&back), of(&third), of(&second), of(&first)]);
    versions.unpin(&service(), change).await.unwrap();
    let on = node.published(has_part("a/values", &head)).await;
    charts.is_down.store(false, Ordering::Relaxed);
    node.stop().await;

    // A restart downloads nothing that is published.
    charts.answers();
    let node = home.start(config(&home, &charts, &upstream)).await;
    let charts_of = |node: &Node| node.running.repository(&"charts".parse().unwrap()).unwrap();
    in_time(charts_of(&node).wait_for(|state| state.applied_polls > 0)).await.unwrap();
    node.repository(|state| state.applied_polls > 0).await;
    let mut condition = node.running.condition(&service()).unwrap();
    in_time(condition.wait_for(|now| *now == Condition::Following)).await.unwrap();
    assert_eq!(
        (charts.answers(), node.descriptor().await.version()),
        (vec!["200 /index.yaml".to_owned()], on.version())
    );
    // Now the values need a build, which needs the chart: it is fetched once.
    let head = format!("sha1:{}", upstream.push("deploy/app.yaml", b"replicas: 4\n"));
    node.poll().await;
    let fourth = node.published(has_part("a/values", &head)).await;
    assert_eq!(archives(&charts), 1);
    // An object of it that is lost is rebuilt from the parts.
    fs::remove_file(home.data_dir().join("objects/charts/public").join(object_of(&fourth).hex())).unwrap();
    until(async || {
        let path = object_path(&object_of(&fourth)).replace("/shop/", "/charts/");
        node.try_request(Method::GET, &path, &[]).await.is_some_and(|answer| answer.status == StatusCode::OK)
    })
    .await;
    // A new version of the chart is published by its own poll.
    publish(&charts, "1.1.0", "a: 2");
    assert!(node.running.trigger_poll(&"charts".parse().unwrap()));
    let fifth = node.published(|now| now.publication().digest != fourth.publication().digest).await;
    assert_eq!(fifth.publication().parts[0], fourth.publication().parts[0]);
    assert!(fifth.publication().parts[1].revision_id.as_str().starts_with("helm:1.1.0+sha256:"));

    // A part that cannot be read is named, and the last publication stays.
    upstream.git(&["rm", "--quiet", "-r", "deploy"]);
    upstream.push("docs/x", b"x");
    node.poll().await;
    let reason = crate::helm_repository::failure(&node, "shop-prod").await;
    assert_eq!(reason, "[select] part `a/values` (repository `shop`): the revision has no folder `deploy`");
    assert_eq!(node.descriptor().await.bytes(), fifth.bytes());
    node.stop().await;
}

#[tokio::test]
async fn an_archive_that_a_build_lacks_is_fetched_before_the_next_poll_of_its_repository() {
    let (home, charts, upstream) = (Home::new(), Charts::start(), Upstream::small());
    publish(&charts, "1.0.0", "a: 1");
    let mut config = config(&home, &charts, &upstream);
    config.services[0].parts.reverse();
    let node = home.start(config.clone()).await;
    assert_eq!(node.published(|_| true).await.publication().repository.as_str(), "shop", "that of the first part");
    node.stop().await;

    let node = home.start(config.clone()).await;
    let mut of_charts = node.running.repository(&"charts".parse().unwrap()).unwrap();
    in_time(of_charts.wait_for(|state| state.applied_polls > 0)).await.unwrap();
    node.repository(|state| state.applied_polls > 0).await;
    assert_eq!(archives(&charts), 1, "before the restart");
    let mut condition = node.running.condition(&service()).unwrap();
    let was_unhealthy = tokio::spawn(async move {
        // It ends with the node.
        condition.wait_for(|now| matches!(now, Condition::Unhealthy { .. })).await.is_ok()
    });
    let head = format!("sha1:{}", upstream.push("deploy/app.yaml", b"replicas: 2\n"));
    node.poll().await;
    node.published(has_part("a/values", &head)).await;
    assert_eq!(archives(&charts), 1);
    assert!(!was_unhealthy.is_finished(), "the archive was on its way");
    was_unhealthy.abort();
    node.stop().await;

    // Nor is a failure hidden, once the poll for the archive has failed.
    let node = home.start(config).await;
    let mut of_charts = node.running.repository(&"charts".parse().unwrap()).unwrap();
    in_time(of_charts.wait_for(|state| state.applied_polls > 0)).await.unwrap();
    node.repository(|state| state.applied_polls > 0).await;
    charts.is_down.store(true, Ordering::Relaxed);
    upstream.push("deploy/app.yaml", b"replicas: 3\n");
    node.poll().await;
    let reason = failure(&node, "shop-prod").await;
    assert!(reason.contains("part `chart` (repository `charts`): "), "{reason}");
    node.stop().await;
}

#[tokio::test]
async fn a_poll_of_a_part_is_applied_when_the_composed_service_is() {
    let (home, charts, upstream) = (Home::new(), Charts::start(), Upstream::small());
    publish(&charts, "1.0.0", "a: 1");
    let node = home.start(config(&home, &charts, &upstream)).await;
    node.published(|_| true).await;
    for replicas in 2..6 {
        let contents = format!("replicas: {replicas}\n");
        let head = format!("sha1:{}", upstream.push("deploy/app.yaml", contents.as_bytes()));
        node.poll().await;
        assert!(has_part("a/values", &head)(&node.descriptor().await), "{contents}");
    }
    node.stop().await;
}

#[tokio::test]
async fn operators_compose_services_and_are_told_which_part_is_wrong() {
    let (home, one, two) = (Home::new(), Upstream::small(), Upstream::small());
    two.push("deploy/app.yaml", b"replicas: 2\n");
    let (of_one, of_two) = (serve(&one), serve(&two));
    let (node, operator) = operated(&home).await;
    for (name, server) in [("shop", &of_one), ("config", &of_two)] {
        let reply = operator.put(&format!("/v1/repositories/{name}"), repository_at(server)).await;
        assert_eq!(reply.status, StatusCode::CREATED);
    }
    let part =
        |repository: &str, to: &str| json!({ "repository": repository, "ref": "main", "folder": "deploy", "to": to });
    for (document, field, detail) in [
        (json!({ "parts": [] }), "repository", "or `parts` with at least one part"),
        (json!({ "parts": [part("shop", "")] }), "parts", "`to` must be a folder"),
        (json!({ "parts": [part("shop", "../x")] }), "parts", "relative path without `..`"),
        (json!({ "parts": [{ "repository": "shop" }] }), "parts", "missing field `to`"),
        (json!({ "parts": [part("shop", "a/b"), part("config", "a")] }), "parts", "`to = \"a/b\"` is in `to = \"a\"`"),
        (json!({ "parts": [part("shop", "a"), part("config", "a")] }), "parts", "`to = \"a\"` is in `to = \"a\"`"),
        (json!({ "parts": [part("shop", "a,b")] }), "parts", "`to = \"a,b\"` has a control character, or one of"),
        (json!({ "parts": [part("shop", "a/*")] }), "parts", "`to = \"a/*\"` has a control character, or one of"),
        (
            json!({ "parts": [part("shop", "a\u{7}")] }),
            "parts",
            "`to = \"a\\u{7}\"` has a control character, or one of",
        ),
        (json!({ "parts": [part("shop", "a/-x")] }), "parts", "a name that begins with `-`"),
        (
            json!({ "parts": [part("shop", "a/b"), part("config", "A")] }),
            "parts",
            "`to = \"A\"` and `to = \"a/b\"` are one folder where case does not count",
        ),
        (json!({ "parts": [part("shop", "a")], "repository": "shop" }), "repository", "each part has its own"),
        (json!({ "parts": [part("shop", "a")], "folder": "x" }), "folder", "each part has its own"),
        (json!({ "parts": [part("shop", "a")], "lfs": true }), "lfs", "LFS files of parts"),
        (
            json!({ "parts": [{ "repository": "shop", "chart": "x", "to": "a" }] }),
            "parts",
            "part `a`: `chart`: it has no meaning",
        ),
        (
            json!({ "parts": (0..17).map(|at| part("shop", &format!("p{at}"))).collect::<Vec<_>>() }),
            "parts",
            "there are 17, more than the limit of 16",
        ),
    ] {
        let reply = operator.put("/v1/services/shop-prod", document.clone()).await;
        let errors = reply.body["errors"].as_array().unwrap();
        let is_it = |error: &Value| error["field"] == field && error["detail"].as_str().unwrap().contains(detail);
        assert!(reply.status == 400 && errors.iter().any(is_it), "{document}: {reply:?}");
    }
    let missing =
        operator.put("/v1/services/shop-prod", json!({ "parts": [part("shop", "a"), part("none", "b")] })).await;
    assert!(missing.problem().1.contains("no repository `none`"), "{missing:?}");

    let document = json!({ "parts": [part("shop", "b"), part("config", "a")], "exclude": ["*.txt"] });
    let reply = operator.put("/v1/services/shop-prod", document.clone()).await;
    assert_eq!(reply.status, StatusCode::CREATED, "{reply:?}");
    let first = node.published(|_| true).await;
    assert_eq!(names(&node.tarball(&first).await), ["a/", "a/app.yaml", "b/", "b/app.yaml"]);
    // What was read is accepted back.
    let read = operator.get("/v1/services/shop-prod").await;
    assert_eq!((&read.body["parts"], read.body.get("repository")), (&document["parts"], None), "{read:?}");
    assert_eq!(operator.put("/v1/services/shop-prod", read.body.clone()).await.etag, read.etag);

    // Dry runs read all parts, in pages of one revision.
    let dry_run = async |query: &str| {
        operator.send(Method::POST, &format!("/v1/services/shop-prod/dry-run{query}"), &[], None).await
    };
    let page = dry_run("?limit=3").await;
    assert_eq!(
        (&page.body["revision_id"], page.body["entries_total"].as_u64()),
        (&json!(first.publication().revision_id), Some(4)),
        "{page:?}"
    );
    assert_eq!((&page.body["parts"], &page.body["ref"]), (&document["parts"], &Value::Null));
    let next = format!("?page={}", page.body["next_page"].as_str().unwrap());
    assert_eq!(dry_run(&next).await.body["entries"][0]["path"], "b/app.yaml");
    one.push("deploy/app.yaml", b"replicas: 5\n");
    node.poll().await;
    let second = node.published(|now| now.publication().digest != first.publication().digest).await;
    let (kind, detail) = (dry_run(&next).await, "a part has changed since the first page");
    assert!(kind.problem().1.contains(detail), "{kind:?}");

    // A repository that a part needs is not deleted by mistake.
    let refused = operator.delete("/v1/repositories/config").await;
    assert!(refused.status == 409 && refused.problem().1.contains("`shop-prod`"), "{refused:?}");
    assert_eq!(operator.delete("/v1/repositories/config?cascade=true").await.status, 204);
    let reason = failure(&node, "shop-prod").await;
    assert!(reason.contains("part `a` (repository `config`): repository `config` is not followed"), "{reason}");
    assert_eq!(node.descriptor().await.bytes(), second.bytes(), "the last publication stays");
    operator.put("/v1/repositories/config", repository_at(&of_two)).await;
    let mut condition = node.running.condition(&service()).unwrap();
    in_time(condition.wait_for(|now| *now == Condition::Following)).await.unwrap();
    two.push("deploy/app.yaml", b"replicas: 7\n");
    assert!(node.running.trigger_poll(&"config".parse().unwrap()));
    node.published(|now| now.publication().digest != second.publication().digest).await;
    node.stop().await;
}

#[tokio::test]
async fn links_that_leave_their_part_are_left_out_and_listed() {
    let (home, upstream) = (Home::new(), Upstream::small());
    for (link, target) in [("out", "../b/app.yaml"), ("in", "app.yaml")] {
        std::os::unix::fs::symlink(target, upstream.work().join("deploy").join(link)).unwrap();
    }
    upstream.push("docs/x", b"x");
    let mut config = home.config(&upstream.url());
    let part = |to: &str| json!({ "repository": "shop", "ref": "main", "folder": "deploy", "to": to });
    let service = json!({ "name": "shop-prod", "parts": [part("b"), part("a")], "exclude": ["b/in"] });
    config.services = vec![serde_json::from_value(service).unwrap()];
    let node = home.start(config).await;
    let published = node.published(|_| true).await;
    assert_eq!(names(&node.tarball(&published).await), ["a/", "a/app.yaml", "a/in", "b/", "b/app.yaml"]);
    let omitted = published.publication().omitted.iter().map(|each| (each.path.as_str(), each.reason));
    let expected = ["a/out", "b/out"].map(|path| (path, OmissionReason::Symlink));
    assert_eq!(omitted.collect::<Vec<_>>(), expected);
    node.stop().await;
}

#[tokio::test]
async fn a_part_of_which_nothing_is_left_is_named() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let mut config = home.config(&upstream.url());
    let part = |to: &str| json!({ "repository": "shop", "ref": "main", "folder": "deploy", "to": to });
    let service = json!({ "name": "shop-prod", "parts": [part("a"), part("b")], "exclude": ["/b/"] });
    config.services = vec![serde_json::from_value(service).unwrap()];
    let node = home.start(config).await;
    let reason = failure(&node, "shop-prod").await;
    assert!(reason.starts_with("[select] part `b` (repository `shop`): nothing is left to publish"), "{reason}");
    node.stop().await;
}

#[tokio::test]
async fn a_first_clone_hides_no_failure_of_another_part() {
    // An upstream that accepts connections and sends nothing.
    let silent = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    for is_home in [false, true] {
        let (home, upstream) = (Home::new(), Upstream::small());
        let mut config = home.config(&upstream.url());
        let url = format!("http://{}/config.git", silent.local_addr().unwrap());
        config.repositories.push(home.config(&url).repositories.remove(0));
        config.repositories[1].name = "config".parse().unwrap();
        let service = json!({ "name": "shop-prod", "parts": [
            { "repository": "shop", "ref": "none", "to": "b" },
            { "repository": "config", "ref": "main", "to": "a" },
        ]});
        config.services = vec![serde_json::from_value(service).unwrap()];
        if is_home {
            config.services[0].parts.reverse();
        }
        let node = home.start(config).await;
        let reason = failure(&node, "shop-prod").await;
        assert!(reason.starts_with("[resolve] part `b` (repository `shop`): "), "{reason}");
        node.stop().await;
    }
}
