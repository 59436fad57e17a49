//! `/v1/fleet/…` and `/v1/edges/{name}`: what agents run, from the memory of this origin.

use std::collections::{BTreeMap, HashMap};

use http::request::Parts;
use http::{Response, StatusCode};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::task::spawn_blocking;
use weir_observed::{
    Answer, By, Lacks, LacksBy, Now, PHASES, PROBLEMS, ProblemFilter, Release, RowFilter, State, Table, Verdict,
};
use weir_protocol::name::{NodeName, RepositoryName, ServiceName};
use weir_protocol::name_glob::NameGlob;
use weir_protocol::problem::Problem;
use weir_protocol::query::{self, QueryError};
use weir_publish::{CURRENT, MIN_PREFIX, PREVIOUS, Threshold};
use weir_runtime::serve::Body;
use weir_source::RevisionLookup;

use super::page::{DEFAULT_LIMIT, MAX_LIMIT};
use super::permissions::Permissions;
use super::problems;
use super::{OperatorApi, no_content, no_keys, uncached};
use crate::catalog::Snapshot;
use crate::observed::{Forgotten, NotForgotten};
use crate::status;

/// The most repositories in whose history one question looks for a revision.
const MAX_REPOSITORIES: usize = 16;

/// The most pins in an answer.
const MAX_PINS: usize = 100;

/// The most minutes that are counted together: a week.
const MAX_MINUTES: u32 = 7 * 24 * 60;

const LACKS_BY: [(&str, LacksBy); 2] = [("applied", LacksBy::Applied), ("current", LacksBy::Current)];

/// A question about rows or agents.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    rows: RowFilter,
    /// Services of these repositories.
    repository: Option<NameGlob>,
    /// Rows that are older than this revision.
    lacks: Option<String>,
    by: (By, Option<By>),
    limit: usize,
    cursor: Option<String>,
}

/// Where a revision is among the publications of each service. `None`: that is not known. Made before the table is read, so
/// that nobody waits for it.
struct Order {
    thresholds: HashMap<ServiceName, Option<Threshold>>,
    /// The services that are pinned, and so do not get the revision: each with its pin.
    pinned: BTreeMap<ServiceName, Value>,
}

impl Order {
    fn verdict(&self, service: &ServiceName, release: Option<&Release>) -> Verdict {
        let Some(threshold) = self.thresholds.get(service).and_then(Option::as_ref) else {
            return if self.pinned.contains_key(service) { Verdict::Pinned } else { Verdict::Unknown };
        };
        match release.map_or(Some(true), |release| threshold.lacks(release.generation)) {
            Some(true) => Verdict::Lacks,
            Some(false) => Verdict::Has,
            None => Verdict::Unknown,
        }
    }
}

/// Which parameters a path has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Of {
    Rows,
    Agents,
    Summary,
}

impl Of {
    fn known(self) -> &'static str {
        match self {
            Self::Rows => {
                "`service`, `repository`, `agent`, `label`, `lacks`, `lacks_by`, `phase`, `problem`, `edge`, `limit` and `cursor`"
            }
            Self::Agents => "`agent`, `label`, `edge`, `state`, `problem`, `limit` and `cursor`",
            Self::Summary => {
                "`by`, `service`, `repository`, `agent`, `label`, `lacks`, `lacks_by`, `phase`, `problem`, `edge`, `limit` and `cursor`"
            }
        }
    }
}

impl Of {
    /// Whether an answer may have had this cursor.
    fn can_begin_after(self, cursor: &str) -> bool {
        let is_agent = |name: &str| name.parse::<NodeName>().is_ok();
        match self {
            Self::Rows => cursor
                .split_once('/')
                .is_some_and(|(agent, service)| is_agent(agent) && service.parse::<ServiceName>().is_ok()),
            Self::Agents => is_agent(cursor),
            Self::Summary => cursor.parse::<usize>().is_ok(),
        }
    }
}

impl Question {
    fn parse(of: Of, query: Option<&str>) -> Result<Self, QueryError> {
        let (rows, by) = (RowFilter::default(), (By::Service, None));
        let mut asked = Self { rows, repository: None, lacks: None, by, limit: DEFAULT_LIMIT, cursor: None };
        for (key, value) in query::pairs(query.unwrap_or_default())? {
            let (rows, agents) = (&mut asked.rows, of == Of::Agents);
            match key {
                "agent" => rows.agents.agent = Some(query::parsed(key, &value)?),
                "edge" => rows.agents.edge = Some(query::parsed(key, &value)?),
                "label" => rows.agents.labels.push(label(&value)?),
                "state" if agents => rows.agents.state = Some(one_of(key, &value, &State::ALL)?),
                "service" if !agents => rows.service = Some(query::parsed(key, &value)?),
                "repository" if !agents => asked.repository = Some(query::parsed(key, &value)?),
                "phase" if !agents => rows.phase = Some(one_of(key, &value, &PHASES)?),
                "problem" if agents => rows.agents.problem = Some(problem_of(&value)?),
                "problem" => rows.problem = Some(problem_of(&value)?),
                "lacks" if !agents => asked.lacks = Some(value.into_owned()),
                "lacks_by" if !agents => rows.lacks_by = one_of(key, &value, &LACKS_BY)?,
                "by" if of == Of::Summary => asked.by = by_of(&value)?,
                "limit" => asked.limit = query::parsed(key, &value)?,
                "cursor" if of.can_begin_after(&value) => asked.cursor = Some(value.into_owned()),
                "cursor" => return Err(QueryError::new("`cursor` is no `cursor` of an answer to this question")),
                _ => return Err(QueryError::unknown(key, of.known())),
            }
        }
        if !(1..=MAX_LIMIT).contains(&asked.limit) {
            return Err(QueryError::new(format!("`limit` is from 1 to {MAX_LIMIT}")));
        }
        Ok(asked)
    }
}

fn label(value: &str) -> Result<(String, String), QueryError> {
    let (key, value) = value.split_once('=').ok_or_else(|| QueryError::new("`label` is written `label=key=value`"))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn one_of<T: Clone>(key: &str, value: &str, words: &[(&str, T)]) -> Result<T, QueryError> {
    let found = words.iter().find(|(word, _)| *word == value).map(|(_, found)| found.clone());
    let all = || words.iter().map(|(word, _)| format!("`{word}`")).collect::<Vec<_>>().join(", ");
    found.ok_or_else(|| QueryError::new(format!("`{key}` is one of {}", all())))
}

fn problem_of(value: &str) -> Result<ProblemFilter, QueryError> {
    if value == "any" {
        return Ok(ProblemFilter::Any);
    }
    let kinds = PROBLEMS.map(|(word, kind)| (word, ProblemFilter::Kind(kind)));
    one_of("problem", value, &kinds).map_err(|error| QueryError::new(format!("{error}, or `any`")))
}

fn by_of(value: &str) -> Result<(By, Option<By>), QueryError> {
    match value.split_once(',') {
        Some((one, other)) => Ok((key_of(one)?, Some(key_of(other)?))),
        None => Ok((key_of(value)?, None)),
    }
}

fn key_of(value: &str) -> Result<By, QueryError> {
    if let Some(minutes) = value.strip_prefix("since:").and_then(|minutes| minutes.parse().ok()) {
        let is_valid = (1..=MAX_MINUTES).contains(&minutes);
        let error = || QueryError::new(format!("`since:<minutes>` is from 1 to {MAX_MINUTES}"));
        return is_valid.then_some(By::Since(minutes)).ok_or_else(error);
    }
    if let Some(key) = value.strip_prefix("label:").filter(|key| !key.is_empty()) {
        return Ok(By::Label(key.to_owned()));
    }
    let words = [
        ("service", By::Service),
        ("agent", By::Agent),
        ("revision", By::Revision),
        ("phase", By::Phase),
        ("problem", By::Problem),
        ("edge", By::Edge),
    ];
    one_of("by", value, &words).map_err(|error| {
        QueryError::new(format!(
            "{}, `label:<key>` or `since:<minutes>`, or two of these with a comma",
            error.to_string().trim_end_matches('.')
        ))
    })
}

impl OperatorApi {
    /// `/v1/fleet/rows`.
    pub(super) async fn fleet_rows(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let Question { rows, lacks, limit, cursor, .. } = self.question(Of::Rows, head, may)?;
        let order = self.order(&rows, lacks).await?;
        self.ask("rows", order, move |table, order, now| {
            let lacks = order.map(|order| |service: &_, release: Option<&_>| order.verdict(service, release));
            let lacks = lacks.as_ref().map(|lacks| lacks as Lacks<'_>);
            table.rows(&rows, lacks, (cursor.as_deref(), limit), now)
        })
        .await
    }

    /// `/v1/fleet/agents`.
    pub(super) async fn fleet_agents(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let Question { rows: RowFilter { agents, .. }, limit, cursor, .. } = self.question(Of::Agents, head, may)?;
        self.ask("agents", None, move |table, _, now| table.agents(&agents, (cursor.as_deref(), limit), now)).await
    }

    /// `/v1/fleet/summary`.
    pub(super) async fn fleet_summary(&self, head: &Parts, may: &Permissions) -> Result<Response<Body>, Problem> {
        let Question { rows, lacks, by, limit, cursor, .. } = self.question(Of::Summary, head, may)?;
        let after = cursor.map(|cursor| query::parsed("cursor", &cursor)).transpose()?;
        let order = self.order(&rows, lacks).await?;
        self.ask("groups", order, move |table, order, now| {
            let lacks = order.map(|order| |service: &_, release: Option<&_>| order.verdict(service, release));
            let lacks = lacks.as_ref().map(|lacks| lacks as Lacks<'_>);
            table.summary((&by.0, by.1.as_ref()), &rows, lacks, (after, limit), now)
        })
        .await
    }

    /// `/v1/edges`.
    pub(super) async fn list_edges(&self, head: &Parts) -> Result<Response<Body>, Problem> {
        no_keys(head)?;
        let edges = self.observed.query(Table::list_edges).await.ok_or_else(problems::records_unreadable)?;
        Ok(uncached(&json!({ "edges": edges })))
    }

    /// Where the revision is among the publications of the services that a question is about.
    async fn order(&self, rows: &RowFilter, lacks: Option<String>) -> Result<Option<Order>, Problem> {
        let Some(revision) = lacks else { return Ok(None) };
        let snapshot = self.catalog.snapshot();
        let mut of_repositories = BTreeMap::<RepositoryName, Vec<(ServiceName, String)>>::new();
        for (name, service) in &snapshot.services {
            let is_meant = rows.service.as_ref().is_none_or(|glob| glob.matches(name.as_str()))
                && rows.among.as_ref().is_none_or(|among| among.contains(name));
            if is_meant {
                let followed = (name.clone(), service.followed.to_string());
                of_repositories.entry(service.repository.clone()).or_default().push(followed);
            }
        }
        if of_repositories.len() > MAX_REPOSITORIES {
            let found = of_repositories.len();
            return Err(Problem::malformed(format!(
                "`lacks` is about at most {MAX_REPOSITORIES} repositories, and these are {found}: add `repository` or `service`."
            )));
        }
        // The mirrors of parts are not asked.
        let is_composed =
            |(name, _): &(ServiceName, String)| snapshot.services.get(name).is_some_and(|it| !it.parts.is_empty());
        let mut is_certain = !of_repositories.values().flatten().any(is_composed);
        let (mut thresholds, mut is_known) = (HashMap::new(), false);
        for (repository, services) in of_repositories {
            if let Some(members) = &self.members {
                // Reads its record again, unless it is this origin's own.
                members.replicas.owner(&repository).await?;
            }
            let positions = self.versions.positions(&repository).await?;
            let in_mirror = match snapshot.workers.get(&repository) {
                Some(worker) if !matches!(&*revision, CURRENT | PREVIOUS) => worker.find_revision(&revision).await,
                _ => RevisionLookup::Unknown,
            };
            // A tag is called as its commit.
            let called =
                if let RevisionLookup::Tag(commit) = &in_mirror { commit.to_string() } else { revision.clone() };
            let find = move || {
                let is_known = positions.knows(&called);
                let find = |(service, followed): (ServiceName, String)| {
                    let candidates = positions.candidates(&service, &called);
                    if candidates.len() > 1 {
                        let detail = format!(
                            "Service `{service}` had several revisions that begin with `{called}`: give more digits."
                        );
                        return Err(problems::ambiguous(detail).with_errors(json!(candidates)));
                    }
                    let threshold = positions.find(&service, &followed, &called);
                    Ok((service, threshold))
                };
                Ok::<_, Problem>((is_known, services.into_iter().map(find).collect::<Result<Vec<_>, _>>()?))
            };
            let (is_in_history, found) = spawn_blocking(find).await.map_err(problems::failed)??;
            is_known |= is_in_history || matches!(in_mirror, RevisionLookup::Tag(_) | RevisionLookup::Commit);
            is_certain &= in_mirror != RevisionLookup::Unknown;
            thresholds.extend(found);
        }
        let is_short = revision.len() < MIN_PREFIX && revision.bytes().all(|b| b.is_ascii_hexdigit());
        if is_short && thresholds.values().all(Option::is_none) {
            return Err(Problem::malformed(format!(
                "`lacks`: no publication that is known here is called `{revision}`, and a prefix of a commit has at least {MIN_PREFIX} digits."
            )));
        }
        if is_certain && !is_known {
            return Err(problems::unknown_revision(&revision));
        }
        let pinned = held_back(&snapshot, &thresholds);
        Ok(Some(Order { thresholds, pinned }))
    }

    /// `may`: whose rows the operator sees.
    fn question(&self, of: Of, head: &Parts, may: &Permissions) -> Result<Question, Problem> {
        let mut question = Question::parse(of, head.uri.query())?;
        let repository = &question.repository;
        if repository.is_some() || may.services.is_some() {
            let snapshot = self.catalog.snapshot();
            let services = snapshot.definitions.services.iter();
            let of_it = services.filter(|(name, it)| {
                repository.as_ref().is_none_or(|glob| glob.matches(it.document.repository().as_str())) && may.sees(name)
            });
            let among = Some(of_it.map(|(name, _)| name.clone()).collect());
            if of == Of::Agents {
                question.rows.agents.among = among;
            } else {
                question.rows.among = among;
            }
        }
        Ok(question)
    }

    /// Answers with the entries under `name`, and with the pins of an order.
    async fn ask<T: Serialize + Send + 'static>(
        &self,
        name: &'static str,
        order: Option<Order>,
        question: impl FnOnce(&Table, Option<&Order>, Now) -> Answer<T> + Send + 'static,
    ) -> Result<Response<Body>, Problem> {
        #[derive(Serialize)]
        struct WithPins<A> {
            #[serde(flatten)]
            answer: A,
            #[serde(skip_serializing_if = "Option::is_none")]
            pinned: Option<Vec<Value>>,
        }
        let asked = self.observed.query(move |table, now| (question(table, order.as_ref(), now), order));
        let (answer, order) = asked.await.ok_or_else(problems::records_unreadable)?;
        let pinned = order.map(|order| order.pinned.into_values().take(MAX_PINS).collect());
        Ok(uncached(&WithPins { answer: answer.named(name), pinned }))
    }

    /// Deletes an agent or an edge from what is known. One that still reports is there again.
    pub(super) async fn forget(&self, name: Forgotten) -> Result<Response<Body>, Problem> {
        let (kind, problem, title, text) = match &name {
            Forgotten::Agent(name) => ("agent", "no-such-agent", "No such agent", name.to_string()),
            Forgotten::Edge(name) => ("edge", "no-such-edge", "No such edge", name.to_string()),
        };
        match self.observed.forget(name).await {
            Ok(()) => Ok(no_content()),
            Err(NotForgotten::Unknown) => {
                let detail = format!("No origin has heard of {kind} `{text}`.");
                Err(Problem::new(StatusCode::NOT_FOUND, problem, title, detail).about(kind, &text))
            }
            Err(NotForgotten::Unwritten(reason)) => Err(problems::edit_failed(&reason)),
        }
    }
}

/// The pins of services whose version does not have the revision. Until they are unpinned they do not get it.
fn held_back(
    snapshot: &Snapshot,
    thresholds: &HashMap<ServiceName, Option<Threshold>>,
) -> BTreeMap<ServiceName, Value> {
    let pinned = thresholds.iter().filter_map(|(name, threshold)| {
        let service = snapshot.services.get(name)?;
        let pin = status::pin(service)?;
        let current = service.current()?.publication().generation;
        let has_it = threshold.as_ref().is_some_and(|it| it.lacks(current) == Some(false));
        (!has_it).then_some((name.clone(), pin))
    });
    pinned.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_question_names_what_is_wrong() {
        for (of, query, expected) in [
            (Of::Rows, "services=a", "valid keys are `service`, `repository`"),
            (Of::Rows, "state=live", "the query names `state`"),
            (Of::Rows, "by=agent", "the query names `by`"),
            (Of::Rows, "phase=haunted", "`phase` is one of `current`, `waiting`"),
            (Of::Rows, "problem=none", "`problem` is one of `unreachable`"),
            (Of::Rows, "agent=A", "`agent`: `A` is not a pattern"),
            (Of::Rows, "label=ring", "`label=key=value`"),
            (Of::Rows, "limit=0", "`limit` is from 1 to 1000"),
            (Of::Agents, "service=a", "valid keys are `agent`"),
            (Of::Agents, "state=dead", "`state` is one of `live`, `silent`, `refused`"),
            (Of::Summary, "by=label:", "`by` is one of"),
            (Of::Summary, "by=service,", "`by` is one of"),
            (Of::Summary, "by=since:0", "from 1 to 10080"),
            (Of::Rows, "lacks_by=disk", "`lacks_by` is one of `applied`, `current`"),
            (Of::Rows, "cursor=cluster-1", "`cursor` is no `cursor`"),
            (Of::Rows, "cursor=cluster-1/A", "`cursor` is no `cursor`"),
            (Of::Agents, "cursor=cluster-1/shop", "`cursor` is no `cursor`"),
            (Of::Summary, "cursor=-1", "`cursor` is no `cursor`"),
            (Of::Rows, "lacks=1.0%2", "`lacks`: `%` must be followed by"),
        ] {
            let error = Question::parse(of, Some(query)).unwrap_err().to_string();
            assert!(error.contains(expected), "{query}: {error}");
        }
        let encoded = "agent=c-%2a&label=ring%3Dcanary&lacks=1.1.0%2Bup.2&cursor=cluster-1%2Fshop";
        let typed = "agent=c-*&label=ring=canary&lacks=1.1.0+up.2&cursor=cluster-1/shop";
        assert_eq!(Question::parse(Of::Rows, Some(encoded)), Question::parse(Of::Rows, Some(typed)));
        let query = "agent=c-*&label=ring=canary&label=zone=a=b&by=label:zone,since:5&service=*&phase=hook&problem=any&limit=7&cursor=14";
        let read = Question::parse(Of::Summary, Some(query)).unwrap();
        let labels = [("ring".to_owned(), "canary".to_owned()), ("zone".to_owned(), "a=b".to_owned())];
        assert_eq!(
            (&*read.rows.agents.labels, read.by, read.limit),
            (&labels[..], (By::Label("zone".to_owned()), Some(By::Since(5))), 7)
        );
    }
}
