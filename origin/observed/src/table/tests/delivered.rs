//! Which releases arrive at agents, and when.

use weir_protocol::descriptor::rfc3339;

use super::*;
use crate::{Delivered, Stage};

#[test]
fn a_release_that_arrives_is_counted_once_and_not_what_was_there_before() {
    let mut world = world();
    let at = |generation, hook: &str| with(row("x", generation, None), json!({"hook": hook}));
    let mut seq = 0;
    let mut send = |full: bool, row: Value| {
        seq += 1;
        let of_agent = with(agent("a", "i", seq, &[row]), json!({"full": full}));
        world.send(&message("e1", seq, &[of_agent])).unwrap();
        let stage = |it: Delivered| (it.generation, if it.stage == Stage::Current { "current" } else { "hook" });
        world.table.take_delivered().into_iter().map(stage).collect::<Vec<_>>()
    };
    assert_eq!(send(true, at(1, "running")), [], "the first time that it is heard");
    assert_eq!(send(false, at(1, "succeeded")), [], "nor is its hook, of a release that was not counted");
    assert_eq!(send(false, at(2, "pending")), [(2, "current")]);
    for (hook, expected) in
        [("running", None), ("failed", None), ("succeeded", Some((2, "hook"))), ("running", None), ("succeeded", None)]
    {
        assert_eq!(send(false, at(2, hook)), expected.into_iter().collect::<Vec<_>>(), "{hook}");
    }
    assert_eq!(send(false, at(3, "succeeded")), [(3, "current"), (3, "hook")], "both in one message");
    assert_eq!(send(false, at(4, "none")), [(4, "current")]);
    assert_eq!(send(true, at(5, "running")), [(5, "current")], "while its edge was away");
    assert_eq!(send(true, at(5, "succeeded")), [(5, "hook")]);
    assert_eq!(send(false, at(5, "succeeded")), []);
    assert_eq!(
        (send(false, at(4, "none")), send(false, with(at(6, "none"), json!({"current": null})))),
        (vec![], vec![])
    );
    assert_eq!(send(false, at(7, "none")), [], "it had nothing");
    assert_eq!(send(false, at(7, "succeeded")), [], "so its hook is of the first release");
}

/// After an outage the agent's time counts, if it can be true.
#[test]
fn what_arrived_during_an_outage_has_a_time_between_the_messages() {
    let mut world = world();
    let (heard, second) = (world.now.wall, Duration::from_secs(1));
    let mut generation = 0;
    // The seconds after which it arrived.
    let mut arrives = |world: &mut World, full: bool, since: u32| {
        generation += 1;
        let mut row = row("x", generation, None);
        row["current"]["since"] = rfc3339::serialize(&(heard + second * since), serde_json::value::Serializer).unwrap();
        let of_agent = with(agent("a", "i", generation, &[row]), json!({"full": full}));
        world.send(&message("e1", generation, &[of_agent])).unwrap();
        let delivered = world.table.take_delivered();
        // Agents send whole seconds.
        delivered.first().map(|it| it.at.duration_since(heard).unwrap().as_secs_f64().ceil() as u32)
    };
    assert_eq!(arrives(&mut world, true, 0), None);
    world.pass(100);
    assert_eq!(arrives(&mut world, false, 50), Some(100), "it has just come");
    for (since, expected) in [(150, 150), (0, 200), (1_000_000, 400)] {
        world.pass(100);
        assert_eq!(arrives(&mut world, true, since), Some(expected), "{since}");
    }
}
