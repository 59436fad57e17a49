//! Agents, edges and the row of the service.

use std::time::{Duration, Instant, SystemTime};

use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::{Desired, HookState, Phase, Problem, ProblemKind};
use weir_protocol::staged::Audience;

use super::{A, AGAIN, B, Event, Mutant};
use crate::action::Action;
use crate::counts::{AgentRow, Counts, Named, ServiceRow, Target};
use crate::decision::{Facts, Now, Soak, Step, next};
use crate::plan::Plan;
use crate::state::{Cause, Mark, State, VerdictKind};

pub(super) const EDGES: usize = 2;
pub(super) const AGENTS: usize = 12;

#[derive(Debug, Clone)]
pub(super) struct Agent {
    pub(super) name: NodeName,
    pub(super) labels: Labels,
    /// Since when it is dead.
    pub(super) died: Option<Instant>,
    pub(super) is_broken: bool,
    pub(super) is_pinned: bool,
    pub(super) runs: Generation,
    /// What its edge last said of it.
    reported: Report,
}

#[derive(Debug, Clone)]
struct Report {
    desired: Generation,
    runs: Generation,
    hook: HookState,
    phase: Phase,
    died: Option<Instant>,
    problem: Option<Problem>,
}

pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) now: Now,
    pub(super) agents: Vec<Agent>,
    pub(super) are_missing: [bool; EDGES],
    pub(super) freeze: Option<String>,
    /// As it is stored.
    row: String,
    pub(super) audience: Option<Audience>,
    pub(super) in_force: Generation,
    soak: Soak,
    pub(super) mutant: Option<Mutant>,
    /// The last decision.
    pub(super) last: Option<Step>,
    /// The last one that ended the rollout.
    pub(super) end: Option<Step>,
}

pub(super) fn service() -> ServiceName {
    "shop".parse().unwrap()
}

fn version(generation: Generation) -> Desired {
    Desired { digest: TarballDigest::of(if generation == B { b"b" } else { b"a" }), generation }
}

impl Agent {
    fn new(at: usize) -> Self {
        let (region, ring) = (["eu", "us"][at % 2], ["canary", "early", "rest", "rest"][at / 2 % 4]);
        let reported = Report {
            desired: A,
            runs: A,
            hook: HookState::Succeeded,
            phase: Phase::Current,
            died: None,
            problem: None,
        };
        Self {
            name: format!("{region}-{at}").parse().unwrap(),
            labels: serde_json::from_str(&format!(r#"{{"ring":"{ring}"}}"#)).unwrap(),
            died: None,
            is_broken: false,
            is_pinned: false,
            runs: A,
            reported,
        }
    }

    /// Whether it stays where it is, as far as the owner can know.
    pub(super) fn stays(&self) -> bool {
        if self.died.is_some() { self.reported.phase == Phase::Pinned } else { self.is_pinned }
    }

    /// Whether the version has failed there, as far as the owner can know.
    pub(super) fn has_failed(&self) -> bool {
        if self.died.is_some() { self.reported.problem.is_some() } else { self.runs == B && self.is_broken }
    }

    /// It polls, switches if it is offered something newer, and reports.
    fn polls(&mut self, offered: Generation) {
        if !self.is_pinned {
            self.runs = offered.max(self.runs);
        }
        let has_failed = self.runs == B && self.is_broken;
        let problem = Problem {
            kind: ProblemKind::HookFailed,
            since: SystemTime::UNIX_EPOCH,
            tries: 1,
            text: "exec exited with 1".to_owned(),
            output: None,
        };
        self.reported = Report {
            desired: offered,
            runs: self.runs,
            hook: if has_failed { HookState::Failed } else { HookState::Succeeded },
            phase: if self.is_pinned { Phase::Pinned } else { Phase::Current },
            died: None,
            problem: has_failed.then_some(problem),
        };
    }
}

impl World {
    pub(super) fn new(plan: Plan, mutant: Option<Mutant>) -> Self {
        // A Monday.
        let wall = humantime::parse_rfc3339("2026-11-30T08:00:00Z").unwrap();
        let now = Now { monotonic: Instant::now(), wall };
        Self {
            row: serde_json::to_string(&State::new(plan.clone(), wall)).unwrap(),
            plan,
            now,
            agents: (0..AGENTS).map(Agent::new).collect(),
            are_missing: [false; EDGES],
            freeze: None,
            audience: None,
            in_force: A,
            soak: Soak::default(),
            mutant,
            last: None,
            end: None,
        }
    }

    pub(super) fn state(&self) -> State {
        serde_json::from_str(&self.row).unwrap()
    }

    fn write(&mut self, state: &State) {
        self.row = serde_json::to_string(state).unwrap();
    }

    pub(super) fn apply(&mut self, event: Event) {
        match event {
            // The dead do nothing.
            Event::Breaks(agent) | Event::Works(agent) | Event::Pins(agent) | Event::Unpins(agent)
                if self.agents[agent].died.is_some() => {}
            Event::Wait(seconds) => self.wait(seconds),
            Event::Dies(agent) => _ = self.agents[agent].died.get_or_insert(self.now.monotonic),
            Event::Returns(agent) => self.agents[agent].died = None,
            Event::Breaks(agent) => self.agents[agent].is_broken = true,
            Event::Works(agent) => self.agents[agent].is_broken = false,
            Event::Pins(agent) => self.agents[agent].is_pinned = true,
            Event::Unpins(agent) => self.agents[agent].is_pinned = false,
            Event::EdgeGone(edge) => self.are_missing[edge] = true,
            Event::EdgeBack(edge) => self.are_missing[edge] = false,
            Event::OwnerMoves => {
                if self.mutant != Some(Mutant::TimeKept) {
                    self.soak = Soak::default();
                }
            }
            Event::Pause => self.act(Action::Pause),
            Event::Resume => self.act(Action::Resume),
            Event::Approve => self.act(Action::Approve(None)),
            Event::Freeze => self.freeze = Some("the sale".to_owned()),
            Event::Thaw => self.freeze = None,
        }
        self.poll();
    }

    fn wait(&mut self, seconds: u64) {
        let period = Duration::from_secs(seconds);
        self.now = Now { monotonic: self.now.monotonic + period, wall: self.now.wall + period };
    }

    /// What does not make sense changes nothing.
    fn act(&mut self, action: Action) {
        let mark = Mark { at: self.now.wall, by: None, reason: None };
        if let Ok(state) = self.state().after(action, mark) {
            self.write(&state);
        }
    }

    /// Agents of edges that can be reached are up to date.
    fn poll(&mut self) {
        let at_edges = self.agents.iter_mut().zip((0..EDGES).cycle());
        for (agent, _) in at_edges.filter(|(_, edge)| !self.are_missing[*edge]) {
            let has_staged =
                self.audience.as_ref().is_some_and(|it| it.includes(&agent.name, &agent.labels, &service()));
            match agent.died {
                Some(died) => agent.reported.died = Some(died),
                None => agent.polls(if has_staged { B } else { self.in_force }),
            }
        }
    }

    fn rows(&self) -> impl Iterator<Item = AgentRow<'_>> {
        self.agents.iter().filter(|agent| !(self.mutant == Some(Mutant::SilenceIgnored) && agent.died.is_some())).map(
            |agent| {
                let Report { desired, runs, hook, phase, died, ref problem } = agent.reported;
                let (desired, current) = (Some(version(desired)), Some(version(runs)));
                let heard_ago = died.map_or(Duration::ZERO, |died| self.now.monotonic - died);
                let row = ServiceRow { desired, current, phase, hook, problem: problem.as_ref() };
                let (agent, labels) = (&agent.name, Some(&agent.labels));
                AgentRow { agent, labels, is_live: died.is_none(), heard_ago, row: Some(row) }
            },
        )
    }

    /// After an abort everybody is back at the version of before.
    pub(super) fn check_abort(&self) -> Result<(), String> {
        let stays = self.agents.iter().find(|agent| !agent.is_pinned && agent.runs != AGAIN);
        stays.map_or(Ok(()), |agent| Err(format!("an abort leaves {agent:?}")))
    }

    /// The owner decides.
    pub(super) fn decide(&self) -> (State, Step, Soak) {
        let state = self.state();
        let target = Target { service: service(), digest: version(B).digest, generation: B };
        let counts = Counts::new(&self.plan.audiences(), state.stage.unwrap_or(0), &target, self.rows());
        let missing = (0..EDGES).filter(|edge| self.are_missing[*edge] && self.mutant != Some(Mutant::EdgesIgnored));
        let missing_edges = Named::of(missing.map(|edge| format!("edge-{edge}").parse().unwrap()));
        let facts = Facts { counts, missing_edges, incapable: Named::default(), freeze: self.freeze.clone() };
        let (step, soak) = next(&state, &facts, self.soak, self.now);
        (state, step, soak)
    }

    /// It writes what it has decided.
    pub(super) fn carry_out(&mut self, state: State, step: Step, soak: Soak) {
        self.soak = soak;
        let wall = self.now.wall;
        match step.clone() {
            Step::Stay(_) => {}
            Step::Begin { stage, audience } => {
                self.audience = Some(audience);
                let skipped = usize::from(self.mutant == Some(Mutant::StageSkipped));
                self.write(&state.begun(stage + skipped, wall));
            }
            Step::Promote => {
                (self.audience, self.in_force) = (None, B);
                // Nothing is staged any more.
                self.write(&state.ended(VerdictKind::Later, Cause::default(), wall));
            }
            Step::Stop(cause) => self.write(&state.ended(VerdictKind::Stopped, cause, wall)),
            Step::Abort(cause) => {
                self.audience = None;
                if self.mutant != Some(Mutant::AbortForgotten) {
                    self.in_force = AGAIN;
                }
                self.write(&state.ended(VerdictKind::Aborted, cause, wall));
            }
        }
        if matches!(step, Step::Promote | Step::Stop(_) | Step::Abort(_)) {
            self.end = Some(step.clone());
        }
        self.last = Some(step);
    }
}
