//! A directory that a configuration names and that a program makes when it starts.

use std::fs;
use std::path::Path;

/// Whether a path is a directory, or one can be made there as far as can be seen.
///
/// # Errors
/// What stands in the way, and where.
pub fn can_be_a_directory(path: &Path) -> Result<(), String> {
    for path in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => return Ok(()),
            Ok(_) => return Err(format!("{} is no directory", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(())
}
