//! What follows now: the only place where a rollout goes on, stops or waits.

use std::fmt;
use std::time::{Duration, Instant, SystemTime};

use weir_protocol::descriptor::Generation;
use weir_protocol::name::{EdgeName, NodeName, StageName};
use weir_protocol::staged::Audience;

use crate::counts::{Counts, Named};
use crate::plan::{OnFailure, Plan};
use crate::state::{Cause, Mark, State, VerdictKind};
use crate::window::opens_at;

/// The present, by both clocks of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// What periods are measured with.
    pub monotonic: Instant,
    /// What windows and deadlines are measured with.
    pub wall: SystemTime,
}

/// What is known now.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// What has become of the version. The default while nothing is staged.
    pub counts: Counts,
    /// Edges whose agents are missing from the counts.
    pub missing_edges: Named<EdgeName>,
    /// Edges and origins that do not know staged versions.
    pub incapable: Named<String>,
    /// Why the service may not change now.
    pub freeze: Option<String>,
}

/// Since when all agents so far run the version. Only in memory: the default after a change of the owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Soak(Option<(Generation, usize, Instant)>);

/// What follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing changes.
    Stay(Standing),
    /// A stage begins: the version is staged for its audience.
    Begin {
        /// The stage after the present one.
        stage: usize,
        /// Who has the version then.
        audience: Audience,
    },
    /// The version is published for all.
    Promote,
    /// The rollout stops: the agents so far stay with the version.
    Stop(Cause),
    /// The rollout ends: the version in force is published again.
    Abort(Cause),
}

/// Where a rollout stands that does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It goes on by itself.
    Running(Progress),
    /// It goes on when these are over.
    Waiting(Vec<Reason>),
    /// It goes on when an operator says so.
    Ended(VerdictKind),
}

/// What a rollout is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// So many agents are about to run the version.
    Updating(usize),
    /// All agents so far run it, and have to do so for this time yet.
    Soaking(Duration),
}

/// What a rollout waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    /// An operator has paused it.
    Paused(Mark),
    /// The service is frozen.
    Frozen(String),
    /// Edges whose agents are missing from the counts.
    EdgesMissing(Named<EdgeName>),
    /// Edges and origins that do not know staged versions.
    Incapable(Named<String>),
    /// Agents that are not heard, and how many of them may be.
    Silent(Named<NodeName>, usize),
    /// The stage names no agents that follow the service.
    Empty(StageName),
    /// At no agent of the stage it has succeeded.
    NoneDone(StageName),
    /// The next stage has to be approved.
    Approval(StageName),
    /// No window is open. When the next one opens.
    Window(SystemTime),
    /// A later release wrote the plan.
    LaterPlan,
}

/// Pure: what follows from where a rollout stands. The second value replaces `soak` once the step is written.
pub fn next(state: &State, facts: &Facts, soak: Soak, now: Now) -> (Step, Soak) {
    let stay = |standing| (Step::Stay(standing), Soak::default());
    if let Some(verdict) = &state.verdict {
        return stay(Standing::Ended(verdict.kind));
    }
    let Some(plan) = state.plan.known() else { return stay(Standing::Waiting(vec![Reason::LaterPlan])) };
    let Some(stage) = state.stage else {
        let reasons = [always(state, facts), before(plan, state, 0, now)].concat();
        return if reasons.is_empty() { (go_to(plan, 0), Soak::default()) } else { stay(Standing::Waiting(reasons)) };
    };
    let stage = stage.min(plan.staged().len() - 1);
    if let Some(step) = failure(plan, stage, &facts.counts) {
        return (step, Soak::default());
    }
    let (step, soak) = of_stage(plan, state, (stage, facts), soak, now);
    match &step {
        Step::Stay(standing) if facts.freeze.is_none() && is_too_late(plan, state, now) => {
            let agents = facts.counts.failed.first.clone();
            let cause = Cause { reason: format!("the deadline has passed: {standing}"), agents };
            (Step::Stop(cause), Soak::default())
        }
        _ => (step, soak),
    }
}

/// What follows in a stage at which few enough agents have failed.
fn of_stage(plan: &Plan, state: &State, (stage, facts): (usize, &Facts), soak: Soak, now: Now) -> (Step, Soak) {
    let (mut reasons, missing) = (always(state, facts), unmet(plan, stage, &facts.counts));
    let pending = facts.counts.so_far(stage).pending();
    let is_done = missing.is_empty() && pending == 0 && facts.missing_edges.total == 0;
    let soak = if is_done { soak.going_on(facts.counts.generation, stage, now) } else { Soak::default() };
    let left = plan.staged()[stage].soak.saturating_sub(soak.elapsed(now));
    reasons.extend(missing);
    if is_done && left.is_zero() {
        reasons.extend(before(plan, state, stage + 1, now));
    }
    let standing = if !reasons.is_empty() {
        Standing::Waiting(reasons)
    } else if !is_done {
        Standing::Running(Progress::Updating(pending))
    } else if !left.is_zero() {
        Standing::Running(Progress::Soaking(left))
    } else {
        return (go_to(plan, stage + 1), Soak::default());
    };
    (Step::Stay(standing), soak)
}

fn go_to(plan: &Plan, stage: usize) -> Step {
    plan.audience(stage).map_or(Step::Promote, |audience| Step::Begin { stage, audience })
}

/// What a rollout waits for in each stage.
fn always(state: &State, facts: &Facts) -> Vec<Reason> {
    let edges = (facts.missing_edges.total > 0).then(|| Reason::EdgesMissing(facts.missing_edges.clone()));
    let incapable = (facts.incapable.total > 0).then(|| Reason::Incapable(facts.incapable.clone()));
    let paused = state.paused.clone().map(Reason::Paused);
    let frozen = facts.freeze.clone().map(Reason::Frozen);
    [paused, frozen, incapable, edges].into_iter().flatten().collect()
}

/// What has to be so before a stage begins.
fn before(plan: &Plan, state: &State, stage: usize, now: Now) -> Vec<Reason> {
    let next = &plan.stages()[stage];
    let is_approved = state.approved.as_ref().is_some_and(|approval| approval.stage == stage);
    let approval = (next.approve && !is_approved).then(|| Reason::Approval(next.name.clone()));
    approval.into_iter().chain(opens_at(plan.windows(), now.wall).map(Reason::Window)).collect()
}

/// Too many agents have failed.
fn failure(plan: &Plan, stage: usize, counts: &Counts) -> Option<Step> {
    let (failed, most) = (counts.so_far(stage).failed, plan.failures(stage));
    let name = &plan.staged()[stage].name;
    let cause = || Cause {
        reason: format!("the version failed at {} up to stage `{name}`, and {most} may fail", number(failed)),
        agents: counts.failed.first.clone(),
    };
    (failed > most).then(|| match plan.on_failure() {
        OnFailure::Stop => Step::Stop(cause()),
        OnFailure::Abort => Step::Abort(cause()),
    })
}

/// Why a stage is not done, other than that agents are about to run the version.
fn unmet(plan: &Plan, stage: usize, counts: &Counts) -> Vec<Reason> {
    let (own, so_far) = (counts.stages.get(stage).copied().unwrap_or_default().all, counts.so_far(stage));
    let (name, may_be_silent) = (&plan.staged()[stage].name, plan.silent(stage));
    let nobody = match (own.expected, own.done) {
        (0, _) => Some(Reason::Empty(name.clone())),
        // What is silent or has failed everywhere shows nothing, however much of that may be.
        (_, 0) if so_far.pending() == 0 => Some(Reason::NoneDone(name.clone())),
        _ => None,
    };
    let silent = (so_far.silent > may_be_silent).then(|| Reason::Silent(counts.silent.clone(), may_be_silent));
    nobody.into_iter().chain(silent).collect()
}

/// Whether the deadline has passed. While an operator has paused it, there is none.
fn is_too_late(plan: &Plan, state: &State, now: Now) -> bool {
    let deadline = plan.deadline().filter(|_| state.paused.is_none());
    let elapsed = state.deadline_from.and_then(|from| now.wall.duration_since(from).ok());
    deadline.zip(elapsed).is_some_and(|(deadline, elapsed)| elapsed >= deadline)
}

impl Soak {
    fn going_on(self, generation: Generation, stage: usize, now: Now) -> Self {
        let is_same = |of: &(Generation, usize, Instant)| (of.0, of.1) == (generation, stage);
        Self(self.0.filter(is_same).or(Some((generation, stage, now.monotonic))))
    }

    fn elapsed(self, now: Now) -> Duration {
        self.0.map_or(Duration::ZERO, |(_, _, since)| now.monotonic.saturating_duration_since(since))
    }
}

/// So many agents, in words.
fn number(agents: usize) -> String {
    format!("{agents} agent{}", if agents == 1 { "" } else { "s" })
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Running(Progress::Updating(1)) => f.write_str("1 agent does not run the version yet"),
            Self::Running(Progress::Updating(agents)) => write!(f, "{agents} agents do not run the version yet"),
            Self::Running(Progress::Soaking(left)) => {
                let left = humantime::format_duration(Duration::from_secs(left.as_secs().max(1)));
                write!(f, "all agents so far have to run the version for another {left}")
            }
            Self::Waiting(reasons) => {
                let reasons: Vec<_> = reasons.iter().map(ToString::to_string).collect();
                f.write_str(&reasons.join("; "))
            }
            Self::Ended(VerdictKind::Stopped) => f.write_str("it is stopped"),
            Self::Ended(VerdictKind::Aborted) => f.write_str("it was aborted"),
            Self::Ended(VerdictKind::Later) => f.write_str("a later release has ended it"),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Paused(Mark { by, reason, .. }) => {
                write!(f, "paused by {}", by.as_deref().unwrap_or("an operator"))?;
                reason.as_ref().map_or(Ok(()), |reason| write!(f, ": {reason}"))
            }
            Self::Frozen(why) => write!(f, "the service is frozen: {why}"),
            Self::EdgesMissing(edges) => write!(f, "what agents run is missing or old from edges: {edges}"),
            Self::Incapable(nodes) => write!(f, "these do not know staged versions, so upgrade them: {nodes}"),
            Self::Silent(agents, most) => {
                let are = if agents.total == 1 { "is" } else { "are" };
                write!(f, "{} {are} silent, and {most} may be: {agents}", number(agents.total))
            }
            Self::Empty(stage) => {
                write!(f, "stage `{stage}` names no agent that follows the service: check its names and labels")
            }
            Self::NoneDone(stage) => write!(f, "at no agent of stage `{stage}` the version has succeeded"),
            Self::Approval(stage) => write!(f, "an operator has to approve stage `{stage}`"),
            Self::Window(opens) => {
                write!(f, "the next window opens at {}", humantime::format_rfc3339_seconds(*opens))
            }
            Self::LaterPlan => f.write_str("a later release wrote the plan: upgrade this origin"),
        }
    }
}

impl<T: fmt::Display> fmt::Display for Named<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, one) in self.first.iter().enumerate() {
            write!(f, "{}`{one}`", if at == 0 { "" } else { ", " })?;
        }
        match self.total - self.first.len() {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

#[cfg(test)]
mod tests;
