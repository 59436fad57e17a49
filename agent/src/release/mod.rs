//! Releases on disk: unpacked, switched atomically, compared, pruned.
//!
//! ```text
//! root/<service>/current            symlink to releases/<name>
//!                releases/<name>    a complete and verified release
//!                releases/.…        being unpacked or removed; deleted at the next start
//!                incoming/          incoming tarballs
//!                state              persistent state of the agent
//!                frames             the frames of the last tarball that was composed of frames
//! root/.pins/<service>              the digest at which a service stays
//! ```

mod changes;
mod compare;
mod confined_dir;
mod directory;
mod error;
mod frames_file;
mod kept;
mod layout;
mod lock;
mod modes;
mod name;
mod pins;
mod prune;
mod rebuild;
mod state;
mod state_file;
mod switch;
mod tar_reader;
mod tar_record;
mod tree;
mod unpack;

pub(crate) use changes::Changes;
pub(crate) use directory::{Restored, ServiceDirectory};
pub(crate) use error::ReleaseError;
pub(crate) use kept::KeptReleases;
pub(crate) use layout::RELEASES;
pub(crate) use lock::RootLock;
pub(crate) use modes::Modes;
pub use name::{ReleaseName, ReleaseNameError};
pub(crate) use pins::{Pin, Pins, read_pins, remove_pin, write_pin};
pub(crate) use state::{HookJob, ReleaseRecord, State};
pub(crate) use tar_reader::TarError;
pub(crate) use tar_record::TarRecord;
pub(crate) use tree::remove_tree;
pub(crate) use unpack::Limits;
