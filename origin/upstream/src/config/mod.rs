//! What is configured of upstreams, with the checks of the keys: `[[repository]]` and `[upstreams]`.

mod repository;
mod repository_validation;
mod upstreams;
mod verify;

pub use repository::{DefinedBy, RepositoryConfig};
pub use upstreams::{DEFAULT_MAX_OBJECT, UpstreamsConfig};
pub use verify::{SignedBy, VerifyConfig};
