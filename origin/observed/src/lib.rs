//! What every agent runs of every service, since when, and what stops it: the last values of all agents, as edges
//! report them. An origin answers from this table. Pure: no I/O, and the caller passes the time.

mod agent;
mod bounds;
mod compact;
mod delivered;
mod edge;
mod edges;
mod filter;
mod gauges;
mod names;
mod pool;
mod query;
mod refused;
mod reporter;
mod service;
mod summary;
mod table;
mod words;

pub use self::agent::State;
pub use self::bounds::{AGENT_SILENT_AFTER, Bounds, MAX_EDGES, MAX_REFUSED_NAMES};
pub use self::compact::Release;
pub use self::delivered::{Delivered, Stage};
pub use self::edge::{EDGE_FORGOTTEN_AFTER, EDGE_SILENT_AFTER, Rejected};
pub use self::edges::{EdgeState, EdgeView};
pub use self::filter::{AgentFilter, Lacks, LacksBy, ProblemFilter, RowFilter, Verdict};
pub use self::gauges::{Gauges, MAX_PROBLEM_SERVICES};
pub use self::names::{LastSeen, Names};
pub use self::query::{AgentView, Answer, Incomplete, RowView};
pub use self::reporter::Reporter;
pub use self::summary::{By, Group, Key};
pub use self::table::{AGENT_FORGOTTEN_AFTER, Now, Table, Taken};
pub use self::words::{PHASES, PROBLEMS};
