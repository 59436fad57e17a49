//! What an origin lacks of the table, in messages. Pure.
//!
//! A sweep goes over all agents in the order of their names, and takes what has changed since the sweep before. What changes
//! meanwhile is of the next one.

use std::ops::Bound::{Excluded, Unbounded};

use weir_cache::clock::Moment;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::{AgentRows, MAX_MESSAGE_BYTES, Row};

use super::agent::AgentState;
use super::table::Table;

/// The most bytes of the agents in a message; refused names, and the rest, need less than the rest.
const MAX_AGENTS_BYTES: usize = MAX_MESSAGE_BYTES / 8 * 5;

/// The bytes of an agent without its rows and labels, at most, about.
const AGENT_BYTES: usize = 600;

/// What an origin has acknowledged, and how far the present sweep is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sweep {
    /// All changes up to this one were acknowledged. `None`: the origin gets everything.
    acknowledged: Option<u64>,
    /// The last change when this sweep began.
    target: u64,
    /// The last agent that was acknowledged, and with rows left its last service.
    position: Option<(NodeName, Option<ServiceName>)>,
}

/// The next part of what an origin lacks.
#[derive(Debug, Default)]
pub(super) struct SweepPart {
    /// The first part of everything.
    pub(super) full: bool,
    /// More follows.
    pub(super) more: bool,
    pub(super) agents: Vec<AgentRows>,
    pub(super) unheard: Vec<NodeName>,
    /// What there is to do once it is acknowledged.
    after: Sweep,
}

impl SweepPart {
    /// Whether it says nothing.
    pub(super) fn is_empty(&self) -> bool {
        !self.full && self.agents.is_empty() && self.unheard.is_empty()
    }
}

impl Sweep {
    /// The origin has acknowledged a part.
    pub(super) fn acknowledged(&mut self, part: SweepPart) {
        *self = part.after;
    }

    /// The rows that the origin lacks.
    pub(super) fn behind(&self, table: &Table) -> usize {
        let above = self.acknowledged.unwrap_or_default();
        let changed = table.changed(above, Unbounded);
        changed.flat_map(|(_, agent)| agent.rows.values()).filter(|held| held.number > above).count()
    }

    /// The next part.
    pub(super) fn part(&self, table: &Table, now: Moment) -> SweepPart {
        // Perhaps some removed rows that it lacks are not known any longer.
        let lacks_removed = self.acknowledged.is_some_and(|acknowledged| acknowledged < table.forgotten);
        let mut after = if lacks_removed { Self::default() } else { self.clone() };
        let begins = after.position.is_none();
        if begins {
            after.target = table.number;
        }
        let above = after.acknowledged.unwrap_or_default();
        let mut part = SweepPart { full: begins && after.acknowledged.is_none(), ..SweepPart::default() };
        let mut room = MAX_AGENTS_BYTES;
        let (start, mut within) = match after.position.take() {
            // The rest of its rows.
            Some((name, Some(service))) => {
                if let Some(agent) = table.agents.get(&name)
                    && let Some(last) = push(&mut part, &name, agent, above, Some(&service), &mut room, now)
                {
                    after.position = Some((name, Some(last)));
                    return SweepPart { more: true, after, ..part };
                }
                (Excluded(name.clone()), Some(name))
            }
            Some((name, None)) => (Excluded(name.clone()), Some(name)),
            None => (Unbounded, None),
        };
        for (name, agent) in table.changed(above, start) {
            if room < AGENT_BYTES {
                return SweepPart {
                    more: true,
                    after: Sweep { position: within.map(|name| (name, None)), ..after },
                    ..part
                };
            }
            if agent.is_unheard && agent.stated <= above {
                part.unheard.push(name.clone());
                room = room.saturating_sub(name.as_str().len() + 3);
            } else if let Some(last) = push(&mut part, name, agent, above, None, &mut room, now) {
                after.position = Some((name.clone(), Some(last)));
                return SweepPart { more: true, after, ..part };
            }
            within = Some(name.clone());
        }
        part.after = Sweep { acknowledged: Some(after.target), target: after.target, position: None };
        part
    }
}

/// Adds an agent with its changed rows after a service, as far as there is room. Returns the last service if some are left.
fn push(
    part: &mut SweepPart,
    name: &NodeName,
    agent: &AgentState,
    above: u64,
    after: Option<&ServiceName>,
    room: &mut usize,
    now: Moment,
) -> Option<ServiceName> {
    let is_all = agent.full_number > above;
    let identity = &agent.identity;
    let token_labels = (identity.token_labels != identity.labels).then(|| identity.token_labels.clone());
    let labels = serde_json::to_vec(&(&identity.labels, &token_labels)).map_or(0, |json| json.len());
    *room = room.saturating_sub(AGENT_BYTES + labels);
    let mut pushed = AgentRows {
        agent: name.clone(),
        proved: Some(identity.proved),
        labels: identity.labels.clone(),
        token_labels,
        heard_ago: now.since(agent.messaged).as_secs(),
        instance: agent.instance.clone(),
        seq: agent.seq,
        version: agent.version.clone(),
        full: is_all && after.is_none(),
        rows: Vec::new(),
        removed: Vec::new(),
    };
    let rows = agent.rows.range((after.map_or(Unbounded, |after| Excluded(after.clone())), Unbounded));
    let changed = rows.filter(|(_, held)| if is_all { held.row.is_some() } else { held.number > above });
    let (mut last, mut is_rest) = (None, false);
    for (service, held) in changed {
        let bytes = held.row.as_ref().map_or_else(|| service.as_str().len() + 3, row_bytes);
        if bytes > *room && last.is_some() {
            is_rest = true;
            break;
        }
        *room = room.saturating_sub(bytes);
        match &held.row {
            Some(row) => pushed.rows.push(row.clone()),
            None => pushed.removed.push(service.clone()),
        }
        last = Some(service.clone());
    }
    if agent.is_unheard && !is_rest {
        part.unheard.push(name.clone());
    }
    part.agents.push(pushed);
    last.filter(|_| is_rest)
}

fn row_bytes(row: &Row) -> usize {
    serde_json::to_vec(row).map_or(0, |json| json.len() + 1)
}

#[cfg(test)]
mod tests {
    use weir_protocol::labels::Labels;

    use super::*;
    use crate::observed::fixture::{Site, message};

    /// The words of a part: agents with their rows, `*` for all of an agent, `-` for removed, `?` for unheard.
    fn words(part: &SweepPart) -> Vec<String> {
        let agent = |agent: &AgentRows| {
            let rows = agent.rows.iter().map(|row| row.service.to_string());
            let removed = agent.removed.iter().map(|service| format!("-{service}"));
            let all = if agent.full { "*" } else { "" };
            format!("{}{all} {}", agent.agent, rows.chain(removed).collect::<Vec<_>>().join(","))
        };
        part.agents.iter().map(agent).chain(part.unheard.iter().map(|name| format!("{name}?"))).collect()
    }

    /// One part, acknowledged.
    fn next(sweep: &mut Sweep, site: &Site) -> Vec<String> {
        let part = sweep.part(&site.table, site.now);
        assert!(!part.more, "{part:?}");
        let words = words(&part);
        sweep.acknowledged(part);
        words
    }

    #[test]
    fn an_origin_gets_what_changed_since_it_acknowledged() {
        let (mut site, mut sweep, mut other) = (Site::new(1 << 20), Sweep::default(), Sweep::default());
        site.accept("one", message("a", 1, "f", &["docs", "shop"], &[])).unwrap();
        site.accept("two", message("a", 1, "f", &["shop"], &[])).unwrap();
        let lost = sweep.part(&site.table, site.now);
        assert_eq!((lost.full, words(&lost)), (true, vec!["one* docs,shop".to_owned(), "two* shop".to_owned()]));
        assert_eq!(sweep.behind(&site.table), 3);
        assert_eq!(next(&mut sweep, &site), ["one* docs,shop", "two* shop"], "again, as it was not acknowledged");
        assert_eq!((next(&mut sweep, &site), sweep.behind(&site.table)), (vec![], 0));
        site.accept("one", message("a", 2, "", &["shop!503"], &["docs"])).unwrap();
        assert_eq!(next(&mut sweep, &site), ["one shop,-docs"]);
        let canary: Labels = serde_json::from_str(r#"{"ring":"canary"}"#).unwrap();
        site.table.relabel(|name, _| if name.as_str() == "one" { canary.clone() } else { Labels::default() });
        let relabelled = sweep.part(&site.table, site.now).agents.remove(0);
        assert_eq!((relabelled.labels, relabelled.token_labels), (canary, Some(Labels::default())));
        assert_eq!(next(&mut sweep, &site), ["one "]);
        // It was restarted, or was at another edge in between.
        site.accept("two", message("b", 1, "f", &["shop"], &[])).unwrap();
        assert_eq!(next(&mut sweep, &site), ["two* shop"]);
        site.accept("two", message("b", 2, "", &[], &[])).unwrap();
        assert_eq!(next(&mut sweep, &site), ["two "], "the number of its message");
        assert_eq!(next(&mut other, &site), ["one* shop", "two* shop"], "another origin gets all");

        site.table.relabel(|_, _| Labels::default());
        site.pass(90);
        assert_eq!(next(&mut sweep, &site), ["one ", "one?", "two?"], "its labels changed before it fell silent");
        site.table.heard(&"one".parse().unwrap(), site.now);
        let part = sweep.part(&site.table, site.now);
        assert_eq!(part.agents[0].heard_ago, 90, "perhaps it is another run that is back");
        assert_eq!(next(&mut sweep, &site), ["one "], "it is back");
        // What was removed is not known for ever.
        site.accept("one", message("a", 3, "", &[], &["shop"])).unwrap();
        site.pass(600);
        site.pass(600);
        let part = sweep.part(&site.table, site.now);
        assert_eq!((part.full, words(&part)[0].as_str()), (true, "one* "));
        let within = Sweep { position: Some(("one".parse().unwrap(), None)), ..sweep };
        assert!(within.part(&site.table, site.now).full, "nor within a sweep");
    }

    #[test]
    fn many_rows_are_several_parts_that_may_be_lost() {
        let mut site = Site::new(1 << 30);
        let names: Vec<String> = (0..2_000).map(|n| format!("{n:0>60}")).collect();
        let services: Vec<&str> = names.iter().map(String::as_str).collect();
        for agent in ["a", "b", "c", "d", "e", "f", "g", "h"] {
            site.accept(agent, message("a", 1, "fm", &services, &[])).unwrap();
            let last = format!("last-{agent}");
            site.accept(agent, message("a", 2, "", &[last.as_str()], &[])).unwrap();
        }
        let (mut sweep, mut rows, mut parts) = (Sweep::default(), 0, 0);
        let mut full = Vec::new();
        loop {
            let part = sweep.part(&site.table, site.now);
            let again = sweep.part(&site.table, site.now);
            assert_eq!(words(&part), words(&again), "it is the same until it is acknowledged");
            assert!(serde_json::to_vec(&part.agents).unwrap().len() < MAX_MESSAGE_BYTES * 3 / 4);
            assert_eq!(part.full, parts == 0);
            full.extend(part.agents.iter().filter(|agent| agent.full).map(|agent| agent.agent.to_string()));
            (rows, parts) = (rows + part.agents.iter().map(|agent| agent.rows.len()).sum::<usize>(), parts + 1);
            let more = part.more;
            sweep.acknowledged(part);
            // A change during a sweep is of the next one.
            if parts == 1 {
                site.accept("a", message("a", 3, "", &["new"], &[])).unwrap();
            }
            if !more {
                break;
            }
        }
        assert_eq!((rows, full.concat()), (8 * 2_001, "abcdefgh".to_owned()));
        assert!(parts > 3, "{parts}");
        assert_eq!(next(&mut sweep, &site), ["a new"]);
    }
}
