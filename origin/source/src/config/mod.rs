//! What is configured of services, with the checks of the keys: `[[service]]`.

mod part;
mod service;

pub use part::PartConfig;
pub use service::ServiceConfig;
