//! Counts of rows by what they have in common.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::SystemTime;

use serde::Serialize;
use weir_protocol::descriptor::rfc3339;
use weir_protocol::token::unix_seconds;

use crate::compact::{CompactRow, NONE, UNSAID, from_unix};
use crate::filter::{Lacks, Matched, Prepared, RowFilter};
use crate::query::{Answer, Counted};
use crate::table::{Now, Table};
use crate::words::{PHASES, PROBLEMS, word};

/// What rows are counted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum By {
    /// The service.
    Service,
    /// The agent.
    Agent,
    /// What the current release was made of.
    Revision,
    /// The phase.
    Phase,
    /// The kind of problem.
    Problem,
    /// The edge.
    Edge,
    /// The value of a label.
    Label(String),
    /// The beginning of the minutes, so many together, in which the last release was applied.
    Since(u32),
}

impl By {
    /// Whether all rows of an agent are in one group.
    fn is_of_agents(&self) -> bool {
        matches!(self, Self::Agent | Self::Edge | Self::Label(_))
    }

    /// A number; rows (of one agent, if all of them are in one group) with the same number are in the same group.
    fn slot(&self, row: &CompactRow) -> usize {
        match self {
            Self::Service => row.service as usize,
            // 0: there is none.
            Self::Revision => row.current.wrapping_add(1) as usize,
            Self::Phase => row.phase as usize,
            Self::Problem => row.problem.as_ref().map_or(0, |problem| problem.kind as usize + 1),
            Self::Since(minutes) => applied_in(row, *minutes).map_or(0, |number| number as usize + 1),
            Self::Agent | Self::Edge | Self::Label(_) => 0,
        }
    }
}

/// The number of the minutes, so many together, in which the last release of a row was applied.
fn applied_in(row: &CompactRow, minutes: u32) -> Option<u32> {
    (row.applied < UNSAID).then(|| row.applied_since / minutes.saturating_mul(60).max(1))
}

/// What rows have in common: of one key, or of each of two. `None`: they have no such thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Key {
    /// Of one key.
    One(Option<String>),
    /// Of two.
    Two([Option<String>; 2]),
}

/// Rows with something in common.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// What they have in common.
    pub key: Key,
    /// The rows.
    pub rows: usize,
    /// The agents of these rows.
    pub agents: usize,
    /// The earliest time since when one of the agents runs what it does; by problem: since when it has it.
    #[serde(serialize_with = "since_or_null")]
    pub since: Option<SystemTime>,
}

#[expect(clippy::ref_option, reason = "serde passes a reference")]
fn since_or_null<S: serde::Serializer>(time: &Option<SystemTime>, serializer: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => rfc3339::serialize(time, serializer),
        None => serializer.serialize_none(),
    }
}

type Keys<'a> = [Option<Cow<'a, str>>; 2];

#[derive(Default)]
struct Count {
    rows: usize,
    agents: usize,
    last_agent: Option<usize>,
    since: Option<u64>,
}

impl Table {
    /// The rows that a filter matches, counted by what they have in common, the largest groups first. The cursor is the
    /// number of groups before. `by`: one key or two.
    pub fn summary(
        &self,
        (by, and_by): (&By, Option<&By>),
        filter: &RowFilter,
        lacks: Option<Lacks<'_>>,
        (after, limit): (Option<usize>, usize),
        now: Now,
    ) -> Answer<Group> {
        let prepared = Prepared::new(self, filter, lacks);
        let (mut places, mut counts) = (HashMap::<Keys<'_>, usize>::new(), Vec::<(Keys<'_>, Count)>::new());
        // Most rows find their group by numbers, without their text.
        let mut places_by_slot = HashMap::new();
        let is_of_agents = by.is_of_agents() || and_by.is_some_and(By::is_of_agents);
        let mut counted = Counted::default();
        for (index, of) in self.matching(&filter.agents, now).enumerate() {
            if is_of_agents {
                places_by_slot.clear();
            }
            for row in &of.agent.rows {
                if !counted.matches(prepared.verdict(row), of.is_gone(now)) {
                    continue;
                }
                let slots = (by.slot(row), and_by.map_or(0, |by| by.slot(row)));
                let place = *places_by_slot.entry(slots).or_insert_with(|| {
                    let keys = [self.key(by, of, row), and_by.and_then(|by| self.key(by, of, row))];
                    *places.entry(keys.clone()).or_insert_with(|| {
                        counts.push((keys, Count::default()));
                        counts.len() - 1
                    })
                });
                let count = &mut counts[place].1;
                count.rows += 1;
                count.agents += usize::from(count.last_agent.replace(index) != Some(index));
                let since = match &row.problem {
                    Some(problem) if *by == By::Problem || and_by == Some(&By::Problem) => {
                        Some(unix_seconds(problem.since))
                    }
                    _ => (row.current != NONE).then_some(u64::from(row.since)),
                };
                count.since = [count.since, since].into_iter().flatten().min();
            }
        }
        counts.sort_by(|(one, a), (other, b)| b.rows.cmp(&a.rows).then_with(|| one.cmp(other)));
        let start = after.unwrap_or(0);
        let has_more = counts.len() > start.saturating_add(limit);
        let group = |(keys, count): (Keys<'_>, Count)| Group {
            key: match (keys.map(|key| key.map(Cow::into_owned)), and_by) {
                ([one, _], None) => Key::One(one),
                (two, Some(_)) => Key::Two(two),
            },
            rows: count.rows,
            agents: count.agents,
            since: count.since.map(from_unix),
        };
        let entries: Vec<_> = counts.into_iter().skip(start).take(limit).map(group).collect();
        let cursor = has_more.then(|| (start + limit).to_string());
        self.answer(&filter.agents, counted, (entries, cursor), now)
    }

    fn key<'a>(&'a self, by: &By, of: Matched<'a>, row: &CompactRow) -> Option<Cow<'a, str>> {
        if let By::Since(minutes) = by {
            let begins = u64::from(applied_in(row, *minutes)?) * u64::from(*minutes) * 60;
            return Some(humantime::format_rfc3339_seconds(from_unix(begins)).to_string().into());
        }
        let statement = of.agent.statement.as_ref();
        let key = match by {
            By::Service => Some(self.pools.services.get(row.service).as_str()),
            By::Agent => Some(of.name.as_str()),
            By::Revision if row.current == NONE => None,
            By::Revision => self.pools.releases.get(row.current).revision_id.as_ref().map(|id| id.as_str()),
            By::Phase => Some(word(&PHASES, &row.phase)),
            By::Problem => row.problem.as_ref().map(|problem| word(&PROBLEMS, &problem.kind)),
            By::Edge => statement.map(|it| it.reporter.edge.as_str()),
            By::Label(key) => statement.and_then(|it| it.labels.iter().find(|(k, _)| k == key)).map(|(_, value)| value),
            By::Since(_) => None,
        };
        key.map(Cow::Borrowed)
    }
}
