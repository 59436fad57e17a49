//! What is configured of sources, with the checks of the keys: `[[repository]]`, `[[service]]` and `[upstreams]`.

mod part;
mod repository;
mod repository_validation;
mod service;
mod upstreams;
mod verify;

pub use part::PartConfig;
pub use repository::RepositoryConfig;
pub use service::ServiceConfig;
pub use upstreams::{DefinedBy, UpstreamsConfig};
pub use verify::{SignedBy, VerifyConfig};
