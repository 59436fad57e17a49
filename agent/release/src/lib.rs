//! A directory that is always one complete, verified release: unpacked beside, switched atomically, compared, pruned. Begin
//! at [`ServiceDirectory`].
//!
//! The crate knows files, digests and names. It knows no edge, no configuration and no clock: who calls it brings the verified
//! tarball, and the time.
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
mod file_system_sync;
mod frames_file;
mod generation;
mod hook_runs;
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
mod unchanged;
mod unpack;
mod writers;

pub use changes::Changes;
pub use directory::{Created, ReleaseOptions, Restored, ServiceDirectory};
pub use error::ReleaseError;
pub use generation::highest_credible;
pub use kept::KeptReleases;
pub use layout::RELEASES;
pub use lock::RootLock;
pub use modes::Modes;
pub use name::{ReleaseName, ReleaseNameError};
pub use pins::{Pin, Pins, read_pins, remove_pin, write_pin};
pub use rebuild::digest_of;
pub use state::{HookJob, ReleaseRecord, State};
pub use tar_reader::TarError;
pub use tar_record::TarRecord;
pub use tree::remove_tree;
pub use unchanged::Unchanged;
pub use unpack::Limits;
