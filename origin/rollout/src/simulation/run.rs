//! Runs of the simulator, and the mistakes that it finds.

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::json;

use super::check::Checker;
use super::world::{AGENTS, EDGES, World};
use super::{B, Event, Mutant};
use crate::decision::{Standing, Step};
use crate::plan::Plan;

fn plans() -> impl Strategy<Value = Plan> {
    let selectors = vec![
        json!({"name": "canary", "labels": {"ring": "canary"}}),
        json!({"name": "early", "labels": {"ring": "early"}}),
        json!({"name": "eu", "agents": "eu-*"}),
        json!({"name": "nobody", "labels": {"ring": "nobody"}}),
        json!({"name": "most", "percent": 60}),
    ];
    let stages = proptest::sample::subsequence(selectors, 1..=3);
    let more = || (0_u64..3, proptest::option::of(0_usize..3), proptest::option::of(0_usize..3), any::<bool>());
    (stages, proptest::collection::vec(more(), 3), any::<bool>(), any::<bool>()).prop_map(
        |(mut stages, more, aborts, has_deadline)| {
            for (stage, (minutes, failures, silent, approve)) in stages.iter_mut().zip(more) {
                stage["for"] = format!("{minutes}m").into();
                if let Some(failures) = failures {
                    stage["failures"] = failures.into();
                }
                if let Some(silent) = silent {
                    stage["silent"] = silent.into();
                }
                stage["approve"] = approve.into();
            }
            stages.push(json!({"name": "all"}));
            let mut plan = json!({"name": "p", "stages": stages});
            if aborts {
                plan["on_failure"] = "abort".into();
            }
            if has_deadline {
                plan["deadline"] = "1h".into();
            }
            serde_json::from_value(plan).unwrap()
        },
    )
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let (agent, edge) = (|| 0..AGENTS, || 0..EDGES);
    let event = prop_oneof![
        12 => (1_u64..90).prop_map(Event::Wait),
        1 => Just(Event::Wait(25 * 3600)),
        1 => agent().prop_map(Event::Dies),
        2 => agent().prop_map(Event::Returns),
        1 => agent().prop_map(Event::Breaks),
        1 => agent().prop_map(Event::Works),
        1 => agent().prop_map(Event::Pins),
        1 => agent().prop_map(Event::Unpins),
        1 => edge().prop_map(Event::EdgeGone),
        2 => edge().prop_map(Event::EdgeBack),
        1 => Just(Event::OwnerMoves),
        1 => Just(Event::Pause),
        3 => Just(Event::Resume),
        4 => Just(Event::Approve),
        1 => Just(Event::Freeze),
        2 => Just(Event::Thaw),
    ];
    proptest::collection::vec(event, 0..60)
}

/// Everything that may go wrong does, and then nothing. Returns how it ended, and `None` if it waits for something that does
/// not come by itself.
fn run(plan: Plan, events: &[Event], mutant: Option<Mutant>) -> Result<Option<Step>, String> {
    let (mut world, mut checker) = (World::new(plan, mutant), Checker::default());
    let mut apply = |world: &mut World, event| {
        world.apply(event);
        if matches!(event, Event::OwnerMoves) {
            checker.owner_moved();
        }
        let (state, step, soak) = world.decide();
        checker.decided(world, &state, &step);
        world.carry_out(state, step, soak);
        checker.violation.take().map_or(Ok(()), |violation| Err(format!("{event:?}: {violation}")))
    };
    events.iter().try_for_each(|event| apply(&mut world, *event))?;
    let calm = (0..AGENTS).map(Event::Returns).chain((0..EDGES).map(Event::EdgeBack)).chain([Event::Thaw]);
    calm.into_iter().try_for_each(|event| apply(&mut world, event))?;
    for _ in 0..40 {
        for event in [Event::Resume, Event::Approve, Event::Wait(120)] {
            // What has stopped stays so.
            if world.state().verdict.is_some() {
                break;
            }
            apply(&mut world, event)?;
        }
    }
    // Agents poll once more.
    apply(&mut world, Event::Wait(1))?;
    let Some(verdict) = world.state().verdict else {
        let waits = matches!(&world.last, Some(Step::Stay(Standing::Waiting(reasons))) if reasons.len() == 1);
        return if waits { Ok(None) } else { Err(format!("it does not end: {:?}", world.last)) };
    };
    let end = world.end.take().ok_or_else(|| format!("{verdict:?} comes from nowhere"))?;
    match &end {
        Step::Promote => {
            let lacks = world.agents.iter().find(|agent| !agent.is_pinned && agent.runs != B);
            lacks.map_or(Ok(()), |lacks| Err(format!("it is for all, and {lacks:?} has not got it")))?;
        }
        Step::Abort(_) => world.check_abort()?,
        _ => {}
    }
    Ok(Some(end))
}

#[test]
fn a_rollout_goes_on_stops_or_waits_for_what_is_so() {
    let ends = std::cell::RefCell::new([0; 4]);
    // In a release build, because it takes ten times as long otherwise.
    let at_full_size = std::env::var_os("WEIR_NIGHTLY").is_some_and(|value| value == "1") && !cfg!(debug_assertions);
    let cases = if at_full_size { 100_000 } else { 400 };
    let mut runner = TestRunner::new(ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() });
    let result = runner.run(&(plans(), events()), |(plan, events)| {
        let end = run(plan, &events, None).map_err(TestCaseError::fail)?;
        let kind = match end {
            None => 0,
            Some(Step::Promote) => 1,
            Some(Step::Stop(_)) => 2,
            Some(_) => 3,
        };
        ends.borrow_mut()[kind] += 1;
        Ok(())
    });
    result.unwrap();
    let ends = ends.into_inner();
    println!("waits, promotions, stops, aborts: {ends:?}");
    assert!(ends.iter().all(|count| *count > 5), "the simulation does too little: {ends:?}");
}

#[test]
fn mistakes_are_found() {
    for mutant in
        [Mutant::EdgesIgnored, Mutant::SilenceIgnored, Mutant::TimeKept, Mutant::StageSkipped, Mutant::AbortForgotten]
    {
        let config =
            ProptestConfig { cases: 20_000, max_shrink_iters: 0, failure_persistence: None, ..Default::default() };
        let result = TestRunner::new(config).run(&(plans(), events()), |(plan, events)| {
            run(plan, &events, Some(mutant)).map(drop).map_err(TestCaseError::fail)
        });
        println!(
            "{mutant:?}: {:?}",
            result.err().unwrap_or_else(|| panic!("{mutant:?} was not found")).to_string().lines().next()
        );
    }
}
