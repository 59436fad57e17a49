//! An operator of an origin under test, and origins that have a listener for one.

use crate::prelude::*;

const TOKEN: &str = "an-operator-s-own-token";

/// An operator with a token, or with a certificate.
pub(crate) struct Operator {
    client: reqwest::Client,
    base: String,
    token: Option<&'static str>,
}

/// What an operator was answered.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) etag: String,
    pub(crate) allow: String,
    pub(crate) body: Value,
}

impl Reply {
    /// The problem's kind and detail.
    pub(crate) fn problem(&self) -> (&str, &str) {
        let kind = self.body["type"].as_str().unwrap().strip_prefix("urn:weir:problem:").unwrap();
        (kind, self.body["detail"].as_str().unwrap())
    }
}

impl Operator {
    /// Shows the token.
    pub(crate) fn of(home: &Home, node: &Node) -> Self {
        Self { token: Some(TOKEN), ..Self::without_token(home, node, None) }
    }

    pub(crate) fn with_token(self, token: &'static str) -> Self {
        Self { token: Some(token), ..self }
    }

    pub(crate) fn without_token(home: &Home, node: &Node, certificate: Option<&str>) -> Self {
        let files = certificate.map(|name| [home.file(&format!("{name}.pem")), home.file(&format!("{name}.key"))]);
        let identity = files.as_ref().map(|[pem, key]| (pem.as_path(), key.as_path()));
        let config = tls::client_config(&home.file("ca.pem"), identity).unwrap();
        let client = reqwest::Client::builder().tls_backend_preconfigured(config).no_proxy().build().unwrap();
        let base = format!("https://{}", node.running.operator_address().unwrap());
        Self { client, base, token: None }
    }

    /// `edge-1`, at the listener of edges.
    pub(crate) fn as_edge(home: &Home, node: &Node) -> Self {
        let base = format!("https://{}", node.running.address());
        Self { base, ..Self::without_token(home, node, Some("edge-client")) }
    }

    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Option<Value>,
    ) -> Reply {
        let mut request = self.client.request(method, format!("{}{path}", self.base)).timeout(Duration::from_secs(60));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        if let Some(token) = self.token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.body(body.to_string());
        }
        let response = request.send().await.unwrap();
        let header = |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
        let (status, etag, allow) = (response.status(), header("etag"), header("allow"));
        let text = response.text().await.unwrap();
        let body = if text.is_empty() { Value::Null } else { serde_json::from_str(&text).unwrap() };
        Reply { status, etag, allow, body }
    }

    /// The page for people.
    pub(crate) async fn page(&self, headers: &[(&str, &str)]) -> reqwest::Response {
        let request = self.client.get(format!("{}/", self.base));
        let request = headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        request.send().await.unwrap()
    }

    pub(crate) async fn get(&self, path: &str) -> Reply {
        self.send(Method::GET, path, &[], None).await
    }

    /// Without a body.
    pub(crate) async fn post(&self, path: &str) -> Reply {
        self.send(Method::POST, path, &[], None).await
    }

    pub(crate) async fn put(&self, path: &str, document: Value) -> Reply {
        self.send(Method::PUT, path, &[], Some(document)).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Reply {
        self.send(Method::DELETE, path, &[], None).await
    }
}

/// An origin with an operators' listener; its file holds the repository `shop` and the service `shop-prod`.
pub(crate) fn config(home: &Home, upstream: &Upstream) -> Config {
    std::fs::write(home.file("operator-token"), TOKEN).unwrap();
    let mut config = home.config(&upstream.url());
    config.operator_listen = Some(([127, 0, 0, 1], 0).into());
    config.operator_api.operator_token_file = Some(home.file("operator-token"));
    // The upstreams of the tests are on loopback.
    config.upstreams.private_addresses = true;
    config
}

/// The same with nothing in its file.
pub(crate) fn empty_config(home: &Home) -> Config {
    let mut config = config(home, &Upstream::empty());
    config.repositories.clear();
    config.services.clear();
    config
}

/// An origin with nothing in its file, and its operator.
pub(crate) async fn operated(home: &Home) -> (Node, Operator) {
    let node = home.start(empty_config(home)).await;
    let operator = Operator::of(home, &node);
    (node, operator)
}

pub(crate) fn repository_at(server: &SmartHttp) -> Value {
    json!({ "url": server.url("bare.git"), "poll_interval": "1h", "min_poll_interval": "100ms" })
}

/// A Git server of an upstream's bare repository.
pub(crate) fn serve(upstream: &Upstream) -> SmartHttp {
    SmartHttp::start(upstream.bare().parent().unwrap(), None)
}

/// A stopped origin that has published `shop-prod`, which operators alone defined.
pub(crate) struct Stopped {
    pub(crate) home: Home,
    pub(crate) upstream: Upstream,
    pub(crate) server: SmartHttp,
    pub(crate) published: Descriptor,
}

impl Stopped {
    /// `further`: what operators did before it stopped.
    pub(crate) async fn after(further: impl AsyncFnOnce(&Operator, &Node)) -> Self {
        let (home, upstream) = (Home::new(), Upstream::small());
        let server = serve(&upstream);
        let (node, operator) = operated(&home).await;
        assert_eq!(operator.put("/v1/repositories/shop", repository_at(&server)).await.status, StatusCode::CREATED);
        let document = json!({ "repository": "shop", "ref": "main", "folder": "deploy" });
        assert_eq!(operator.put("/v1/services/shop-prod", document).await.status, StatusCode::CREATED);
        node.published(|_| true).await;
        further(&operator, &node).await;
        let published = node.descriptor().await;
        node.stop().await;
        Self { home, upstream, server, published }
    }

    pub(crate) async fn start(&self) -> (Node, Operator) {
        operated(&self.home).await
    }
}
