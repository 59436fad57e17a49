//! What has become of a staged version at the agents that are to have it, by stage.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_protocol::descriptor::Generation;
use weir_protocol::digest::TarballDigest;
use weir_protocol::labels::Labels;
use weir_protocol::name::{NodeName, ServiceName};
use weir_protocol::observed::{Desired, HookState, Phase, Problem, ProblemKind};
use weir_protocol::staged::Audience;

/// The most agents that are named for one reason; the others are counted.
pub const MAX_NAMED: usize = 20;

/// An agent that was not heard for longer is not expected.
const EXPECTED_FOR: Duration = Duration::from_secs(24 * 3600);

/// The staged version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Of which service.
    pub service: ServiceName,
    /// Its digest.
    pub digest: TarballDigest,
    /// Its generation.
    pub generation: Generation,
}

/// An agent, and what it runs of the service.
#[derive(Debug, Clone, Copy)]
pub struct AgentRow<'a> {
    /// Its name.
    pub agent: &'a NodeName,
    /// Its asserted labels. `None`: only its name is known, from before the origin started.
    pub labels: Option<&'a Labels>,
    /// An edge has heard it a short time ago.
    pub is_live: bool,
    /// How long ago an edge heard it.
    pub heard_ago: Duration,
    /// `None`: it does not follow the service.
    pub row: Option<ServiceRow<'a>>,
}

/// What an agent runs of the service.
#[derive(Debug, Clone, Copy)]
pub struct ServiceRow<'a> {
    /// What it should have.
    pub desired: Option<Desired>,
    /// What it has.
    pub current: Option<Desired>,
    /// What it does about it.
    pub phase: Phase,
    /// The hook of what it has.
    pub hook: HookState,
    /// What stops it.
    pub problem: Option<&'a Problem>,
}

/// Agents, by what has become of the version there. Those in no other field than `expected` are about to get it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Tally {
    /// Those that are to have it.
    pub expected: usize,
    /// They run it, and its hook succeeded.
    pub done: usize,
    /// It failed there.
    pub failed: usize,
    /// They are not heard, or do not get it from their edge.
    pub silent: usize,
}

/// The agents of a stage.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct StageCount {
    /// All that it names, also those of stages before.
    #[serde(flatten)]
    pub all: Tally,
    /// Those that no stage before it names.
    #[serde(skip)]
    pub new: Tally,
}

/// Some agents by name, and how many there are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Named<T> {
    /// At most [`MAX_NAMED`].
    pub first: Vec<T>,
    /// All.
    pub total: usize,
}

/// An agent at which the version failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentProblem {
    /// Its name.
    pub agent: NodeName,
    /// What kind of problem it has.
    pub problem: ProblemKind,
    /// Its words.
    pub text: String,
}

/// What has become of a staged version.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its generation.
    pub generation: Generation,
    /// The stages for some agents.
    pub stages: Vec<StageCount>,
    /// Of the stages so far, those at which it failed.
    pub failed: Named<AgentProblem>,
    /// Of the stages so far, those that are silent.
    pub silent: Named<NodeName>,
}

/// What has become of the version at an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Done,
    Failed,
    Silent,
    Pending,
}

impl<T> Default for Named<T> {
    fn default() -> Self {
        Self { first: Vec::new(), total: 0 }
    }
}

impl<T> Named<T> {
    /// All of them.
    pub fn of(all: impl IntoIterator<Item = T>) -> Self {
        let mut named = Self::default();
        all.into_iter().for_each(|one| named.add(|| one));
        named
    }

    fn add(&mut self, one: impl FnOnce() -> T) {
        self.total += 1;
        if self.first.len() < MAX_NAMED {
            self.first.push(one());
        }
    }
}

impl Tally {
    fn add(&mut self, outcome: Outcome) {
        self.expected += 1;
        match outcome {
            Outcome::Done => self.done += 1,
            Outcome::Failed => self.failed += 1,
            Outcome::Silent => self.silent += 1,
            Outcome::Pending => {}
        }
    }

    fn and(self, other: Self) -> Self {
        Self {
            expected: self.expected + other.expected,
            done: self.done + other.done,
            failed: self.failed + other.failed,
            silent: self.silent + other.silent,
        }
    }

    /// Those that are about to get it.
    pub fn pending(&self) -> usize {
        self.expected - self.done - self.failed - self.silent
    }
}

impl Counts {
    /// Counts agents, each of which is there once. `stages` are the audiences of each stage alone, `stage` is the present one:
    /// agents of later stages are not named.
    pub fn new<'a>(
        stages: &[Audience],
        stage: usize,
        target: &Target,
        agents: impl IntoIterator<Item = AgentRow<'a>>,
    ) -> Self {
        let mut counts = Self {
            generation: target.generation,
            stages: vec![StageCount::default(); stages.len()],
            ..Self::default()
        };
        for agent in agents {
            let Some(outcome) = outcome(&agent, target) else { continue };
            let is_in = |stage: &Audience| match agent.labels {
                Some(labels) => stage.includes(agent.agent, labels, &target.service),
                None => stage.may_include(agent.agent, &target.service),
            };
            let mut is_new = true;
            for (at, _) in stages.iter().enumerate().filter(|(_, stage)| is_in(stage)) {
                counts.stages[at].all.add(outcome);
                if !std::mem::take(&mut is_new) {
                    continue;
                }
                counts.stages[at].new.add(outcome);
                match outcome {
                    Outcome::Failed if at <= stage => counts.failed.add(|| agent.problem()),
                    Outcome::Silent if at <= stage => counts.silent.add(|| agent.agent.clone()),
                    _ => {}
                }
            }
        }
        counts
    }

    /// The agents of a stage and of all stages before.
    pub fn so_far(&self, stage: usize) -> Tally {
        self.stages.iter().take(stage + 1).map(|stage| stage.new).fold(Tally::default(), Tally::and)
    }
}

/// What has become of the version at an agent. `None`: it is not expected there.
fn outcome(agent: &AgentRow<'_>, target: &Target) -> Option<Outcome> {
    if agent.heard_ago >= EXPECTED_FOR {
        return None;
    }
    let Some(row) = &agent.row else {
        // Of one without labels it is not known whether it follows the service.
        return agent.labels.is_none().then_some(Outcome::Silent);
    };
    let kind = row.problem.map(|problem| problem.kind);
    if matches!(row.phase, Phase::Pinned | Phase::Unassigned) || kind == Some(ProblemKind::NotAllowed) {
        return None;
    }
    let is_desired = row.desired.is_some_and(|desired| desired.generation == target.generation);
    let is_current = row.current.is_some_and(|it| (it.generation, it.digest) == (target.generation, target.digest));
    let blames_content = kind.is_some_and(|kind| {
        use ProblemKind::{CheckVetoed, HookFailed, HookTimeout, Unpack};
        matches!(kind, CheckVetoed | HookFailed | HookTimeout | Unpack)
    });
    let blames_edge = matches!(kind, Some(ProblemKind::DigestMismatch | ProblemKind::Signature));
    Some(if is_desired && blames_content || is_current && row.hook == HookState::Failed {
        Outcome::Failed
    } else if !agent.is_live || is_desired && blames_edge {
        Outcome::Silent
    } else if is_current && matches!(row.hook, HookState::None | HookState::Succeeded) {
        Outcome::Done
    } else {
        Outcome::Pending
    })
}

impl AgentRow<'_> {
    fn problem(&self) -> AgentProblem {
        let problem = self.row.and_then(|row| row.problem);
        let (problem, text) = problem.map_or((ProblemKind::HookFailed, String::new()), |it| (it.kind, it.text.clone()));
        AgentProblem { agent: self.agent.clone(), problem, text }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::plan::Plan;

    const B: Generation = 20;

    fn stages() -> Vec<Audience> {
        let plan: Plan = toml::from_str(
            r#"
            name = "p"
            stages = [
              { name = "canary", labels = { ring = "canary" } },
              { name = "eu", agents = "eu-*" },
              { name = "half", percent = 50 },
              { name = "all" },
            ]"#,
        )
        .unwrap();
        plan.audiences()
    }

    fn target() -> Target {
        Target { service: "shop".parse().unwrap(), digest: TarballDigest::of(b"b"), generation: B }
    }

    fn labels(ring: &str) -> Labels {
        serde_json::from_str(&format!(r#"{{"ring":"{ring}"}}"#)).unwrap()
    }

    fn problem(kind: ProblemKind) -> Problem {
        Problem { kind, since: SystemTime::UNIX_EPOCH, tries: 1, text: "exited with 1".to_owned(), output: None }
    }

    fn version(generation: Generation) -> Desired {
        let digest = TarballDigest::of(if generation == B { b"b" } else { b"a" });
        Desired { digest, generation }
    }

    /// An agent that runs the staged version.
    const DONE: ServiceRow<'static> =
        ServiceRow { desired: None, current: None, phase: Phase::Current, hook: HookState::Succeeded, problem: None };

    fn done() -> ServiceRow<'static> {
        ServiceRow { desired: Some(version(B)), current: Some(version(B)), ..DONE }
    }

    fn outcome_of(row: ServiceRow<'_>) -> Option<Outcome> {
        let (agent, labels) = ("a".parse().unwrap(), Labels::default());
        let live = AgentRow {
            agent: &agent,
            labels: Some(&labels),
            is_live: true,
            heard_ago: Duration::from_secs(5),
            row: Some(row),
        };
        outcome(&live, &target())
    }

    #[test]
    fn an_agent_is_done_when_it_runs_the_version_and_its_hook_succeeded() {
        assert_eq!(outcome_of(done()), Some(Outcome::Done));
        assert_eq!(outcome_of(ServiceRow { hook: HookState::None, ..done() }), Some(Outcome::Done));
        for hook in [HookState::Pending, HookState::Running, HookState::Other] {
            assert_eq!(outcome_of(ServiceRow { hook, ..done() }), Some(Outcome::Pending), "{hook:?}");
        }
        let older = ServiceRow { current: Some(version(10)), ..done() };
        assert_eq!(outcome_of(older), Some(Outcome::Pending));
        let other_digest = Desired { generation: B, ..version(10) };
        assert_eq!(outcome_of(ServiceRow { current: Some(other_digest), ..done() }), Some(Outcome::Pending));
        // Another problem, such as an edge that it cannot reach now, changes nothing.
        let unreachable = problem(ProblemKind::Unreachable);
        assert_eq!(outcome_of(ServiceRow { problem: Some(&unreachable), ..done() }), Some(Outcome::Done));
    }

    #[test]
    fn only_problems_with_this_content_are_failures() {
        use ProblemKind::{CheckVetoed, DigestMismatch, Disk, HookFailed, HookTimeout, Signature, Unpack};
        for (kind, expected) in [
            (CheckVetoed, Outcome::Failed),
            (HookFailed, Outcome::Failed),
            (HookTimeout, Outcome::Failed),
            (Unpack, Outcome::Failed),
            (DigestMismatch, Outcome::Silent),
            (Signature, Outcome::Silent),
            (Disk, Outcome::Pending),
        ] {
            let problem = problem(kind);
            let row = ServiceRow { current: Some(version(10)), problem: Some(&problem), ..done() };
            assert_eq!(outcome_of(row), Some(expected), "{kind:?}");
            let of_before = ServiceRow { desired: Some(version(10)), ..row };
            assert_eq!(outcome_of(of_before), Some(Outcome::Pending), "{kind:?} with another version");
        }
        assert_eq!(outcome_of(ServiceRow { hook: HookState::Failed, ..done() }), Some(Outcome::Failed));
        let of_before = ServiceRow { hook: HookState::Failed, current: Some(version(10)), ..done() };
        assert_eq!(outcome_of(of_before), Some(Outcome::Pending));
    }

    #[test]
    fn agents_that_stay_where_they_are_are_not_expected() {
        for phase in [Phase::Pinned, Phase::Unassigned] {
            assert_eq!(outcome_of(ServiceRow { phase, ..done() }), None, "{phase:?}");
        }
        let problem = problem(ProblemKind::NotAllowed);
        assert_eq!(outcome_of(ServiceRow { problem: Some(&problem), ..done() }), None);
    }

    #[test]
    fn an_agent_that_is_not_heard_is_silent_for_a_day_whatever_it_ran() {
        let (agent, labels) = ("a".parse().unwrap(), Labels::default());
        let silent = AgentRow {
            agent: &agent,
            labels: Some(&labels),
            is_live: false,
            heard_ago: EXPECTED_FOR - Duration::from_secs(1),
            row: Some(done()),
        };
        assert_eq!(outcome(&silent, &target()), Some(Outcome::Silent));
        assert_eq!(outcome(&AgentRow { heard_ago: EXPECTED_FOR, ..silent }, &target()), None);
        assert_eq!(outcome(&AgentRow { row: None, ..silent }, &target()), None, "it does not follow the service");
        let by_name = AgentRow { row: None, labels: None, ..silent };
        assert_eq!(outcome(&by_name, &target()), Some(Outcome::Silent), "it may");
        // What it said last counts: the failure may be why it is silent.
        let failed = ServiceRow { hook: HookState::Failed, ..done() };
        assert_eq!(outcome(&AgentRow { row: Some(failed), ..silent }, &target()), Some(Outcome::Failed));
    }

    #[test]
    fn an_agent_is_new_in_the_first_stage_that_names_it() {
        let (canary, other) = (labels("canary"), labels("all"));
        let names: Vec<NodeName> = ["eu-1", "eu-2", "us-1", "us-2", "eu-9"].map(|it| it.parse().unwrap()).into();
        let failed = problem(ProblemKind::CheckVetoed);
        let veto = ServiceRow { problem: Some(&failed), current: None, ..done() };
        let rows = [
            (Some(&canary), done()),
            (Some(&other), veto),
            (Some(&canary), veto),
            (Some(&other), done()),
            (None, done()),
        ];
        let agents: Vec<_> = names
            .iter()
            .zip(rows)
            .map(|(agent, (labels, row))| AgentRow {
                agent,
                labels,
                is_live: true,
                heard_ago: Duration::ZERO,
                row: labels.map(|_| row),
            })
            .collect();
        let counts = Counts::new(&stages(), 0, &target(), agents.iter().copied());
        // By its name alone `eu-9` may be a canary.
        let canaries = Tally { expected: 3, done: 1, failed: 1, silent: 1 };
        assert_eq!((counts.stages[0].all, counts.stages[0].new), (canaries, canaries));
        let eu = Tally { expected: 3, done: 1, failed: 1, silent: 1 };
        assert_eq!(
            (counts.stages[1].all, counts.stages[1].new),
            (eu, Tally { expected: 1, failed: 1, ..Tally::default() })
        );
        assert_eq!(counts.so_far(1), Tally { expected: 4, done: 1, failed: 2, silent: 1 });
        assert!(counts.so_far(2).expected >= 4);
        let failed = |counts: &Counts| counts.failed.first.iter().map(|it| it.agent.to_string()).collect::<Vec<_>>();
        assert_eq!(failed(&counts), ["us-1"], "`eu-2` does not have it yet");
        assert_eq!(counts.silent, Named::of([names[4].clone()]));
        assert_eq!(failed(&Counts::new(&stages(), 1, &target(), agents)), ["eu-2", "us-1"]);
    }

    #[test]
    fn few_agents_are_named() {
        let named = Named::of(0..100);
        assert_eq!((named.first.len(), named.total), (MAX_NAMED, 100));
    }
}
