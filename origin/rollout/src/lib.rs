//! Staged rollouts: when the next stage begins, and what stops it.
//!
//! A [`Plan`] says which agents get a staged version one after the other. What agents run becomes [`Counts`], and [`next`]
//! says what follows from them. A crate that does no I/O, with time as an argument.
//!
//! - It never goes more than one stage ahead.
//! - It never goes ahead on silence: of an agent, of an edge, or of a stage that has no agents.
//! - What stops it is named, with the agents.

mod action;
mod counts;
mod decision;
mod freeze;
mod period;
mod plan;
#[cfg(test)]
mod simulation;
mod state;
mod tip;
mod window;

pub use self::action::{Action, ActionError};
pub use self::counts::{AgentProblem, AgentRow, Counts, MAX_NAMED, Named, ServiceRow, StageCount, Tally, Target};
pub use self::decision::{Facts, Now, Progress, Reason, Soak, Standing, Step, next};
pub use self::freeze::{Freeze, MAX_PATTERNS};
pub use self::plan::{MAX_STAGES, MAX_WINDOWS, OnFailure, Plan, PlanError, Stage};
pub use self::state::{Approval, Cause, Mark, State, StoredPlan, Verdict, VerdictKind};
pub use self::tip::{Contents, Staged, TipStep, on_tip};
pub use self::window::{Window, WindowError};
