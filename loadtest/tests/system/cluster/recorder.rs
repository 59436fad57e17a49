//! Records what is seen of a cluster: by readers of its edges, by followers of its origins' events, and by who pushes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::{Response, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::task::JoinSet;
use tokio::time::timeout;
use weir_protocol::descriptor::Descriptor;
use weir_protocol::event::{Event, EventKind, Lines};
use weir_protocol::name::ServiceName;

use super::history::{Fetch, History, Poll, Push, Seen, Vouch};
use super::site::Site;
use super::upstream::Upstream;
use crate::site::{Client, header};

/// Between two rounds of a reader, and before a follower connects again.
const PAUSE: Duration = Duration::from_millis(200);

/// How long a reader waits for an edge before it tries the next.
const PATIENCE: Duration = Duration::from_secs(5);

/// Followers of origins have no order with readers of edges.
const FOLLOWER: usize = usize::MAX;

/// What records. Clones share the history.
#[derive(Clone)]
pub(crate) struct Recorder {
    history: Arc<Mutex<History>>,
    started: Instant,
}

/// The tasks that look. They end when dropped.
pub(crate) struct Looking {
    pub(crate) recorder: Recorder,
    _tasks: JoinSet<()>,
}

impl Recorder {
    pub(crate) fn edit(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Records what it is told, and looks at nothing.
    pub(crate) fn idle() -> Self {
        Self { history: Arc::default(), started: Instant::now() }
    }

    /// Follows all origins, and polls all services at each edge. `services`: all are published.
    pub(crate) fn start(site: &Site) -> anyhow::Result<Looking> {
        let recorder = Self::idle();
        let mut tasks = JoinSet::new();
        let ca = site.path("ca.pem");
        for origin in &site.origins {
            let identity = (site.path("edge-client.pem"), site.path("edge-client.key"));
            let client = Client::of_role(&ca, &identity.0, &identity.1, origin.address)?;
            tasks.spawn(recorder.clone().follow(origin.name.clone(), client));
        }
        let names = site.upstreams.iter().map(|upstream| &upstream.name).chain(&site.composed);
        let services: Vec<ServiceName> = names.map(|name| Ok(name.parse()?)).collect::<anyhow::Result<_>>()?;
        for reader in 0..site.edges.len() {
            let mut edges: Vec<(String, Client)> = site
                .edges
                .iter()
                .map(|edge| Ok((edge.name.clone(), Client::new(&ca, edge.address)?)))
                .collect::<anyhow::Result<_>>()?;
            edges.rotate_left(reader);
            tasks.spawn(recorder.clone().read(reader, edges, services.clone()));
        }
        Ok(Looking { recorder, _tasks: tasks })
    }

    /// Polls as agents do: an edge that does not answer is followed by the next.
    async fn read(self, reader: usize, edges: Vec<(String, Client)>, services: Vec<ServiceName>) {
        let mut newest = BTreeMap::new();
        loop {
            for service in &services {
                let mut failures = String::new();
                for (edge, client) in &edges {
                    match self.poll(reader, edge, client, service).await {
                        Ok(seen) => {
                            failures.clear();
                            let last = newest.insert((edge.clone(), service.clone()), seen.generation);
                            if last != Some(seen.generation) {
                                self.edit().publications.push(seen);
                            }
                            break;
                        }
                        Err(error) => failures += &format!("{edge}: {error:#}; "),
                    }
                }
                let failure = (!failures.is_empty()).then_some(failures);
                self.edit().polls.push(Poll { at: self.now(), service: service.clone(), failure });
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn poll(&self, reader: usize, edge: &str, client: &Client, service: &ServiceName) -> anyhow::Result<Seen> {
        let path = format!("/v1/services/{service}/tarball");
        let response = timeout(PATIENCE, client.send("HEAD", &path, &[])).await.context("it is silent")??;
        ensure!(response.status() == StatusCode::OK, "{}", response.status());
        let text = |name| header(&response, name).to_owned();
        Ok(Seen {
            at: self.now(),
            node: edge.to_owned(),
            reader,
            service: service.clone(),
            generation: text("weir-generation").parse()?,
            digest: text("weir-digest").parse()?,
            commit: text("weir-commit"),
        })
    }

    /// Follows the events of an origin, whenever it answers.
    async fn follow(self, origin: String, client: Client) {
        loop {
            if let Ok(response) = client.send("GET", "/v1/events", &[]).await
                && response.status() == StatusCode::OK
            {
                let _ = self.record_events(&origin, response).await;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn record_events(&self, origin: &str, response: Response<Incoming>) -> anyhow::Result<()> {
        let (mut body, mut lines) = (response.into_body(), Lines::default());
        while let Some(frame) = body.frame().await {
            lines.push(frame?.data_ref().map_or(&[][..], Bytes::as_ref));
            while let Some(line) = lines.next_line()? {
                match Event::parse(&line)?.map(|event| event.kind) {
                    Some(EventKind::Heartbeat) => {
                        self.edit().vouches.push(Vouch { at: self.now(), origin: origin.to_owned() });
                    }
                    Some(EventKind::Descriptor(bytes)) => {
                        let descriptor = Descriptor::parse(bytes)?;
                        let publication = descriptor.publication();
                        self.edit().publications.push(Seen {
                            at: self.now(),
                            node: origin.to_owned(),
                            reader: FOLLOWER,
                            service: publication.service.clone(),
                            generation: publication.generation,
                            digest: publication.digest,
                            commit: publication.commit.as_ref().map(ToString::to_string).unwrap_or_default(),
                        });
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }

    /// Adds what the Git server was asked for.
    pub(crate) fn add_fetches(&self, site: &Site) {
        let since = |instant: Instant| instant.saturating_duration_since(self.started);
        let requests = site.git.requests().all().into_iter().filter_map(|request| {
            let origin = site.origin_at(request.client)?.to_owned();
            let (began, ended) = (since(request.began), since(request.ended));
            Some(Fetch { origin, repository: request.repository, wants: request.wants, began, ended })
        });
        self.edit().fetches = requests.collect();
    }
}

/// Pushes to one repository after the other.
pub(crate) struct Pushing {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<anyhow::Result<Vec<Upstream>>>,
}

impl Pushing {
    pub(crate) fn start(recorder: &Recorder, mut upstreams: Vec<Upstream>, every: Duration) -> Self {
        let (recorder, stop) = (recorder.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let thread = std::thread::spawn(move || {
            for turn in 0.. {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let next = turn % upstreams.len();
                let upstream = &mut upstreams[next];
                upstream.push()?;
                let (at, service, commit) = (recorder.now(), upstream.name.parse()?, upstream.newest.clone());
                recorder.edit().pushes.push(Push { at, service, commit });
                std::thread::sleep(every);
            }
            Ok(upstreams)
        });
        Self { stop, thread }
    }

    /// Ends it, and returns the repositories.
    pub(crate) async fn stop(self) -> anyhow::Result<Vec<Upstream>> {
        self.stop.store(true, Ordering::Relaxed);
        let ended = tokio::task::spawn_blocking(|| self.thread.join()).await?;
        ended.map_err(|_| anyhow::anyhow!("it panicked"))?
    }
}

/// Writes everything that was recorded beside the logs.
pub(crate) fn save(history: &History, to: &Path) -> anyhow::Result<PathBuf> {
    let file = to.join("history.txt");
    std::fs::write(&file, format!("{history:#?}"))?;
    Ok(file)
}
