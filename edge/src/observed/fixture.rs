//! A table to test.

use std::ops::Bound;
use std::time::Duration;

use serde_json::json;
use weir_cache::clock::{Clock, Moment};
use weir_protocol::labels::Labels;
use weir_protocol::observed::{AgentObserved, Instance, Proved};

use super::agent::{AgentState, Identity};
use super::table::{Rejected, Table};

fn identity() -> Identity {
    Identity { proved: Proved::Token, token_labels: Labels::default(), labels: Labels::default() }
}

/// A message with rows of these services, `!` before the text of a problem. `flags`: `f`ull, `m`ore.
pub(super) fn message(instance: &str, seq: u64, flags: &str, services: &[&str], removed: &[&str]) -> AgentObserved {
    let row = |service: &&str| {
        let (service, problem) = service.split_once('!').map_or((*service, None), |(name, text)| (name, Some(text)));
        let problem =
            problem.map(|text| json!({"kind": "disk", "since": "2026-01-01T00:00:00Z", "tries": 1, "text": text}));
        json!({
            "service": service, "desired": null, "current": null, "phase": "waiting", "hook": "none",
            "problem": problem,
        })
    };
    let message = json!({
        "instance": instance, "seq": seq, "full": flags.contains('f'), "more": flags.contains('m'),
        "version": "0.2.0", "rows": services.iter().map(row).collect::<Vec<_>>(), "removed": removed,
    });
    AgentObserved::parse(message.to_string().as_bytes()).unwrap()
}

/// A table, and the time.
pub(super) struct Site {
    pub(super) table: Table,
    pub(super) now: Moment,
}

impl Site {
    pub(super) fn new(max_bytes: u64) -> Self {
        let now = Clock::start().now();
        Self { table: Table::new(max_bytes, now), now }
    }

    pub(super) fn accept(&mut self, agent: &str, message: AgentObserved) -> Result<Vec<Instance>, Rejected> {
        let accepted = self.table.accept(&agent.parse().unwrap(), identity(), message, self.now);
        let counted: usize = self.table.agents.values().map(AgentState::bytes).sum();
        assert_eq!(self.table.bytes, counted);
        self.check_counts();
        accepted
    }

    /// The services of an agent with the numbers of their last change; removed ones with a minus.
    pub(super) fn rows(&self, agent: &str) -> Vec<String> {
        let agent = &self.table.agents[agent];
        assert_eq!(agent.problems, agent.present().filter(|row| row.problem.is_some()).count());
        let shown = agent
            .rows
            .iter()
            .map(|(service, held)| format!("{}{service} {}", if held.row.is_some() { "" } else { "-" }, held.number));
        shown.collect()
    }

    pub(super) fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.table.pass(self.now);
        self.check_counts();
    }

    /// What is counted as it changes is what there is; agents are found by their changes as by looking at all.
    fn check_counts(&self) {
        let table = &self.table;
        assert_eq!(table.connected, table.agents.values().filter(|agent| !agent.is_unheard).count());
        for above in table.number.saturating_sub(3)..=table.number {
            let start = table.agents.keys().next().map_or(Bound::Unbounded, |first| Bound::Excluded(first.clone()));
            for start in [Bound::Unbounded, start] {
                let all = table.agents.range((start.clone(), Bound::Unbounded)).filter(|(_, it)| it.number > above);
                let found = table.changed(above, start).map(|(name, _)| name);
                assert!(found.eq(all.map(|(name, _)| name)));
            }
        }
    }
}
