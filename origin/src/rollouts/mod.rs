//! Rollouts by plans. The owner of a repository decides every few seconds what follows for what plans stage in it
//! ([`driver`]), from what edges report of agents ([`facts`]), and operators are shown the same ([`answer`]).

mod answer;
mod driver;
mod facts;
mod metrics;
mod state_name;
mod steps;

pub(crate) use self::answer::{describe, summary};
pub(crate) use self::driver::Rollouts;
pub(crate) use self::facts::former_edges;
pub(crate) use self::metrics::RolloutMetrics;
