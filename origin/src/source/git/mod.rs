//! Git repositories.

pub mod tree;
