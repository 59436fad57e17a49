//! What decides, without I/O: whether content is new, under which generation it is published, which versions stay, and the
//! next state of a repository.

pub(crate) mod decision;
pub(crate) mod draft;
pub(crate) mod generation;
pub(crate) mod oci_form;
pub(crate) mod pin;
pub(crate) mod renewal;
pub(crate) mod retention;
pub(crate) mod rollout;
pub(crate) mod signer;
pub(crate) mod staging;
pub(crate) mod steps;
