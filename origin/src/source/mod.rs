//! The kinds of sources: what each makes of what it mirrors, so that tarballs can be built of it.

pub mod git;
