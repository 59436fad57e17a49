//! Labels of agents.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::plain_text::make_plain;

/// The most labels of an agent.
pub const MAX_LABELS: usize = 32;

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 100;

/// The longest value, in bytes.
pub const MAX_VALUE_BYTES: usize = 100;

/// Keys with values, such as `ring` = `canary`. At most [`MAX_LABELS`].
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, String>")]
pub struct Labels(BTreeMap<String, String>);

/// Labels are not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LabelsError {
    /// More than [`MAX_LABELS`].
    #[error("{0} labels are more than the limit of {MAX_LABELS}: remove some")]
    TooMany(usize),
    /// A key is not valid.
    #[error("`{0}` is not a label's key: 1 to {MAX_KEY_BYTES} of `A-Z`, `a-z`, `0-9`, `.`, `_`, `/`, `-`")]
    Key(String),
    /// A value is not valid.
    #[error("the label `{0}` has a value of more than {MAX_VALUE_BYTES} bytes, or with control characters")]
    Value(String),
}

impl TryFrom<BTreeMap<String, String>> for Labels {
    type Error = LabelsError;

    fn try_from(labels: BTreeMap<String, String>) -> Result<Self, LabelsError> {
        if labels.len() > MAX_LABELS {
            return Err(LabelsError::TooMany(labels.len()));
        }
        for (key, value) in &labels {
            let may_stand = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'/' | b'-');
            if !(1..=MAX_KEY_BYTES).contains(&key.len()) || !key.bytes().all(may_stand) {
                return Err(LabelsError::Key(crate::text_type::truncated(key)));
            }
            if value.len() > MAX_VALUE_BYTES || value.chars().any(char::is_control) {
                return Err(LabelsError::Value(key.clone()));
            }
        }
        Ok(Self(labels))
    }
}

impl Labels {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value.as_str()))
    }

    /// Makes values of others plain, for display: they are not compared with anything.
    pub(crate) fn make_plain(&mut self) {
        self.0.values_mut().for_each(|value| make_plain(value, MAX_VALUE_BYTES));
    }

    /// Whether all of `wanted` are here with the same values. No labels are in all.
    pub fn contain(&self, wanted: &Self) -> bool {
        wanted.0.iter().all(|(key, value)| self.0.get(key) == Some(value))
    }

    /// These labels, and those of `stronger`, which win where both have a key. Beyond [`MAX_LABELS`] the last of the weaker ones
    /// are left out.
    #[must_use]
    pub fn overridden_by(mut self, stronger: &Self) -> Self {
        self.0.retain(|key, _| !stronger.0.contains_key(key));
        while self.0.len() + stronger.0.len() > MAX_LABELS && self.0.pop_last().is_some() {}
        self.0.extend(stronger.0.iter().map(|(key, value)| (key.clone(), value.clone())));
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str) -> Result<Labels, serde_json::Error> {
        serde_json::from_str(json)
    }

    #[test]
    fn labels_are_checked_when_they_are_read() {
        let labels = read(r#"{"region":"eu west","k8s.io/ring":""}"#).unwrap();
        assert_eq!(labels.iter().collect::<Vec<_>>(), [("k8s.io/ring", ""), ("region", "eu west")]);
        let many: BTreeMap<String, &str> = (0..=MAX_LABELS).map(|i| (i.to_string(), "")).collect();
        for (json, expected) in [
            (r#"{"":"a"}"#.to_owned(), "`` is not a label's key"),
            (r#"{"a b":"a"}"#.to_owned(), "`a b` is not a label's key"),
            (format!(r#"{{"{}":"a"}}"#, "a".repeat(101)), "is not a label's key"),
            (r#"{"a":"\n"}"#.to_owned(), "the label `a` has a value"),
            (format!(r#"{{"a":"{}"}}"#, "a".repeat(101)), "the label `a` has a value"),
            (r#"{"a":1}"#.to_owned(), "invalid type"),
            (serde_json::to_string(&many).unwrap(), "33 labels are more than"),
        ] {
            let error = read(&json).unwrap_err().to_string();
            assert!(error.contains(expected), "{json}: {error}");
        }
    }

    #[test]
    fn stronger_labels_win() {
        let (own, stronger) = (read(r#"{"ring":"all","a":"1"}"#).unwrap(), read(r#"{"ring":"canary"}"#).unwrap());
        let both = own.clone().overridden_by(&stronger);
        assert_eq!(both, read(r#"{"ring":"canary","a":"1"}"#).unwrap());
        let many: BTreeMap<String, String> = (0..MAX_LABELS).map(|i| (format!("{i:02}"), String::new())).collect();
        let both = Labels::try_from(many).unwrap().overridden_by(&stronger);
        assert_eq!((both.iter().count(), both.contain(&stronger)), (MAX_LABELS, true));
        assert!(both.iter().all(|(key, _)| key != "31"), "nobody could read one more");
        assert!(both.contain(&stronger) && !own.contain(&stronger) && own.contain(&Labels::default()));
    }
}
