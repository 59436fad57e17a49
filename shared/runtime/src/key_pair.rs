//! The files of a key pair: the private key of a signer, and the public key for all verifiers.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::secret_file::FORBIDDEN_PERMISSIONS;
use weir_protocol::access_list::key_line;
use weir_protocol::token::{SigningKey, SigningKeyError};

/// The largest file that is read for a private key, in bytes.
const MAX_KEY_FILE_BYTES: u64 = 16 << 10;

/// A file of a key pair cannot be used. Never contains what is in the file.
#[derive(Debug, thiserror::Error)]
pub enum KeyPairError {
    /// It cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why. Part of the message, so not a `source`, which would be printed twice.
        error: io::Error,
    },
    /// Other users can read or change it.
    #[error("{} has mode {mode:04o}: others could read or change it; `chmod 600` it", path.display())]
    Permissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// It holds no Ed25519 key.
    #[error("{} is not a private key: {error}", path.display())]
    Key {
        /// The file.
        path: PathBuf,
        /// Why.
        error: SigningKeyError,
    },
}

/// Reads a private key that nobody else can read or change.
///
/// # Errors
/// It cannot be read, others may read or change it, or it is no Ed25519 key.
pub fn read_private(path: &Path) -> Result<SigningKey, KeyPairError> {
    let failed = |error| KeyPairError::File { path: path.to_owned(), error };
    let file = File::open(path).map_err(failed)?;
    // The mode of the open file: its path may name another one by now.
    let mode = file.metadata().map_err(failed)?.permissions().mode() & 0o7777;
    if mode & FORBIDDEN_PERMISSIONS != 0 {
        return Err(KeyPairError::Permissions { path: path.to_owned(), mode });
    }
    let mut pem = Vec::new();
    file.take(MAX_KEY_FILE_BYTES).read_to_end(&mut pem).map_err(failed)?;
    SigningKey::from_pem(&pem).map_err(|error| KeyPairError::Key { path: path.to_owned(), error })
}

/// Generates a key pair. Writes the private key to a new file that only its owner can read (PKCS#8 in PEM, as for
/// `openssl pkey`), and `<key id> <public key>` to a file of the same name with `.pub` appended. Returns the key and the path
/// of the public file.
///
/// # Errors
/// One of the files exists, or cannot be written. Neither is ever overwritten.
pub fn write(private: &Path) -> Result<(SigningKey, PathBuf), KeyPairError> {
    let mut public = OsString::from(private);
    public.push(".pub");
    let public = PathBuf::from(public);
    let (key, pem) = SigningKey::generate().map_err(|error| KeyPairError::Key { path: private.to_owned(), error })?;
    // The public file comes first: it is no secret if a crash leaves it alone.
    create(&public, 0o644, &(key_line(key.public()) + "\n"))?;
    create(private, 0o600, &pem).inspect_err(|_| {
        let _ = fs::remove_file(&public);
    })?;
    Ok((key, public))
}

/// Writes a new file with this mode. Never overwrites one.
///
/// # Errors
/// The file exists, or cannot be written.
pub fn create(path: &Path, mode: u32, contents: &str) -> Result<(), KeyPairError> {
    let failed = |error: io::Error| {
        let error = match error.kind() {
            ErrorKind::AlreadyExists => io::Error::other("it exists already, and is never overwritten"),
            _ => error,
        };
        KeyPairError::File { path: path.to_owned(), error }
    };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(contents.as_bytes()).and_then(|()| file.sync_all()).map_err(|error| {
        let _ = fs::remove_file(path);
        failed(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_protocol::access_list::AccessList;

    #[test]
    fn a_pair_is_written_once_and_read_back_as_long_as_it_is_secret() {
        let dir = tempfile::tempdir().unwrap();
        let private = dir.path().join("origin.key");
        let (key, public) = write(&private).unwrap();
        assert_eq!(public, dir.path().join("origin.key.pub"));
        let mut list = AccessList::default();
        list.add_key_file(&fs::read_to_string(&public).unwrap()).unwrap();
        assert_eq!(list.keys().collect::<Vec<_>>(), [key.public()]);
        assert_eq!(read_private(&private).unwrap().public(), key.public());

        let pem = fs::read(&private).unwrap();
        for taken in [&private, &public] {
            let other = if *taken == private { &public } else { &private };
            fs::rename(other, dir.path().join("aside")).unwrap();
            let error = write(&private).unwrap_err().to_string();
            assert!(error.contains("exists already"), "{error}");
            assert!(!other.exists(), "nothing is left of an incomplete pair");
            fs::rename(dir.path().join("aside"), other).unwrap();
        }
        assert_eq!(fs::read(&private).unwrap(), pem);

        for (mode, usable) in
            [(0o600, true), (0o400, true), (0o440, true), (0o644, false), (0o660, false), (0o601, false)]
        {
            fs::set_permissions(&private, fs::Permissions::from_mode(mode)).unwrap();
            let read = read_private(&private);
            assert_eq!(read.is_ok(), usable, "{mode:o}: {read:?}");
        }
        let error = read_private(&dir.path().join("none")).unwrap_err().to_string();
        assert!(error.contains("none"), "{error}");
        fs::set_permissions(&public, fs::Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(read_private(&public), Err(KeyPairError::Key { .. })));
    }
}
