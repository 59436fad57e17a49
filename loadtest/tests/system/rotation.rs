//! Authorities, certificates, key sets and tokens are rotated while agents poll. Nobody gets a signal, and no poll fails.

use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use anyhow::{Context, ensure};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{Request, Response};
use prometheus::Registry;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use tokio::net::TcpListener;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, free_address, until};
use weir_loadtest::scrape::Metrics;
use weir_protocol::token::unix_seconds;
use weir_runtime::certificates;
use weir_runtime::serve::{self, Body, Handler, HttpMetrics, Peer, RequestBody};
use weir_runtime::shutdown::Drain;
use weir_runtime::tls::{self, ClientAuth};

use crate::site::{Client, Plan, Site};

const FROM_FILE: &str = "https://file.issuer.example";
const FROM_URL: &str = "https://url.issuer.example";

const AUTH: &str = r#"
mode = "required"
client_ca = "ca.pem"
[[auth.certificate]]
agents = "*"
services = ["*"]
[[auth.issuer]]
issuer = "https://file.issuer.example"
audience = "weir"
jwks = "jwks.json"
subjects = ["system:serviceaccount:weir:agent"]
agent = "cluster-1"
services = ["*"]
[[auth.issuer]]
issuer = "https://url.issuer.example"
audience = "weir"
jwks = "URL"
ca = "keys/ca.pem"
subjects = ["system:serviceaccount:weir:agent"]
agent = "cluster-3"
services = ["*"]
"#;

/// A signing key of an issuer.
struct IssuerKey {
    kid: &'static str,
    pair: Ed25519KeyPair,
}

impl IssuerKey {
    fn new(kid: &'static str) -> anyhow::Result<Self> {
        let unspecified = |_| anyhow::anyhow!("no key could be made");
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).map_err(unspecified)?;
        let pair = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).map_err(|error| anyhow::anyhow!(error))?;
        Ok(Self { kid, pair })
    }

    /// A token of the service account that the edge knows.
    fn token(&self, issuer: &str) -> String {
        let now = unix_seconds(SystemTime::now());
        let header = json!({ "alg": "EdDSA", "kid": self.kid });
        let claims =
            json!({ "iss": issuer, "aud": ["weir"], "sub": "system:serviceaccount:weir:agent", "exp": now + 3600 });
        let message = [header, claims].map(|part| URL_SAFE_NO_PAD.encode(part.to_string())).join(".");
        let signature = URL_SAFE_NO_PAD.encode(self.pair.sign(message.as_bytes()));
        format!("{message}.{signature}")
    }
}

fn jwks(keys: &[&IssuerKey]) -> String {
    let jwk = |key: &&IssuerKey| {
        let x = URL_SAFE_NO_PAD.encode(key.pair.public_key());
        json!({ "kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": key.kid, "x": x })
    };
    json!({ "keys": keys.iter().map(jwk).collect::<Vec<_>>() }).to_string()
}

/// A server of a key set.
#[derive(Clone)]
struct KeyServer(Arc<Mutex<String>>);

impl Handler for KeyServer {
    async fn handle(&self, _request: Request<RequestBody>, _peer: Arc<Peer>) -> Response<Body> {
        Response::new(Body::from(self.0.lock().unwrap_or_else(PoisonError::into_inner).clone().into_bytes()))
    }
}

impl KeyServer {
    /// Serves a set below a certificate in a folder. Returns its URL too.
    async fn start(keys: String, pki: &Path, drain: &Drain) -> anyhow::Result<(Self, String)> {
        let server = Self(Arc::new(Mutex::new(keys)));
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("https://{}/openid/v1/jwks", listener.local_addr()?);
        let tls = tls::server_config(&pki.join("edge.pem"), &pki.join("edge.key"), ClientAuth::None)?;
        let metrics = HttpMetrics::register(&Registry::new())?;
        serve::tcp(listener, Some(tls), server.clone(), metrics.listener("keys"), drain);
        Ok((server, url))
    }

    fn set(&self, keys: String) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = keys;
    }
}

/// Replaces a file as a whole.
fn put(path: &Path, contents: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let temporary = path.with_extension("new");
    fs::write(&temporary, contents)?;
    Ok(fs::rename(temporary, path)?)
}

/// Puts certificates of one folder into another, with their keys.
fn put_certificates(from: &Path, to: &Path, names: &[&str]) -> anyhow::Result<()> {
    for file in names.iter().flat_map(|name| [format!("{name}.pem"), format!("{name}.key")]) {
        put(&to.join(&file), fs::read(from.join(&file))?)?;
    }
    Ok(())
}

/// The agents, each with another credential.
struct Agents {
    nodes: Vec<Node>,
    /// Failures before the first release.
    failed_before: f64,
}

impl Agents {
    async fn sum(&self, series: &[(&str, &str)]) -> anyhow::Result<f64> {
        let mut sum = 0.0;
        for node in &self.nodes {
            let metrics = Metrics::read(node.admin()).await?;
            sum += series.iter().map(|(name, label)| metrics.sum(name, &[label])).sum::<f64>();
        }
        Ok(sum)
    }

    /// All that went wrong, at any edge and over any connection.
    async fn failed(&self) -> anyhow::Result<f64> {
        let polls = [("weir_agent_polls_total", "result=\"error\""), ("weir_agent_errors_total", "kind=")];
        let batches = ["error", "unavailable"].map(|result| format!("result=\"{result}\""));
        let batches = batches.iter().flat_map(|label| {
            [("weir_agent_batch_polls_total", label.as_str()), ("weir_agent_observed_messages_total", label.as_str())]
        });
        self.sum(&polls.into_iter().chain(batches).collect::<Vec<_>>()).await
    }

    /// Waits until each has polled some more times, and checks that nothing has failed.
    async fn poll_on(&self, step: &str) -> anyhow::Result<()> {
        let polls = async |node: &Node| {
            let metrics = Metrics::read(node.admin()).await?;
            anyhow::Ok(metrics.sum("weir_agent_batch_polls_total", &["result=\"unchanged\""]))
        };
        let mut before = Vec::new();
        for node in &self.nodes {
            before.push(polls(node).await?);
        }
        for (node, before) in self.nodes.iter().zip(before) {
            until(&format!("{step}: all have polled"), async || polls(node).await.is_ok_and(|now| now > before + 1.0))
                .await
                .with_context(|| node.log())?;
        }
        let logs = || self.nodes.iter().map(Node::log).collect::<String>();
        ensure!(self.failed().await? == self.failed_before, "{step}: a poll has failed:\n{}", logs());
        Ok(())
    }

    async fn until_released(&self, dir: &Path, version: &str) -> anyhow::Result<()> {
        for (number, node) in self.nodes.iter().enumerate() {
            let file = dir.join(format!("agent-data-{number}/shop-prod/current/version"));
            until("it is released", async || fs::read_to_string(&file).is_ok_and(|found| found == version))
                .await
                .with_context(|| node.log())?;
        }
        Ok(())
    }
}

/// The applied reloads of a process.
async fn reloads(node: &Node) -> anyhow::Result<f64> {
    let metrics = Metrics::read(node.admin()).await?;
    let names = ["origin", "edge", "agent"].map(|role| format!("weir_{role}_reloads_total"));
    Ok(names.iter().map(|name| metrics.sum(name, &["result=\"applied\""])).sum())
}

#[tokio::test(flavor = "multi_thread")]
async fn authorities_certificates_keys_and_tokens_rotate_without_a_failed_poll() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site = Site::new(fill, Plan { auth: AUTH, ..Plan::default() }).await?;
    let dir = site.path("");
    let (new, drain) = (dir.join("new"), Drain::new());
    for folder in ["new", "keys"] {
        certificates::write(&dir.join(folder), &[])?;
    }
    let read = |name: &str| fs::read_to_string(dir.join(name));
    let (old_ca, new_ca) = (read("ca.pem")?, read("new/ca.pem")?);
    let (old_agent, old_agent_key) = (read("agent.pem")?, read("agent.key")?);
    let keys = ["file-1", "file-2", "url-1", "url-2"].map(IssuerKey::new);
    let [file_1, file_2, url_1, url_2] = keys;
    let ([file_1, file_2], [url_1, url_2]) = ([file_1?, file_2?], [url_1?, url_2?]);
    let (server, url) = KeyServer::start(jwks(&[&url_1]), &dir.join("keys"), &drain).await?;
    fs::write(dir.join("jwks.json"), jwks(&[&file_1]))?;
    fs::write(dir.join("edge.toml"), read("edge.toml")?.replace("\"URL\"", &format!("\"{url}\"")))?;
    fs::write(dir.join("token-0"), file_1.token(FROM_FILE))?;
    fs::write(dir.join("token-2"), url_1.token(FROM_URL))?;
    let mut nodes = Vec::new();
    for (number, credential) in [
        "token_file = \"token-0\"",
        "client_certificate = \"agent.pem\"\nclient_key = \"agent.key\"\nhttp = \"h2\"",
        "token_file = \"token-2\"",
    ]
    .into_iter()
    .enumerate()
    {
        let admin = free_address()?;
        let config = read("agent.toml")?
            .replace(&site.agent.admin().to_string(), &admin.to_string())
            .replace("root = \"agent-data\"", &format!("root = \"agent-data-{number}\"\n{credential}"));
        nodes.push(Node::new(&dir, &format!("agent_{number}"), admin, &config)?);
    }
    site.origin.start().await?;
    site.edge.start().await?;
    for node in &mut nodes {
        node.start().await?;
    }
    let mut agents = Agents { nodes, failed_before: 0.0 };
    agents.until_released(&dir, "1").await?;
    agents.failed_before = agents.failed().await?;

    let edge_address = site.edge_address;
    let client = |ca: &str| {
        put(&dir.join("client-ca.pem"), ca)?;
        Client::new(&dir.join("client-ca.pem"), edge_address)
    };
    let status = async |client: &Client, token: &str| {
        let authorization = [("authorization", &*format!("Bearer {token}"))];
        anyhow::Ok(client.send("HEAD", "/v1/services/shop-prod/tarball", &authorization).await?.status().as_u16())
    };
    /// Changes files, and waits until these processes use them and all agents have polled.
    async fn rotate(
        step: &str,
        nodes: &[&Node],
        agents: &Agents,
        change: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut before = Vec::new();
        for node in nodes {
            before.push(reloads(node).await?);
        }
        change()?;
        for (node, before) in nodes.iter().zip(before) {
            until(&format!("{step}: it is used"), async || reloads(node).await.is_ok_and(|now| now > before))
                .await
                .with_context(|| node.log())?;
        }
        agents.poll_on(step).await
    }
    let all: Vec<&Node> = [&site.origin, &site.edge].into_iter().chain(&agents.nodes).collect();

    rotate("both authorities are trusted", &all, &agents, || {
        put(&dir.join("jwks.json"), jwks(&[&file_1, &file_2]))?;
        server.set(jwks(&[&url_1, &url_2]));
        put(&dir.join("ca.pem"), format!("{old_ca}{new_ca}"))
    })
    .await?;
    rotate("all have new certificates", &[&site.origin, &site.edge, &agents.nodes[1]], &agents, || {
        put_certificates(&new, &dir, &["origin", "edge", "edge-client", "agent"])
    })
    .await?;
    // The file of keys is read again on its own. The URL is not: a token of its new key is the reason to.
    let (trusting, next) = (client(&new_ca)?, file_2.token(FROM_FILE));
    until("the new key is read", async || status(&trusting, &next).await.is_ok_and(|status| status == 200)).await?;
    put(&dir.join("token-0"), &next)?;
    put(&dir.join("token-2"), url_2.token(FROM_URL))?;
    agents.poll_on("agents have new tokens").await?;
    rotate("the old authority and key are gone", &all, &agents, || {
        put(&dir.join("jwks.json"), jwks(&[&file_2]))?;
        put(&dir.join("ca.pem"), &new_ca)
    })
    .await?;
    until("the old key is refused", async || {
        status(&trusting, &file_1.token(FROM_FILE)).await.is_ok_and(|status| status == 401)
    })
    .await?;
    assert!(status(&client(&old_ca)?, &next).await.is_err(), "the edge has a certificate of the old authority");
    put(&dir.join("old-agent.pem"), old_agent)?;
    put(&dir.join("old-agent.key"), old_agent_key)?;
    let certified = |name: &str| {
        let of = |extension: &str| dir.join(format!("{name}.{extension}"));
        Client::of_role(&dir.join("ca.pem"), &of("pem"), &of("key"), edge_address)
    };
    assert_eq!(certified("agent")?.send("HEAD", "/v1/services/shop-prod/tarball", &[]).await?.status(), 200);
    assert!(certified("old-agent")?.send("HEAD", "/v1/services/shop-prod/tarball", &[]).await.is_err());

    // Edge and origin meet anew, with what they have now.
    drop(all);
    site.origin.terminate().await?;
    site.origin.start().await?;
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    agents.until_released(&dir, "2").await.with_context(|| site.logs())?;
    agents.poll_on("edge and origin have met again").await?;
    drain.cut().await;
    Ok(())
}
