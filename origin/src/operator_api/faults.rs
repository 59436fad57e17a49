//! Reading a document that an operator sends: all that is wrong with it at once, each by its field. Pure.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::catalog::{Defined, DefinedBy};
use crate::config::{RepositoryConfig, ServiceConfig};

/// What is wrong with a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Fault {
    /// The field. Empty: the document as a whole.
    pub(super) field: String,
    /// In words.
    pub(super) detail: String,
}

impl Fault {
    fn new(field: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { field: field.into(), detail: detail.into() }
    }
}

/// A document as it was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Sent<T> {
    pub(super) document: T,
    /// The version that it was made from, when it says so.
    pub(super) based_on: Option<String>,
}

/// An object that operators send documents of.
pub(super) trait Object: DeserializeOwned + Serialize + PartialEq {
    /// Fields without which there is none, and values that would do.
    const NEEDED: &'static [(&'static str, &'static str)];

    /// What no single field shows, in the words of the configuration file.
    fn check(&self) -> Vec<Fault>;
}

impl Object for RepositoryConfig {
    const NEEDED: &'static [(&'static str, &'static str)] = &[("name", "x"), ("url", "https://git.example/x.git")];

    fn check(&self) -> Vec<Fault> {
        let whole = self.validate().err().map(|error| Fault::new(String::new(), without_preface(&error.to_string())));
        whole.into_iter().collect()
    }
}

impl Object for ServiceConfig {
    const NEEDED: &'static [(&'static str, &'static str)] = &[("name", "x"), ("repository", "x")];

    fn check(&self) -> Vec<Fault> {
        let patterns = [("include", &self.include), ("exclude", &self.exclude)];
        let wrong = patterns.into_iter().filter_map(|(field, patterns)| {
            let alone = ServiceConfig {
                include: patterns.clone(),
                ..ServiceConfig::new(self.name.clone(), self.repository.clone())
            };
            Some(Fault::new(field, without_preface(&alone.selection().err()?.to_string())))
        });
        wrong.collect()
    }
}

/// The error of a configuration without what says that it is one.
fn without_preface(error: &str) -> String {
    error.strip_prefix("the configuration is wrong: ").unwrap_or(error).to_owned()
}

/// Reads a document that is to have this name. What only the origin says of an object (`status`, `defined_by`) may stand
/// in it, so that what was read can be changed and sent back.
///
/// # Errors
/// All that is wrong with it.
pub(super) fn read<T: Object>(name: &str, body: &[u8]) -> Result<Sent<T>, Vec<Fault>> {
    let whole = |detail: String| vec![Fault::new("", detail)];
    let value: Value = serde_json::from_slice(body).map_err(|error| whole(format!("it is no JSON: {error}")))?;
    let Value::Object(mut fields) = value else { return Err(whole("it is no JSON object".to_owned())) };
    let mut faults = Vec::new();
    fields.remove("status");
    fields.remove("defined_by");
    let based_on = match fields.remove("version") {
        None => None,
        Some(Value::String(version)) => Some(version),
        Some(_) => {
            faults.push(Fault::new("version", "it is the text that the origin said, or left out"));
            None
        }
    };
    match fields.insert("name".to_owned(), name.into()) {
        None => {}
        Some(said) if said == name => {}
        Some(_) => faults.push(Fault::new("name", format!("it is not the name in the path, `{name}`"))),
    }
    for (field, _) in T::NEEDED {
        if !fields.contains_key(*field) {
            faults.push(Fault::new(*field, "it is missing"));
        }
    }
    faults.extend(fields.iter().filter_map(|(field, value)| fault_of::<T>(field, value)));
    if !faults.is_empty() {
        return Err(faults);
    }
    let document: T = serde_json::from_value(Value::Object(fields)).map_err(|error| whole(error.to_string()))?;
    let faults = document.check();
    if faults.is_empty() { Ok(Sent { document, based_on }) } else { Err(faults) }
}

/// Reads a field in a document that is good but for it, so that each fault is found, and is known by its field.
fn fault_of<T: Object>(field: &str, value: &Value) -> Option<Fault> {
    let mut alone: Map<String, Value> =
        T::NEEDED.iter().map(|(field, value)| ((*field).to_owned(), Value::from(*value))).collect();
    alone.insert(field.to_owned(), value.clone());
    let error = serde_json::from_value::<T>(Value::Object(alone)).err()?;
    Some(Fault::new(field.chars().take(100).collect::<String>(), error.to_string()))
}

/// What a repository names that operators may not name.
pub(super) fn not_permitted(document: &RepositoryConfig, secrets_dir: Option<&std::path::Path>) -> Option<Fault> {
    let defined = Defined { by: DefinedBy::Api, document: document.clone().into() };
    let (field, why) = crate::catalog::permitted(&defined, secrets_dir).err()?;
    Some(Fault::new(field, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields<T: Object + std::fmt::Debug>(name: &str, body: &str) -> Vec<String> {
        read::<T>(name, body.as_bytes()).unwrap_err().into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn what_was_read_can_be_sent_back() {
        let body = br#"{"name": "a", "repository": "shop", "ref": "main", "status": {"x": 1}, "defined_by": "api",
            "version": "0011", "folder": "deploy", "include": [], "exclude": []}"#;
        let sent = read::<ServiceConfig>("a", body).unwrap();
        assert_eq!(sent.based_on.as_deref(), Some("0011"));
        let mut again = serde_json::to_value(&sent.document).unwrap();
        again["version"] = "0011".into();
        assert_eq!(read::<ServiceConfig>("a", again.to_string().as_bytes()).unwrap(), sent);
        let repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/x");
        let again = serde_json::to_vec(&repository).unwrap();
        assert_eq!(read::<RepositoryConfig>("shop", &again).unwrap().document, repository);
    }

    #[test]
    fn all_faults_are_told_at_once_each_by_its_field() {
        let body = r#"{"name": "b", "ref": "a..b", "folder": "../etc", "include": "x", "colour": 1, "version": 7}"#;
        let mut wrong = fields::<ServiceConfig>("a", body);
        wrong.sort();
        assert_eq!(wrong, ["colour", "folder", "include", "name", "ref", "repository", "version"]);
        let patterns = r#"{"repository": "x", "include": ["!a"], "exclude": ["", "b"]}"#;
        assert_eq!(fields::<ServiceConfig>("a", patterns), ["include", "exclude"]);
        assert_eq!(fields::<RepositoryConfig>("a", r#"{"poll_interval": "often"}"#), ["url", "poll_interval"]);
        for body in ["", "[]", "{", "\u{0}", "7"] {
            assert_eq!(fields::<ServiceConfig>("a", body), [""], "{body}");
        }
        let faults = read::<RepositoryConfig>("a", br#"{"url": "https://u:s3cret@h/x"}"#).unwrap_err();
        assert!(faults[0].detail.contains("password") && !faults[0].detail.contains("s3cret"), "{faults:?}");
    }
}
