//! The agents of one edge: some are real, in this process, and this program speaks for the others.

use std::fs;
use std::time::Duration;

use anyhow::Context;
use futures_util::{StreamExt, stream};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use weir_agent::config::{Config, ServiceConfig};
use weir_protocol::name::ServiceName;
use weir_protocol::observed::Phase;

use super::site::{Client, EDGES, Release, Site, agents_client, name, send};

/// Each agent that this program plays is heard once in so many seconds.
const HEARD_EVERY: usize = 30;

/// The requests at a time to one edge.
const CONCURRENT: usize = 32;

/// One agent in so many that are played has not come to the last commit of the start.
pub(crate) const BEHIND: usize = 7;

pub(crate) fn agent(number: usize) -> String {
    format!("cluster-{number:05}")
}

/// Starts real agents, and waits until they run everything.
pub(crate) async fn start_real(
    site: &Site,
    agents: usize,
    services: usize,
) -> anyhow::Result<Vec<weir_agent::Running>> {
    let services = (0..services).map(|service| Ok(name(service).parse()?));
    let services = services.collect::<anyhow::Result<Vec<ServiceName>>>()?;
    let mut running = Vec::new();
    for number in 0..agents {
        let (name, dir) = (agent(number), site.path().join("agents"));
        fs::create_dir_all(&dir)?;
        let token = dir.join(format!("{name}.token"));
        fs::write(&token, site.token(&name, number)?)?;
        let mut urls: Vec<_> =
            site.addresses.iter().map(|address| format!("https://{address}").parse()).collect::<Result<_, _>>()?;
        urls.rotate_left(number % EDGES);
        let mut config = Config::new(urls, site.path().join("ca.pem"), dir.join(&name));
        config.name = name.parse()?;
        config.token_file = Some(token);
        config.services = services.iter().map(ServiceConfig::new).collect();
        running.push(weir_agent::start(config).await.with_context(|| format!("{name} does not start"))?);
    }
    for agent in &running {
        for service in &services {
            agent.service(service).context("it is followed")?.wait_for(|status| status.release.is_some()).await?;
        }
    }
    Ok(running)
}

/// What changes at the agents that this program plays.
pub(crate) enum Change {
    /// A service has another publication, which those run that are not behind.
    Published(usize, Release),
}

/// An agent that this program plays.
struct Played {
    number: usize,
    authorization: String,
    seq: u64,
    runs: Vec<Release>,
}

/// The played agents of one edge.
struct OfEdge {
    client: Client,
    url: String,
    agents: Vec<Played>,
    desired: Vec<Release>,
}

/// Plays agents at the edges. They report everything first.
pub(crate) fn play(
    site: &Site,
    numbers: std::ops::Range<usize>,
    old: &[Release],
    new: &[Release],
) -> anyhow::Result<Vec<mpsc::Sender<Change>>> {
    let mut senders = Vec::new();
    for (edge, address) in site.addresses.iter().enumerate() {
        let mut agents = Vec::new();
        for number in numbers.clone().filter(|number| number % EDGES == edge) {
            let runs = if number.is_multiple_of(BEHIND) { old } else { new };
            let authorization = format!("Bearer {}", site.token(&agent(number), number)?);
            agents.push(Played { number, authorization, seq: 0, runs: runs.to_vec() });
        }
        let url = format!("https://{address}/v1/agents/self/observed");
        let of_edge = OfEdge { client: agents_client(site)?, url, agents, desired: new.to_vec() };
        let (sender, changes) = mpsc::channel(8);
        tokio::spawn(of_edge.run(changes));
        senders.push(sender);
    }
    Ok(senders)
}

impl Played {
    fn row(&self, service: usize, desired: &Release) -> Value {
        let runs = &self.runs[service];
        let is_current = runs == desired;
        let phase = if is_current { Phase::Current } else { Phase::Waiting };
        let since = "2026-11-20T09:30:00Z";
        let problem = (!is_current && self.number.is_multiple_of(2))
            .then(|| json!({ "kind": "hook-failed", "since": since, "tries": 8, "text": "exit status 1: the deployment is not ready" }));
        json!({
            "service": name(service), "desired": { "digest": desired.digest, "generation": desired.generation },
            "current": { "digest": runs.digest, "generation": runs.generation, "revision_id": runs.revision, "since": since },
            "phase": phase, "hook": "succeeded", "problem": problem,
            "transfer": { "kind": "delta", "received_bytes": 30_100, "tarball_bytes": 417_000 },
        })
    }

    /// Reports these services, or with `full` all of them.
    async fn report(
        &mut self,
        client: &Client,
        url: &str,
        full: bool,
        services: &[usize],
        desired: &[Release],
    ) -> anyhow::Result<StatusCode> {
        self.seq += 1;
        let rows: Vec<Value> = services.iter().map(|service| self.row(*service, &desired[*service])).collect();
        let message = json!({ "instance": format!("i-{}", self.number), "seq": self.seq, "full": full, "version": "0.3.0", "rows": rows });
        Ok(send(client, Method::POST, url, Some(&self.authorization), message.to_string().into_bytes()).await?.0)
    }
}

impl OfEdge {
    async fn run(mut self, mut changes: mpsc::Receiver<Change>) {
        let all: Vec<usize> = (0..self.desired.len()).collect();
        let (mut tick, mut place) = (tokio::time::interval(Duration::from_secs(1)), 0);
        let mut lost = true;
        loop {
            if lost {
                lost = self.report(0..self.agents.len(), true, &all).await.is_err();
            }
            tokio::select! {
                change = changes.recv() => match change {
                    None => return,
                    Some(Change::Published(service, release)) => {
                        for agent in self.agents.iter_mut().filter(|agent| !agent.number.is_multiple_of(BEHIND)) {
                            agent.runs[service] = release.clone();
                        }
                        self.desired[service] = release;
                        lost |= self.report(0..self.agents.len(), false, &[service]).await.is_err();
                    }
                },
                _ = tick.tick() => {
                    let size = self.agents.len().div_ceil(HEARD_EVERY);
                    let end = (place + size).min(self.agents.len());
                    lost |= self.report(place..end, false, &[]).await.is_err();
                    place = if end == self.agents.len() { 0 } else { end };
                }
            }
        }
    }

    /// Reports for some of the agents. An error: the edge was not reached, or is another run that has nothing of them.
    async fn report(&mut self, agents: std::ops::Range<usize>, full: bool, services: &[usize]) -> anyhow::Result<()> {
        let (client, url, desired) = (&self.client, &*self.url, &*self.desired);
        let reports = self.agents[agents].iter_mut().map(|agent| agent.report(client, url, full, services, desired));
        let mut results = stream::iter(reports.collect::<Vec<_>>()).buffer_unordered(CONCURRENT);
        while let Some(status) = results.next().await {
            anyhow::ensure!(status? == StatusCode::NO_CONTENT, "the edge lacks what came before");
        }
        Ok(())
    }
}
