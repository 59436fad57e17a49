//! What the agents of this edge say that they run: a table of last values. Pure: time is an argument.
//!
//! Each message gets the next number, which its changes have: what an origin lacks is what has a number above the one that it
//! has acknowledged.

use std::collections::BTreeMap;
use std::ops::{Bound, RangeBounds};
use std::time::Duration;

use weir_cache::clock::Moment;
use weir_protocol::labels::Labels;
use weir_protocol::name::NodeName;
use weir_protocol::observed::{AgentObserved, Instance, MAX_AGENT_ROWS};

use super::agent::{AGENT_BYTES, AgentState, Identity, Order, order};

/// An agent that was not heard for this long is not connected. An agent sends a request at least every minute. It is noticed
/// within [`PASS_INTERVAL`](super::PASS_INTERVAL), so 90 s after the last request at most.
const UNHEARD_AFTER: Duration = Duration::from_secs(85);

/// An agent that was not heard for this long is forgotten.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(24 * 3600);

/// How long removed rows are known as removed.
const REMOVED_FOR: Duration = Duration::from_secs(600);

/// Fewer changes than one in so many agents are looked up one by one.
const FEW: usize = 8;

/// Why a message is not accepted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Rejected {
    /// One before it is missing.
    Resync,
    /// There is no room.
    Full,
}

/// What the agents of this edge run.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) agents: BTreeMap<NodeName, AgentState>,
    /// The agents by the numbers of their last changes.
    by_number: BTreeMap<u64, NodeName>,
    /// The agents that were heard a short time ago.
    pub(super) connected: usize,
    /// The number of the last change.
    pub(super) number: u64,
    /// Rows that were removed up to this number are forgotten.
    pub(super) forgotten: u64,
    /// The last number at this time.
    checkpoint: (u64, Moment),
    pub(super) bytes: usize,
    pub(super) max_bytes: usize,
}

impl Table {
    pub(super) fn new(max_bytes: u64, now: Moment) -> Self {
        let max_bytes = usize::try_from(max_bytes).unwrap_or(usize::MAX);
        Self {
            agents: BTreeMap::new(),
            by_number: BTreeMap::new(),
            connected: 0,
            number: 0,
            forgotten: 0,
            checkpoint: (0, now),
            bytes: 0,
            max_bytes,
        }
    }

    /// Takes in a message. Returns the runs of the agent that live at the same time, if that is new.
    ///
    /// # Errors
    /// Nothing of it was accepted.
    pub(super) fn accept(
        &mut self,
        name: &NodeName,
        identity: Identity,
        message: AgentObserved,
        now: Moment,
    ) -> Result<Vec<Instance>, Rejected> {
        let known = self.agents.get(name);
        match order(known.map(|known| (&known.instance, known.seq)), &message) {
            Order::Next => {}
            Order::Old => return Ok(Vec::new()),
            Order::Gap => return Err(Rejected::Resync),
        }
        let of_agent = if known.is_none() { AGENT_BYTES } else { 0 };
        let fresh = AgentState::new(identity.clone(), message.instance.clone(), now);
        let known = known.unwrap_or(&fresh);
        let (growth, new) = known.growth(&message);
        if growth + of_agent > 0 && self.bytes + growth + of_agent > self.max_bytes
            || known.rows.len() + new > MAX_AGENT_ROWS
        {
            return Err(Rejected::Full);
        }
        self.bytes += of_agent;
        let agent = self.agents.entry(name.clone()).or_insert(fresh);
        self.connected += usize::from(of_agent > 0 || agent.is_unheard);
        agent.identity = identity;
        let was_alone = !agent.is_duplicated();
        renumber(&mut self.by_number, &mut self.number, name, agent);
        let (before, after) = agent.apply(message, self.number, now);
        self.bytes = self.bytes + after - before;
        Ok(agent.runs.living().filter(|_| was_alone).cloned().collect())
    }

    /// An agent has sent an authenticated request about itself.
    pub(super) fn heard(&mut self, name: &NodeName, now: Moment) -> u64 {
        let Some(agent) = self.agents.get_mut(name) else { return 0 };
        agent.heard = now;
        if std::mem::take(&mut agent.is_unheard) {
            renumber(&mut self.by_number, &mut self.number, name, agent);
            self.connected += 1;
        }
        agent.runs_before
    }

    /// Operators may assert other labels now.
    pub(super) fn relabel(&mut self, labels: impl Fn(&NodeName, &Identity) -> Labels) {
        for (name, agent) in &mut self.agents {
            let labels = labels(name, &agent.identity);
            if labels != agent.identity.labels {
                renumber(&mut self.by_number, &mut self.number, name, agent);
                (agent.identity.labels, agent.stated) = (labels, self.number);
                if agent.is_unheard {
                    // An origin may have forgotten it to make room.
                    agent.full_number = self.number;
                }
            }
        }
    }

    /// Time has passed.
    pub(super) fn pass(&mut self, now: Moment) {
        let Self { agents, by_number, number, connected, bytes, .. } = self;
        agents.retain(|name, agent| {
            let silent = now.since(agent.heard);
            if silent >= UNHEARD_AFTER && !agent.is_unheard {
                renumber(by_number, number, name, agent);
                agent.is_unheard = true;
                *connected -= 1;
            }
            let is_kept = silent < FORGOTTEN_AFTER;
            if !is_kept {
                by_number.remove(&agent.number);
                *bytes -= agent.bytes();
            }
            is_kept
        });
        let (number, at) = self.checkpoint;
        if now.since(at) >= REMOVED_FOR {
            self.forgotten = number;
            self.checkpoint = (self.number, now);
            self.bytes -= self.agents.values_mut().map(|agent| agent.forget_removed(number)).sum::<usize>();
        }
    }

    /// The names that two agents use at the same time.
    pub(super) fn duplicated(&self) -> usize {
        self.agents.values().filter(|agent| agent.is_duplicated()).count()
    }

    /// The agents with a change above a number, sorted by name. A few of many are found without the others.
    pub(super) fn changed<'a>(
        &'a self,
        above: u64,
        start: Bound<NodeName>,
    ) -> Box<dyn Iterator<Item = (&'a NodeName, &'a AgentState)> + 'a> {
        let is_above = move |(_, agent): &(&NodeName, &AgentState)| agent.number > above;
        // Each number is of one change.
        if self.number - above >= (self.agents.len() / FEW) as u64 {
            return Box::new(self.agents.range((start, Bound::Unbounded)).filter(is_above));
        }
        let changed = self.by_number.range((Bound::Excluded(above), Bound::Unbounded)).map(|(_, name)| name);
        let mut names: Vec<&NodeName> =
            changed.filter(|name| (start.as_ref(), Bound::Unbounded).contains(*name)).collect();
        names.sort_unstable();
        Box::new(names.into_iter().filter_map(|name| self.agents.get_key_value(name)))
    }
}

/// Gives an agent the next number.
fn renumber(by_number: &mut BTreeMap<u64, NodeName>, number: &mut u64, name: &NodeName, agent: &mut AgentState) {
    *number += 1;
    let name = by_number.remove(&agent.number).unwrap_or_else(|| name.clone());
    by_number.insert(*number, name);
    agent.number = *number;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observed::fixture::{Site, message};

    #[test]
    fn what_does_not_follow_is_asked_for_again() {
        let mut site = Site::new(1 << 20);
        assert_eq!(site.accept("one", message("a", 7, "", &["shop"], &[])), Err(Rejected::Resync), "it is not known");
        site.accept("one", message("a", 8, "f", &["docs", "shop"], &[])).unwrap();
        site.accept("one", message("a", 9, "", &["shop!503"], &["docs"])).unwrap();
        assert_eq!(site.rows("one"), ["-docs 2", "shop 2"]);
        for old in [8, 9] {
            site.accept("one", message("a", old, "f", &["shop"], &[])).unwrap();
        }
        assert_eq!(site.accept("one", message("a", 11, "", &["shop"], &[])), Err(Rejected::Resync));
        assert_eq!(site.accept("one", message("b", 10, "", &["shop"], &[])), Err(Rejected::Resync), "another run");
        assert_eq!((site.rows("one"), site.table.number), (vec!["-docs 2".to_owned(), "shop 2".to_owned()], 2));
        site.accept("one", message("a", 12, "f", &["shop!503"], &[])).unwrap();
        assert_eq!(site.rows("one"), ["-docs 2", "shop 2"], "nothing has changed");
        assert_eq!(site.table.agents["one"].number, 3);
    }

    #[test]
    fn all_rows_in_parts_replace_the_others_at_their_end() {
        let mut site = Site::new(1 << 20);
        site.accept("one", message("a", 1, "f", &["a", "b", "c!1"], &[])).unwrap();
        site.accept("one", message("b", 1, "fm", &["a"], &[])).unwrap();
        site.accept("one", message("b", 2, "m", &["d"], &[])).unwrap();
        assert_eq!(site.rows("one"), ["a 1", "b 1", "c 1", "d 3"], "the rest may follow");
        // It begins again.
        site.accept("one", message("b", 3, "fm", &["a"], &[])).unwrap();
        site.accept("one", message("b", 4, "", &["c!2"], &[])).unwrap();
        assert_eq!(site.rows("one"), ["a 1", "-b 5", "c 5", "-d 5"]);
        site.accept("one", message("b", 5, "", &["b"], &["none"])).unwrap();
        assert_eq!(site.rows("one"), ["a 1", "b 6", "c 5", "-d 5"]);
    }

    #[test]
    fn a_few_changes_of_many_agents_are_found_by_their_numbers() {
        let mut site = Site::new(1 << 20);
        let name = |number: u64| format!("agent-{number:02}");
        // The fixture compares with a look at all.
        for number in 0..40 {
            site.accept(&name(number), message("a", 1, "f", &["shop"], &[])).unwrap();
        }
        for number in [7, 3, 7, 0] {
            let seq = site.table.agents[name(number).as_str()].seq + 1;
            site.accept(&name(number), message("a", seq, "", &["shop!503"], &[])).unwrap();
        }
        let found = |above| site.table.changed(above, Bound::Unbounded).map(|(name, _)| name.to_string());
        assert_eq!(found(40).collect::<Vec<_>>(), ["agent-00", "agent-03", "agent-07"]);
        assert_eq!(found(43).collect::<Vec<_>>(), ["agent-00"]);
        site.pass(85);
        site.table.heard(&"agent-09".parse().unwrap(), site.now);
        site.pass(24 * 3600 - 1);
        assert_eq!((site.table.agents.len(), site.table.connected), (1, 0));
    }

    #[test]
    fn without_room_nothing_is_accepted_and_nothing_evicted() {
        let one = message("a", 1, "f", &["a", "b"], &[]);
        let mut site = Site::new(1 << 20);
        site.accept("one", one.clone()).unwrap();
        let mut site = Site::new(site.table.bytes as u64);
        site.accept("one", one).unwrap();
        assert_eq!(site.accept("two", message("a", 1, "f", &[], &[])), Err(Rejected::Full));
        assert_eq!(site.accept("one", message("a", 2, "", &["a!full"], &[])), Err(Rejected::Full));
        site.accept("one", message("a", 2, "", &["b"], &["a"])).unwrap();
        assert_eq!(site.rows("one"), ["-a 2", "b 1"], "what needs no room is");
        let mut site = Site::new(u64::MAX);
        for part in 0..MAX_AGENT_ROWS / 2_500 {
            let services: Vec<String> = (0..2_500).map(|n| format!("s{part}.{n}")).collect();
            let services: Vec<_> = services.iter().map(String::as_str).collect();
            site.accept("one", message("a", 1 + part as u64, if part == 0 { "fm" } else { "m" }, &services, &[]))
                .unwrap();
        }
        let more = message("a", 1 + MAX_AGENT_ROWS as u64 / 2_500, "", &["more"], &[]);
        assert_eq!(site.accept("one", more), Err(Rejected::Full), "one agent does not take all room");
    }

    #[test]
    fn agents_that_are_not_heard_are_named_and_at_last_forgotten() {
        let mut site = Site::new(1 << 20);
        for agent in ["one", "two"] {
            site.accept(agent, message("a", 1, "f", &["shop", "docs"], &[])).unwrap();
        }
        site.pass(84);
        site.table.heard(&"one".parse().unwrap(), site.now);
        site.pass(1);
        let state = |site: &Site, name: &str| (site.table.agents[name].is_unheard, site.table.agents[name].number);
        assert_eq!([state(&site, "one"), state(&site, "two")], [(false, 1), (true, 3)]);
        site.table.heard(&"two".parse().unwrap(), site.now);
        assert_eq!((state(&site, "two"), site.table.connected), ((false, 4), 2));
        // Removed rows are known as removed for a while.
        site.accept("one", message("a", 2, "", &[], &["docs"])).unwrap();
        site.pass(600);
        assert_eq!(site.rows("one"), ["-docs 5", "shop 1"]);
        site.pass(600);
        assert_eq!(site.rows("one"), ["shop 1"]);
        assert_eq!(site.table.forgotten, 7, "two agents were not heard in between");
        let one = "one".parse().unwrap();
        site.table.heard(&one, site.now.after(Duration::from_secs(1)));
        site.pass(24 * 3600);
        assert_eq!(site.table.agents.keys().collect::<Vec<_>>(), [&one]);
        site.pass(1);
        assert_eq!((site.table.agents.len(), site.table.bytes), (0, 0));
    }
}
