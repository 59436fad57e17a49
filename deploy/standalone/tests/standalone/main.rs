//! The binary `weir`, as a new user runs it; and the example configurations, as the binaries read them.

mod certificates;
mod client;
mod examples;
mod help;
mod hub;
mod rollout;
mod token;
mod trial;
mod tutorial;
mod up;
