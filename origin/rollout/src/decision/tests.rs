use super::*;
use crate::action::Action;
use crate::counts::{AgentProblem, MAX_NAMED, StageCount, Tally};

const PLAN: &str = r#"
    name = "p"
    stages = [
      { name = "canary", labels = { ring = "canary" }, for = "10m" },
      { name = "early", agents = "eu-*", failures = 1, silent = 1 },
      { name = "half", percent = 50, approve = true },
      { name = "all" },
    ]
    deadline = "24h"
"#;

/// A Monday.
const MORNING: &str = "2026-11-30T08:00:00Z";

fn now() -> Now {
    Now { monotonic: Instant::now(), wall: humantime::parse_rfc3339(MORNING).unwrap() }
}

fn after(now: Now, seconds: u64) -> Now {
    let period = Duration::from_secs(seconds);
    Now { monotonic: now.monotonic + period, wall: now.wall + period }
}

/// A rollout in a stage, by a plan with something else in it.
fn rollout_with(stage: usize, from: &str, to: &str, now: Now) -> State {
    let plan = toml::from_str(&PLAN.replace(from, to)).unwrap();
    State::new(plan, now.wall).begun(stage, now.wall)
}

fn rollout(stage: usize, now: Now) -> State {
    rollout_with(stage, "", "", now)
}

fn tally([expected, done, failed, silent]: [usize; 4]) -> Tally {
    Tally { expected, done, failed, silent }
}

/// The agents of each stage, of which none is in two.
fn facts(stages: &[[usize; 4]]) -> Facts {
    let agent = |at| format!("agent-{at}").parse::<NodeName>().unwrap();
    let count = |of: &[usize; 4]| StageCount { all: tally(*of), new: tally(*of) };
    let problem = |at| AgentProblem {
        agent: agent(at),
        problem: weir_protocol::observed::ProblemKind::CheckVetoed,
        text: "exited with 1".to_owned(),
    };
    let all = |of: fn(&[usize; 4]) -> usize| 0..stages.iter().map(of).sum();
    let counts = Counts {
        generation: 7,
        stages: stages.iter().map(count).collect(),
        failed: Named::of(all(|of| of[2]).map(problem)),
        silent: Named::of(all(|of| of[3]).map(agent)),
    };
    Facts { counts, ..Facts::default() }
}

fn standing(state: &State, facts: &Facts, now: Now) -> String {
    match next(state, facts, Soak::default(), now).0 {
        Step::Stay(standing) => standing.to_string(),
        step => format!("{step:?}"),
    }
}

#[test]
fn a_stage_that_is_done_for_its_time_is_followed_by_the_next() {
    let now = now();
    let (state, mut facts) = (rollout(0, now), facts(&[[2, 1, 0, 0]]));
    let (step, soak) = next(&state, &facts, Soak::default(), now);
    assert_eq!(step, Step::Stay(Standing::Running(Progress::Updating(1))));
    facts.counts.stages[0].all.done = 2;
    facts.counts.stages[0].new.done = 2;
    let (step, soak) = next(&state, &facts, soak, after(now, 60));
    assert_eq!(step, Step::Stay(Standing::Running(Progress::Soaking(Duration::from_secs(600)))));
    let (step, soak) = next(&state, &facts, soak, after(now, 659));
    assert_eq!(step, Step::Stay(Standing::Running(Progress::Soaking(Duration::from_secs(1)))));
    let (step, _) = next(&state, &facts, soak, after(now, 660));
    let audience = state.plan.known().unwrap().audience(1).unwrap();
    assert_eq!(step, Step::Begin { stage: 1, audience });
    // The new owner, and one that decides of another version, begin again.
    for (soak, generation) in [(Soak::default(), 7), (soak, 8)] {
        facts.counts.generation = generation;
        let (step, _) = next(&state, &facts, soak, after(now, 660));
        assert_eq!(step, Step::Stay(Standing::Running(Progress::Soaking(Duration::from_secs(600)))));
    }
}

#[test]
fn an_agent_that_is_not_done_in_between_has_the_time_begin_again() {
    let now = now();
    let (state, done) = (rollout(0, now), facts(&[[2, 2, 0, 0]]));
    let missing = Facts { missing_edges: Named::of(["edge-1".parse().unwrap()]), ..done.clone() };
    for between in [facts(&[[2, 1, 0, 0]]), facts(&[[2, 1, 0, 1]]), facts(&[[0, 0, 0, 0]]), missing] {
        let (_, soak) = next(&state, &done, Soak::default(), now);
        assert_ne!(soak, Soak::default());
        let (_, soak) = next(&state, &between, soak, after(now, 300));
        let (step, _) = next(&state, &done, soak, after(now, 600));
        assert_eq!(step, Step::Stay(Standing::Running(Progress::Soaking(Duration::from_secs(600)))), "{between:?}");
    }
    // Whoever waits with it for something else keeps the time.
    let paused = state.clone().after(Action::Pause, mark(now)).unwrap();
    let (_, soak) = next(&state, &done, Soak::default(), now);
    let (_, soak) = next(&paused, &done, soak, after(now, 300));
    let (step, _) = next(&state, &done, soak, after(now, 600));
    assert!(matches!(step, Step::Begin { stage: 1, .. }), "{step:?}");
}

fn mark(now: Now) -> Mark {
    Mark { at: now.wall, by: Some("ops".to_owned()), reason: Some("lunch".to_owned()) }
}

#[test]
fn what_a_stage_waits_for_is_said() {
    let now = now();
    let early = rollout(1, now);
    for (counts, expected) in [
        ([[2, 2, 0, 0], [0; 4]], "stage `early` names no agent that follows the service: check its names and labels"),
        ([[2, 2, 0, 0], [1, 0, 0, 1]], "at no agent of stage `early` the version has succeeded"),
        ([[2, 1, 0, 1], [2, 1, 0, 1]], "2 agents are silent, and 1 may be: `agent-0`, `agent-1`"),
        ([[2, 2, 0, 0], [3, 0, 0, 1]], "2 agents do not run the version yet"),
    ] {
        assert_eq!(standing(&early, &facts(&counts), now), expected);
    }
    let done = facts(&[[2, 2, 0, 0], [2, 2, 0, 0]]);
    assert_eq!(standing(&early, &done, now), "an operator has to approve stage `half`");
    let approved = early.after(Action::Approve(None), mark(now)).unwrap();
    assert!(matches!(next(&approved, &done, Soak::default(), now).0, Step::Begin { stage: 2, .. }));
    let paused = approved.clone().after(Action::Pause, mark(now)).unwrap();
    assert_eq!(standing(&paused, &done, now), "paused by ops: lunch");
    let edges = Facts { missing_edges: Named::of(["edge-1".parse().unwrap()]), ..done.clone() };
    assert_eq!(standing(&approved, &edges, now), "what agents run is missing or old from edges: `edge-1`");
    let nodes = Named::of((0..=MAX_NAMED).map(|at| format!("edge-{at}")));
    let text = standing(&approved, &Facts { incapable: nodes, ..done.clone() }, now);
    assert!(text.contains("so upgrade them: `edge-0`, `edge-1`") && text.ends_with("`edge-19` and 1 more"), "{text}");
    let frozen = Facts { freeze: Some("the sale".to_owned()), ..done };
    assert_eq!(standing(&approved, &frozen, now), "the service is frozen: the sale");
}

#[test]
fn the_first_stage_waits_for_what_each_stage_waits_for() {
    let now = now();
    let plan = |to: &str| State::new(toml::from_str(&PLAN.replace("deadline", to)).unwrap(), now.wall);
    let state = plan("windows = [\"tue 08:00-09:00 UTC\"]\ndeadline");
    assert_eq!(standing(&state, &Facts::default(), now), "the next window opens at 2026-12-01T08:00:00Z");
    let open = after(now, 24 * 3600);
    assert!(matches!(next(&state, &Facts::default(), Soak::default(), open).0, Step::Begin { stage: 0, .. }));
    let old = Facts { incapable: Named::of(["edge-1".to_owned()]), ..Facts::default() };
    assert!(standing(&plan("deadline"), &old, now).contains("upgrade them"), "nothing is staged");
    let paused = state.after(Action::Pause, mark(now)).unwrap();
    assert!(
        standing(&paused, &Facts::default(), after(now, 48 * 3600)).starts_with("paused by ops"),
        "no deadline yet"
    );
}

#[test]
fn too_many_failures_stop_it_and_name_the_agents() {
    let now = now();
    let one = facts(&[[2, 1, 1, 0]]);
    let (step, _) = next(&rollout(0, now), &one, Soak::default(), now);
    let Step::Stop(cause) = step else { panic!("{step:?}") };
    assert_eq!(cause.reason, "the version failed at 1 agent up to stage `canary`, and 0 may fail");
    assert_eq!(cause.agents, one.counts.failed.first);
    // In the next stage one may, of all agents so far.
    let early = facts(&[[2, 1, 1, 0], [2, 2, 0, 0]]);
    assert_eq!(standing(&rollout(1, now), &early, now), "an operator has to approve stage `half`");
    let two = facts(&[[2, 1, 1, 0], [2, 1, 1, 0]]);
    assert!(matches!(next(&rollout(1, now), &two, Soak::default(), now).0, Step::Stop(_)));
    // Neither a pause nor a freeze hides it, and the way back is open.
    let aborts = rollout_with(0, "deadline", "on_failure = \"abort\"\ndeadline", now);
    let paused = aborts.after(Action::Pause, mark(now)).unwrap();
    let frozen = Facts { freeze: Some("the sale".to_owned()), ..one };
    let (step, _) = next(&paused, &frozen, Soak::default(), now);
    assert!(matches!(&step, Step::Abort(cause) if cause.agents.len() == 1), "{step:?}");
}

#[test]
fn after_its_deadline_it_is_stopped_with_what_it_waited_for() {
    let now = now();
    let (state, late) = (rollout(0, now), after(now, 24 * 3600));
    let silent = facts(&[[2, 1, 0, 1]]);
    assert!(matches!(next(&state, &silent, Soak::default(), after(now, 24 * 3600 - 1)).0, Step::Stay(_)));
    let (step, _) = next(&state, &silent, Soak::default(), late);
    let Step::Stop(cause) = step else { panic!("{step:?}") };
    assert_eq!(cause.reason, "the deadline has passed: 1 agent is silent, and 0 may be: `agent-0`");
    let paused = state.clone().after(Action::Pause, mark(now)).unwrap();
    assert!(matches!(next(&paused, &silent, Soak::default(), late).0, Step::Stay(_)), "an operator has it in hand");
    let stopped = state.ended(VerdictKind::Stopped, Cause::default(), late.wall);
    assert_eq!(standing(&stopped, &silent, late), "it is stopped");
    let resumed = stopped.after(Action::Resume, mark(late)).unwrap();
    assert!(matches!(next(&resumed, &silent, Soak::default(), after(late, 60)).0, Step::Stay(Standing::Waiting(_))));
}

#[test]
fn after_the_last_stage_for_some_the_version_is_for_all() {
    let now = now();
    let done = facts(&[[2, 2, 0, 0], [2, 2, 0, 0], [2, 2, 0, 0]]);
    assert_eq!(next(&rollout(2, now), &done, Soak::default(), now).0, Step::Promote);
    // A stage that the plan does not have is the last one that it has.
    assert_eq!(next(&rollout(9, now), &done, Soak::default(), now).0, Step::Promote);
}

#[test]
fn a_plan_of_a_later_release_is_not_followed() {
    let now = now();
    let plan = serde_json::json!({"name": "p", "stages": [{"name": "a", "percent": 5, "errors": 1}]});
    let state = State { plan: crate::state::StoredPlan::Later(plan), ..rollout(0, now) };
    let done = facts(&[[2, 2, 0, 0]]);
    assert_eq!(standing(&state, &done, now), "a later release wrote the plan: upgrade this origin");
}
