//! Runs of the simulator with everything that may go wrong, and the mistakes that it finds.

use std::time::Duration;

use super::check::Checker;
use super::clock::micros;
use super::world::{Message, World};
use super::{Mutant, Plan, is_nightly};

/// How long faults go on, in times to live.
const CHAOS: u32 = 40;

/// How long the cluster may take afterwards until everything is where it belongs.
const QUIET: Duration = Duration::from_secs(400);

/// A run takes about 20,000 steps.
const MAX_STEPS: u64 = 500_000;

const REPLAY: &str = "WEIR_SIMULATION_SEED";

struct Report {
    steps: u64,
    publications: u64,
    service_publications: u64,
    changes: u64,
    deleted_nodes: u64,
}

/// Runs one seed.
fn run(seed: u64, plan: Plan, is_traced: bool) -> Result<Report, (u64, String)> {
    let chaos = plan.timing.ttl * CHAOS;
    let nodes = plan.nodes;
    let mut world = World::new(plan, seed);
    world.is_traced = is_traced;
    (0..nodes).for_each(|node| world.send(node as u64 * 700_000, Message::Start { node }));
    world.begin_chaos(micros(chaos));
    while world.steps <= MAX_STEPS && world.step(micros(chaos)) {}
    world.end_chaos();
    let ends = world.now + micros(QUIET);
    while world.steps <= MAX_STEPS && world.now < ends {
        world.note_unused_names();
        let until = ends.min(world.now + micros(QUIET / 40));
        while world.steps <= MAX_STEPS && world.step(until) {}
        if world.checker.violation.is_some() {
            break;
        }
    }
    let steps = world.steps;
    if steps > MAX_STEPS {
        world.checker.violated(|| format!("{steps} steps: nodes are busy with nothing"));
    }
    world.check_owners();
    world.note_unused_names();
    match world.checker.violation {
        None => {
            let Checker { publications, service_publications, changes, deleted_nodes, .. } = world.checker;
            Ok(Report { steps: world.steps, publications, service_publications, changes, deleted_nodes })
        }
        Some(violation) => Err((world.steps, violation)),
    }
}

#[test]
fn ownership_holds_whatever_goes_wrong() {
    if let Some(seed) = std::env::var(REPLAY).ok().and_then(|seed| seed.parse().ok()) {
        let result = run(seed, Plan::of_seed(seed), true).map(|report| report.steps);
        return assert_eq!(result.map_err(|(_, violation)| violation).err(), None);
    }
    // A release build makes 10⁸ steps in about two minutes, a debug build takes ten times as long.
    let least = if is_nightly() && !cfg!(debug_assertions) { 100_000_000 } else { 1_000_000 };
    let mut total = Report { steps: 0, publications: 0, service_publications: 0, changes: 0, deleted_nodes: 0 };
    let mut seed = 0;
    while total.steps < least {
        match run(seed, Plan::of_seed(seed), false) {
            Ok(report) => {
                total.steps += report.steps;
                total.publications += report.publications;
                total.service_publications += report.service_publications;
                total.changes += report.changes;
                total.deleted_nodes += report.deleted_nodes;
            }
            Err((step, violation)) => panic!(
                "seed {seed}, step {step}: {violation}\nreplay: {REPLAY}={seed} cargo test -p weir-ownership --lib \
                 ownership_holds -- --nocapture"
            ),
        }
        seed += 1;
    }
    let Report { steps, publications, service_publications, changes, deleted_nodes } = total;
    println!(
        "{seed} seeds, {steps} steps, {publications} publications, {service_publications} of services, {changes} changes of owners, \
         {deleted_nodes} records of nodes deleted"
    );
    let does_enough =
        changes > 10 * seed && publications > 100 * seed && service_publications > 20 * seed && deleted_nodes > seed;
    assert!(does_enough, "the simulation does too little");
}

#[test]
fn mistakes_are_found() {
    for mutant in
        [Mutant::VersionIgnored, Mutant::WallClocks, Mutant::UnknownClaimIsFailure, Mutant::UnknownPublicationIsFailure]
    {
        let mut steps = 0;
        // Many moves, and few publications: they would refuse a late claim.
        let (repositories, publish_every) = (16, Duration::from_secs(60));
        let plan = Plan { mutant: Some(mutant), repositories, publish_every, ..Plan::small() };
        let found = (0..100).find_map(|seed| match run(seed, plan.clone(), false) {
            Ok(report) => {
                steps += report.steps;
                None
            }
            Err((step, violation)) => Some((steps + step, violation)),
        });
        let (steps, violation) = found.unwrap_or_else(|| panic!("{mutant:?} was not found in {steps} steps"));
        println!("{mutant:?}: found after {steps} steps: {violation}");
    }
}

#[test]
fn mistakes_with_names_are_found() {
    for mutant in [Mutant::UnknownNamesAreFailure, Mutant::FreedBeforeRemoved] {
        let mut steps = 0;
        let found = (0..200).find_map(|seed| {
            let plan =
                Plan { mutant: Some(mutant), repositories: 4, publish_every: Duration::ZERO, ..Plan::of_seed(seed) };
            match run(seed, plan, false) {
                Ok(report) => {
                    steps += report.steps;
                    None
                }
                Err((step, violation)) => Some((seed, steps + step, violation)),
            }
        });
        let (seed, steps, violation) = found.unwrap_or_else(|| panic!("{mutant:?} was not found in {steps} steps"));
        println!("{mutant:?}: found with seed {seed} after {steps} steps: {violation}");
    }
}
