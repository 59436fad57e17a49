mod delivered;
mod edges;
mod questions;
mod runs;

use proptest::prelude::*;
use serde_json::{Value, json};
use weir_protocol::digest::TarballDigest;
use weir_protocol::name::ServiceName;

use super::*;
use crate::{AgentFilter, AgentView, By, Key, LacksBy, ProblemFilter, Release, RowFilter, State, Verdict};

/// A table whose clocks the test moves.
struct World {
    table: Table,
    now: Now,
}

fn world_of(bounds: Bounds) -> World {
    World { table: Table::new(bounds), now: Now::of_clocks() }
}

fn world() -> World {
    world_of(Bounds::default())
}

fn row(service: &str, generation: u64, problem: Option<&str>) -> Value {
    let digest = TarballDigest::of(format!("{service} {generation}").as_bytes());
    let time = "2026-11-20T09:30:00Z";
    json!({
        "service": service, "desired": {"digest": digest, "generation": generation},
        "current": {"digest": digest, "generation": generation, "revision_id": format!("sha1:{generation:040}"), "since": time},
        "phase": if problem.is_some() { "waiting" } else { "current" }, "hook": "none",
        "problem": problem.map(|kind| json!({"kind": kind, "since": time, "tries": 3, "text": "because"})),
    })
}

/// An agent with all its rows.
fn agent(name: &str, instance: &str, seq: u64, rows: &[Value]) -> Value {
    json!({
        "agent": name, "proved": "token", "labels": {"ring": if name.ends_with('1') { "canary" } else { "all" }}, "heard_ago": 0,
        "instance": instance, "seq": seq, "version": "0.3.0", "full": true, "rows": rows,
    })
}

fn with(mut of: Value, changes: impl Into<Value>) -> Value {
    let changes: Value = changes.into();
    for (key, value) in changes.as_object().unwrap() {
        of[key] = value.clone();
    }
    of
}

fn message(edge: &str, seq: u64, agents: &[Value]) -> Value {
    json!({"edge": edge, "instance": "e", "seq": seq, "full": seq == 1, "connected": agents.len(), "agents": agents})
}

impl World {
    fn send(&mut self, message: &Value) -> Result<Taken, Rejected> {
        self.send_via(None, message)
    }

    /// Through a shield.
    fn send_via(&mut self, shield: Option<&str>, message: &Value) -> Result<Taken, Rejected> {
        let via = shield.map(|shield| shield.parse().unwrap());
        self.table.apply(EdgeObserved::parse(message.to_string().as_bytes()).unwrap(), via, self.now)
    }

    fn pass(&mut self, seconds: u64) {
        let period = Duration::from_secs(seconds);
        self.now = Now { monotonic: self.now.monotonic + period, wall: self.now.wall + period };
    }

    /// `agent/service@generation` of all rows, and the incomplete edges.
    fn rows(&self) -> (Vec<String>, Vec<String>) {
        let answer = self.table.rows(&RowFilter::default(), None, (None, 1000), self.now);
        let shown = |view: &crate::RowView| {
            format!("{}/{}@{}", view.agent, view.row.service, view.row.current.as_ref().unwrap().generation)
        };
        let incomplete = answer.incomplete.iter().map(|it| it.edge.to_string()).collect();
        (answer.entries.iter().map(shown).collect(), incomplete)
    }

    /// Whether there is a row of these services.
    fn rows_of<const N: usize>(&self, services: &[&str; N]) -> [bool; N] {
        services.map(|service| {
            let filter = RowFilter { service: Some(service.parse().unwrap()), ..RowFilter::default() };
            self.table.rows(&filter, None, (None, 1), self.now).total > 0
        })
    }

    fn agents(&self) -> Vec<AgentView> {
        self.table.agents(&AgentFilter::default(), (None, 1000), self.now).entries
    }

    fn states(&self) -> Vec<(String, State)> {
        self.agents().into_iter().map(|view| (view.agent.to_string(), view.state)).collect()
    }
}

#[test]
fn the_last_value_of_each_row_counts() {
    let mut world = world();
    world.send(&message("e1", 1, &[agent("a", "i", 1, &[row("x", 1, None), row("y", 1, None)])])).unwrap();
    assert_eq!(world.rows().0, ["a/x@1", "a/y@1"]);
    let delta = json!({"full": false, "removed": ["y"]});
    let delta = with(agent("a", "i", 2, &[row("x", 2, None), row("w", 1, None)]), delta);
    world.send(&message("e1", 2, std::slice::from_ref(&delta))).unwrap();
    assert_eq!(world.rows().0, ["a/w@1", "a/x@2"]);
    // A repetition of a message whose answer was lost changes nothing.
    world.send(&message("e1", 2, &[delta])).unwrap();
    assert_eq!(world.rows().0, ["a/w@1", "a/x@2"]);
    world.send(&message("e1", 3, &[agent("a", "i", 3, &[row("z", 1, None)])])).unwrap();
    assert_eq!(world.rows().0, ["a/z@1"]);
    // One that was sent twice, and arrives late, changes nothing either.
    assert_eq!(world.send(&message("e1", 2, &[agent("a", "i", 2, &[])])), Err(Rejected::Resync));
    assert_eq!((world.rows().0, world.send(&message("e1", 4, &[]))), (vec!["a/z@1".to_owned()], Ok(Taken::Whole)));
    // Everything of the edge deletes nothing of other agents.
    world.send(&message("e1", 1, &[agent("b", "i", 1, &[row("x", 1, None)])])).unwrap();
    assert_eq!(world.rows().0, ["a/z@1", "b/x@1"]);
}

#[test]
fn a_gap_is_noticed_and_the_edge_is_incomplete_until_everything_came_again() {
    let mut world = world();
    assert_eq!(world.send(&message("e1", 2, &[])), Err(Rejected::Resync));
    assert_eq!(world.rows().1, ["e1"]);
    world.send(&with(message("e1", 1, &[]), json!({"more": true}))).unwrap();
    assert_eq!(world.rows().1, ["e1"]);
    world.send(&message("e1", 2, &[])).unwrap();
    assert!(world.rows().1.is_empty());
    assert_eq!(world.send(&message("e1", 4, &[])), Err(Rejected::Resync));
    let another = with(message("e1", 3, &[]), json!({"instance": "f"}));
    assert_eq!(world.send(&another), Err(Rejected::Resync));
    assert_eq!(world.rows().1, ["e1"]);
    world.send(&message("e1", 1, &[])).unwrap();
    assert!(world.rows().1.is_empty());
    // Changes of an agent of which nothing is here.
    let delta = with(agent("a", "i", 2, &[]), json!({"full": false}));
    assert_eq!(world.send(&message("e1", 2, &[delta])), Err(Rejected::Resync));
    assert_eq!(world.rows().1, ["e1"]);
}

#[test]
fn a_silent_edge_is_incomplete_and_its_agents_become_silent() {
    let mut world = world();
    world.send(&message("e1", 1, &[agent("a", "i", 1, &[row("x", 1, None)]), agent("b", "i", 1, &[])])).unwrap();
    for seq in 2..=20 {
        world.pass(10);
        world.send(&message("e1", seq, &[])).unwrap();
    }
    assert!(world.rows().1.is_empty() && world.states().iter().all(|(_, state)| *state == State::Live));
    world.send(&with(message("e1", 21, &[]), json!({"unheard": ["b"]}))).unwrap();
    assert_eq!(world.states(), [("a".to_owned(), State::Live), ("b".to_owned(), State::Silent)]);
    world.pass(30);
    assert_eq!((world.rows().1, world.states()[0].1), (vec!["e1".to_owned()], State::Live));
    world.pass(61);
    let heard = world.now.wall - Duration::from_secs(91);
    assert_eq!((world.agents()[0].state, world.agents()[0].heard_at), (State::Silent, heard));
    world.pass(24 * 3600);
    world.table.expire(world.now);
    assert_eq!(world.rows(), (vec!["a/x@1".to_owned()], vec![]));
    assert_eq!(world.agents()[0].heard_at, heard);
    world.pass(30 * 24 * 3600);
    world.table.expire(world.now);
    assert_eq!((world.states().len(), world.table.in_use().rows), (0, 0));
}

#[test]
fn a_restarted_edge_is_incomplete_until_its_agents_have_come_back() {
    let mut world = world();
    let again = |seq, agents: &[Value]| with(message("e1", seq, agents), json!({"instance": "f"}));
    world.send(&message("e1", 1, &["a", "b", "c"].map(|name| agent(name, "i", 1, &[])))).unwrap();
    world.send(&message("e1", 1, &[])).unwrap();
    assert!(world.rows().1.is_empty(), "the same run lists everything it has");
    world.pass(5);
    world.send(&again(1, &[])).unwrap();
    assert_eq!(world.rows().1, ["e1"]);
    world.send(&again(2, &[agent("a", "i", 1, &[])])).unwrap();
    world.send(&message("e2", 1, &[agent("b", "i", 2, &[])])).unwrap();
    assert_eq!(world.rows().1, ["e1"]);
    world.send(&again(3, &[agent("c", "i", 1, &[])])).unwrap();
    assert!(world.rows().1.is_empty());
    // What does not come back is silent, and nobody waits for it.
    world.send(&with(message("e1", 1, &[]), json!({"instance": "g"}))).unwrap();
    for seq in 2..=10 {
        assert_eq!(world.rows().1, ["e1"]);
        world.pass(10);
        world.send(&with(message("e1", seq, &[]), json!({"instance": "g"}))).unwrap();
        world.send(&message("e2", seq, &[])).unwrap();
    }
    assert!(world.rows().1.is_empty());
    let states = world.states().into_iter().map(|(_, state)| state);
    assert_eq!(states.collect::<Vec<_>>(), [State::Silent, State::Live, State::Silent]);
}

#[test]
fn an_edge_that_begins_again_makes_nobody_live() {
    let mut world = world();
    world.send(&message("e1", 1, &[agent("a", "i", 1, &[])])).unwrap();
    world.pass(80);
    world.send(&message("e1", 2, &[])).unwrap();
    world.send(&with(message("e1", 1, &[]), json!({"more": true}))).unwrap();
    world.pass(11);
    world.send(&with(message("e1", 2, &[]), json!({"unheard": ["a"]}))).unwrap();
    assert_eq!(world.agents()[0].state, State::Silent);
}

#[test]
fn live_agents_of_a_message_have_room_before_silent_ones() {
    let mut world = world_of(Bounds { rows: 2, ..Bounds::default() });
    let agents = ["a", "b", "c"].map(|name| agent(name, "i", 1, &[row("x", 1, None)]));
    for _ in 0..2 {
        let everything = with(message("e1", 1, &agents), json!({"unheard": ["a", "b"]}));
        assert_eq!(
            (world.send(&everything), world.rows().0),
            (Ok(Taken::Whole), vec!["a/x@1".to_owned(), "c/x@1".to_owned()])
        );
    }
}

#[test]
fn what_another_edge_states_does_not_give_way_to_older_rows() {
    let mut world = world_of(Bounds { rows: 3, ..Bounds::default() });
    let earlier = agent("a", "i", 5, &[row("x", 1, None)]);
    world.send(&message("e1", 1, std::slice::from_ref(&earlier))).unwrap();
    world.send(&message("e2", 1, &[agent("a", "i", 9, &[row("x", 2, None), row("y", 1, None)])])).unwrap();
    world.pass(95);
    world.send(&with(message("e2", 2, &[]), json!({"unheard": ["a"]}))).unwrap();
    let live = agent("b", "i", 1, &[row("x", 1, None), row("y", 1, None)]);
    let everything =
        with(message("e1", 1, &[with(earlier, json!({"heard_ago": 95})), live]), json!({"unheard": ["a"]}));
    assert_eq!(world.send(&everything), Ok(Taken::Part("rows")));
    assert_eq!(world.rows().0, ["a/x@2", "a/y@1", "b/x@1"]);
}

#[test]
fn beyond_a_bound_what_is_known_is_updated_and_the_rest_comes_when_there_is_room() {
    let rows = |names: &[&str]| names.iter().map(|name| row(name, 1, None)).collect::<Vec<_>>();
    let mut world = world_of(Bounds { agents: 2, rows: 3, ..Bounds::default() });
    world.send(&message("e1", 1, &[agent("a", "i", 1, &rows(&["x"])), agent("b", "i", 1, &rows(&["x"]))])).unwrap();
    let more = agent("a", "i", 2, &[row("x", 2, None), row("y", 1, None), row("z", 1, None)]);
    assert_eq!(world.send(&message("e1", 2, &[more, agent("c", "i", 1, &[])])), Ok(Taken::Part("rows")));
    assert_eq!(world.rows(), (vec!["a/x@2".to_owned(), "a/y@1".to_owned(), "b/x@1".to_owned()], vec!["e1".to_owned()]));
    // Nothing of it keeps back what follows, changes of what was left out included, which is asked for from time to time.
    let delta = |seq| with(agent("c", "i", seq, &rows(&["x"])), json!({"full": false}));
    for seq in 3..62 {
        world.pass(10);
        assert_eq!(world.send(&message("e1", seq, &[delta(seq)])), Ok(Taken::Part("rows")));
    }
    assert_eq!((world.rows().1, world.states()[0].1), (vec!["e1".to_owned()], State::Live));
    assert!(world.table.delete_agent(&"b".parse().unwrap()));
    world.pass(10);
    assert_eq!(world.send(&message("e1", 62, &[])), Err(Rejected::Resync));
    world.send(&message("e1", 1, &[agent("a", "i", 2, &rows(&["x", "y", "z"])), agent("c", "i", 1, &[])])).unwrap();
    assert_eq!((world.rows().0.len(), world.rows().1.len(), world.states().len()), (3, 0, 2));

    let mut world = world_of(Bounds { bytes: 4_000, ..Bounds::default() });
    let rows: Vec<Value> = (0..100).map(|i| row(&format!("s{i}"), 1, Some("disk"))).collect();
    assert_eq!(world.send(&message("e1", 1, &[agent("a", "i", 1, &rows)])), Ok(Taken::Part("bytes")));
    for i in 0..MAX_EDGES {
        let _ = world.send(&message(&format!("many-{i}"), 1, &[]));
    }
    assert_eq!(world.send(&message("another", 1, &[])), Err(Rejected::Edges));
}

#[test]
fn agents_that_were_silent_longest_give_way_to_those_that_are_heard() {
    let rows = |names: &[&str]| names.iter().map(|name| row(name, 1, None)).collect::<Vec<_>>();
    let mut world = world_of(Bounds { agents: 3, rows: 3, ..Bounds::default() });
    for (seq, name) in [(1, "a"), (2, "b"), (3, "c")] {
        world.send(&message("e1", seq, &[agent(name, "i", 1, &rows(&["x"]))])).unwrap();
        world.pass(10);
    }
    assert_eq!(world.send(&message("e2", 1, &[agent("d", "i", 1, &[])])), Ok(Taken::Part("agents")), "all are live");
    world.send(&with(message("e1", 4, &[]), json!({"unheard": ["b"]}))).unwrap();
    world.pass(90);
    world.send(&with(message("e1", 5, &[]), json!({"unheard": ["a"]}))).unwrap();
    world.send(&message("e2", 1, &[agent("d", "i", 1, &[])])).unwrap();
    let names = |world: &World| world.states().into_iter().map(|(name, _)| name).collect::<Vec<_>>().concat();
    assert_eq!(names(&world), "acd", "another is not needed");
    world.send(&message("e2", 1, &[agent("d", "i", 2, &rows(&["x", "y"]))])).unwrap();
    assert_eq!((names(&world), world.rows().0.len()), ("cd".to_owned(), 3), "its rows need the room of others");

    // Nobody gives way to an agent that is not live itself, which may be left out, or in a message that has news of it.
    world.send(&with(message("e1", 6, &[]), json!({"unheard": ["c"]}))).unwrap();
    let gone = with(agent("e", "i", 1, &rows(&["x", "y", "z"])), json!({"heard_ago": 90}));
    assert_eq!(world.send(&with(message("e2", 2, &[gone]), json!({"unheard": ["e"]}))), Ok(Taken::Whole));
    assert_eq!((names(&world), world.rows().0.len()), ("cd".to_owned(), 3), "nor is it there with a part of its rows");
    let back = with(agent("c", "i", 2, &rows(&["x"])), json!({"full": false}));
    let both = [back, agent("f", "i", 1, &rows(&["x"]))];
    world.send(&message("e1", 7, &both)).unwrap();
    assert_eq!((names(&world), world.rows().0.len()), ("cdf".to_owned(), 3));

    // Of the names of a record those that were heard last have a place.
    let seen = |(name, at): (&str, u64)| (name.parse().unwrap(), LastSeen { at, deleted: false });
    let now = world.now.minutes_of(world.now.monotonic);
    assert!(world.table.delete_agent(&"f".parse().unwrap()));
    let agents = [("a", now - 3), ("b", now - 1), ("f", now - 2)].into_iter().map(seen).collect();
    world.table.learn(&Names { agents, ..Names::default() }, world.now);
    assert_eq!(names(&world), "bcd");
    // It frees no row; but bytes.
    assert_eq!(world.send(&message("e1", 8, &[agent("c", "i", 3, &rows(&["x", "y"]))])), Ok(Taken::Part("rows")));
    assert_eq!(names(&world), "bcd");
    let mut world = world_of(Bounds { bytes: 4_000, ..Bounds::default() });
    let agents = (0..100).map(|number| seen((&format!("a{number}"), now - 5))).collect();
    world.table.learn(&Names { agents, ..Names::default() }, world.now);
    // It said so long ago, and is live.
    let live = with(agent("b", "i", 1, &rows(&["x"])), json!({"heard_ago": 300}));
    assert_eq!(world.send(&message("e1", 1, &[live])), Ok(Taken::Whole));
    assert_eq!(world.rows().0, ["b/x@1"]);
}

#[test]
fn agents_of_an_edge_that_begins_again_before_it_sent_everything_stay_live() {
    let mut world = world();
    let edge = |seq, agents: &[Value], more: bool| with(message("e1", seq, agents), json!({"more": more}));
    world.send(&edge(1, &["a", "b"].map(|name| agent(name, "i", 1, &[])), false)).unwrap();
    for seq in 2..20 {
        world.pass(10);
        world.send(&edge(seq, &[], false)).unwrap();
    }
    for more in [true, true, false, false] {
        world.send(&edge(1, &[agent("a", "i", 1, &[])], more)).unwrap();
    }
    assert_eq!(world.states(), [("a".to_owned(), State::Live), ("b".to_owned(), State::Live)]);
}

#[test]
fn names_outlive_a_restart_and_edges_are_incomplete_until_they_sent_everything() {
    let mut before = world();
    before.send(&message("e1", 1, &[agent("a", "i", 1, &[]), agent("b", "i", 1, &[])])).unwrap();
    before.pass(120);
    before.send(&message("e2", 1, &[agent("b", "i", 2, &[])])).unwrap();
    let names = before.table.names(before.now);
    let mut after = World { table: Table::new(Bounds::default()), now: before.now };
    after.table.learn(&names, after.now);
    assert_eq!(after.rows().1, ["e1", "e2"]);
    // Edges have not had the time to report them. The record is read again and again.
    assert_eq!(after.states(), [("a".to_owned(), State::Unknown), ("b".to_owned(), State::Unknown)]);
    let mut later = World { table: after.table.clone(), now: after.now };
    later.pass(89);
    later.table.learn(&names, later.now);
    assert!(later.states().iter().all(|(_, state)| *state == State::Unknown));
    later.pass(1);
    assert!(later.states().iter().all(|(_, state)| *state == State::Silent));
    let without_rows = |world: &World, agents: AgentFilter| {
        let filter = RowFilter { agents, ..RowFilter::default() };
        world.table.rows(&filter, None, (None, 1), world.now).agents_without_rows
    };
    assert_eq!(without_rows(&after, AgentFilter::default()), 2);
    // Its agents have not come back, to whichever edge.
    after.send(&message("e2", 1, &[])).unwrap();
    assert_eq!(after.rows().1, ["e1", "e2"]);
    after.send(&message("e2", 2, &[agent("b", "i", 2, &[])])).unwrap();
    let of_edge = AgentFilter { edge: Some("e1".parse().unwrap()), ..AgentFilter::default() };
    assert_eq!(without_rows(&after, of_edge), 1, "it may be at any edge");
    assert_eq!((after.rows().1.len(), after.states()[1].1), (2, State::Live));
    for seq in 3..13 {
        after.pass(10);
        after.send(&message("e2", seq, &[])).unwrap();
    }
    assert_eq!(after.rows().1, ["e1"], "nobody waits longer than until an agent is silent");
    // Operators delete at another origin.
    let mut deleted = names.clone();
    let now = LastSeen { at: after.now.minutes_of(after.now.monotonic), deleted: true };
    deleted.edges.insert("e1".parse().unwrap(), now);
    deleted.agents.insert("a".parse().unwrap(), now);
    after.table.learn(&deleted, after.now);
    assert_eq!((after.rows().1.len(), after.states()), (0, vec![("b".to_owned(), State::Live)]));
    assert_eq!(after.table.names(after.now).merged(deleted.clone()).agents["a"], now);
    // What is heard after its deletion is there again.
    after.pass(60);
    after.send(&message("e1", 1, &[agent("a", "i", 9, &[])])).unwrap();
    after.table.learn(&deleted, after.now);
    assert_eq!((after.rows().1, after.states().len()), (vec!["e2".to_owned()], 2));
}

#[test]
fn refused_names_are_listed_with_the_reason() {
    let mut world = world();
    let refused = |name: &str| json!({"name": name, "reason": "expired", "since": "2026-11-20T09:30:00Z", "count": 2});
    let first = with(message("e1", 1, &[agent("a", "i", 1, &[])]), json!({"refused": [refused("a"), refused("c")]}));
    world.send(&first).unwrap();
    assert_eq!(world.states(), [("a".to_owned(), State::Live), ("c".to_owned(), State::Refused)]);
    world.pass(91);
    world.send(&with(message("e1", 2, &[]), json!({"unheard": ["a"], "refused": [refused("a")]}))).unwrap();
    let shown = &world.agents()[0];
    assert_eq!((shown.state, shown.proved, shown.reason.as_deref()), (State::Refused, None, Some("expired")));
    let filter =
        AgentFilter { state: Some(State::Refused), agent: Some("c*".parse().unwrap()), ..AgentFilter::default() };
    let answer = world.table.agents(&filter, (None, 10), world.now);
    assert_eq!((answer.total, answer.entries[0].agent.as_str()), (1, "c"));
}

#[test]
fn one_agent_does_not_take_all_room_and_its_rows_go_in_one_pass() {
    let names: Vec<String> = (0..200_000).map(|number| format!("s{number:06}")).collect();
    let mut world = world();
    // As many rows as its edge may have; each message adds some.
    for (part, services) in names.chunks(2_500).take(MAX_AGENT_ROWS / 2_500 + 1).enumerate() {
        let none = json!({"desired": null, "current": null, "phase": "waiting", "hook": "none", "problem": null});
        let rows: Vec<Value> = services.iter().map(|name| with(none.clone(), json!({"service": name}))).collect();
        let part = part as u64 + 1;
        let of_agent = with(agent("a", "i", part, &rows), json!({"full": part == 1}));
        let room = part * 2_500 <= MAX_AGENT_ROWS as u64;
        let expected = if room { Taken::Whole } else { Taken::Part("agent_rows") };
        assert_eq!(world.send(&message("e1", part, &[of_agent])), Ok(expected));
    }
    assert_eq!(world.table.in_use().rows, MAX_AGENT_ROWS);
    assert_eq!(world.table.incomplete(world.now).len(), 1, "what was left out is said");
    // What is known is updated, and the edge is not asked again and again.
    let all = world.rows_of(&["s000000", "s024999", "s025000"]);
    assert_eq!(all, [true, true, false]);
    let seq = MAX_AGENT_ROWS as u64 / 2_500 + 2;
    let again = with(agent("a", "i", seq, &[row("s000000", 2, None)]), json!({"full": false}));
    assert_eq!(world.send(&message("e1", seq, &[again])), Ok(Taken::Whole));
    // The longest list of removed services, each twice.
    let removed: Vec<&String> = names.iter().take(40_000).chain(names.iter().take(40_000)).collect();
    let gone = with(agent("a", "i", seq + 1, &[]), json!({"full": false, "removed": removed}));
    assert_eq!(world.send(&message("e1", seq + 1, &[gone])), Ok(Taken::Whole));
    assert_eq!(world.table.in_use().rows, 0);
}

#[test]
fn at_the_bound_new_rows_take_the_room_of_those_that_go() {
    let mut world = world_of(Bounds { rows: 2, ..Bounds::default() });
    let send = |world: &mut World, seq, rows: &[Value], changes: Value| {
        world.send(&message("e1", seq, &[with(agent("a", "i", seq, rows), changes)]))
    };
    assert_eq!(send(&mut world, 1, &[row("x", 1, None), row("y", 1, None)], json!({})), Ok(Taken::Whole));
    assert_eq!(send(&mut world, 2, &[row("y", 1, None), row("z", 1, None)], json!({})), Ok(Taken::Whole));
    let swapped = json!({"full": false, "removed": ["y"]});
    assert_eq!(send(&mut world, 3, &[row("w", 1, None)], swapped), Ok(Taken::Whole));
    assert_eq!((world.rows().0, world.table.in_use().rows), (vec!["a/w@1".to_owned(), "a/z@1".to_owned()], 2));
    assert_eq!(send(&mut world, 4, &[row("v", 1, None)], json!({"full": false})), Ok(Taken::Part("rows")));
    assert_eq!(world.table.in_use().rows, 2);
}

#[test]
fn metrics_count_problems_of_live_agents_by_service_within_a_bound() {
    let mut world = world();
    let services: Vec<String> = (0..60).map(|number| format!("s{number:02}")).collect();
    let rows: Vec<Value> = services.iter().map(|name| row(name, 1, Some("not-allowed"))).collect();
    let refused = json!({"name": "c", "reason": "expired", "since": "2026-11-20T09:30:00Z", "count": 2});
    let agents = [agent("a", "i", 1, &rows), agent("b", "i", 1, &rows[50..])];
    world.send(&with(message("e1", 1, &agents), json!({"refused": [refused]}))).unwrap();
    let gauges = world.table.gauges(world.now, |service| service.as_str() != "s50");
    assert_eq!((gauges.states, gauges.incomplete), ([("live", 2), ("silent", 0), ("refused", 1), ("unknown", 0)], 0));
    let of_kind = |kind| gauges.problems.iter().filter(move |(of, ..)| *of == kind).collect::<Vec<_>>();
    let shown = of_kind("not-allowed");
    assert_eq!((shown.len(), shown[0].2, shown[50]), (51, 2, &("not-allowed", None, 11)));
    assert_eq!(
        shown[0].1.as_ref().map(|service| service.as_str()),
        Some("s51"),
        "those with the most rows, and known ones"
    );
    assert_eq!(of_kind("disk"), [&("disk", None, 0)]);
    // What silent agents reported last is no news.
    world.send(&with(message("e1", 2, &[]), json!({"unheard": ["a", "b"]}))).unwrap();
    world.pass(90);
    let gauges = world.table.gauges(world.now, |service| service.as_str() != "s50");
    assert_eq!((gauges.states[1], gauges.incomplete), (("silent", 2), 1));
    assert!(gauges.problems.iter().all(|(_, service, rows)| service.is_none() && *rows == 0));
}

proptest! {
    /// Whatever edges send, the counts are those of what is stored.
    #[test]
    fn counts_stay_true(steps in proptest::collection::vec((0_u8..6, 0_u8..3, 0_u64..4, proptest::collection::vec(0_u8..5, 0..6)), 0..40)) {
        let mut world = world_of(Bounds { agents: 2, rows: 6, ..Bounds::default() });
        for (kind, name, seq, services) in steps {
            world.pass(20);
            let name = format!("a{name}");
            let rows: Vec<Value> = services.iter().map(|i| row(&format!("s{i}"), seq, (seq == 1).then_some("disk"))).collect();
            let of_agent = with(agent(&name, if kind == 1 { "j" } else { "i" }, seq, &rows), json!({"full": kind != 2, "removed": ["s1", "s3", "s1"]}));
            let edge = if kind == 3 { "e2" } else { "e1" };
            match kind {
                5 => drop(world.table.delete_agent(&name.parse().unwrap())),
                4 => world.table.learn(&Names::default(), world.now),
                _ => drop(world.send(&message(edge, 1, &[of_agent]))),
            }
            let table = &world.table;
            let (rows, bytes) = table.agents.values().fold((0, 0), |(rows, bytes), it| (rows + it.rows.len(), bytes + it.bytes()));
            let used = table.in_use();
            prop_assert_eq!((used.rows, used.bytes), (rows, bytes + table.pools.bytes()));
            prop_assert!(used.rows <= 6 && used.agents <= 2);
            prop_assert!(table.agents.values().all(|agent| agent.rows.iter().map(|row| table.pools.services.get(row.service)).is_sorted()));
        }
    }
}
