//! A simulator: agents get a staged version by a plan, in virtual time, while they die, fail and come back, edges go missing,
//! operators act, and the owner moves. What the rollout does is compared with what is really so.

mod check;
mod run;
mod world;

use weir_protocol::descriptor::Generation;

/// The generation in force at first, and the staged one. An abort publishes the next.
const A: Generation = 10;
const B: Generation = 20;
const AGAIN: Generation = 30;

/// What happens between two decisions.
#[derive(Debug, Clone, Copy)]
enum Event {
    /// Seconds pass.
    Wait(u64),
    /// The agent is not heard any more.
    Dies(usize),
    Returns(usize),
    /// The staged version fails there, now or once it arrives.
    Breaks(usize),
    Works(usize),
    Pins(usize),
    Unpins(usize),
    /// The rows of its agents stay as they are.
    EdgeGone(usize),
    EdgeBack(usize),
    /// All that the owner has in memory is lost.
    OwnerMoves,
    Pause,
    Resume,
    Approve,
    Freeze,
    Thaw,
}

/// A mistake around the decision, which the simulator must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mutant {
    /// It is not said that edges are missing.
    EdgesIgnored,
    /// Silent agents are left out.
    SilenceIgnored,
    /// A new owner goes on with the time of the one before.
    TimeKept,
    /// The stage after the one that begins is written.
    StageSkipped,
    /// An abort leaves the version in force as it is.
    AbortForgotten,
}
