//! What must hold at each decision, by what is really so.

use std::time::{Duration, Instant};

use weir_protocol::staged::Audience;

use super::B;
use super::world::{Agent, World, service};
use crate::decision::{Reason, Standing, Step};
use crate::plan::OnFailure;
use crate::state::State;

/// What is really so at the agents up to a stage.
#[derive(Debug, Default)]
struct Truth {
    done: usize,
    failed: usize,
    silent: usize,
    pending: usize,
}

#[derive(Debug, Default)]
pub(super) struct Checker {
    /// The first thing that was wrong.
    pub(super) violation: Option<String>,
    /// Since when the present stage is done, as far as the owner can know.
    done_since: Option<Instant>,
    /// Who had the version in the stage before.
    audience: Option<Audience>,
    stage: Option<usize>,
}

/// The agents of a stage, by the definition.
fn is_in_stage(world: &World, stage: usize, agent: &Agent) -> bool {
    let of = &world.plan.staged()[stage];
    let by_name = of.agents.as_ref().is_some_and(|glob| glob.matches(agent.name.as_str()));
    let by_ring = of.labels.iter().any(|label| agent.labels.iter().any(|own| own == label));
    let part = of.percent.map(|percent| Audience::new(Vec::new(), Some(percent)).unwrap());
    by_name || by_ring || part.is_some_and(|part| part.includes(&agent.name, &agent.labels, &service()))
}

fn truth(world: &World, is_in: impl Fn(&Agent) -> bool) -> Truth {
    let mut truth = Truth::default();
    for agent in world.agents.iter().filter(|agent| !agent.stays() && is_in(agent)) {
        let day = Duration::from_secs(24 * 3600);
        match agent.died {
            Some(died) if world.now.monotonic - died >= day => {}
            _ if agent.has_failed() => truth.failed += 1,
            Some(_) => truth.silent += 1,
            None if agent.runs != B => truth.pending += 1,
            None => truth.done += 1,
        }
    }
    truth
}

impl Checker {
    fn require(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.violation.get_or_insert_with(what);
        }
    }

    pub(super) fn owner_moved(&mut self) {
        self.done_since = None;
    }

    pub(super) fn decided(&mut self, world: &World, state: &State, step: &Step) {
        let now = world.now.monotonic;
        let (so_far, own) = self.stage.map_or_else(Default::default, |stage| {
            let so_far = truth(world, |agent| (0..=stage).any(|stage| is_in_stage(world, stage, agent)));
            (so_far, truth(world, |agent| is_in_stage(world, stage, agent)))
        });
        let most = |of: fn(&crate::plan::Stage) -> Option<usize>| {
            let stages = &world.plan.staged()[..self.stage.map_or(0, |stage| stage + 1)];
            stages.iter().rev().find_map(of).unwrap_or(0)
        };
        let (failures, silent) = (most(|stage| stage.failures), most(|stage| stage.silent));
        let is_any_missing = world.are_missing.contains(&true);
        // The time begins again also when an operator resumes what has stopped.
        let is_going_on = state.verdict.is_none() && matches!(step, Step::Stay(_) | Step::Begin { .. } | Step::Promote);
        let is_done = self.stage.is_some()
            && is_going_on
            && so_far.failed <= failures
            && so_far.silent <= silent
            && so_far.pending == 0
            && own.done > 0
            && !is_any_missing;
        self.done_since = if is_done { self.done_since.or(Some(now)) } else { None };
        let context = || format!("{step:?} in stage {:?}: {so_far:?}, own {own:?}", self.stage);
        let why = match step {
            Step::Begin { .. } | Step::Promote => self.goes_on(world, state, step),
            Step::Stop(cause) | Step::Abort(cause) => {
                let has_it = |agent| world.agents.iter().any(|own| own.name == agent && own.runs == B);
                let is_named = !cause.agents.is_empty() && cause.agents.iter().all(|it| has_it(it.agent.clone()));
                let is_late = cause.reason.starts_with("the deadline") && matches!(step, Step::Stop(_));
                let is_late = is_late && world.plan.deadline().is_some();
                let is_asked = matches!(step, Step::Abort(_)) == (world.plan.on_failure() == OnFailure::Abort);
                let is_enough = so_far.failed > failures || is_any_missing;
                (!(is_late || is_named && is_asked && is_enough)).then_some("no reason to stop")
            }
            Step::Stay(Standing::Waiting(reasons)) => {
                let untrue = reasons.iter().find(|reason| !self.is_true(world, state, reason, (&so_far, &own)));
                (reasons.is_empty() || untrue.is_some()).then_some("it waits for what is so")
            }
            Step::Stay(Standing::Running(_)) if is_done && self.has_soaked(world) => Some("it does not go on"),
            Step::Stay(Standing::Running(_)) if so_far.failed > failures && !is_any_missing => Some("it does not stop"),
            Step::Stay(_) => None,
        };
        let violation = why.map(|why| format!("{why}: {}", context()));
        self.require(violation.is_none(), || violation.unwrap_or_default());
        if let Step::Begin { stage, audience } = step {
            (self.stage, self.audience, self.done_since) = (Some(*stage), Some(audience.clone()), None);
        }
    }

    fn has_soaked(&self, world: &World) -> bool {
        let soak = self.stage.map(|stage| world.plan.staged()[stage].soak).unwrap_or_default();
        self.done_since.is_some_and(|since| world.now.monotonic - since >= soak)
    }

    /// Whether a stage may begin, or the version be published for all. Returns what forbids it.
    fn goes_on(&self, world: &World, state: &State, step: &Step) -> Option<&'static str> {
        let next = self.stage.map_or(0, |stage| stage + 1);
        let (begins, audience) = match step {
            Step::Begin { stage, audience } => (*stage, Some(audience)),
            _ => (world.plan.staged().len(), None),
        };
        let covers = |audience: &Audience| {
            self.audience.as_ref().is_none_or(|before| {
                let has = |of: &Audience, agent: &Agent| of.includes(&agent.name, &agent.labels, &service());
                audience.covers(before) && world.agents.iter().all(|it| has(audience, it) >= has(before, it))
            })
        };
        let needs_approval = world.plan.stages()[begins].approve;
        if begins != next || state.stage != self.stage {
            Some("more than one stage ahead")
        } else if !audience.is_none_or(covers) {
            Some("somebody goes back")
        } else if next > 0 && !self.has_soaked(world) {
            Some("the stage was not done for its time")
        } else if world.are_missing.contains(&true) {
            Some("an edge is missing")
        } else if state.paused.is_some() || world.freeze.is_some() {
            Some("it is paused or frozen")
        } else if needs_approval && state.approved.as_ref().is_none_or(|approval| approval.stage != begins) {
            Some("nobody has approved it")
        } else {
            None
        }
    }

    fn is_true(&self, world: &World, state: &State, reason: &Reason, (so_far, own): (&Truth, &Truth)) -> bool {
        // Of agents whose edge is missing it is not known what is so now.
        let is_any_missing = world.are_missing.contains(&true);
        let next = self.stage.map_or(0, |stage| stage + 1);
        match reason {
            Reason::Paused(_) => state.paused.is_some(),
            Reason::Frozen(_) => world.freeze.is_some(),
            Reason::EdgesMissing(edges) => edges.total == world.are_missing.iter().filter(|it| **it).count(),
            Reason::Incapable(_) | Reason::LaterPlan | Reason::Window(_) => false,
            Reason::Silent(agents, most) => {
                agents.total > *most && (is_any_missing || agents.total == so_far.silent && most < &so_far.silent)
            }
            Reason::Empty(_) => is_any_missing || own.done + own.failed + own.silent + own.pending == 0,
            Reason::NoneDone(_) => is_any_missing || own.done == 0 && so_far.pending == 0,
            Reason::Approval(stage) => world.plan.stages()[next].name == *stage && world.plan.stages()[next].approve,
        }
    }
}
