//! What a command prints for whoever gave it.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line to standard output. That nobody reads it any more (`… | head`) is no failure.
///
/// # Errors
/// It cannot be written: the disk behind it is full.
pub fn print(line: impl Display) -> io::Result<()> {
    unless_unread(writeln!(io::stdout(), "{line}"))
}

fn unless_unread(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_reads_is_no_failure_and_a_full_disk_is_one() {
        assert!(unless_unread(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(unless_unread(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
