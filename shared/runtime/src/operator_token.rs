//! A token of operators or of Prometheus: a secret in a file that is read for each request, so that a new token is in force at
//! once.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use http::{HeaderMap, header};

/// The minimum length of a token, in bytes.
const MIN_TOKEN_BYTES: usize = 16;

/// The maximum length of a token, in bytes: it easily fits in a header.
const MAX_TOKEN_BYTES: u64 = 4096;

/// The key that names the file of the operators' token.
pub const OPERATOR_TOKEN: &str = "operator_token_file";

/// The file of the token.
#[derive(Debug)]
pub struct OperatorToken {
    key: &'static str,
    file: PathBuf,
}

/// The token's file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The file cannot be read.
    #[error("{key} {} cannot be read: {reason}", path.display())]
    Io {
        /// What names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the file system.
        reason: io::Error,
    },
    /// It holds no valid token.
    #[error(
        "{key} {} must hold one line of {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} visible ASCII characters",
        path.display()
    )]
    Unusable {
        /// What names the file.
        key: &'static str,
        /// The file.
        path: PathBuf,
    },
}

/// A request is not authorized as an operator's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// No token is presented.
    #[error("the token is missing")]
    Missing,
    /// Another token is presented.
    #[error("the token is wrong")]
    Wrong,
    /// The token's file cannot be used; the log says why.
    #[error("the operator token cannot be read")]
    Unusable,
}

impl OperatorToken {
    /// Opens the token of a file, which this key of the configuration names.
    ///
    /// # Errors
    /// The file cannot be read, or holds no valid token.
    pub fn open(key: &'static str, file: &Path) -> Result<Self, TokenError> {
        read(key, file)?;
        Ok(Self { key, file: file.to_owned() })
    }

    /// Checks that a request presents the token.
    ///
    /// # Errors
    /// It presents none or a wrong one, or the file cannot be used.
    pub async fn admits(&self, headers: &HeaderMap) -> Result<(), NotAdmitted> {
        let (key, file) = (self.key, self.file.clone());
        let token = tokio::task::spawn_blocking(move || read(key, &file)).await.map_err(|_| NotAdmitted::Unusable)?;
        let token = token.map_err(|error| {
            tracing::error!(%error, "requests that need this token are rejected");
            NotAdmitted::Unusable
        })?;
        let presented = presented(headers).ok_or(NotAdmitted::Missing)?;
        // Hashes are compared in constant time, so that timing reveals nothing about the token.
        let same = blake3::hash(presented) == blake3::hash(token.as_bytes());
        same.then_some(()).ok_or(NotAdmitted::Wrong)
    }
}

/// The token that a request presents.
pub fn presented(headers: &HeaderMap) -> Option<&[u8]> {
    headers.get(header::AUTHORIZATION).and_then(|value| bearer(value.as_bytes()))
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(b"Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token.trim_ascii())
}

fn read(key: &'static str, path: &Path) -> Result<String, TokenError> {
    let mut text = String::new();
    let limited = File::open(path).and_then(|file| file.take(MAX_TOKEN_BYTES + 2).read_to_string(&mut text));
    limited.map_err(|reason| TokenError::Io { key, path: path.to_owned(), reason })?;
    let token = text.trim_ascii();
    let visible = token.bytes().all(|b| b.is_ascii_graphic());
    if !visible || token.len() < MIN_TOKEN_BYTES || token.len() as u64 > MAX_TOKEN_BYTES {
        return Err(TokenError::Unusable { key, path: path.to_owned() });
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_must_match_and_a_new_one_is_in_force_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let write = |text: &str| std::fs::write(&path, text).unwrap();
        for wrong in ["", "too short", "fifteen-bytes-1", "sixteen bytes and spaces", "two-lines-of-text\nof-it"] {
            write(wrong);
            assert!(OperatorToken::open(OPERATOR_TOKEN, &path).is_err(), "{wrong:?}");
        }
        write(&format!("{}\n", "x".repeat(5000)));
        assert!(OperatorToken::open(OPERATOR_TOKEN, &path).is_err());
        write("0123456789abcdef\n");
        let token = OperatorToken::open(OPERATOR_TOKEN, &path).unwrap();
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
        assert_eq!(token.admits(&HeaderMap::new()).await, Err(NotAdmitted::Missing));
        write("fedcba9876543210");
        assert!(!admits("Bearer 0123456789abcdef").await && admits("Bearer fedcba9876543210").await);
        std::fs::remove_file(&path).unwrap();
        assert!(!admits("Bearer fedcba9876543210").await);
    }
}
