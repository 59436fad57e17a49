//! The files of tokens and keys, read and written so that a secret stays one.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write, stdin};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use anyhow::{Context, bail};
use weir_shared::access_list::AccessList;
use weir_shared::token::{MAX_TOKEN_BYTES, UnverifiedToken};

/// Writes a new file that its owner alone may read, and never over one that is there.
pub(super) fn create_secret(path: &Path, contents: &str) -> anyhow::Result<()> {
    let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = match opened {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} is there already, and is not written over", path.display())
        }
        opened => opened.with_context(|| format!("cannot write {}", path.display()))?,
    };
    file.write_all(contents.as_bytes()).and_then(|()| file.sync_all()).with_context(|| {
        let _ = fs::remove_file(path);
        format!("cannot write {}", path.display())
    })
}

/// A token from standard input (`-`), from a file of that name, or as it was given.
///
/// # Errors
/// There is no such file, or it cannot be read, and what was given is no token itself.
pub(super) fn token(given: &str) -> anyhow::Result<String> {
    let mut text = String::new();
    if given == "-" {
        stdin().take(2 * MAX_TOKEN_BYTES as u64).read_to_string(&mut text).context("cannot read standard input")?;
    } else {
        match fs::File::open(given) {
            Ok(file) => {
                file.take(2 * MAX_TOKEN_BYTES as u64)
                    .read_to_string(&mut text)
                    .with_context(|| format!("cannot read {given}"))?;
            }
            Err(_) if UnverifiedToken::parse(given).is_ok() => text = given.to_owned(),
            Err(error) => return Err(error).with_context(|| format!("cannot read {given}")),
        }
    }
    Ok(text.trim().to_owned())
}

/// The keys of public key files.
pub(super) fn keys(paths: &[std::path::PathBuf]) -> anyhow::Result<AccessList> {
    let mut list = AccessList::default();
    for path in paths {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        list.add_key_file(&text).with_context(|| format!("{} is no file of public keys", path.display()))?;
    }
    Ok(list)
}
