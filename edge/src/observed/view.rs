//! What `/status` and `/v1/explain` show of the agents. These are the agents' claims.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use weir_protocol::name::{NodeName, ServiceName};

use super::agent::AgentState;
use super::table::Table;
use crate::clock::Moment;

/// The most agents that a document lists.
const MAX_LISTED: usize = 100;

impl Table {
    /// For `/status`: how many agents there are, and what is wrong with which.
    pub(super) fn summary(&self) -> Value {
        let failing = names(self, |agent| agent.problems > 0);
        let duplicated = names(self, AgentState::is_duplicated);
        json!({
            "reporting": self.agents.len(),
            "connected": self.connected(),
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
            let mut shown = serde_json::to_value(row).expect("plain data");
            shown["agent"] = json!(name);
            shown["proved"] = json!(agent.identity.proved);
            shown["version"] = json!(agent.version);
            shown["labels"] = json!(agent.identity.labels);
            shown["own_labels"] = json!(agent.own_labels);
            shown["heard_at"] = json!(time_of(agent.heard, now, wall));
            shown
        });
        let shown: Vec<_> = shown.collect();
        let total = shown.len() + all.count();
        (shown, total)
    }
}

fn names(table: &Table, is_one: impl Fn(&AgentState) -> bool) -> Vec<&NodeName> {
    table.agents.iter().filter(|(_, agent)| is_one(agent)).map(|(name, _)| name).collect()
}

fn time_of(moment: Moment, now: Moment, wall: SystemTime) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(moment.to_unix_millis(now, wall));
    humantime::format_rfc3339_seconds(time).to_string()
}
