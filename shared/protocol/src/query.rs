//! Query strings of the operator APIs: `key=value`, joined by `&`, without percent-encoding.

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
pub fn pairs(query: &str) -> impl Iterator<Item = (&str, &str)> {
    let members = query.split('&').filter(|member| !member.is_empty());
    members.map(|member| member.split_once('=').unwrap_or((member, "")))
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
        assert_eq!(pairs("a=1&b=&c&&d=2=3").collect::<Vec<_>>(), [("a", "1"), ("b", ""), ("c", ""), ("d", "2=3")]);
        assert_eq!(pairs("").count(), 0);
        assert_eq!(parsed::<u32>("limit", "5"), Ok(5));
        assert!(parsed::<u32>("limit", "x").unwrap_err().to_string().starts_with("`limit`: "));
    }
}
