//! Several runs with one name, at one edge or at several.

use super::*;

#[test]
fn one_edge_speaks_for_an_agent() {
    let mut world = world();
    let of = |edge: &str, instance: &str, seq, generation, changes| {
        (edge.to_owned(), with(agent("a", instance, seq, &[row("x", generation, None)]), changes))
    };
    let delta = || json!({"full": false});
    for ((edge, agent), expected, is_accepted) in [
        (of("e1", "i", 5, 1, json!({})), "a/x@1", true),
        // It moved to another edge, whose message arrives first.
        (of("e2", "i", 7, 3, json!({})), "a/x@3", true),
        (of("e1", "i", 6, 2, delta()), "a/x@3", true),
        // It moves back, and the edge thinks that its rows are here.
        (of("e1", "i", 8, 4, delta()), "a/x@3", false),
        (of("e1", "i", 8, 4, json!({})), "a/x@4", true),
        // It was restarted: the higher number is of the former run, which was heard before.
        (of("e2", "j", 1, 5, json!({})), "a/x@5", true),
        (of("e1", "i", 8, 4, json!({"heard_ago": 20})), "a/x@5", true),
    ] {
        world.pass(10);
        let everything = message(&edge, 1, std::slice::from_ref(&agent));
        assert_eq!(world.send(&everything).is_ok(), is_accepted, "{agent}");
        assert_eq!(world.rows().0, [expected], "{agent}");
    }
    assert!(!world.agents()[0].alternates);
    for (edge, instance, seq) in [("e1", "i", 9), ("e2", "j", 2), ("e1", "i", 10)] {
        world.pass(10);
        let (_, agent) = of(edge, instance, seq, 6, delta());
        // Two runs with one name do not make their edges send everything again and again.
        assert_eq!(world.send(&message(edge, 1, &[agent])), Ok(Taken::Whole));
        assert!(world.agents()[0].alternates);
    }
    world.pass(900);
    assert!(!world.agents()[0].alternates);
}

#[test]
fn a_run_that_ended_does_not_outdo_a_later_one() {
    let mut world = world();
    let of = |instance: &str, generation, heard_ago: u64| {
        with(agent("a", instance, 1, &[row("x", generation, None)]), json!({"heard_ago": heard_ago}))
    };
    world.send(&with(message("e1", 1, &[of("i", 1, 10_800)]), json!({"unheard": ["a"]}))).unwrap();
    assert_eq!(world.agents()[0].heard_at, world.now.wall - Duration::from_secs(10_800));
    world.send(&message("e2", 1, &[of("j", 2, 300)])).unwrap();
    assert_eq!((world.rows().0, world.agents()[0].state), (vec!["a/x@2".to_owned()], State::Live));
}

#[test]
fn a_run_that_ended_in_the_same_second_does_not_outdo_a_live_one() {
    let mut world = world();
    let of = |instance: &str, generation, heard_ago: u64| {
        with(agent("a", instance, 1, &[row("x", generation, None)]), json!({"heard_ago": heard_ago}))
    };
    world.send(&message("e1", 1, &[of("i", 1, 0)])).unwrap();
    world.send(&message("e2", 1, &[of("j", 2, 0)])).unwrap();
    world.pass(95);
    world.send(&message("e2", 2, &[])).unwrap();
    world.send(&with(message("e1", 1, &[of("i", 1, 95)]), json!({"unheard": ["a"]}))).unwrap();
    assert_eq!((world.rows().0, world.agents()[0].state), (vec!["a/x@2".to_owned()], State::Live));
}

#[test]
fn that_an_edge_does_not_hear_an_agent_says_nothing_of_its_next_run() {
    let mut world = world();
    world.send(&message("e1", 1, &[agent("a", "i", 1, &[row("x", 1, None)])])).unwrap();
    world.pass(110);
    world.send(&with(message("e1", 2, &[]), json!({"unheard": ["a"]}))).unwrap();
    let next = with(agent("a", "j", 1, &[row("x", 2, None)]), json!({"heard_ago": 100}));
    world.send(&message("e2", 1, &[next])).unwrap();
    assert_eq!((world.rows().0, world.agents()[0].state), (vec!["a/x@2".to_owned()], State::Live));
}

#[test]
fn a_run_counts_again_when_the_later_one_has_ended() {
    let mut world = world();
    for (edge, instance) in [("e1", "i"), ("e2", "j")] {
        world.send(&message(edge, 1, &[agent("a", instance, 1, &[])])).unwrap();
        world.pass(10);
    }
    world.pass(90);
    world.send(&with(message("e2", 2, &[]), json!({"unheard": ["a"]}))).unwrap();
    let delta = with(agent("a", "i", 2, &[]), json!({"full": false}));
    assert_eq!(world.send(&message("e1", 2, &[delta])), Err(Rejected::Resync));
    world.send(&message("e1", 1, &[agent("a", "i", 2, &[row("x", 1, None)])])).unwrap();
    assert_eq!((world.rows().0, world.agents()[0].state), (vec!["a/x@1".to_owned()], State::Live));
}

#[test]
fn three_runs_of_one_name_do_not_make_their_edges_send_everything_again_and_again() {
    let mut world = world();
    let runs = [("e1", "i"), ("e2", "j"), ("e3", "k")];
    for (edge, instance) in runs {
        world.send(&message(edge, 1, &[agent("a", instance, 1, &[])])).unwrap();
        world.pass(10);
    }
    let mut again = 0;
    for seq in 2..10 {
        for (edge, instance) in runs {
            world.pass(10);
            let everything = agent("a", instance, seq, &[]);
            if world.send(&message(edge, seq, &[with(everything.clone(), json!({"full": false}))])).is_err() {
                again += 1;
                world.send(&with(message(edge, seq, &[everything]), json!({"full": true}))).unwrap();
            }
        }
    }
    assert_eq!((again, world.agents()[0].alternates), (1, true));
}

#[test]
fn a_restart_within_a_second_at_another_edge_counts() {
    let mut world = world();
    let of = |instance: &str, generation, heard_ago: u64| {
        with(agent("a", instance, 1, &[row("x", generation, None)]), json!({"heard_ago": heard_ago}))
    };
    world.send(&message("e1", 1, &[of("i", 1, 0)])).unwrap();
    world.send(&message("e2", 1, &[of("j", 2, 0)])).unwrap();
    assert_eq!(world.rows().0, ["a/x@2"]);
    // The edge that heard it before says so again.
    world.pass(10);
    world.send(&message("e1", 1, &[of("i", 1, 12)])).unwrap();
    assert_eq!(world.rows().0, ["a/x@2"]);
}
