//! What `/status`, `/v1/explain` and `/v1/agents` show of the agents. These are the agents' claims.

use std::ops::Bound::{Excluded, Unbounded};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use weir_cache::clock::Moment;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::name_glob::NameGlob;

use super::agent::AgentState;
use super::table::Table;

/// The most agents that a document lists.
const MAX_LISTED: usize = 100;

/// How many rows agents with problems leave to agents whose name two use, and to silent ones, if there are such.
const RESERVED: usize = 5;

impl Table {
    /// For `/status`: how many agents there are, and what is wrong with which.
    pub(super) fn summary(&self) -> Value {
        let failing = names(self, |agent| agent.problems > 0);
        let duplicated = names(self, AgentState::is_duplicated);
        json!({
            "reporting": self.agents.len(),
            "connected": self.connected,
            "failing": failing.iter().take(MAX_LISTED).collect::<Vec<_>>(),
            "failing_total": failing.len(),
            "duplicated": duplicated.iter().take(MAX_LISTED).collect::<Vec<_>>(),
            "duplicated_total": duplicated.len(),
        })
    }

    /// For `/v1/explain`: what agents say of a service, and how many do.
    pub(super) fn of_service(&self, service: &ServiceName, now: Moment, wall: SystemTime) -> (Vec<Value>, usize) {
        let all = self.agents.iter();
        let mut all = all.filter_map(|(name, agent)| Some((name, agent, agent.rows.get(service)?.row.as_ref()?)));
        let shown = all.by_ref().take(MAX_LISTED).map(|(name, agent, row)| {
            let mut shown = agent.shown(name, now, wall);
            let row = serde_json::to_value(row).expect("plain data");
            shown
                .as_object_mut()
                .into_iter()
                .for_each(|shown| shown.extend(row.as_object().cloned().unwrap_or_default()));
            shown
        });
        let shown: Vec<_> = shown.collect();
        let total = shown.len() + all.count();
        (shown, total)
    }

    /// For `/v1/agents`: agents in the order of their names, after one of them.
    pub(super) fn page(
        &self,
        agent: Option<&NameGlob>,
        (after, limit): (Option<&NodeName>, usize),
        now: Moment,
        wall: SystemTime,
    ) -> Value {
        let is_meant = |name: &NodeName| agent.is_none_or(|agent| agent.matches(name.as_str()));
        let total = self.agents.keys().filter(|name| is_meant(name)).count();
        let range = (after.map_or(Unbounded, Excluded), Unbounded);
        let mut rest = self.agents.range::<NodeName, _>(range).filter(|(name, _)| is_meant(name));
        let page: Vec<_> = rest.by_ref().take(limit).collect();
        let last = page.last().map(|(name, _)| *name).filter(|_| rest.next().is_some());
        let agents = page.into_iter().map(|(name, agent)| agent.counted(name, now, wall)).collect::<Vec<_>>();
        json!({ "total": total, "agents": agents, "cursor": last })
    }

    /// The first agents, those with a problem first, then those whose name two use, then those not heard. No kind hides the next
    /// one.
    pub(super) fn worst(&self, most: usize) -> Vec<NodeName> {
        let kind = |agent: &AgentState| match agent {
            agent if agent.problems > 0 => 0,
            agent if agent.is_duplicated() => 1,
            agent if agent.is_unheard => 2,
            _ => 3,
        };
        // The first of each kind, in the order of names.
        let mut kinds: [Vec<_>; 4] = Default::default();
        for (name, agent) in &self.agents {
            let of_kind = &mut kinds[kind(agent)];
            if of_kind.len() < most {
                of_kind.push(name);
            }
        }
        let reserved = [1, 2].map(|kind| kinds[kind].len().min(RESERVED));
        kinds[0].truncate(most.saturating_sub(reserved.iter().sum()));
        let left = most.saturating_sub(kinds[0].len() + reserved[1]);
        kinds[1].truncate(left);
        kinds.into_iter().flatten().take(most).cloned().collect()
    }

    /// For `/v1/summary`: an agent with its first problem.
    pub(super) fn listed(&self, name: &NodeName, now: Moment, wall: SystemTime) -> Option<Value> {
        let agent = self.agents.get(name)?;
        let mut shown = agent.counted(name, now, wall);
        let problem = agent.present().find_map(|row| Some((&row.service, row.problem.as_ref()?)));
        shown["problem"] = problem.map_or(Value::Null, |(service, problem)| {
            let mut shown = serde_json::to_value(problem).expect("plain data");
            shown["service"] = json!(service);
            shown
        });
        Some(shown)
    }

    /// For `/v1/agents/{name}`: an agent with its rows.
    pub(super) fn agent(&self, name: &NodeName, now: Moment, wall: SystemTime) -> Option<Value> {
        let agent = self.agents.get(name)?;
        let mut shown = agent.counted(name, now, wall);
        shown["rows"] = json!(agent.present().collect::<Vec<_>>());
        Some(shown)
    }
}

impl AgentState {
    fn shown(&self, name: &NodeName, now: Moment, wall: SystemTime) -> Value {
        json!({
            "agent": name,
            "proved": self.identity.proved,
            "version": self.version,
            "labels": self.identity.labels,
            "own_labels": self.own_labels,
            "heard_at": time_of(self.heard, now, wall),
        })
    }

    fn counted(&self, name: &NodeName, now: Moment, wall: SystemTime) -> Value {
        let mut shown = self.shown(name, now, wall);
        shown["state"] = json!(if self.is_unheard { "unheard" } else { "connected" });
        shown["duplicated"] = json!(self.is_duplicated());
        shown["services"] = json!(self.present().count());
        shown["problems"] = json!(self.problems);
        shown
    }
}

fn names(table: &Table, is_one: impl Fn(&AgentState) -> bool) -> Vec<&NodeName> {
    table.agents.iter().filter(|(_, agent)| is_one(agent)).map(|(name, _)| name).collect()
}

fn time_of(moment: Moment, now: Moment, wall: SystemTime) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(moment.to_unix_millis(now, wall));
    humantime::format_rfc3339_seconds(time).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::fixture::{Site, message};

    #[test]
    fn failing_agents_do_not_hide_silent_ones() {
        let mut site = Site::new(1 << 20);
        let silent = ["silent-1", "silent-2"];
        silent.into_iter().for_each(|name| site.accept(name, message("a", 1, "f", &["shop"], &[])).map(drop).unwrap());
        site.pass(85);
        site.accept("well", message("a", 1, "f", &["shop"], &[])).unwrap();
        let listed = |site: &Site| site.table.worst(5).iter().map(NodeName::to_string).collect::<Vec<_>>();
        assert_eq!(listed(&site), ["silent-1", "silent-2", "well"]);
        for number in 0..9 {
            site.accept(&format!("failing-{number}"), message("a", 1, "f", &["shop!503"], &[])).unwrap();
        }
        assert_eq!(listed(&site), ["failing-0", "failing-1", "failing-2", "silent-1", "silent-2"]);
    }
}
