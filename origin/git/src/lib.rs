//! Git: a mirror that follows an upstream, and what is read from it. Begin at [`MirrorHandle`], which opens a
//! [`Mirror`](mirror::Mirror) and replaces a damaged one.
//!
//! [`mirror`] lists refs, fetches and repacks. [`revision`] resolves what is followed to a commit, [`commit_policy`] verifies
//! its signatures, and [`tree`] reads tarball contents from it. [`lfs`] stores the files that stand outside of it, and
//! [`bundles`] moves a mirror to another origin. `ref_watch` notices moved refs of a repository on this machine.
//!
//! The crate knows how an upstream is reached (`weir-upstream`) and how tarballs are made of contents (`weir-tarball`). It
//! knows no service: what services follow, and when something is fetched or built, is up to `weir-source`.

pub mod bundles;
mod commit;
pub mod commit_policy;
pub mod lfs;
pub mod mirror;
mod mirror_handle;
#[cfg(target_os = "linux")]
pub mod ref_watch;
pub mod revision;
pub mod tree;

pub use mirror_handle::{MirrorForPoll, MirrorHandle};
