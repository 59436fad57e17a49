//! Which rows and agents a query is about. Filters combine.

use std::collections::BTreeSet;
use std::time::Instant;

use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::{EdgeGlob, NameGlob};
use weir_protocol::observed::{Phase, Problem, ProblemKind};

use crate::agent::{Agent, State};
use crate::compact::{CompactRow, NONE, Release, UNSAID};
use crate::table::{Now, Table};

/// Which agents. The default: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AgentFilter {
    /// Their names.
    pub agent: Option<NameGlob>,
    /// The edge that states them.
    pub edge: Option<EdgeGlob>,
    /// Labels with values that they all have.
    pub labels: Vec<(String, String)>,
    /// Whether they are there.
    pub state: Option<State>,
    /// With a problem in one of their rows.
    pub problem: Option<ProblemFilter>,
    /// With a row of one of these services. Their other rows are not looked at.
    pub among: Option<BTreeSet<ServiceName>>,
}

/// Whether what an agent runs is older than a revision.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Verdict {
    /// It is.
    Lacks,
    /// It is not.
    Has,
    /// Its service is pinned, and has not published the revision.
    Pinned,
    /// The position of one of both is not known.
    #[default]
    Unknown,
}

/// Of which release of a row it is asked whether it lacks something.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LacksBy {
    /// The last one whose hooks succeeded.
    #[default]
    Applied,
    /// The one on disk.
    Current,
}

/// Whether a release of a service lacks what is looked for. `None`: the agent has no release.
pub type Lacks<'a> = &'a dyn Fn(&ServiceName, Option<&Release>) -> Verdict;

/// Which problems.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemFilter {
    /// Each of them.
    Any,
    /// Those of one kind.
    Kind(ProblemKind),
}

impl ProblemFilter {
    fn matches(self, problem: &Problem) -> bool {
        match self {
            Self::Any => true,
            Self::Kind(kind) => problem.kind == kind,
        }
    }
}

/// Which rows. The default: all.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RowFilter {
    /// Of which agents.
    pub agents: AgentFilter,
    /// Of which services.
    pub service: Option<NameGlob>,
    /// Of these services alone, such as those of a repository.
    pub among: Option<BTreeSet<ServiceName>>,
    /// With this phase.
    pub phase: Option<Phase>,
    /// With a problem.
    pub problem: Option<ProblemFilter>,
    /// What a question of what rows lack is about.
    pub lacks_by: LacksBy,
}

/// An agent that is matched, with what depends on the time.
#[derive(Clone, Copy)]
pub(crate) struct Matched<'a> {
    pub(crate) name: &'a NodeName,
    pub(crate) agent: &'a Agent,
    pub(crate) heard: Instant,
    pub(crate) state: State,
    pub(crate) reason: Option<&'a str>,
}

/// What a filter says of each shared value, so that each row is a few comparisons.
pub(crate) struct Prepared<'a> {
    filter: &'a RowFilter,
    services: Option<Vec<bool>>,
    verdicts: Option<(Vec<Verdict>, Vec<Verdict>)>,
}

impl Table {
    /// What is known of an agent now.
    pub(crate) fn matched<'a>(&'a self, name: &'a NodeName, agent: &'a Agent, now: Now) -> Matched<'a> {
        let heard = self.heard_at(agent);
        let is_live = self.is_live(agent, now);
        let refused = self.refused.get(name);
        let state = match refused {
            _ if is_live => State::Live,
            Some(refusal) if refusal.at >= heard => State::Refused,
            _ if agent.is_awaited(now.monotonic) => State::Unknown,
            _ => State::Silent,
        };
        Matched { name, agent, heard, state, reason: refused.map(|refusal| &*refusal.claim.reason) }
    }
}

/// The services whose rows are looked at, by their numbers. `None`: all.
pub(crate) struct Seen(Option<Vec<bool>>);

impl Seen {
    pub(crate) fn new(table: &Table, filter: &AgentFilter) -> Self {
        Self(filter.among.as_ref().map(|among| table.pools.services.map(|name| among.contains(name))))
    }

    pub(crate) fn rows<'a>(&'a self, agent: &'a Agent) -> impl Iterator<Item = &'a CompactRow> {
        let is_seen = |row: &&CompactRow| self.0.as_ref().is_none_or(|services| services[row.service as usize]);
        agent.rows.iter().filter(is_seen)
    }
}

impl AgentFilter {
    pub(crate) fn matches(&self, of: Matched<'_>, seen: &Seen) -> bool {
        let statement = of.agent.statement.as_ref();
        self.agent.as_ref().is_none_or(|glob| glob.matches(of.name.as_str()))
            && self.state.is_none_or(|state| state == of.state)
            && self.problem.is_none_or(|wanted| {
                seen.rows(of.agent).filter_map(|row| row.problem.as_ref()).any(|problem| wanted.matches(problem))
            })
            && (self.among.is_none() || seen.rows(of.agent).next().is_some())
            && self.edge.as_ref().is_none_or(|glob| statement.is_some_and(|it| glob.matches(it.reporter.edge.as_str())))
            && self.labels.iter().all(|(key, value)| {
                statement.is_some_and(|it| it.labels.iter().any(|label| label == (key.as_str(), value.as_str())))
            })
    }
}

impl<'a> Prepared<'a> {
    pub(crate) fn new(table: &Table, filter: &'a RowFilter, lacks: Option<Lacks<'_>>) -> Self {
        let is_wanted = |name: &ServiceName| {
            filter.service.as_ref().is_none_or(|glob| glob.matches(name.as_str()))
                && filter.among.as_ref().is_none_or(|among| among.contains(name))
        };
        let is_narrow = filter.service.is_some() || filter.among.is_some();
        let services = is_narrow.then(|| table.pools.services.map(is_wanted));
        let verdicts = lacks.map(|lacks| {
            let of_releases = table.pools.releases.map(|release| lacks(&release.service, Some(release)));
            (of_releases, table.pools.services.map(|service| lacks(service, None)))
        });
        Self { filter, services, verdicts }
    }

    /// Whether a row is meant. [`Verdict::Unknown`]: but for what it runs.
    pub(crate) fn verdict(&self, row: &CompactRow) -> Option<Verdict> {
        let is_meant = self.services.as_ref().is_none_or(|services| services[row.service as usize])
            && self.filter.phase.is_none_or(|phase| phase == row.phase)
            && self.filter.problem.is_none_or(|of| row.problem.as_ref().is_some_and(|problem| of.matches(problem)));
        let of = |(of_releases, of_services): &(Vec<Verdict>, Vec<Verdict>), release| match release {
            NONE => of_services[row.service as usize],
            release => of_releases[release as usize],
        };
        let of_row = |verdicts| match (self.filter.lacks_by, of(verdicts, row.current), row.applied) {
            (LacksBy::Current, current, _) => current,
            // What is on disk lacks it: nothing newer was applied, or the agent has gone back.
            (LacksBy::Applied, current @ (Verdict::Lacks | Verdict::Pinned), _) => current,
            (LacksBy::Applied, _, UNSAID) => Verdict::Unknown,
            (LacksBy::Applied, _, applied) => of(verdicts, applied),
        };
        is_meant.then(|| self.verdicts.as_ref().map_or(Verdict::Lacks, of_row))
    }
}
