//! Secrets in files. They are read for each poll, and never shown.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use super::error::UpstreamError;

/// The longest password or token, in bytes.
const MAX_BYTES: u64 = 64 << 10;

/// Reads the secret in a file, without the end of its line. `what` is the configuration key of the file.
///
/// # Errors
/// The file cannot be read, is empty, or contains characters that a header must not have.
pub(crate) fn read(file: &Path, what: &'static str) -> Result<String, UpstreamError> {
    let wrong = |why: &str| UpstreamError::file(what, file, why);
    let mut secret = String::new();
    let read = File::open(file).and_then(|file| file.take(MAX_BYTES).read_to_string(&mut secret));
    read.map_err(UpstreamError::unread(what, file))?;
    let secret = secret.strip_suffix('\n').map_or(&*secret, |line| line.strip_suffix('\r').unwrap_or(line));
    if secret.trim().is_empty() {
        return Err(wrong("is empty"));
    }
    match secret.chars().find(|c| c.is_control()) {
        None => Ok(secret.to_owned()),
        Some('\n' | '\r') => Err(wrong("contains more than one line")),
        Some('\t') => Err(wrong("contains a tab")),
        Some('\0') => Err(wrong("contains a NUL byte")),
        Some(_) => Err(wrong("contains a control character")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_one_line_and_errors_show_neither_it_nor_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("password");
        let put = |contents: &str| {
            std::fs::write(&file, contents).unwrap();
            read(&file, "password_file").map_err(|error| error.to_string())
        };
        for (contents, secret) in [("s3cret", "s3cret"), ("s3cret\n", "s3cret"), (" s3 cret \r\n", " s3 cret ")] {
            assert_eq!(put(contents).unwrap(), secret);
        }
        for (contents, reason) in [
            ("s3cret\n\n", "more than one line"),
            ("s3\tcret", "a tab"),
            ("s3\0cret\n", "a NUL byte"),
            ("s3\u{1b}", "a control"),
        ] {
            let error = put(contents).unwrap_err();
            assert!(error.contains(&format!("contains {reason}")) && !error.contains("s3"), "{error}");
        }
        assert!(put(" \n").unwrap_err().contains("`password_file` names is empty"));
        let error = put("s3cret\nmore").unwrap_err();
        assert!(error.contains("more than one line") && !error.contains("s3cret"), "{error}");
        std::fs::remove_file(&file).unwrap();
        let error = read(&file, "token_file").unwrap_err();
        assert_eq!((error.kind(), error.step()), ("local", "connect"), "no upstream has refused anything");
        let expected =
            "the file `password` that `token_file` names cannot be read: No such file or directory (os error 2)";
        assert_eq!(error.to_string(), expected);
    }
}
