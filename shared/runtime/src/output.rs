//! Prints the output of commands.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line to standard output. A closed pipe (`… | head`) is not an error.
///
/// # Errors
/// The line cannot be written, for example to a full disk.
pub fn print(line: impl Display) -> io::Result<()> {
    ignore_broken_pipe(writeln!(io::stdout(), "{line}"))
}

fn ignore_broken_pipe(written: io::Result<()>) -> io::Result<()> {
    written.or_else(|error| if error.kind() == io::ErrorKind::BrokenPipe { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_closed_pipe_is_no_error_and_a_full_disk_is_one() {
        assert!(ignore_broken_pipe(Err(io::ErrorKind::BrokenPipe.into())).is_ok());
        assert!(ignore_broken_pipe(Err(io::ErrorKind::StorageFull.into())).is_err());
    }
}
