//! Webhooks trigger polls.

use ring::hmac;

use crate::prelude::*;

const SECRET: &str = "known to both";

/// An origin that polls its upstream only after a webhook.
async fn start(home: &Home, upstream: &Upstream) -> Node {
    fs::write(home.file("webhook"), format!("{SECRET}\n")).unwrap();
    let mut config = home.config(&upstream.url());
    config.operator_listen = Some(([127, 0, 0, 1], 0).into());
    config.repositories[0].webhook_secret_files = vec![home.file("absent"), home.file("webhook")];
    let node = home.start(config).await;
    node.published(|_| true).await;
    node
}

fn hex_hmac(secret: &str, body: &str) -> String {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), body.as_bytes());
    tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// GitHub's delivery of a push to a ref.
async fn deliver(home: &Home, node: &Node, repository: &str, secret: &str, moved: &str) -> (u16, Value) {
    let body = format!(r#"{{"ref": "{moved}", "repository": {{"full_name": "acme/shop"}}}}"#);
    let signature = format!("sha256={}", hex_hmac(secret, &body));
    send(
        home,
        node,
        &format!("github/{repository}"),
        &[("X-GitHub-Event", "push"), ("X-Hub-Signature-256", &signature)],
        body,
    )
    .await
}

async fn send(home: &Home, node: &Node, path: &str, headers: &[(&str, &str)], body: String) -> (u16, Value) {
    let tls = tls::client_config(&home.file("ca.pem"), None).unwrap();
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy().build().unwrap();
    let url = format!("https://{}/v1/webhooks/{path}", node.running.operator_address().unwrap());
    let mut request = client.post(url).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

#[tokio::test]
async fn a_push_and_its_webhook_are_published() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = start(&home, &upstream).await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    let (status, answer) = deliver(&home, &node, "shop", SECRET, "refs/heads/main").await;
    assert_eq!((status, &answer["result"]), (202, &"triggered".into()));
    node.published(|descriptor| descriptor.publication().commit.as_str() == commit).await;

    // Each provider with its own signature.
    let body = r#"{"object_kind": "push", "ref": "refs/heads/main"}"#.to_owned();
    let hex = hex_hmac(SECRET, &body);
    let prefixed = format!("sha256={hex}");
    for (provider, headers) in [
        ("gitlab", [("X-Gitlab-Event", "Push Hook"), ("X-Gitlab-Token", SECRET)]),
        ("gitea", [("X-Gitea-Event", "push"), ("X-Gitea-Signature", &hex)]),
        ("bitbucket", [("X-Event-Key", "repo:push"), ("X-Hub-Signature", &prefixed)]),
        ("generic", [("X-Anything", ""), ("X-Signature", &prefixed)]),
    ] {
        let (status, answer) = send(&home, &node, &format!("{provider}/shop"), &headers, body.clone()).await;
        assert_eq!((status, &answer["result"]), (202, &"triggered".into()), "{provider}");
        let series = format!("weir_origin_webhooks_total{{provider=\"{provider}\",result=\"triggered\"}}");
        assert_eq!(node.metric(&series).await, 1.0, "{provider}");
    }
    let (status, answer) = deliver(&home, &node, "shop", SECRET, "refs/heads/another").await;
    assert_eq!((status, &answer["result"]), (202, &"not_followed".into()));
    node.stop().await;
}

#[tokio::test]
async fn a_delivery_without_the_secret_is_refused_without_details() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = start(&home, &upstream).await;
    let wrong = deliver(&home, &node, "shop", "a guess", "refs/heads/main").await;
    assert_eq!(wrong.0, 401, "{wrong:?}");
    let unknown = deliver(&home, &node, "another", SECRET, "refs/heads/main").await;
    assert_eq!(unknown, wrong, "a repository that is not there looks the same");
    let series = "weir_origin_webhooks_total{provider=\"github\",result=\"refused\"}";
    assert_eq!(node.metric(series).await, 2.0);
    let (status, _) = send(&home, &node, "sourceforge/shop", &[], String::new()).await;
    assert_eq!(status, 404, "an unknown provider is reported without authentication");

    // The secret changes at run time.
    fs::write(home.file("webhook"), "another secret").unwrap();
    assert_eq!(deliver(&home, &node, "shop", SECRET, "refs/heads/main").await.0, 401);
    assert_eq!(deliver(&home, &node, "shop", "another secret", "refs/heads/main").await.0, 202);
    fs::remove_file(home.file("webhook")).unwrap();
    assert_eq!(
        deliver(&home, &node, "shop", "another secret", "refs/heads/main").await.0,
        401,
        "no secret, no webhook"
    );
    node.stop().await;
}

#[tokio::test]
async fn a_long_body_is_accepted_and_a_too_long_one_refused() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = start(&home, &upstream).await;
    let signed = |bytes: usize| {
        let body = format!(r#"{{"ref": "refs/heads/another", "filler": "{}"}}"#, "x".repeat(bytes));
        let signature = format!("sha256={}", hex_hmac(SECRET, &body));
        (body, signature)
    };
    let (body, signature) = signed(5 << 20);
    let headers = [("X-GitHub-Event", "push"), ("X-Hub-Signature-256", signature.as_str())];
    let (status, answer) = send(&home, &node, "github/shop", &headers, body).await;
    assert_eq!((status, &answer["result"]), (202, &"triggered".into()), "nobody read what moved");
    let (body, signature) = signed((25 << 20) + 1000);
    let headers = [("X-GitHub-Event", "push"), ("X-Hub-Signature-256", signature.as_str())];
    let (status, _) = send(&home, &node, "github/shop", &headers, body).await;
    assert_eq!(status, 413);
    node.stop().await;
}
