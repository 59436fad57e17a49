//! Releases on disk: unpacked beside, switched to atomically, compared, pruned.
//!
//! ```text
//! root/<service>/current            symlink to releases/<name>: what readers follow
//!                releases/<name>    complete and verified, whenever it has this name
//!                releases/.…        being unpacked or removed; removed at the next start
//!                incoming/          tarballs on their way in
//!                state              what the agent remembers
//! ```

mod beneath;
mod compare;
mod directory;
mod error;
mod lock;
mod name;
mod prune;
mod state;
mod state_file;
mod switch;
mod tar_reader;
mod tree;
mod unpack;

pub(crate) use directory::ServiceDirectory;
pub(crate) use error::ReleaseError;
pub(crate) use lock::RootLock;
pub use name::{ReleaseName, ReleaseNameError};
pub(crate) use state::{HookJob, Record, State};
pub(crate) use tar_reader::TarError;
pub(crate) use unpack::Limits;
