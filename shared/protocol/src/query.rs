//! Query strings: `key=value`, joined by `&`. Values are percent-decoded; `+` stays `+`, because versions have it.

use std::borrow::Cow;
use std::fmt::Display;
use std::str::FromStr;

/// A query string is invalid.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}.")]
pub struct QueryError(String);

impl QueryError {
    /// An error without its final full stop.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// An unknown key; `known` lists the valid ones.
    pub fn unknown(key: &str, known: &str) -> Self {
        Self(format!("the query names `{}`, which is unknown; valid keys are {known}", key.escape_default()))
    }
}

/// The pairs of a query string.
///
/// # Errors
/// A value cannot be decoded.
pub fn pairs(query: &str) -> Result<Vec<(&str, Cow<'_, str>)>, QueryError> {
    let members = query.split('&').filter(|member| !member.is_empty());
    let pairs = members.map(|member| member.split_once('=').unwrap_or((member, "")));
    pairs.map(|(key, value)| Ok((key, decoded(key, value)?))).collect()
}

fn decoded<'a>(key: &str, value: &'a str) -> Result<Cow<'a, str>, QueryError> {
    if !value.contains('%') {
        return Ok(value.into());
    }
    let decode = || {
        let (mut bytes, mut rest) = (Vec::with_capacity(value.len()), value.bytes());
        while let Some(byte) = rest.next() {
            let mut digit = || u8::try_from(char::from(rest.next()?).to_digit(16)?).ok();
            bytes.push(if byte == b'%' { digit()? << 4 | digit()? } else { byte });
        }
        String::from_utf8(bytes).ok()
    };
    let key = key.escape_default();
    let invalid = || {
        QueryError(format!(
            "`{key}`: `%` must be followed by two hexadecimal digits, and the value must be UTF-8; write `%25` for `%`"
        ))
    };
    Ok(decode().ok_or_else(invalid)?.into())
}

/// Parses the value of a key.
///
/// # Errors
/// The value is invalid for the key.
pub fn parsed<T: FromStr<Err: Display>>(key: &str, value: &str) -> Result<T, QueryError> {
    value.parse().map_err(|error| QueryError(format!("`{key}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_parsed_and_errors_name_the_key() {
        let read =
            |query| pairs(query).unwrap().into_iter().map(|(key, value)| format!("{key}: {value}")).collect::<Vec<_>>();
        assert_eq!(read("a=1&b=&c&&d=2=3"), ["a: 1", "b: ", "c: ", "d: 2=3"]);
        assert_eq!(read("a=1.0%2Bb+c&d=%e2%82%AC%26%3D%25"), ["a: 1.0+b+c", "d: €&=%"]);
        assert!(read("").is_empty());
        for wrong in ["a=%", "a=1&a=%2", "a=%2g", "a=%+2", "a=%ff", "a=%E2%82"] {
            assert!(pairs(wrong).unwrap_err().to_string().starts_with("`a`: `%` must be followed by"), "{wrong}");
        }
        assert_eq!(parsed::<u32>("limit", "5"), Ok(5));
        assert!(parsed::<u32>("limit", "x").unwrap_err().to_string().starts_with("`limit`: "));
    }
}
