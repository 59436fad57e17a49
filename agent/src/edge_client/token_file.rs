//! The agent's bearer token: a file that is read for each request, so that a rotated token takes effect at once.

use std::path::{Path, PathBuf};

use http::HeaderValue;
use tokio::fs::File;
use tokio::io::AsyncReadExt;
use weir_protocol::token::{MAX_TOKEN_BYTES, UnixSeconds, unverified_expiry};

use super::error::RequestError;

/// The largest file that is read, in bytes: the longest token with white space around it.
const MAX_FILE_BYTES: usize = MAX_TOKEN_BYTES + 256;

/// The last end that is shown: the year 10000.
const MAX_END: UnixSeconds = 253_402_300_800;

#[derive(Debug, Clone)]
pub(super) struct TokenFile(PathBuf);

impl TokenFile {
    pub(super) fn new(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// The value of `Authorization`, and when the token ends, if it is of a known form. Errors do not contain the contents of
    /// the file.
    ///
    /// # Errors
    /// The file cannot be read, or does not contain a token.
    pub(super) async fn authorization(&self) -> Result<(HeaderValue, Option<UnixSeconds>), RequestError> {
        let wrong = |why: &str| RequestError::Token(format!("the token file {}: {why}", self.0.display()));
        let mut bytes = Vec::new();
        let read = async {
            let file = File::open(&self.0).await?;
            file.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes).await
        };
        read.await.map_err(|error| wrong(&error.to_string()))?;
        if bytes.len() > MAX_FILE_BYTES {
            return Err(wrong("it is longer than any token"));
        }
        let token = std::str::from_utf8(&bytes).unwrap_or_default().trim();
        if token.is_empty() || !token.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong("it contains no token: expected one line, as `weir token issue` writes it"));
        }
        let mut value = HeaderValue::try_from(format!("Bearer {token}")).expect("visible ASCII");
        // Keeps it out of logs and of HPACK and QPACK tables.
        value.set_sensitive(true);
        Ok((value, unverified_expiry(token).filter(|ends| *ends <= MAX_END)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_is_one_line_and_errors_do_not_contain_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("token");
        let file = TokenFile::new(&path);
        let error = file.authorization().await.unwrap_err().to_string();
        assert!(error.contains("token") && error.contains("No such file"), "{error}");
        std::fs::write(&path, " a.b.c\r\n").unwrap();
        let (value, ends) = file.authorization().await.unwrap();
        assert_eq!(ends, None);
        assert_eq!(value, "Bearer a.b.c");
        assert!(!format!("{value:?}").contains("a.b.c"), "{value:?}");
        for wrong in ["", " \n", "secret two", "secret\nsecret", "s\u{e9}cret", &"s".repeat(MAX_FILE_BYTES + 1)] {
            std::fs::write(&path, wrong).unwrap();
            let error = file.authorization().await.unwrap_err().to_string();
            assert!(error.contains("the token file") && !error.contains("secret"), "{error}");
        }
    }
}
