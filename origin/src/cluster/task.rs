//! The task that drives the core. It waits for nothing but the next event: requests, messages and work run beside it, and
//! come back as events.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{sleep, timeout};
use weir_ownership::{Action, Answer, Claim, Core, Digests, Event, Living, NodeState, Request, Settings};
use weir_protocol::name::{NodeName, RepositoryName};
use weir_publish::{Publisher, Validity, boot_clock, unix_milliseconds};
use weir_runtime::bounds::Bounds;
use weir_runtime::shutdown::Drain;
use weir_store::{RecordKey, Records, Version};

use super::engine::Engine;
use super::work::{self, Work};
use super::{Cluster, ClusterMetrics, Member, MirrorSource, Order, Owned, OwnedRepositories, Secrets, View, run};
use crate::catalog::Editor;
use crate::config::{ClusterConfig, Config};
use crate::member_client::MemberClient;
use crate::names::ServiceNames;

/// The most queued events. Who sends one waits.
const QUEUE: usize = 256;

/// A tick that is not due for this long is not waited for.
const LONGEST_SLEEP: Duration = Duration::from_secs(3600);

/// A member that has not joined yet.
pub(crate) struct Membership {
    settings: Settings,
    secrets: Secrets,
    orders: mpsc::Receiver<Order>,
    queue: mpsc::Sender<Order>,
    superseded: (mpsc::UnboundedSender<RepositoryName>, mpsc::UnboundedReceiver<RepositoryName>),
    view: watch::Sender<Arc<View>>,
    valid_until: watch::Sender<Option<Instant>>,
}

/// What the task uses.
pub(crate) struct Parts {
    pub(crate) records: Records,
    pub(crate) publisher: Arc<Publisher>,
    pub(crate) editor: Editor,
    pub(crate) names: ServiceNames,
    pub(crate) members: Arc<MemberClient>,
    pub(crate) mirrors: MirrorSource,
    pub(crate) metrics: ClusterMetrics,
}

struct Task {
    core: Core<Version>,
    engine: Engine,
    work: Work,
    members: Arc<MemberClient>,
    metrics: ClusterMetrics,
    orders: mpsc::Receiver<Order>,
    queue: mpsc::Sender<Order>,
    /// At most one for each repository that is taken.
    superseded: mpsc::UnboundedReceiver<RepositoryName>,
    view: watch::Sender<Arc<View>>,
    /// What all members have in common. The tasks of all repositories wait for a change, so it is apart from the view.
    agreed: watch::Sender<Option<Digests>>,
    valid_until: watch::Sender<Option<Instant>>,
    me: Member,
    owned: OwnedRepositories,
    /// The repositories that are being claimed, and from whom.
    claimed: BTreeMap<RepositoryName, From>,
    drain: Drain,
}

/// From whom this origin takes a repository.
#[derive(Debug, Clone, Copy, PartialEq, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
enum From {
    New,
    Released,
    Own,
    /// The session of its owner has ended. The time when it was last renewed, if this origin has seen that.
    Ended(Option<Instant>),
}

impl Membership {
    /// Begins a run of this origin, which has not joined yet. The caller holds the lock of the data directory.
    ///
    /// # Errors
    /// The data directory cannot be written, or the machine has no randomness.
    pub(crate) fn new(
        config: &Config,
        cluster: &ClusterConfig,
        digests: Digests,
        data_dir: &Path,
        bounds: &Bounds,
    ) -> std::io::Result<(Cluster, Self)> {
        let (run::Run { number, ended }, secrets) = (run::begin(data_dir)?, Secrets::new()?);
        let settings = Settings {
            node: config.name.clone(),
            url: cluster.advertise.trim_end_matches('/').to_owned(),
            zone: cluster.zone.clone(),
            weight: cluster.weight,
            digests,
            timing: cluster.timing(),
            run: number,
            clock: unix_milliseconds(SystemTime::now()),
            ended,
        };
        let view = View {
            me: Member::of(&settings),
            has_session: false,
            is_name_taken: false,
            sees_members: false,
            others: BTreeMap::new(),
            owned: OwnedRepositories::default(),
            agree: false,
        };
        let (view, seen) = watch::channel(Arc::new(view));
        let (valid_until, valid) = watch::channel(None);
        let (queue, orders) = mpsc::channel(QUEUE);
        let waiting = queue.downgrade();
        let in_use = move || waiting.upgrade().map_or(0, |queue| queue.max_capacity() - queue.capacity());
        bounds.show("cluster_events", QUEUE, in_use);
        let (validity, known) = (Validity::of_session(valid), secrets.clone());
        let cluster = Cluster { view: seen, orders: queue.clone(), validity, secrets: known };
        #[expect(clippy::disallowed_methods, reason = "at most one message for each repository that is owned")]
        let superseded = mpsc::unbounded_channel();
        Ok((cluster, Self { settings, secrets, orders, queue, superseded, view, valid_until }))
    }

    /// Where the publisher reports writers that found a record of another origin.
    pub(crate) fn superseded(&self) -> mpsc::UnboundedSender<RepositoryName> {
        self.superseded.0.clone()
    }

    /// Joins the cluster.
    pub(crate) fn start(self, parts: Parts, drain: &Drain) {
        let Self { settings, secrets, orders, queue, superseded: (_, superseded), view, valid_until } = self;
        let Parts { records, publisher, editor, names, members, mirrors, metrics } = parts;
        let agreed = watch::Sender::new(None);
        let parts = work::Parts {
            publisher,
            editor,
            names,
            catalog: mirrors.catalog.clone(),
            queue: queue.clone(),
            agreed: agreed.subscribe(),
            metrics: metrics.clone(),
            drain: drain.clone(),
        };
        let work = Work::new(parts, mirrors);
        let task = Task {
            core: Core::new(&settings, boot_clock::now()),
            engine: Engine::new(records, secrets),
            work,
            members,
            metrics,
            orders,
            queue,
            superseded,
            view,
            agreed,
            valid_until,
            me: Member::of(&settings),
            owned: OwnedRepositories::default(),
            claimed: BTreeMap::new(),
            drain: drain.clone(),
        };
        drain.spawn(task.run());
    }
}

impl Task {
    async fn run(mut self) {
        let mut begun = self.drain.begun();
        loop {
            let rest = |at: Instant| at.saturating_duration_since(boot_clock::now());
            let rest = self.core.wake_at().map_or(LONGEST_SLEEP, rest).min(LONGEST_SLEEP);
            let order = tokio::select! {
                () = sleep(rest) => Order::Event(Event::Tick),
                Some(order) = self.orders.recv() => order,
                Some(repository) = self.superseded.recv() => Order::Event(Event::Superseded { repository }),
                // What was not handed over is taken over when the session has ended.
                () = &mut begun => return,
            };
            self.handle(order);
        }
    }

    fn handle(&mut self, order: Order) {
        let (event, mut ask) = match order {
            Order::Event(event) => (event, None),
            Order::Ask(repository, reply) => (Event::Asked { repository }, Some(reply)),
        };
        match &event {
            Event::Described(digests) => self.me.digests = digests.clone(),
            Event::Drain => self.me.state = NodeState::Draining,
            Event::Answered { answer: Answer::Repositories(listed), .. } => {
                let key = |(name, version): &(RepositoryName, _)| (RecordKey::repository(name), Option::clone(version));
                self.work.refresh(listed.iter().map(key).collect());
            }
            Event::Superseded { repository } => {
                self.metrics.superseded.inc();
                tracing::warn!(%repository, "another origin has written the record: this origin stops its work");
            }
            _ => {}
        }
        let actions = self.core.handle(boot_clock::now(), event);
        actions.iter().for_each(|action| self.note(action));
        // Before anything starts: workers and writers check it.
        self.publish();
        for action in actions {
            self.act(action, &mut ask);
        }
        // An ask without an answer is a no.
    }

    /// Notes what changes hands.
    fn note(&mut self, action: &Action<Version>) {
        match action {
            Action::WriteRepository { repository, claim, .. } if !claim.is_released => {
                let before = self.core.claim(repository);
                let from = From::of(before, &self.me.name, |owner| self.core.last_seen(owner));
                self.claimed.insert(repository.clone(), from);
            }
            Action::Start { repository, fence, .. } => {
                self.owned.insert(repository.clone(), Owned { fence: *fence, since: SystemTime::now() });
                let Some(from) = self.claimed.remove(repository) else { return };
                self.metrics.taken.with_label_values(&[from.into_str()]).inc();
                if let From::Ended(Some(last_seen)) = from {
                    self.metrics
                        .without_owner
                        .observe(boot_clock::now().saturating_duration_since(last_seen).as_secs_f64());
                }
                tracing::info!(%repository, fence, from = from.into_str(), "this origin owns the repository");
            }
            Action::Stop { repository } => {
                self.owned.remove(repository);
                tracing::info!(%repository, "released ownership of the repository");
            }
            Action::StopAll => {
                self.owned.clear();
                self.claimed.clear();
                self.metrics.lost_sessions.inc();
                tracing::error!(
                    "the session has ended because the record store did not answer in time, or because this origin was \
                     paused: it stops its work, and begins a new session when the store answers"
                );
            }
            Action::Left => self.me.state = NodeState::Left,
            _ => {}
        }
    }

    fn act(&mut self, action: Action<Version>, ask: &mut Option<oneshot::Sender<bool>>) {
        let engine = self.engine.clone();
        match action {
            Action::ReadNode(request) => self.request(request, engine.read_node(self.me.name.clone())),
            Action::WriteNode { request, expect, record } => self.request(request, engine.write_node(expect, record)),
            Action::ReadNodes(request) => self.request(request, engine.read_nodes()),
            Action::DeleteNode(record) => self.spawn(async move {
                engine.delete_node(record).await;
                None
            }),
            Action::ListRepositories(request) => self.request(request, engine.list_repositories()),
            Action::ReadRepository { request, repository } => {
                self.request(request, engine.read_repository(repository));
            }
            Action::WriteRepository { request, repository, expect, claim } => {
                if claim.is_released {
                    self.metrics.released.inc();
                }
                self.request(request, engine.write_repository(repository, expect, claim));
            }
            Action::Start { repository, version, .. } => self.work.start(repository, version),
            Action::Stop { repository } => self.work.stop(&repository),
            Action::StopAll => self.work.stop_all(),
            Action::AskReady { node, repository } => {
                let Some(url) = self.url(&node) else { return };
                // What it needs may take longer than the time between two questions.
                let Some(stored) = self.work.store_mirror(&repository) else { return };
                let (members, drain) = (self.members.clone(), self.drain.clone());
                self.spawn(async move {
                    let may_ask = tokio::select! {
                        may_ask = stored => may_ask,
                        () = drain.begun() => false,
                    };
                    if !may_ask {
                        return None;
                    }
                    // It is asked again.
                    let is_ready = members.is_ready(&url, &repository).await.unwrap_or(false);
                    Some(Event::Ready { node, repository, is_ready })
                });
            }
            Action::Tell { node, repository } => {
                let Some(url) = self.url(&node) else { return };
                let members = self.members.clone();
                // A message that is lost costs the time until the next owner reads the record.
                self.spawn(async move { members.tell(&url, &repository).await.err().and(None) });
            }
            Action::Prepare { repository } => self.work.prepare(&repository, ask.take()),
            Action::Left => tracing::info!("this origin has left the cluster"),
        }
    }

    fn url(&self, node: &NodeName) -> Option<String> {
        self.core.others().get(node).map(|living| living.url.clone())
    }

    /// Sends a request to the engine. Without an answer in time, nothing is known.
    fn request(&self, request: Request, answer: impl Future<Output = Answer<Version>> + Send + 'static) {
        let Request { id, deadline } = request;
        self.spawn(async move {
            let rest = deadline.saturating_duration_since(boot_clock::now());
            let answer = timeout(rest, answer).await.unwrap_or(Answer::Unknown);
            Some(Event::Answered { request: id, answer })
        });
    }

    fn spawn(&self, work: impl Future<Output = Option<Event<Version>>> + Send + 'static) {
        let queue = self.queue.clone();
        self.drain.spawn(async move {
            if let Some(event) = work.await {
                // The task ends first when the origin stops.
                let _ = queue.send(Order::Event(event)).await;
            }
        });
    }

    /// Shows what has changed.
    fn publish(&mut self) {
        let valid_until = self.core.valid_until();
        self.valid_until.send_if_modified(|before| std::mem::replace(before, valid_until) != valid_until);
        let wall = valid_until.map(|until| SystemTime::now() + until.saturating_duration_since(boot_clock::now()));
        let wall = wall.and_then(|until| until.duration_since(SystemTime::UNIX_EPOCH).ok());
        self.metrics.valid_until.set(wall.map_or(0.0, |until| until.as_secs_f64()));

        self.me.session = self.core.session();
        let before = self.view.borrow().clone();
        let others = self.core.others().iter().map(|(name, living)| (name.clone(), Member::living(name, living)));
        let mut view = View {
            me: self.me.clone(),
            has_session: valid_until.is_some(),
            is_name_taken: self.core.is_name_taken(),
            sees_members: self.core.sees_members(),
            others: others.collect(),
            owned: self.owned.clone(),
            agree: false,
        };
        let agree = view.differing().next().is_none();
        view.agree = agree;
        if view == *before {
            return;
        }
        self.log(&before, &view);
        for state in [NodeState::Active, NodeState::Draining] {
            let living = view.living().filter(|member| member.state == state);
            let members = self.metrics.members.with_label_values(&[state.as_str()]);
            members.set(i64::try_from(living.count()).unwrap_or(i64::MAX));
        }
        self.metrics.differing.set(i64::try_from(view.differing().count()).unwrap_or(i64::MAX));
        self.metrics.owned.set(i64::try_from(view.owned.size()).unwrap_or(i64::MAX));
        let agreed = agree.then(|| view.me.digests.clone());
        self.view.send_replace(Arc::new(view));
        // After the view, which those that this wakes look at.
        self.agreed.send_if_modified(|before| std::mem::replace(before, agreed.clone()) != agreed);
    }

    /// What operators should know of a change.
    fn log(&self, before: &View, view: &View) {
        if view.has_session && !before.has_session {
            tracing::info!(session = view.me.session.0, "this origin has joined the cluster");
        }
        if view.is_name_taken && !before.is_name_taken {
            tracing::warn!(
                name = %view.me.name,
                "another process uses this origin's name, or it has just died: this one joins when the other's session has \
                 ended; give each origin a name of its own"
            );
        }
        for (name, member) in &view.others {
            if !before.others.contains_key(name) {
                tracing::info!(member = %name, url = member.url, "a member has joined");
            }
        }
        for (name, member) in before.others.iter().filter(|(name, _)| !view.others.contains_key(*name)) {
            if member.state == NodeState::Draining {
                tracing::info!(member = %name, "a member has left");
            } else {
                tracing::warn!(member = %name, "the session of a member has ended");
            }
        }
        let names = |view: &View| view.differing().map(|member| member.name.to_string()).collect::<Vec<_>>();
        let (was, differing) = (names(before), names(view));
        if was != differing && differing.is_empty() {
            tracing::info!("all members have the same repositories, services and signing keys again");
        } else if was != differing {
            tracing::warn!(
                members = differing.join(", "),
                "the repositories and services of these members' configuration files, or their signing keys, are not this \
                 origin's: until they are, nothing is retired and nothing is signed again"
            );
        }
    }
}

impl From {
    fn of(before: Option<&Claim>, me: &NodeName, last_seen: impl Fn(&NodeName) -> Option<Instant>) -> Self {
        match before {
            None => Self::New,
            Some(claim) if claim.is_released => Self::Released,
            Some(claim) if claim.owner == *me => Self::Own,
            Some(claim) => Self::Ended(last_seen(&claim.owner)),
        }
    }
}

impl Member {
    /// This origin.
    fn of(settings: &Settings) -> Self {
        Self {
            name: settings.node.clone(),
            url: settings.url.clone(),
            zone: settings.zone.clone(),
            weight: settings.weight,
            state: NodeState::Active,
            session: weir_ownership::SessionId(settings.run),
            digests: settings.digests.clone(),
            knows_shards: true,
            knows_blobs: true,
            knows_staged: true,
        }
    }

    fn living(name: &NodeName, living: &Living) -> Self {
        let Living { session, state, url, zone, weight, digests, knows_shards, knows_blobs, knows_staged } =
            living.clone();
        Self { name: name.clone(), url, zone, weight, state, session, digests, knows_shards, knows_blobs, knows_staged }
    }
}
