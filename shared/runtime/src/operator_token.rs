//! The operator's token: a secret in a file, read anew for each request, so that a changed one counts at once.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use http::{HeaderMap, header};

/// The shortest token that is taken, in bytes.
const MIN_TOKEN_BYTES: usize = 16;

/// The longest token, in bytes: as much as fits in a header with ease.
const MAX_TOKEN_BYTES: u64 = 4096;

/// Where the token stands.
#[derive(Debug)]
pub struct OperatorToken {
    file: PathBuf,
}

/// The token's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file system says no.
    #[error("operator_token_file {} cannot be read: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        reason: io::Error,
    },
    /// What stands in it is no token.
    #[error(
        "operator_token_file {} must hold one line of {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} visible ASCII characters",
        path.display()
    )]
    Unusable {
        /// The file.
        path: PathBuf,
    },
}

/// A request is not an operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// The token is missing, or another one.
    #[error("the operator token is missing or wrong")]
    Unauthorized,
    /// The token's file cannot be used any more; the log says why.
    #[error("the operator token cannot be read")]
    Unusable,
}

impl OperatorToken {
    /// The token of a file.
    ///
    /// # Errors
    /// The file cannot be read, or holds no token.
    pub fn open(file: &Path) -> Result<Self, TokenError> {
        read(file)?;
        Ok(Self { file: file.to_owned() })
    }

    /// Checks that a request shows the token.
    ///
    /// # Errors
    /// It shows none or another one, or the file cannot be used any more.
    pub async fn admits(&self, headers: &HeaderMap) -> Result<(), NotAdmitted> {
        let file = self.file.clone();
        let token = tokio::task::spawn_blocking(move || read(&file)).await.map_err(|_| NotAdmitted::Unusable)?;
        let token = token.map_err(|error| {
            tracing::error!(%error, "operators are refused");
            NotAdmitted::Unusable
        })?;
        let shown = headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()));
        // Hashes are compared in constant time, and tell nothing of where two tokens begin to differ.
        let same = shown.is_some_and(|shown| blake3::hash(shown) == blake3::hash(token.as_bytes()));
        same.then_some(()).ok_or(NotAdmitted::Unauthorized)
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

fn read(path: &Path) -> Result<String, TokenError> {
    let mut text = String::new();
    let limited = File::open(path).and_then(|file| file.take(MAX_TOKEN_BYTES + 2).read_to_string(&mut text));
    limited.map_err(|reason| TokenError::Io { path: path.to_owned(), reason })?;
    let token = text.trim_ascii();
    let visible = token.bytes().all(|b| b.is_ascii_graphic());
    if !visible || token.len() < MIN_TOKEN_BYTES || token.len() as u64 > MAX_TOKEN_BYTES {
        return Err(TokenError::Unusable { path: path.to_owned() });
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_taken_whole_and_a_changed_one_counts_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        for wrong in ["", "too short", "fifteen-bytes-1", "sixteen bytes and spaces", "two-lines-of-text\nof-it"] {
            write(wrong);
            assert!(OperatorToken::open(&path).is_err(), "{wrong:?}");
        }
        write(&format!("{}\n", "x".repeat(5000)));
        assert!(OperatorToken::open(&path).is_err());
        write("0123456789abcdef\n");
        let token = OperatorToken::open(&path).unwrap();
        let admits = async |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            token.admits(&headers).await.is_ok()
        };
        assert!(admits("Bearer 0123456789abcdef").await && admits("bearer 0123456789abcdef").await);
        for wrong in ["", "Bearer", "Bearer ", "0123456789abcdef", "Basic 0123456789abcdef", "Bearer 0123456789abcdeF"]
        {
            assert!(!admits(wrong).await, "{wrong}");
        }
        assert!(token.admits(&HeaderMap::new()).await.is_err());
        write("fedcba9876543210");
        assert!(!admits("Bearer 0123456789abcdef").await && admits("Bearer fedcba9876543210").await);
        std::fs::remove_file(&path).unwrap();
        assert!(!admits("Bearer fedcba9876543210").await);
    }
}
