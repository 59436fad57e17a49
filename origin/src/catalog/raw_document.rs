//! Stored documents, valid or not.
//!
//! A stored document was valid for the version that stored it. Rules become stricter, and a later version may have
//! written fields that this one does not know. An invalid document is stored and shown, but has no effect until an
//! operator replaces it; the others work as if it did not exist.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use weir_model::{ValidationError, joined};
use weir_protocol::name::{RepositoryName, ServiceName};
use weir_source::ServiceConfig;
use weir_upstream::{RepositoryConfig, SourceKind};

/// The longest stored or logged reason, in characters; it may quote the document.
pub(crate) const LONGEST_REASON: usize = 1000;

/// A stored document. Clones are cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RawDocument<T> {
    /// The document is valid.
    Valid(Arc<T>),
    /// The document is invalid: it stays stored and has no effect.
    Refused(Arc<Refused>),
}

/// A stored document that this version refuses.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// The repository whose record stores it, even if the document does not name it.
    pub(crate) repository: RepositoryName,
    /// The stored JSON. If it is not an object, it is wrapped in one.
    stored: Map<String, Value>,
    /// For operators.
    pub(crate) reason: String,
}

/// A document with a name.
pub(crate) trait Document: DeserializeOwned + Serialize {
    fn name(&self) -> &str;

    /// Validation errors that concern several fields.
    fn errors(&self) -> Vec<ValidationError>;

    /// The document, stored in the record of this repository.
    fn stored_in(self, _: &RepositoryName) -> Self {
        self
    }
}

impl Document for RepositoryConfig {
    fn name(&self) -> &str {
        self.name.as_str()
    }

    fn errors(&self) -> Vec<ValidationError> {
        self.errors()
    }
}

impl Document for ServiceConfig {
    fn name(&self) -> &str {
        self.name.as_str()
    }

    fn stored_in(self, repository: &RepositoryName) -> Self {
        self.with_home(|_| Some(repository.clone()))
    }

    fn errors(&self) -> Vec<ValidationError> {
        self.errors()
    }
}

impl<T> RawDocument<T> {
    pub(crate) fn valid(&self) -> Option<&Arc<T>> {
        match self {
            Self::Valid(document) => Some(document),
            Self::Refused(_) => None,
        }
    }

    pub(crate) fn refused(&self) -> Option<&Arc<Refused>> {
        match self {
            Self::Valid(_) => None,
            Self::Refused(refused) => Some(refused),
        }
    }
}

impl<T: Document> RawDocument<T> {
    /// Parses a stored document. `name` and `repository` are those of the record that holds it.
    pub(crate) fn read(name: &str, repository: &RepositoryName, stored: &Value) -> Self {
        match checked::<T>(name, stored) {
            Ok(document) => Self::Valid(Arc::new(document.stored_in(repository))),
            Err(reason) => Self::Refused(Arc::new(Refused {
                repository: repository.clone(),
                stored: shown(name, stored),
                reason: reason.chars().take(LONGEST_REASON).collect(),
            })),
        }
    }
}

impl RawDocument<ServiceConfig> {
    /// The service's repository.
    pub(crate) fn repository(&self) -> &RepositoryName {
        match self {
            Self::Valid(document) => document.home(),
            Self::Refused(refused) => &refused.repository,
        }
    }

    /// The services that are among its first parts, at most `most`.
    pub(super) fn part_services(&self, most: usize) -> Vec<ServiceName> {
        match self {
            Self::Valid(document) => {
                let parts = document.parts.iter().take(most);
                parts.filter_map(|part| part.service.clone()).collect()
            }
            Self::Refused(refused) => {
                let parts = refused.field("parts").as_array().into_iter().flatten().take(most);
                parts.filter_map(|part| part["service"].as_str()?.parse().ok()).collect()
            }
        }
    }

    /// Whether it has parts.
    pub(super) fn has_parts(&self) -> bool {
        match self {
            Self::Valid(document) => !document.parts.is_empty(),
            Self::Refused(refused) => refused.field("parts").as_array().is_some_and(|parts| !parts.is_empty()),
        }
    }

    /// Whether one of its sources is in a repository that `is_it` accepts.
    pub(crate) fn names(&self, is_it: impl Fn(&RepositoryName) -> bool) -> bool {
        let of_part = |part: &Value| part["repository"].as_str().and_then(|name| name.parse().ok());
        match self {
            Self::Valid(document) => document.repositories().any(is_it),
            Self::Refused(refused) => {
                let parts = refused.field("parts").as_array().into_iter().flatten();
                is_it(&refused.repository) || parts.filter_map(of_part).any(|name| is_it(&name))
            }
        }
    }
}

impl RawDocument<ServiceConfig> {
    /// The document as a refused one, if one of its keys has no meaning for the kind of its repository. One that is not defined
    /// has the kind that the keys suggest.
    pub(super) fn refused_for(&self, kind_of: impl Fn(&RepositoryName) -> Option<SourceKind>) -> Option<Self> {
        self.refuse(&self.valid()?.followed(kind_of).err()?)
    }

    /// The document as a refused one, if it cannot be published in a cluster: it may be older than the cluster.
    pub(super) fn refused_in_cluster(&self) -> Option<Self> {
        self.refuse(&self.valid()?.error_in_cluster()?)
    }

    fn refuse(&self, error: &ValidationError) -> Option<Self> {
        let document = self.valid()?;
        let reason = error.to_string();
        let stored = serde_json::to_value(&**document).expect("a document is made of texts, numbers and lists");
        Some(Self::Refused(Arc::new(Refused {
            repository: document.home().clone(),
            stored: shown(document.name.as_str(), &stored),
            reason: reason.chars().take(LONGEST_REASON).collect(),
        })))
    }
}

impl<T> From<T> for RawDocument<T> {
    fn from(document: T) -> Self {
        Self::Valid(Arc::new(document))
    }
}

/// Serializes the document as stored; versions are computed from this.
impl<T: Serialize> Serialize for RawDocument<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Valid(document) => document.serialize(serializer),
            Self::Refused(refused) => refused.stored.serialize(serializer),
        }
    }
}

impl Refused {
    /// A stored field; null if it is missing.
    pub(crate) fn field(&self, field: &str) -> &Value {
        self.stored.get(field).unwrap_or(&Value::Null)
    }
}

/// The document if it is valid, otherwise all validation errors.
fn checked<T: Document>(name: &str, stored: &Value) -> Result<T, String> {
    let document = T::deserialize(stored).map_err(|error| error.to_string())?;
    if document.name() != name {
        return Err(format!("it is the document of `{}`", document.name()));
    }
    let errors = document.errors();
    if errors.is_empty() { Ok(document) } else { Err(joined(&errors)) }
}

fn shown(name: &str, stored: &Value) -> Map<String, Value> {
    stored
        .as_object()
        .cloned()
        .unwrap_or_else(|| Map::from_iter([("name".to_owned(), name.into()), ("stored".to_owned(), stored.clone())]))
}

/// For fuzzers: a document either round-trips or is refused with a reason.
#[cfg(feature = "fuzzing")]
pub fn fuzz_document(bytes: &[u8]) {
    fn again<T: Document + PartialEq + std::fmt::Debug>(stored: &Value) {
        let repository = "shop".parse().expect("it is a name");
        let read = RawDocument::<T>::read("shop", &repository, stored);
        match &read {
            RawDocument::Valid(document) => {
                let written =
                    serde_json::to_value(&**document).expect("a document is made of texts, numbers and lists");
                assert_eq!(RawDocument::<T>::read("shop", &repository, &written), read);
            }
            RawDocument::Refused(refused) => assert!(!refused.reason.is_empty()),
        }
    }
    if let Ok(stored) = serde_json::from_slice(bytes) {
        again::<RepositoryConfig>(&stored);
        again::<ServiceConfig>(&stored);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(name: &str, json: &str) -> RawDocument<ServiceConfig> {
        RawDocument::read(name, &"shop".parse().unwrap(), &serde_json::from_str(json).unwrap())
    }

    #[test]
    fn a_refused_document_is_stored_unchanged_with_the_reason() {
        for (json, expected) in [
            (r#"{"name":"a","repository":"shop","ref":" x"}"#, "white space"),
            (r#"{"name":"a","repository":"shop","new_key":[1]}"#, "new_key"),
            (r#"{"name":"a","repository":"shop","include":["!x"]}"#, "`include`"),
            (r#"{"name":"b","repository":"shop"}"#, "the document of `b`"),
        ] {
            let written = service("a", json);
            let refused = written.refused().expect(json);
            assert!(refused.reason.contains(expected), "{}", refused.reason);
            let as_stored: Value = serde_json::from_str(json).unwrap();
            assert_eq!(serde_json::to_value(&written).unwrap(), as_stored);
            assert_eq!(written, service("a", json));
        }
        let taken = service("a", r#"{"name":"a","repository":"shop"}"#);
        assert!(taken.valid().is_some());
    }

    #[test]
    fn malformed_stored_text_is_shown_in_a_document() {
        for json in ["7", "[]", "null", "\"x\""] {
            let written = service("a", json);
            let shown = serde_json::to_value(&written).unwrap();
            assert_eq!(shown["name"], "a");
            assert_eq!(shown["stored"].to_string(), json);
            assert!(!written.refused().unwrap().reason.is_empty());
            assert_eq!(written.repository().as_str(), "shop", "it is stored there");
        }
    }

    #[test]
    fn a_reason_is_of_a_bounded_length() {
        let long = format!(r#"{{"name":"a","repository":"{}"}}"#, "X".repeat(100_000));
        assert!(service("a", &long).refused().unwrap().reason.chars().count() <= LONGEST_REASON);
    }
}
