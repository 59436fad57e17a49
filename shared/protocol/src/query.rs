//! The queries of operators' requests: `key=value`, joined by `&`. No value of theirs needs percent-encoding.

use std::fmt::Display;
use std::str::FromStr;

/// A query that cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}.")]
pub struct QueryError(String);

impl QueryError {
    /// A query that is wrong, in words without the last full stop.
    pub fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }

    /// A key that is none of those that are `known`.
    pub fn unknown(key: &str, known: &str) -> Self {
        Self(format!("the query names `{}`, which is not known here: there are {known}", key.escape_default()))
    }
}

/// The pairs of a query.
pub fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let members = query.split('&').filter(|member| !member.is_empty());
    members.map(|member| member.split_once('=').unwrap_or((member, "")))
}

/// The value of a key.
///
/// # Errors
/// It is not what the key takes.
pub fn parsed<T: FromStr<Err: Display>>(key: &str, value: &str) -> Result<T, QueryError> {
    value.parse().map_err(|error| QueryError(format!("`{key}`: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_and_what_is_wrong_is_named() {
        assert_eq!(pairs("a=1&b=&c&&d=2=3").collect::<Vec<_>>(), [("a", "1"), ("b", ""), ("c", ""), ("d", "2=3")]);
        assert_eq!(pairs("").count(), 0);
        assert_eq!(parsed::<u32>("limit", "5"), Ok(5));
        assert!(parsed::<u32>("limit", "x").unwrap_err().to_string().starts_with("`limit`: "));
    }
}
