//! A new database comes under its name when it is one: a process that is killed while it makes it, or a disk that is full,
//! must leave nothing that would be taken for a database which lost everything.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use redb::Database;

use super::DatabaseError;

/// Makes a new database where there is no file.
pub(super) fn create(path: &Path) -> Result<Database, DatabaseError> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let new = PathBuf::from(new);
    match fs::remove_file(&new) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let database = Database::create(&new)?;
    fs::rename(&new, path)?;
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()?;
    Ok(database)
}
