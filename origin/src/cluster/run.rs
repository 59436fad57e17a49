//! The number of a run, in the data directory. A restarted origin knows by it that the session before has ended, and need
//! not wait until the other members know.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;

use weir_runtime::durable_file;

const FILE: &str = "cluster-run";

/// This run and the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) number: u64,
    pub(super) ended: Option<u64>,
}

/// Begins a run: stores a new number. The caller holds the lock of the data directory.
///
/// # Errors
/// The number cannot be read or made durable.
pub(super) fn begin(data_dir: &Path) -> io::Result<Run> {
    let file = data_dir.join(FILE);
    let ended = match fs::read_to_string(&file) {
        // A number that cannot be read costs a wait until its session ends.
        Ok(text) => u64::from_str_radix(text.trim_end(), 16).ok(),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    let number = fastrand::u64(..);
    durable_file::replace(&file, format!("{number:016x}\n").as_bytes())?;
    Ok(Run { number, ended })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_knows_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let first = begin(dir.path()).unwrap();
        assert_eq!(first.ended, None);
        let second = begin(dir.path()).unwrap();
        assert_eq!(second.ended, Some(first.number));
        assert_ne!(second.number, first.number);
        fs::write(dir.path().join(FILE), "damaged").unwrap();
        assert_eq!(begin(dir.path()).unwrap().ended, None);
    }
}
