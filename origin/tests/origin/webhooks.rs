//! Webhooks trigger polls.

use std::io;

use http_body::Frame;
use http_body_util::StreamBody;
use ring::hmac;
use tokio::task::JoinHandle;

use crate::node::until;
use crate::prelude::*;

pub(crate) const SECRET: &str = "known to both";

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

pub(crate) fn hex_hmac(secret: &str, body: &str) -> String {
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

pub(crate) async fn send(home: &Home, node: &Node, path: &str, headers: &[(&str, &str)], body: String) -> (u16, Value) {
    let mut request = client(home, 1).post(url(node, path)).body(body);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = request.send().await.unwrap();
    (response.status().as_u16(), serde_json::from_str(&response.text().await.unwrap()).unwrap())
}

/// A client whose address is 127.0.0.x.
fn client(home: &Home, from: u8) -> reqwest::Client {
    let tls = tls::client_config(&home.file("ca.pem"), None).unwrap();
    let client = reqwest::Client::builder().tls_backend_preconfigured(tls).no_proxy();
    client.local_address(std::net::IpAddr::from([127, 0, 0, from])).build().unwrap()
}

fn url(node: &Node, path: &str) -> String {
    format!("https://{}/v1/webhooks/{path}", node.running.operator_address().unwrap())
}

/// Eight deliveries with a wrong signature from 127.0.0.x, whose bodies never end.
fn stall(home: &Home, node: &Node, from: u8) -> Vec<JoinHandle<StatusCode>> {
    let client = client(home, from);
    let stalled = || {
        let body = StreamBody::new(futures_util::stream::pending::<Result<Frame<Bytes>, io::Error>>());
        let request = client
            .post(url(node, "github/another"))
            .header("X-Hub-Signature-256", format!("sha256={}", "0".repeat(64)));
        let request = request.body(reqwest::Body::wrap(body));
        tokio::spawn(async { request.send().await.unwrap().status() })
    };
    (0..8).map(|_| stalled()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn stalled_deliveries_keep_out_neither_other_addresses_nor_repositories_that_verify() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = start(&home, &upstream).await;
    assert_eq!(deliver(&home, &node, "shop", SECRET, "refs/heads/another").await.0, 202);
    let in_use = async || node.metric("weir_bound_in_use{bound=\"deliveries\"}").await;
    let of_one = stall(&home, &node, 2);
    until(async || in_use().await == 8.0).await;
    let signature = format!("sha256={}", hex_hmac(SECRET, "{}"));
    let request = client(&home, 2).post(url(&node, "github/shop")).header("X-Hub-Signature-256", signature);
    let ninth = request.body("{}").send().await.unwrap();
    assert_eq!(ninth.status(), StatusCode::TOO_MANY_REQUESTS, "of this address");
    assert!(ninth.headers().contains_key("retry-after"));
    assert_eq!(deliver(&home, &node, "shop", SECRET, "refs/heads/another").await.0, 202, "of another one");
    let series = "weir_origin_webhooks_total{provider=\"github\",result=\"source_limited\"}";
    assert_eq!(node.metric(series).await, 1.0);

    let limit = node.metric("weir_bound_limit{bound=\"deliveries\"}").await;
    let of_many: Vec<_> = (3..=9).flat_map(|from| stall(&home, &node, from)).collect();
    until(async || in_use().await == limit).await;
    let verified = deliver(&home, &node, "shop", SECRET, "refs/heads/another").await;
    assert_eq!(verified.0, 202, "{verified:?}");
    for stalled in of_one {
        assert_eq!(stalled.await.unwrap(), StatusCode::REQUEST_TIMEOUT);
    }
    of_many.iter().for_each(JoinHandle::abort);
    node.stop().await;
}

#[tokio::test]
async fn a_push_and_its_webhook_are_published() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = start(&home, &upstream).await;
    let commit = upstream.push("deploy/app.yaml", b"replicas: 2\n");
    let (status, answer) = deliver(&home, &node, "shop", SECRET, "refs/heads/main").await;
    assert_eq!((status, &answer["result"]), (202, &"triggered".into()));
    node.published(|descriptor| commit_of(descriptor) == commit).await;

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
async fn a_listener_of_their_own_answers_webhooks_alone() {
    let home = Home::new();
    let mut config = empty_config(&home);
    config.webhook_listen = Some(([127, 0, 0, 1], 0).into());
    let node = home.start(config).await;
    let base = format!("https://{}", node.running.webhook_address().unwrap());
    let status =
        async |path: &str| client(&home, 1).post(format!("{base}{path}")).send().await.unwrap().status().as_u16();
    assert_eq!(status("/v1/webhooks/github/shop").await, 401);
    for path in ["/v1/batch", "/v1/services", "/"] {
        assert_eq!(status(path).await, 404, "{path}");
    }
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

#[tokio::test]
async fn a_sender_that_cannot_sign_has_its_secret_in_no_answer() {
    let (home, upstream) = (Home::new(), Upstream::small());
    let node = start(&home, &upstream).await;
    let secret = "a-token-of-24-characters";
    fs::write(home.file("webhook"), secret).unwrap();
    let triggered = |reply: (u16, Value)| assert_eq!((reply.0, &reply.1["result"]), (202, &json!("triggered")));
    let path = "generic/shop";
    for (path, headers) in [
        (path.to_owned(), [("X-Webhook-Token", secret.to_owned())].as_slice()),
        (path.to_owned(), &[("Authorization", format!("Bearer {secret}"))]),
        (format!("{path}/{secret}"), &[]),
    ] {
        let headers: Vec<_> = headers.iter().map(|(name, value)| (*name, value.as_str())).collect();
        triggered(send(&home, &node, &path, &headers, "{}".to_owned()).await);
    }
    for path in [format!("{path}/another"), format!("github/shop/{secret}"), format!("{path}x/{secret}")] {
        let (status, answer) = send(&home, &node, &path, &[], "{}".to_owned()).await;
        assert!([401, 404].contains(&status) && !answer.to_string().contains(secret), "{path}: {status} {answer}");
    }
    node.stop().await;
}
