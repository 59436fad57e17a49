//! Edges with one identity, two with one name, and edges that stop.

use weir_protocol::observed::Capability;

use super::*;

/// A message of an edge with the identity `pool`.
fn of(name: &str, instance: &str, seq: u64, agents: &[Value]) -> Value {
    with(message("pool", seq, agents), json!({"name": name, "instance": instance}))
}

/// A message without news that may be the last one.
fn last(name: &str, seq: u64) -> Value {
    with(of(name, name, seq, &[]), json!({"draining": true}))
}

fn edge_of(world: &World, agent: usize) -> String {
    world.agents()[agent].edge.as_ref().unwrap().to_string()
}

fn is_deleted(names: &Names, edge: &str) -> bool {
    names.edges[&edge.parse().unwrap()].deleted
}

#[test]
fn edges_with_one_identity_are_several_with_agents_of_their_own() {
    let mut world = world();
    world.send(&of("one", "i", 1, &[agent("a", "i", 1, &[row("x", 1, None)])])).unwrap();
    world.send(&of("two", "j", 1, &[agent("b", "i", 1, &[row("x", 1, None)])])).unwrap();
    // One of the release before, and one that is called as its identity.
    world.send(&message("pool", 1, &[agent("c", "i", 1, &[])])).unwrap();
    world.send(&with(message("pool", 2, &[]), json!({"name": "pool"}))).unwrap();
    for seq in 2..20 {
        world.pass(9);
        world.send(&of("one", "i", seq, &[])).unwrap();
        world.send(&of("two", "j", seq, &[])).unwrap();
        world.send(&message("pool", seq + 1, &[])).unwrap();
    }
    assert_eq!(world.rows(), (vec!["a/x@1".to_owned(), "b/x@1".to_owned()], vec![]));
    assert_eq!([0, 1, 2].map(|number| edge_of(&world, number)), ["pool~one", "pool~two", "pool"]);
    assert!(world.agents().iter().all(|agent| agent.state == State::Live));
    let filter = AgentFilter { edge: Some("pool~*".parse().unwrap()), ..AgentFilter::default() };
    assert_eq!(world.table.agents(&filter, (None, 9), world.now).total, 2);
    let groups = world.table.summary((&By::Edge, None), &RowFilter::default(), None, (None, 9), world.now).entries;
    assert_eq!(groups[1].key, crate::Key::One(Some("pool~two".to_owned())));
    // An agent moves, and one of the two is silent.
    world.pass(9);
    world.send(&of("two", "j", 20, &[agent("a", "i", 2, &[])])).unwrap();
    assert_eq!(edge_of(&world, 0), "pool~two");
    world.pass(25);
    world.send(&of("two", "j", 21, &[])).unwrap();
    assert_eq!(world.rows().1, ["pool", "pool~one"]);
}

#[test]
fn edges_with_one_certificate_have_a_bound_of_their_own() {
    let mut world = world_of(Bounds { edges_per_identity: 2, ..Bounds::default() });
    for (name, seq) in [("one", 1), ("two", 1), ("one", 2)] {
        assert_eq!(world.send(&of(name, name, seq, &[])), Ok(Taken::Whole), "{name}");
    }
    let full = Err(Rejected::EdgesOfIdentity { limit: 2 });
    assert_eq!(world.send(&of("three", "three", 1, &[])), full);
    // Those behind a shield come with its certificate, whichever name it has, and whatever they are called.
    assert_eq!(world.send_via(Some("pool~shield"), &message("e1", 1, &[])), full);
    assert_eq!(world.send_via(Some("shield"), &message("pool", 1, &[])), Ok(Taken::Whole));
    assert_eq!(world.send_via(Some("shield~a"), &message("e1", 1, &[])), Ok(Taken::Whole));
    assert_eq!(world.send_via(Some("shield~b"), &message("e2", 1, &[])), full);
    assert_eq!(world.send(&message("shield", 1, &[])), full);
    assert_eq!(world.send(&message("e2", 1, &[])), Ok(Taken::Whole));
    // What other origins have heard counts too.
    let mut names = world.table.names(world.now);
    names.edges.insert("pool~four".parse().unwrap(), names.edges[&"e2".parse().unwrap()]);
    world.table.learn(&names, world.now);
    assert_eq!(world.table.edges(), 5);
    world.pass(24 * 3600);
    world.table.expire(world.now);
    assert_eq!(world.send(&of("three", "three", 1, &[])), Ok(Taken::Whole), "the others are forgotten");
}

#[test]
fn two_edges_with_one_name_are_told_so_and_none_sends_everything_again_and_again() {
    let mut world = world();
    let twice = |world: &World| world.table.gauges(world.now, |_| true).duplicated_edges;
    let full = |world: &mut World, instance: &str| world.send(&of("one", instance, 1, &[]));
    assert_eq!((full(&mut world, "i"), full(&mut world, "j")), (Ok(Taken::Whole), Ok(Taken::Whole)), "a restart");
    assert_eq!((twice(&world), world.rows().1.len()), (0, 0));
    world.pass(5);
    let mut seq = 2;
    let mut goes_on = |world: &mut World| {
        seq += 1;
        world.send(&of("one", "j", seq - 1, &[]))
    };
    goes_on(&mut world).unwrap();
    // The first lives. It, and a third one, do not take the place of the second, whatever they send.
    for _ in 0..40 {
        world.pass(9);
        for instance in ["i", "k"] {
            assert_eq!(world.send(&of("one", instance, 7, &[])), Err(Rejected::NameTwice), "{instance}");
            assert_eq!(full(&mut world, instance), Err(Rejected::NameTwice), "{instance}");
        }
        assert_eq!(goes_on(&mut world), Ok(Taken::Whole), "it sends nothing again");
    }
    assert_eq!((twice(&world), world.rows().1), (1, vec!["pool~one".to_owned()]));
    // That one of them stops says nothing.
    let stops = with(of("one", "i", 9, &[]), json!({"draining": true}));
    assert_eq!(world.send(&stops), Err(Rejected::NameTwice));
    for _ in 0..34 {
        world.pass(9);
        goes_on(&mut world).unwrap();
    }
    assert_eq!((twice(&world), world.rows().1.len()), (0, 0), "five minutes later");
    // The second is killed: the first may take its place.
    world.pass(40);
    assert_eq!(world.send(&of("one", "i", 10, &[])), Err(Rejected::Resync));
    assert_eq!(full(&mut world, "i"), Ok(Taken::Whole));
    assert_eq!((twice(&world), world.rows().1.len()), (0, 0));
}

#[test]
fn an_edge_that_said_that_it_stops_is_missed_only_while_its_agents_may_be_somewhere() {
    let mut world = world();
    let both = [agent("a", "i", 1, &[]), agent("b", "i", 1, &[])];
    world.send(&of("one", "one", 1, &both)).unwrap();
    world.send(&of("two", "two", 1, &[])).unwrap();
    world.send(&last("one", 2)).unwrap();
    world.send(&of("two", "two", 2, &[agent("a", "i", 2, &[])])).unwrap();
    let pass = |world: &mut World, from: u64, to: u64| {
        for seq in from..to {
            world.pass(9);
            world.send(&of("two", "two", seq, &[])).unwrap();
        }
    };
    pass(&mut world, 3, 8);
    assert_eq!((world.rows().1, world.states()[1].1), (vec!["pool~one".to_owned()], State::Live), "where is b?");
    let mut moved = World { table: Table::new(Bounds::default()), now: world.now };
    moved.send(&of("one", "one", 1, &both)).unwrap();
    moved.send(&last("one", 2)).unwrap();
    moved.pass(31);
    moved.send(&of("two", "two", 1, &both.map(|agent| with(agent, json!({"seq": 2}))))).unwrap();
    assert!(moved.rows().1.is_empty(), "both are elsewhere");
    pass(&mut world, 8, 14);
    assert_eq!((world.rows().1.len(), world.states()[1].1), (0, State::Silent), "b is silent");

    // The record forgets it, so that no origin waits for it after a restart.
    let names = world.table.names(world.now);
    let has_news = |names: &Names| world.table.has_news_of_edges(names, world.now);
    assert_eq!(["pool~one", "pool~two"].map(|name| is_deleted(&names, name)), [true, false]);
    assert_eq!([&names, &Names::default()].map(has_news), [false, true]);
    let mut other = World { table: Table::new(Bounds::default()), now: world.now };
    other.table.learn(&names, other.now);
    assert_eq!(other.rows().1, ["pool~two"]);
    world.table.learn(&names, world.now);
    assert_eq!((world.table.edges(), world.states().len()), (1, 2));
    // It is started again, as the pod that takes its place.
    world.send(&of("one", "again", 1, &[agent("b", "i", 2, &[])])).unwrap();
    assert!(world.rows().1.is_empty() && !is_deleted(&world.table.names(world.now), "pool~one"));
}

#[test]
fn a_pod_that_takes_the_place_of_a_draining_one_is_no_second_edge() {
    let mut world = world();
    world.send(&of("one", "i", 1, &[agent("a", "i", 1, &[])])).unwrap();
    world.send(&with(of("one", "i", 2, &[]), json!({"draining": true}))).unwrap();
    world.send(&of("one", "j", 1, &[])).unwrap();
    world.send(&of("one", "j", 2, &[])).unwrap();
    assert_eq!(world.table.gauges(world.now, |_| true).duplicated_edges, 0);
    world.pass(31);
    assert_eq!(world.rows().1, ["pool~one"], "it no longer counts as draining");
}

/// A message of `edge` through each of these shields.
fn through(world: &mut World, shields: &[&str], seq: u64, agents: &[Value]) {
    for shield in shields {
        assert_eq!(world.send_via(Some(shield), &message("edge", seq, agents)), Ok(Taken::Whole), "{shield} {seq}");
    }
}

#[test]
fn an_edge_behind_several_shields_sends_nothing_twice_and_one_of_them_is_enough() {
    let mut world = world();
    let of = |seq, generation| agent("a", "i", seq, &[row("x", generation, None)]);
    let both = ["s1", "s2"];
    through(&mut world, &both, 1, &[of(1, 1)]);
    // What changes comes first through the one or the other.
    for seq in 2..10 {
        world.pass(9);
        let order = if seq % 2 == 0 { ["s2", "s1"] } else { both };
        through(&mut world, &order, seq, &[with(of(seq, seq), json!({"full": false}))]);
    }
    assert_eq!(world.rows(), (vec!["a/x@9".to_owned()], vec![]));
    let shown = world.agents().remove(0);
    assert_eq!((shown.edge.unwrap().as_str(), shown.via.unwrap().as_str()), ("edge", "s2"));
    // The one that said it last is gone.
    for seq in 10..25 {
        world.pass(9);
        through(&mut world, &["s1"], seq, &[]);
    }
    assert_eq!((world.states()[0].1, world.rows().1.len()), (State::Live, 0));
    through(&mut world, &["s1"], 25, &[]);
    world.send_via(Some("s1"), &with(message("edge", 26, &[]), json!({"unheard": ["a"]}))).unwrap();
    assert_eq!(world.states()[0].1, State::Silent);
    // The edge is started again, behind the first alone.
    world.pass(9);
    world.send_via(Some("s1"), &with(message("edge", 1, &[of(30, 9)]), json!({"instance": "f"}))).unwrap();
    world.pass(25);
    world.send_via(Some("s1"), &with(message("edge", 2, &[]), json!({"instance": "f"}))).unwrap();
    assert_eq!((world.states()[0].1, world.rows().1.len()), (State::Live, 0));
    world.pass(31);
    assert_eq!(world.rows().1, ["edge", "edge"]);
}

#[test]
fn what_a_shield_claims_does_not_speak_for_what_an_edge_says_itself() {
    let mut world = world();
    world.send(&message("edge", 1, &[agent("a", "i", 1, &[])])).unwrap();
    world.send_via(Some("s1"), &message("edge", 1, &[agent("b", "i", 1, &[])])).unwrap();
    // It does not hear the agent of the other one, and goes on in its name.
    for seq in 2..6 {
        world.pass(9);
        let claim = with(message("edge", seq, &[]), json!({"unheard": ["a"]}));
        world.send_via(Some("s1"), &claim).unwrap();
    }
    assert_eq!((world.states()[0].1, world.rows().1), (State::Live, vec!["edge".to_owned()]), "it is silent itself");
    let missing = world.table.incomplete(world.now).remove(0);
    assert_eq!(missing.via, None);
    world.send(&message("edge", 2, &[])).unwrap();
    assert!(world.rows().1.is_empty(), "each has its own numbers");
    // All of it outlives a restart.
    let (names, mut after) =
        (world.table.names(world.now), World { table: Table::new(Bounds::default()), now: world.now });
    after.table.learn(&names, after.now);
    assert_eq!(after.rows().1, ["edge", "edge"]);
    after.send_via(Some("s1"), &message("edge", 1, &[agent("b", "i", 1, &[])])).unwrap();
    assert_eq!(after.table.incomplete(after.now)[0].via, None);
}

#[test]
fn the_list_of_edges_says_which_is_live_incomplete_or_away() {
    let mut world = world();
    let listed = |world: &World| {
        let shown = |view: &crate::EdgeView| {
            let state = serde_json::to_value(view.state).unwrap();
            format!("{} {} {}/{}", view.name, state.as_str().unwrap(), view.agents, view.rows)
        };
        world.table.list_edges(world.now).iter().map(shown).collect::<Vec<_>>()
    };
    let rows = [row("x", 1, None), row("y", 1, None)];
    world
        .send(&with(
            message("e1", 1, &[agent("a", "i", 1, &rows)]),
            json!({"version": "0.3.0", "capabilities": ["staged"]}),
        ))
        .unwrap();
    world.send(&with(message("e2", 1, &[]), json!({"more": true}))).unwrap();
    world.send(&message("e3", 1, &[])).unwrap();
    assert_eq!(listed(&world), ["e1 live 1/2", "e2 incomplete 0/0", "e3 live 0/0"]);
    let first = &world.table.list_edges(world.now)[0];
    assert_eq!((first.version.as_deref(), first.since), (Some("0.3.0"), world.now.wall));
    let capabilities: Vec<_> = world.table.list_edges(world.now).into_iter().map(|edge| edge.capabilities).collect();
    assert_eq!(capabilities, [[Capability::Staged].into(), BTreeSet::new(), BTreeSet::new()]);
    world.send(&with(message("e3", 2, &[]), json!({"draining": true}))).unwrap();
    world.pass(31);
    assert_eq!(listed(&world), ["e1 incomplete 1/2", "e2 incomplete 0/0", "e3 away 0/0"]);
    assert_eq!(world.table.list_edges(world.now)[0].since, world.now.wall - Duration::from_secs(31));
}
