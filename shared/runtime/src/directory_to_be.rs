//! A directory that a configuration names and that a program makes when it starts.

use std::fs;
use std::path::Path;

use rustix::fs::Access;

/// Whether a path is a directory that can be written, or one can be made there, as far as can be seen.
///
/// # Errors
/// What stands in the way, and where.
pub fn can_be_a_directory(path: &Path) -> Result<(), String> {
    for path in path.ancestors() {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => {
                let written = rustix::fs::access(path, Access::WRITE_OK | Access::EXEC_OK);
                let cannot = |error| format!("{} cannot be written: {}", path.display(), std::io::Error::from(error));
                return written.map_err(cannot);
            }
            Ok(_) => return Err(format!("{} is no directory", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{}: {error}", path.display())),
        }
    }
    Ok(())
}
