use std::process::{Output, Stdio};

use serde_json::Value;

use crate::site::{Site, TARBALL, ZSTD, a_moment, always_asking};
use crate::test_origin::Tarball;

const TOKEN: &str = "an-operators-token";

async fn explained(site: &Site, query: &str) -> Value {
    let (status, body) = site.admin(&format!("/v1/explain?{query}")).await;
    assert_eq!(status, 200, "{body}");
    serde_json::from_str(&body).unwrap()
}

fn words(explained: &Value) -> String {
    explained["words"].as_array().unwrap().iter().map(|word| word.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}

/// Runs the binary.
async fn run(arguments: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_weir-edge"));
    command.args(arguments).env_remove("WEIR_CONFIG").output().await.unwrap()
}

#[tokio::test]
async fn what_is_held_is_explained_and_nothing_is_changed_by_it() {
    let site = Site::with(always_asking).await;
    let (past, current) = (Tarball::random(1, 5000), Tarball::random(2, 300_000));
    site.origin.publish("shop", 6, 1, &past);
    site.origin.publish("shop", 7, 1, &current);
    let unknown = explained(&site, "service=shop").await;
    assert!(unknown["version"].is_null() && words(&unknown).contains("Nothing is known of shop"), "{unknown}");

    let mut client = site.client("h2").await;
    client.get(TARBALL, &[ZSTD]).await;
    client.head(&format!("/v1/services/shop/tarballs/{}", past.digest()), &[ZSTD]).await;
    site.settled().await;
    let before = site.origin.asked("service").len();
    a_moment().await;
    let held = explained(&site, "service=shop").await;
    let version = &held["version"];
    assert_eq!((version["generation"].as_u64(), version["revision"].as_u64()), (Some(7), Some(1)));
    assert_eq!(version["digest"], current.digest().to_string());
    assert_eq!(held["entry"]["freshness"], "revalidate");
    let form = &version["representations"][0];
    let cached = serde_json::json!({"frames": 1, "in_memory": 1, "on_disk": 1, "missing": 0, "being_fetched": false});
    assert_eq!((form["encoding"].as_str(), &form["cached"]), (Some("zstd"), &cached));
    assert!(words(&held).contains("asks the origin and waits 2 s"), "{held}");
    let past_one = explained(&site, &format!("service=shop&digest={}", past.digest())).await;
    assert_eq!(
        (past_one["version"]["is_current"].as_bool(), &past_one["version"]["commit"]),
        (Some(false), &Value::from(format!("{:040x}", 6)))
    );
    let missing = &past_one["version"]["representations"][0]["cached"]["missing"];
    assert_eq!(missing.as_u64(), Some(1), "its body was never asked for");
    assert_eq!(site.origin.asked("service").len(), before, "nobody was asked");

    // An origin that goes back, and one that is down.
    site.origin.publish("shop", 5, 1, &past);
    client.head(TARBALL, &[ZSTD]).await;
    let regressed = explained(&site, "service=shop").await;
    assert_eq!(regressed["entry"]["refused"]["generation"].as_u64(), Some(5));
    assert!(words(&regressed).contains("generation_floor"), "{regressed}");
    site.origin.go_down().await;
    site.until("the edge sees that it is down", async || {
        client.head("/v1/services/other/tarball", &[]).await;
        words(&explained(&site, "service=shop").await).contains("does not answer")
    })
    .await;
    for (query, expected) in [("", 400), ("service=A", 400), ("service=a&digest=b3-0", 400), ("servise=a", 400)] {
        assert_eq!(site.admin(&format!("/v1/explain?{query}")).await.0, expected, "{query}");
    }
}

#[tokio::test]
async fn the_command_line_explains_and_purges() {
    let mut site = Site::prepare().await;
    let token_file = site.pki().join("operator-token");
    std::fs::write(&token_file, TOKEN).unwrap();
    let wrong_file = site.pki().join("wrong-token");
    std::fs::write(&wrong_file, "another-ones-token").unwrap();
    site.config.admin.operator_token_file = Some(token_file.clone());
    site.config.admin.tls = true;
    site.start_edge().await;
    site.origin.publish("shop", 7, 1, &Tarball::random(1, 5000));
    site.client("h2").await.get(TARBALL, &[ZSTD]).await;
    site.settled().await;
    let admin = format!("https://{}", site.edge().admin_address().unwrap());
    let ca = site.pki().join("ca.pem");
    let at = ["--admin", admin.as_str(), "--ca", ca.to_str().unwrap()];

    let output = run(&[&["explain", "shop"], &at[..]].concat()).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.starts_with("shop is held: generation 7"), "{text}");
    let mut unread = tokio::process::Command::new(env!("CARGO_BIN_EXE_weir-edge"));
    unread.args(["explain", "shop"]).args(at).env_remove("WEIR_CONFIG").stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut unread = unread.spawn().unwrap();
    drop(unread.stdout.take());
    let output = unread.wait_with_output().await.unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    let output = run(&[&["explain", "shop", "--json"], &at[..]].concat()).await;
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["version"]["generation"].as_u64(), Some(7));

    let purge = async |file: &std::path::Path| {
        run(&[&["purge", "--service", "shop", "--token-file", file.to_str().unwrap()], &at[..]].concat()).await
    };
    let output = purge(&wrong_file).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(1) && error.contains("401") && !error.contains("another"), "{error}");
    let output = purge(&token_file).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.starts_with("purged: 1 service, 1 object, "), "{text}");
    assert!(site.object_files().is_empty());
    let slip =
        run(&[&["purge", "--service", "nope", "--token-file", token_file.to_str().unwrap()], &at[..]].concat()).await;
    let said = String::from_utf8(slip.stderr).unwrap();
    assert!(slip.status.code() == Some(3) && said.contains("service nope is held there"), "{said}");
    assert_eq!(run(&["purge"]).await.status.code(), Some(2), "it wants to know what");
    assert_eq!(run(&[]).await.status.code(), Some(2), "and an edge its configuration");
}
