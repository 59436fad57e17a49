//! A plan by percent, with many agents that this program plays: at each stage the edge gives the version to those whose
//! part it is, and to nobody less than before.

use std::collections::BTreeSet;
use std::fs;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, ensure};
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use serde_json::json;
use weir_loadtest::processes::{PATIENCE, free_address, nightly, until};
use weir_protocol::labels::Labels;
use weir_protocol::staged::Audience;
use weir_protocol::token::{Claims, SigningKey, TokenId, unix_seconds};
use weir_runtime::http_client::{Http2Client, http2_client};
use weir_runtime::tls;

use crate::access::token;
use crate::operators::{TOKEN, curl};
use crate::site::{Plan, Site, service};
use crate::weir::Weir;

/// In the gate fewer, because it must not starve what runs beside it.
fn number_of_agents() -> usize {
    if nightly() { 1_000 } else { 100 }
}

/// Requests at a time.
const CONCURRENT: usize = 32;

/// Each agent is heard so often.
const HEARD_EVERY: Duration = Duration::from_secs(30);

const PLAN: &str = r#"rollout = "parts"
[[rollout]]
name = "parts"
stages = [
  { name = "tenth", percent = 10 },
  { name = "half", percent = 50, approve = true },
  { name = "all", approve = true },
]
[operator_api]
operator_token_file = "operator-token"
"#;

/// An agent that this program plays.
struct Played {
    name: String,
    authorization: String,
    /// The generation and digest that it was last offered, and runs.
    runs: (u64, String),
    seq: u64,
    heard: Instant,
}

impl Played {
    fn new(number: usize, key: &SigningKey) -> anyhow::Result<Self> {
        let name = format!("cluster-{number:04}");
        let claims = Claims {
            subject: name.parse()?,
            id: Some(TokenId::random()?),
            labels: Labels::default(),
            services: vec!["*".parse()?],
            expires: unix_seconds(SystemTime::now()) + 86_400,
            not_before: None,
            issued_at: None,
        };
        let authorization = format!("Bearer {}", key.issue(&claims)?);
        Ok(Self { name, authorization, runs: (0, String::new()), seq: 0, heard: Instant::now() })
    }

    /// Asks for the service, takes what is offered, and says that it runs it.
    async fn poll(&mut self, edge: &Edge) -> anyhow::Result<()> {
        let (status, answer) = edge.send(self, Method::HEAD, "/v1/services/shop-prod/tarball", Bytes::new()).await?;
        ensure!(status == StatusCode::OK, "{}: {status}", self.name);
        let text = |name: &str| answer.get(name).and_then(|value| value.to_str().ok()).context("it names a version");
        let offered = (text("weir-generation")?.parse()?, text("weir-digest")?.to_owned());
        ensure!(offered.0 >= self.runs.0, "{} had {:?} and is offered {offered:?}", self.name, self.runs);
        let rows = if offered == self.runs {
            if self.heard.elapsed() < HEARD_EVERY {
                return Ok(());
            }
            json!([])
        } else {
            self.runs = offered;
            let version = json!({ "digest": self.runs.1, "generation": self.runs.0 });
            json!([{ "service": "shop-prod", "desired": version, "current": {
                "digest": self.runs.1, "generation": self.runs.0, "revision_id": format!("sha1:{:040x}", self.runs.0),
                "since": "2026-11-20T09:30:00Z" }, "phase": "current", "hook": "succeeded", "problem": null }])
        };
        self.seq += 1;
        let message =
            json!({ "instance": self.name, "seq": self.seq, "full": self.seq == 1, "version": "0.3.0", "rows": rows });
        let said = edge.send(self, Method::POST, "/v1/agents/self/observed", message.to_string().into()).await?;
        ensure!(said.0 == StatusCode::NO_CONTENT, "{}: {}", self.name, said.0);
        self.heard = Instant::now();
        Ok(())
    }
}

/// The edge, for all of them.
struct Edge {
    http: Http2Client<Full<Bytes>>,
    base: String,
}

impl Edge {
    async fn send(
        &self,
        of: &Played,
        method: Method,
        path: &str,
        body: Bytes,
    ) -> anyhow::Result<(StatusCode, HeaderMap)> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        let request = request.header(header::AUTHORIZATION, &of.authorization).header("accept-encoding", "zstd");
        let (answer, body) = self.http.request(request.body(Full::new(body))?).await?.into_parts();
        body.collect().await?;
        Ok((answer.status, answer.headers))
    }

    async fn round(&self, agents: &mut [Played]) -> anyhow::Result<()> {
        let polls = agents.iter_mut().map(|agent| agent.poll(self)).collect::<Vec<_>>();
        stream::iter(polls).buffer_unordered(CONCURRENT).try_collect().await
    }
}

/// The agents that have more than this generation.
fn above(agents: &[Played], generation: u64) -> BTreeSet<&str> {
    agents.iter().filter(|agent| agent.runs.0 > generation).map(|agent| agent.name.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_stage_by_percent_is_for_its_part_of_the_agents() -> anyhow::Result<()> {
    let number = number_of_agents();
    let auth = "mode = 'required'\nkeys = ['fleet.key.pub']";
    let services = service("shop-prod", "main", "deploy/prod") + PLAN;
    let push = |upstream: &weir_loadtest::git_repository::GitRepository, version: &str| {
        upstream.write("deploy/prod/version", version)?;
        upstream.commit_and_push(version).map(drop)
    };
    let mut site = Site::new(|upstream| push(upstream, "1"), Plan { services, auth, ..Plan::default() }).await?;
    let (dir, listen) = (site.path(""), free_address()?);
    let origin = fs::read_to_string(dir.join("origin.toml"))?;
    fs::write(dir.join("origin.toml"), format!("operator_listen = \"{listen}\"\n{origin}"))?;
    fs::write(dir.join("operator-token"), TOKEN)?;
    token(&dir, "key --out fleet.key")?;
    let key = SigningKey::from_pem(&fs::read(dir.join("fleet.key"))?)?;
    site.origin.start().await?;
    site.edge.start().await?;
    let weir = Weir::new(&dir, format!("https://{listen}"))?;
    weir.until("get services", "following").await?;
    let edge = Edge {
        http: http2_client(tls::client_config(&dir.join("ca.pem"), None)?),
        base: format!("https://{}", site.edge_address),
    };
    let mut agents = (0..number).map(|number| Played::new(number, &key)).collect::<anyhow::Result<Vec<_>>>()?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let ready = edge.round(&mut agents[..1]).await;
        if ready.is_ok() {
            break;
        }
        ensure!(Instant::now() < deadline, "{ready:?}\n{}", site.logs());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    edge.round(&mut agents).await?;
    let (ca, rows) = (dir.join("ca.pem"), format!("https://{listen}/v1/fleet/rows?limit=1"));
    let are_known = async || {
        let known = curl(&ca, "GET", rows.clone(), None).await;
        known.is_ok_and(|(_, known)| known["total"] == number && known["incomplete"] == json!([]))
    };
    until("the origin knows them all", are_known).await.with_context(|| site.logs())?;
    let first = agents[0].runs.0;

    push(&site.upstream, "2")?;
    weir.succeeds("refresh shop").await?;
    for (percent, next) in [(10, "half"), (50, "all")] {
        let waits = format!("an operator has to approve stage `{next}`");
        let deadline = Instant::now() + PATIENCE;
        loop {
            edge.round(&mut agents).await?;
            let said = weir.succeeds("rollout status shop-prod").await?;
            if said.contains(&waits) {
                println!("{said}");
                break;
            }
            ensure!(Instant::now() < deadline, "{said}\n{}", site.logs());
        }
        let part: Audience = serde_json::from_value(json!({ "percent": percent }))?;
        let (shop, none) = ("shop-prod".parse()?, Labels::default());
        let mut expected = BTreeSet::new();
        for agent in &agents {
            if part.includes(&agent.name.parse()?, &none, &shop) {
                expected.insert(agent.name.as_str());
            }
        }
        println!("{percent} %: {} of {number} agents", expected.len());
        ensure!(above(&agents, first) == expected, "{percent} %: others have it");
        weir.succeeds("rollout approve shop-prod").await?;
    }
    let deadline = Instant::now() + PATIENCE;
    while above(&agents, first).len() < number {
        edge.round(&mut agents).await?;
        ensure!(Instant::now() < deadline, "{}", site.logs());
    }
    Ok(())
}
