//! Pages of rows and of agents.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use weir_protocol::descriptor::rfc3339;
use weir_protocol::labels::Labels;
use weir_protocol::name::{EdgeName, NodeName};
use weir_protocol::observed::Instance;
use weir_protocol::observed::{Proved, Row};

use crate::agent::State;
use crate::bounds::{AGENT_GONE_AFTER, AGENT_SILENT_AFTER};
use crate::compact::CompactRow;
use crate::edge::Edge;
use crate::filter::{AgentFilter, Lacks, Matched, Prepared, RowFilter, Seen, Verdict};
use crate::refused::Refusal;
use crate::reporter::Reporter;
use crate::table::{Now, Table};

/// By how much a name of the record may have been heard later than its time says: it is written every ten minutes.
const NAMES_ARE_OLD: Duration = Duration::from_secs(900);

/// An answer: a part of what matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Answer<T> {
    /// The time of the answer.
    #[serde(with = "rfc3339")]
    pub as_of: SystemTime,
    /// Edges of which rows may be missing or old.
    pub incomplete: Vec<Incomplete>,
    /// How many match.
    pub total: usize,
    /// How many more may match, of which that cannot be said.
    pub unknown: usize,
    /// How many of these are rows of agents that no edge has heard for a day.
    pub unknown_gone: usize,
    /// How many others of these are rows of services that are pinned, and have not published what is looked for.
    pub unknown_pinned: usize,
    /// Agents of which only the name is known: what they run may match.
    pub agents_without_rows: usize,
    /// How many of these no edge has heard for a day.
    pub agents_without_rows_gone: usize,
    /// This part of them; in JSON under a name of their own.
    #[serde(skip)]
    pub entries: Vec<T>,
    /// Where the next part begins. `None`: this is the last. In JSON after the entries.
    #[serde(skip)]
    pub cursor: Option<String>,
}

impl<T: Serialize> Answer<T> {
    /// The JSON document, with the entries under `name`.
    pub fn named(&self, name: &'static str) -> impl Serialize {
        #[derive(Serialize)]
        struct Named<'a, T> {
            #[serde(flatten)]
            answer: &'a Answer<T>,
            #[serde(flatten)]
            entries: BTreeMap<&'static str, &'a [T]>,
            cursor: &'a Option<String>,
        }
        Named { answer: self, entries: [(name, &*self.entries)].into(), cursor: &self.cursor }
    }
}

/// An edge of which rows may be missing or old.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Incomplete {
    /// Its name.
    pub edge: EdgeName,
    /// The shield through which it reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<EdgeName>,
    /// Since when.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
}

/// A row with its agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RowView {
    /// The agent.
    pub agent: NodeName,
    /// The edge that states it.
    pub edge: Option<EdgeName>,
    /// The shield through which it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<EdgeName>,
    /// Whether the agent is there.
    pub state: State,
    /// When an edge last heard it.
    #[serde(with = "rfc3339")]
    pub heard_at: SystemTime,
    /// Its asserted labels.
    pub labels: Labels,
    /// What it runs.
    #[serde(flatten)]
    pub row: Row,
}

/// An agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct AgentView {
    /// Its name.
    pub agent: NodeName,
    /// Whether it is there.
    pub state: State,
    /// The edge that states it.
    pub edge: Option<EdgeName>,
    /// The shield through which it does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub via: Option<EdgeName>,
    /// Its asserted labels.
    pub labels: Labels,
    /// By what it proved its name.
    pub proved: Option<Proved>,
    /// The version of the program.
    pub version: Option<String>,
    /// Its run.
    pub instance: Option<Instance>,
    /// Two living runs have this name.
    pub alternates: bool,
    /// When an edge last heard it; of a name that is no agent's: of its refusal.
    #[serde(with = "rfc3339")]
    pub heard_at: SystemTime,
    /// Why credentials with its name were refused.
    pub reason: Option<String>,
    /// Its services.
    pub services: usize,
    /// Those with a problem.
    pub problems: usize,
}

/// How many rows match, or may.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Counted {
    total: usize,
    unknown: usize,
    unknown_gone: usize,
    unknown_pinned: usize,
}

impl Counted {
    /// Counts a row. Returns whether it matches. `is_gone`: no edge has heard its agent for a day.
    pub(crate) fn matches(&mut self, verdict: Option<Verdict>, is_gone: bool) -> bool {
        let is_unknown = matches!(verdict, Some(Verdict::Unknown | Verdict::Pinned));
        self.total += usize::from(verdict == Some(Verdict::Lacks));
        self.unknown += usize::from(is_unknown);
        self.unknown_gone += usize::from(is_unknown && is_gone);
        self.unknown_pinned += usize::from(verdict == Some(Verdict::Pinned) && !is_gone);
        verdict == Some(Verdict::Lacks)
    }
}

impl Table {
    /// Edges of which rows may be missing or old: those of which not all parts came, and those that were restarted while
    /// agents that were there before have not come back, to them or to another one. What does not is silent in the end. So it is
    /// with the agents of one that said that it stops.
    pub fn incomplete(&self, now: Now) -> Vec<Incomplete> {
        let young = self.edges.iter().filter_map(|(name, edge)| {
            let (_, began, first) = edge.run.as_ref()?;
            let is_young = now.monotonic.saturating_duration_since(*began) < AGENT_SILENT_AFTER;
            is_young.then_some((name, (*began, *first)))
        });
        let young: BTreeMap<&Reporter, (Instant, u64)> = young.collect();
        let is_draining = self.edges.values().any(|edge| edge.draining);
        let (mut awaiting, mut staying, mut last_heard) = (BTreeSet::new(), BTreeSet::new(), None);
        for agent in self.agents.values().filter(|_| is_draining || !young.is_empty()) {
            match &agent.statement {
                // Any edge may have had it.
                None => last_heard = last_heard.max(Some(agent.heard)),
                Some(it) if !it.unheard && young.get(&it.reporter).is_some_and(|(_, first)| it.epoch < *first) => {
                    awaiting.insert(&it.reporter);
                }
                Some(it) if is_draining && self.is_live(agent, now) => _ = staying.insert(&it.reporter.edge),
                Some(_) => {}
            }
        }
        let awaits_since = |name: &Reporter| {
            let (began, _) = young.get(name)?;
            let may_come = last_heard.is_some_and(|heard| began.saturating_duration_since(heard) < NAMES_ARE_OLD);
            (may_come || awaiting.contains(name)).then_some(*began)
        };
        let since = |(name, edge): (&Reporter, &Edge)| {
            let has_agents = || staying.contains(&name.edge);
            edge.incomplete_since(now.monotonic, has_agents).or_else(|| awaits_since(name))
        };
        let all: Vec<_> = self.edges.iter().map(|(name, edge)| (name, since((name, edge)))).collect();
        // One shield is enough.
        let whole: BTreeSet<_> = all.iter().filter(|(_, since)| since.is_none()).map(|(name, _)| &name.edge).collect();
        let incomplete = all.iter().filter(|(name, _)| name.via.is_none() || !whole.contains(&name.edge));
        let shown = |(name, since): &(&Reporter, Option<Instant>)| {
            let (edge, via) = (name.edge.clone(), name.via.clone());
            Some(Incomplete { edge, via, since: now.wall_of((*since)?) })
        };
        incomplete.filter_map(shown).collect()
    }

    /// All agents with the labels that their tokens or certificates assert. `None`: only the name is known.
    pub fn known(&self, now: Now) -> impl Iterator<Item = (&NodeName, State, Option<&Labels>)> {
        let agents = self.agents.iter().map(move |(name, agent)| self.matched(name, agent, now));
        agents.map(|of| (of.name, of.state, of.agent.statement.as_ref().map(|it| it.token_labels())))
    }

    /// Agents that a filter matches.
    pub(crate) fn matching<'a>(&'a self, filter: &'a AgentFilter, now: Now) -> impl Iterator<Item = Matched<'a>> {
        let (seen, agents) = (Seen::new(self, filter), self.agents.iter());
        let agents = agents.map(move |(name, agent)| self.matched(name, agent, now));
        agents.filter(move |matched| filter.matches(*matched, &seen))
    }

    /// The rows that a filter matches, sorted by agent and service. `after`: the cursor of the part before.
    pub fn rows(
        &self,
        filter: &RowFilter,
        lacks: Option<Lacks<'_>>,
        (after, limit): (Option<&str>, usize),
        now: Now,
    ) -> Answer<RowView> {
        let prepared = Prepared::new(self, filter, lacks);
        let (after_agent, after_service) = after.and_then(|after| after.split_once('/')).unwrap_or_default();
        let (mut entries, mut counted, mut has_more) = (Vec::new(), Counted::default(), false);
        for of in self.matching(&filter.agents, now) {
            for row in &of.agent.rows {
                if !counted.matches(prepared.verdict(row), of.is_gone(now)) {
                    continue;
                }
                let position = (of.name.as_str(), self.pools.services.get(row.service).as_str());
                if has_more || position <= (after_agent, after_service) {
                    continue;
                }
                has_more = entries.len() == limit;
                if !has_more {
                    entries.push(self.row_view(of, row, now));
                }
            }
        }
        let cursor = entries.last().filter(|_| has_more).map(|last| format!("{}/{}", last.agent, last.row.service));
        self.answer(&filter.agents, counted, (entries, cursor), now)
    }

    /// With what an answer says besides.
    pub(crate) fn answer<T>(
        &self,
        filter: &AgentFilter,
        counted: Counted,
        (entries, cursor): (Vec<T>, Option<String>),
        now: Now,
    ) -> Answer<T> {
        let (agents_without_rows, agents_without_rows_gone) = self.agents_without_rows(filter, now);
        let Counted { total, unknown, unknown_gone, unknown_pinned } = counted;
        Answer {
            as_of: now.wall,
            incomplete: self.incomplete(now),
            total,
            unknown,
            unknown_gone,
            unknown_pinned,
            agents_without_rows,
            agents_without_rows_gone,
            entries,
            cursor,
        }
    }

    /// The agents of which only the name is known, and that a filter may match: their edge and their labels are not known. And
    /// how many of them are gone.
    fn agents_without_rows(&self, filter: &AgentFilter, now: Now) -> (usize, usize) {
        let by_name = AgentFilter { agent: filter.agent.clone(), state: filter.state, ..AgentFilter::default() };
        let without = self.matching(&by_name, now).filter(|of| of.agent.statement.is_none());
        without.fold((0, 0), |(all, gone), of| (all + 1, gone + usize::from(of.is_gone(now))))
    }

    fn row_view(&self, of: Matched<'_>, row: &CompactRow, now: Now) -> RowView {
        let statement = of.agent.statement.as_ref();
        RowView {
            agent: of.name.clone(),
            edge: statement.map(|it| it.reporter.edge.clone()),
            via: statement.and_then(|it| it.reporter.via.clone()),
            state: of.state,
            heard_at: now.wall_of(of.heard),
            labels: statement.map(|it| it.labels.clone()).unwrap_or_default(),
            row: self.pools.row(row),
        }
    }

    /// The agents that a filter matches, and refused names that are no agent's, sorted by name.
    pub fn agents(&self, filter: &AgentFilter, (after, limit): (Option<&str>, usize), now: Now) -> Answer<AgentView> {
        let mut matching: BTreeSet<NodeName> = self.matching(filter, now).map(|of| of.name.clone()).collect();
        let of_nobody = self.refused.iter().filter(|(name, _)| !self.agents.contains_key(*name));
        matching.extend(of_nobody.filter(|(_, it)| matches_refused(filter, it)).map(|(name, _)| name.clone()));
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = matching.range::<str, _>((from, Bound::Unbounded));
        let seen = Seen::new(self, filter);
        let entries: Vec<_> = rest.by_ref().take(limit).filter_map(|name| self.agent_view(name, &seen, now)).collect();
        let has_more = rest.next().is_some();
        let cursor = entries.last().filter(|_| has_more).map(|last| last.agent.to_string());
        let counted = Counted { total: matching.len(), ..Counted::default() };
        self.answer(filter, counted, (entries, cursor), now)
    }

    fn agent_view(&self, name: &NodeName, seen: &Seen, now: Now) -> Option<AgentView> {
        let Some((name, agent)) = self.agents.get_key_value(name) else {
            return self.refused.get(name).map(|refusal| refused_view(refusal, now));
        };
        let of = self.matched(name, agent, now);
        let statement = agent.statement.as_ref();
        Some(AgentView {
            agent: name.clone(),
            state: of.state,
            edge: statement.map(|it| it.reporter.edge.clone()),
            via: statement.and_then(|it| it.reporter.via.clone()),
            labels: statement.map(|it| it.labels.clone()).unwrap_or_default(),
            proved: statement.and_then(|it| it.proved).filter(|_| of.state != State::Refused),
            version: statement.map(|it| it.version.clone()),
            instance: statement.map(|it| it.instance.clone()),
            alternates: agent.alternates(now.monotonic),
            heard_at: now.wall_of(of.heard),
            reason: of.reason.map(ToOwned::to_owned),
            services: seen.rows(agent).count(),
            problems: seen.rows(agent).filter(|row| row.problem.is_some()).count(),
        })
    }
}

impl Matched<'_> {
    /// Whether no edge has heard the agent for a day.
    pub(crate) fn is_gone(&self, now: Now) -> bool {
        now.monotonic.saturating_duration_since(self.heard) >= AGENT_GONE_AFTER
    }
}

fn refused_view(refusal: &Refusal, now: Now) -> AgentView {
    AgentView {
        agent: refusal.claim.name.clone(),
        state: State::Refused,
        edge: Some(refusal.reporter.edge.clone()),
        via: refusal.reporter.via.clone(),
        labels: Labels::default(),
        proved: None,
        version: None,
        instance: None,
        alternates: false,
        heard_at: now.wall_of(refusal.at),
        reason: Some(refusal.claim.reason.clone()),
        services: 0,
        problems: 0,
    }
}

fn matches_refused(filter: &AgentFilter, refusal: &Refusal) -> bool {
    filter.agent.as_ref().is_none_or(|glob| glob.matches(refusal.claim.name.as_str()))
        && filter.edge.as_ref().is_none_or(|glob| glob.matches(refusal.reporter.edge.as_str()))
        && filter.state.is_none_or(|state| state == State::Refused)
        && filter.labels.is_empty()
        && filter.problem.is_none()
        && filter.among.is_none()
}
