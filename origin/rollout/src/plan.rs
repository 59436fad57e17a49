//! Plans: which agents get a staged version one after the other, and when.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_protocol::labels::Labels;
use weir_protocol::name::{RolloutName, StageName};
use weir_protocol::name_glob::NameGlob;
use weir_protocol::staged::{AgentSelector, Audience};

use crate::period;
use crate::window::Window;

/// The most stages of a plan.
pub const MAX_STAGES: usize = 20;

/// The most windows of a plan.
pub const MAX_WINDOWS: usize = 20;

/// The longest `for` of a stage, and the longest `deadline`.
const MAX_PERIOD: Duration = Duration::from_secs(90 * 24 * 3600);

/// Which agents get a version one after the other, and when. The last stage is for all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Unchecked")]
pub struct Plan {
    /// Name of the plan. Services name it.
    name: RolloutName,
    /// The stages one after the other, 2 to 20.
    stages: Vec<Stage>,
    /// When stages may begin, in UTC: `mon-thu 08:00-16:00 UTC`. One that runs may finish outside of them. At most 20.
    /// Default: always.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    windows: Vec<Window>,
    /// After this time since the first stage began, or since an operator resumed it, the rollout stops. Longer than all `for`
    /// together, and at most 90 days. Default: none.
    #[serde(default, with = "period::optional", skip_serializing_if = "Option::is_none")]
    deadline: Option<Duration>,
    /// What happens when more agents fail than may. Default: `"stop"`.
    #[serde(default, skip_serializing_if = "OnFailure::is_stop")]
    on_failure: OnFailure,
    /// Stage a newer commit at once, from the first stage. Otherwise it waits.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    replace: bool,
}

/// A stage: more agents that get the version. It refuses unknown keys: one may be a condition of a later version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stage {
    /// Name of the stage.
    pub name: StageName,
    /// Pattern of agents' names. With `labels` too, both must match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agents: Option<NameGlob>,
    /// Labels that an agent must have, with these values.
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    pub labels: Labels,
    /// Part of all agents, 1 to 100. Larger than in the stages before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent: Option<u8>,
    /// How long all agents so far must run the version before the next stage begins. Default: not at all.
    #[serde(default, rename = "for", with = "period", skip_serializing_if = "Duration::is_zero")]
    pub soak: Duration,
    /// How many of the agents so far may fail. Default: as in the stage before, and 0 in the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<usize>,
    /// How many of the agents so far may be silent. Default: as in the stage before, and 0 in the first one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent: Option<usize>,
    /// Whether the stage begins only after an operator has approved it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub approve: bool,
}

/// What follows when too many agents fail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The rollout stops, and the agents so far stay with the version.
    #[default]
    Stop,
    /// They get the version in force again.
    Abort,
}

impl OnFailure {
    fn is_stop(&self) -> bool {
        *self == Self::Stop
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    name: RolloutName,
    stages: Vec<Stage>,
    #[serde(default)]
    windows: Vec<Window>,
    #[serde(default, with = "period::optional")]
    deadline: Option<Duration>,
    #[serde(default)]
    on_failure: OnFailure,
    #[serde(default)]
    replace: bool,
}

/// A plan is not valid.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PlanError {
    /// Too few or too many stages.
    #[error("rollout `{0}` has {1} stages: it needs 2 to {MAX_STAGES}, the last one for all")]
    Stages(RolloutName, usize),
    /// Too many windows.
    #[error("rollout `{0}` has {1} windows, more than {MAX_WINDOWS}: name several days in one, as in `mon-thu`")]
    Windows(RolloutName, usize),
    /// The deadline would always be exceeded, or is too long.
    #[error("rollout `{0}`: its `deadline` must be longer than all `for` together, which is {1}, and at most 90days")]
    Deadline(RolloutName, humantime::FormattedDuration),
    /// A stage is not valid.
    #[error("rollout `{0}`, stage `{1}`: {2}")]
    Stage(RolloutName, StageName, &'static str),
}

impl TryFrom<Unchecked> for Plan {
    type Error = PlanError;

    fn try_from(unchecked: Unchecked) -> Result<Self, PlanError> {
        let Unchecked { name, stages, windows, deadline, on_failure, replace } = unchecked;
        let Some((last, staged)) = stages.split_last().filter(|_| (2..=MAX_STAGES).contains(&stages.len())) else {
            return Err(PlanError::Stages(name, stages.len()));
        };
        if windows.len() > MAX_WINDOWS {
            return Err(PlanError::Windows(name, windows.len()));
        }
        let faults = staged.iter().enumerate().map(|(at, stage)| (stage, fault(stage, &staged[..at])));
        for (stage, fault) in faults.chain([(last, fault_of_last(last, staged))]) {
            if let Some(fault) = fault {
                return Err(PlanError::Stage(name, stage.name.clone(), fault));
            }
        }
        let least = staged.iter().map(|stage| stage.soak).sum();
        if deadline.is_some_and(|deadline| deadline <= least || deadline > MAX_PERIOD) {
            return Err(PlanError::Deadline(name, humantime::format_duration(least)));
        }
        Ok(Self { name, stages, windows, deadline, on_failure, replace })
    }
}

/// What is wrong with a stage for some agents, after others.
fn fault(stage: &Stage, before: &[Stage]) -> Option<&'static str> {
    let names_agents = stage.selector().is_some();
    let largest = before.iter().filter_map(|stage| stage.percent).max();
    if before.iter().any(|other| other.name == stage.name) {
        Some("another stage has this name: choose another one")
    } else if !names_agents && stage.percent.is_none() {
        Some("it names no agents, and only the last stage is for all: set `agents`, `labels` or `percent`")
    } else if names_agents && stage.percent.is_some() {
        Some("`percent` is a part of all agents, not of those with `agents` or `labels`: make two stages of it")
    } else if stage.percent.is_some_and(|percent| !(1..=100).contains(&percent)) {
        Some("`percent` must be 1 to 100")
    } else if stage.percent.is_some_and(|percent| largest.is_some_and(|largest| percent <= largest)) {
        Some("a stage before it has the same `percent` or a larger one: it adds nobody")
    } else if names_agents && before.iter().any(|other| other.selector() == stage.selector()) {
        Some("a stage before it has the same agents: it adds nobody")
    } else if stage.soak > MAX_PERIOD {
        Some("`for` must be at most 90days")
    } else {
        None
    }
}

/// What is wrong with the last stage.
fn fault_of_last(stage: &Stage, before: &[Stage]) -> Option<&'static str> {
    if before.iter().any(|other| other.name == stage.name) {
        Some("another stage has this name: choose another one")
    } else if stage.selector().is_some() || stage.percent.is_some() {
        Some("the last stage is for all: add `{ name = \"all\" }` after it")
    } else if !stage.soak.is_zero() || stage.failures.is_some() || stage.silent.is_some() {
        Some("nothing comes after the last stage: remove its `for`, `failures` and `silent`")
    } else {
        None
    }
}

impl Stage {
    /// The agents that it names. `None`: a part of all, or all.
    pub(crate) fn selector(&self) -> Option<AgentSelector> {
        let selector = AgentSelector { agents: self.agents.clone(), labels: self.labels.clone() };
        (selector.agents.is_some() || !selector.labels.is_empty()).then_some(selector)
    }
}

impl Plan {
    /// Its name.
    pub fn name(&self) -> &RolloutName {
        &self.name
    }

    /// Its stages: at least two, the last one for all.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// The stages for some agents: all but the last.
    pub fn staged(&self) -> &[Stage] {
        &self.stages[..self.stages.len() - 1]
    }

    /// When stages begin. Empty: at any time.
    pub fn windows(&self) -> &[Window] {
        &self.windows
    }

    /// How long after its first stage it stops.
    pub fn deadline(&self) -> Option<Duration> {
        self.deadline
    }

    /// What follows when too many agents fail.
    pub fn on_failure(&self) -> OnFailure {
        self.on_failure
    }

    /// Whether a later commit is staged at once in place of the one that is staged, from the first stage.
    pub fn replaces(&self) -> bool {
        self.replace
    }

    /// Who has the version from a stage on: its agents, and those of all stages before. `None`: all.
    pub fn audience(&self, stage: usize) -> Option<Audience> {
        let so_far = self.staged().get(..=stage)?;
        let selectors = so_far.iter().filter_map(Stage::selector).collect();
        let percent = so_far.iter().filter_map(|stage| stage.percent).max();
        Some(Audience::new(selectors, percent).expect("a stage for some agents names them"))
    }

    /// The agents of each stage for some, without those of the stages before.
    pub fn audiences(&self) -> Vec<Audience> {
        let alone = |stage: &Stage| Audience::new(stage.selector().into_iter().collect(), stage.percent);
        let audiences = self.staged().iter().map(alone).collect::<Result<_, _>>();
        audiences.expect("a stage for some agents names them")
    }

    /// How many of the agents so far may fail.
    pub(crate) fn failures(&self, stage: usize) -> usize {
        last_of(&self.staged()[..=stage], |stage| stage.failures)
    }

    /// How many of the agents so far may be silent.
    pub(crate) fn silent(&self, stage: usize) -> usize {
        last_of(&self.staged()[..=stage], |stage| stage.silent)
    }
}

/// What the last stage says that says something.
fn last_of(stages: &[Stage], of: impl Fn(&Stage) -> Option<usize>) -> usize {
    stages.iter().rev().find_map(of).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the documentation has it.
    const CAREFUL: &str = r#"
        name = "careful"
        stages = [
          { name = "canary", labels = { ring = "canary" }, for = "10m" },
          { name = "early",  labels = { ring = "early" },  for = "30m", failures = 2 },
          { name = "half",   percent = 50, for = "30m", approve = true },
          { name = "all" },
        ]
        windows = ["mon-thu 08:00-16:00 UTC"]
        deadline = "24h"
        on_failure = "stop"
    "#;

    #[test]
    fn a_plan_is_written_in_toml_and_in_json() {
        let plan: Plan = toml::from_str(CAREFUL).unwrap();
        let json = serde_json::to_string(&plan).unwrap();
        assert_eq!(
            json,
            concat!(
                r#"{"name":"careful","stages":[{"name":"canary","labels":{"ring":"canary"},"for":"10m"},"#,
                r#"{"name":"early","labels":{"ring":"early"},"for":"30m","failures":2},"#,
                r#"{"name":"half","percent":50,"for":"30m","approve":true},{"name":"all"}],"#,
                r#""windows":["mon-thu 08:00-16:00 UTC"],"deadline":"1day"}"#
            )
        );
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan);
        assert_eq!(plan.deadline(), Some(Duration::from_secs(24 * 3600)));
        assert_eq!((plan.on_failure(), plan.replaces()), (OnFailure::Stop, false));
    }

    #[test]
    fn audiences_and_what_may_fail_add_up() {
        let plan: Plan = toml::from_str(CAREFUL).unwrap();
        let audiences = [0, 1, 2, 3].map(|stage| serde_json::to_string(&plan.audience(stage)).unwrap());
        let canary = r#"{"labels":{"ring":"canary"}}"#;
        let early = r#"{"labels":{"ring":"early"}}"#;
        assert_eq!(
            audiences,
            [
                format!(r#"{{"for":[{canary}]}}"#),
                format!(r#"{{"for":[{canary},{early}]}}"#),
                format!(r#"{{"for":[{canary},{early}],"percent":50}}"#),
                "null".to_owned()
            ]
        );
        assert_eq!([0, 1, 2].map(|stage| plan.failures(stage)), [0, 2, 2]);
        assert_eq!([0, 1, 2].map(|stage| plan.silent(stage)), [0, 0, 0]);
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_do() {
        let all = "{ name = \"all\" },";
        let many = "{ name = \"all\" },".repeat(MAX_STAGES);
        let windows = vec!["\"mon 08:00-09:00 UTC\""; MAX_WINDOWS + 1].join(",");
        for (from, to, expected) in [
            (all, "", "stage `half`: the last stage is for all: add `{ name = \"all\" }` after it"),
            (all, &*many, "rollout `careful` has 23 stages: it needs 2 to 20"),
            (
                "\"early\",  labels = { ring = \"early\" }",
                "\"early\"",
                "stage `early`: it names no agents, and only the last",
            ),
            ("\"early\" }", "\"canary\" }", "stage `early`: a stage before it has the same agents"),
            ("name = \"early\"", "name = \"canary\"", "stage `canary`: another stage has this name"),
            ("name = \"all\"", "name = \"half\"", "stage `half`: another stage has this name"),
            ("percent = 50", "percent = 50, agents = \"*\"", "stage `half`: `percent` is a part of all agents"),
            ("percent = 50", "percent = 101", "stage `half`: `percent` must be 1 to 100"),
            ("percent = 50", "percent = 0", "stage `half`: `percent` must be 1 to 100"),
            ("labels = { ring = \"early\" }", "percent = 50", "stage `half`: a stage before it has the same `percent`"),
            ("name = \"all\"", "name = \"all\", for = \"1m\"", "stage `all`: nothing comes after the last stage"),
            ("for = \"10m\"", "for = \"91days\"", "stage `canary`: `for` must be at most 90days"),
            ("for = \"10m\"", "for = \"10\"", "`10` is not a period"),
            ("for = \"10m\"", "soak = \"10m\"", "unknown field `soak`"),
            ("\"24h\"", "\"70m\"", "its `deadline` must be longer than all `for` together, which is 1h 10m"),
            ("\"24h\"", "\"91days\"", "and at most 90days"),
            ("\"stop\"", "\"go-on\"", "unknown variant `go-on`"),
            ("\"mon-thu 08:00-16:00 UTC\"", &windows, "has 21 windows, more than 20"),
            ("mon-thu", "mon-foo", "is not a window"),
            ("on_failure", "on_failures", "unknown field `on_failures`"),
            ("\"careful\"", "\"Careful\"", "`Careful` is not a rollout name"),
        ] {
            let changed = CAREFUL.replacen(from, to, 1);
            assert_ne!(changed, CAREFUL, "{from}");
            let error = toml::from_str::<Plan>(&changed).unwrap_err().to_string();
            assert!(error.contains(expected), "{from} → {to}: {error}");
        }
        let alone = "name = \"a\"\nstages = [{ name = \"all\" }]";
        assert!(toml::from_str::<Plan>(alone).unwrap_err().to_string().contains("has 1 stages: it needs 2 to 20"));
    }
}
