//! Pure: validates documents that operators send. It reports every field that cannot be parsed, then every broken
//! rule, by field.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use weir_model::ValidationError;
use weir_protocol::name::RepositoryName;
use weir_runtime::config::suggestion;
use weir_source::{ChartName, Followed, RefText, ServiceConfig};
use weir_upstream::{DefinedBy, RepositoryConfig, SourceKind, UpstreamsConfig};

use crate::catalog::{Definitions, LONGEST_REASON};
use crate::config::{AgentConfig, AssignmentConfig, EntryDocument, IssuerDocument};

/// The most validation errors in one answer.
const MAX_ERRORS: usize = 100;

/// A document from a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ParsedDocument<T> {
    pub(super) document: T,
    /// The version that it is based on, if it names one.
    pub(super) based_on: Option<String>,
}

/// An object with documents from operators.
pub(super) trait Object: DeserializeOwned + Serialize + PartialEq {
    /// Required fields with valid sample values, as JSON.
    const REQUIRED: &'static [(&'static str, &'static str)];

    /// A required field, and the one that may be there in its place.
    const INSTEAD: Option<(&'static str, &'static str)> = None;

    /// Validation errors that concern several fields.
    fn check(&self) -> Vec<ValidationError>;
}

impl Object for RepositoryConfig {
    const REQUIRED: &'static [(&'static str, &'static str)] =
        &[("name", "\"x\""), ("url", "\"https://git.example/x.git\"")];

    fn check(&self) -> Vec<ValidationError> {
        self.errors()
    }
}

impl Object for ServiceConfig {
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("name", "\"x\""), ("repository", "\"x\"")];
    const INSTEAD: Option<(&'static str, &'static str)> = Some(("repository", "parts"));

    fn check(&self) -> Vec<ValidationError> {
        self.errors()
    }
}

impl Object for AgentConfig {
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("name", "\"x\"")];

    fn check(&self) -> Vec<ValidationError> {
        as_entry(self)
    }
}

impl Object for AssignmentConfig {
    const REQUIRED: &'static [(&'static str, &'static str)] = &[("name", "\"x\""), ("services", "[\"x\"]")];

    fn check(&self) -> Vec<ValidationError> {
        as_entry(self)
    }
}

impl Object for IssuerDocument {
    const REQUIRED: &'static [(&'static str, &'static str)] = &[
        ("name", "\"x\""),
        ("issuer", "\"x\""),
        ("audience", "\"x\""),
        ("subjects", "[\"x\"]"),
        ("jwks", "{}"),
        ("agent", "\"x\""),
        ("services", "[\"x\"]"),
    ];

    fn check(&self) -> Vec<ValidationError> {
        as_entry(self)
    }
}

fn as_entry(document: &impl EntryDocument) -> Vec<ValidationError> {
    document.entry().err().map(|detail| ValidationError::new("", detail)).into_iter().collect()
}

/// Parses a document of this name. It may contain the read-only fields (`status`, `defined_by`, `warnings`), so that
/// clients can change and return what they read. `more` returns further errors of a document that parses.
///
/// # Errors
/// The validation errors: at most [`MAX_ERRORS`], and a note if there are more.
pub(super) fn read<T: Object>(
    name: &str,
    body: &[u8],
    more: impl Fn(&T) -> Vec<ValidationError>,
) -> Result<ParsedDocument<T>, Vec<ValidationError>> {
    read_with(name, body, |_| Vec::new(), more)
}

/// The same. `by_field` returns errors of fields that parse by themselves, to report them with those that do not.
pub(super) fn read_with<T: Object>(
    name: &str,
    body: &[u8],
    by_field: impl Fn(&Map<String, Value>) -> Vec<ValidationError>,
    more: impl Fn(&T) -> Vec<ValidationError>,
) -> Result<ParsedDocument<T>, Vec<ValidationError>> {
    let whole = |detail: String| vec![ValidationError::new("", detail)];
    let value: Value =
        weir_protocol::json::from_slice(body).map_err(|error| whole(format!("it is not JSON: {error}")))?;
    let Value::Object(mut fields) = value else { return Err(whole("it is not a JSON object".to_owned())) };
    let mut errors = Vec::new();
    fields.remove("status");
    fields.remove("defined_by");
    fields.remove("warnings");
    let based_on = match fields.remove("version") {
        None => None,
        Some(Value::String(version)) => Some(version),
        Some(_) => {
            errors
                .push(ValidationError::new("version", "it must be the text that the origin returned, or be left out"));
            None
        }
    };
    if fields.insert("name".to_owned(), name.into()).is_some_and(|found| found != name) {
        errors.push(ValidationError::new("name", format!("it must be the name in the path, `{name}`")));
    }
    let instead = |field: &str| T::INSTEAD.is_some_and(|(of, other)| of == field && fields.contains_key(other));
    let missing = T::REQUIRED.iter().filter(|(field, _)| !fields.contains_key(*field) && !instead(field));
    errors.extend(missing.map(|(field, _)| ValidationError::new(*field, "it is missing")));
    let sample = sample::<T>(&fields["name"]);
    let wrong = fields.iter().filter_map(|(field, value)| field_error::<T>(sample.clone(), field, value));
    errors.extend(wrong.take(MAX_ERRORS + 1));
    errors.extend(by_field(&fields));
    if !errors.is_empty() {
        return Err(limited(errors));
    }
    let document =
        serde_json::from_value::<T>(Value::Object(fields)).map_err(|error| limited(whole(explained(&error))))?;
    errors.extend(document.check().into_iter().chain(more(&document)).take(MAX_ERRORS + 1));
    if errors.is_empty() { Ok(ParsedDocument { document, based_on }) } else { Err(limited(errors)) }
}

/// What is wrong with the parts of a service.
pub(super) fn wrong_parts(
    document: &ServiceConfig,
    definitions: &Definitions,
    is_in_cluster: bool,
) -> Vec<ValidationError> {
    let followed = document.followed(|repository| definitions.kind_of(repository));
    let wrong = followed.err().filter(|_| !document.parts.is_empty());
    // It says which repository publishes the service.
    let first = document.parts.first().and_then(|part| part.service.as_ref());
    let missing = first.filter(|first| definitions.home_of(first).is_none());
    let missing =
        missing.map(|first| ValidationError::new("parts", format!("there is no service `{first}`: create it first")));
    let at_home = document.clone().with_home(|part| definitions.home_of(part));
    wrong.into_iter().chain(missing).chain(at_home.error_in_cluster().filter(|_| is_in_cluster)).collect()
}

/// Limits the number of errors, and their length, because they may quote the document.
fn limited(mut errors: Vec<ValidationError>) -> Vec<ValidationError> {
    let is_cut = errors.len() > MAX_ERRORS;
    errors.truncate(MAX_ERRORS);
    for error in &mut errors {
        if let Some((end, _)) = error.detail.char_indices().nth(LONGEST_REASON) {
            error.detail.truncate(end);
        }
    }
    if is_cut {
        errors.push(ValidationError::new("", format!("it has more than {MAX_ERRORS} errors; these are the first")));
    }
    errors
}

/// A valid document, of this name if that is valid, because errors may have it.
fn sample<T: Object>(name: &Value) -> Map<String, Value> {
    let required = T::REQUIRED.iter();
    let field =
        |(field, json): &(&str, &str)| ((*field).to_owned(), serde_json::from_str::<Value>(json).expect("it is JSON"));
    let sample: Map<String, Value> = required.map(field).collect();
    let mut named = sample.clone();
    named.insert("name".to_owned(), name.clone());
    if serde_json::from_value::<T>(Value::Object(named.clone())).is_ok() { named } else { sample }
}

/// Parses a field in an otherwise valid document, so that its error has the field's name.
fn field_error<T: Object>(mut alone: Map<String, Value>, field: &str, value: &Value) -> Option<ValidationError> {
    alone.insert(field.to_owned(), value.clone());
    let error = serde_json::from_value::<T>(Value::Object(alone)).err()?;
    Some(ValidationError::new(field.chars().take(100).collect::<String>(), explained(&error)))
}

/// What is wrong, and what to write instead: first, because the names that there are may be cut off.
pub(super) fn explained(error: &serde_json::Error) -> String {
    let message = error.to_string();
    match (suggestion(&message), message.split_once(", expected ")) {
        (Some(suggestion), Some((unknown, expected))) => format!("{unknown}; {suggestion} Expected {expected}"),
        _ => message,
    }
}

/// Why `ref` and `chart` of a service have no meaning for its repository, whose kind `kind_of` says.
pub(super) fn wrong_ref(
    fields: &Map<String, Value>,
    kind_of: impl FnOnce(&RepositoryName) -> Option<SourceKind>,
) -> Option<ValidationError> {
    let text = fields.get("ref").map_or(Ok(RefText::default()), RefText::deserialize).ok()?;
    let chart = fields.get("chart").map_or(Ok(None), Option::<ChartName>::deserialize).ok()?;
    let repository = fields.get("repository").and_then(|name| RepositoryName::deserialize(name).ok());
    let kind = repository.as_ref().and_then(kind_of).unwrap_or_else(|| text.assumed_kind(chart.as_ref()));
    let (field, reason) = Followed::parse(kind, &text, chart.as_ref()).err()?;
    Some(ValidationError::new(field, reason))
}

/// Files and hosts that operators may not name.
pub(super) fn not_permitted(
    document: &RepositoryConfig,
    secrets_dir: Option<&std::path::Path>,
    upstreams: &UpstreamsConfig,
) -> Vec<ValidationError> {
    match crate::catalog::permitted(DefinedBy::Api, document, secrets_dir) {
        Ok(permitted) => upstreams.errors(&permitted),
        Err(refused) => refused.into_iter().map(|(field, why)| ValidationError::new(field, why)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields<T: Object + std::fmt::Debug>(name: &str, body: &str) -> Vec<String> {
        read::<T>(name, body.as_bytes(), |_| Vec::new()).unwrap_err().into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn a_document_that_was_read_is_accepted_back() {
        let body = br#"{"name": "a", "repository": "shop", "ref": "main", "status": {"x": 1}, "defined_by": "api",
            "version": "0011", "folder": "deploy", "include": [], "exclude": []}"#;
        let sent = read::<ServiceConfig>("a", body, |_| Vec::new()).unwrap();
        assert_eq!(sent.based_on.as_deref(), Some("0011"));
        let mut again = serde_json::to_value(&sent.document).unwrap();
        again["version"] = "0011".into();
        assert_eq!(read::<ServiceConfig>("a", again.to_string().as_bytes(), |_| Vec::new()).unwrap(), sent);
        let repository = RepositoryConfig::new("shop".parse().unwrap(), "https://git.example/x");
        let again = serde_json::to_vec(&repository).unwrap();
        assert_eq!(read::<RepositoryConfig>("shop", &again, |_| Vec::new()).unwrap().document, repository);
    }

    #[test]
    fn a_document_of_nothing_but_faults_is_answered_with_the_first_of_them() {
        let many = |what: fn(usize) -> String| (0..20_000).map(what).collect::<Vec<_>>().join(",");
        let unknown = many(|number| format!("\"k{number}\": 0"));
        let patterns = many(|_| "\"!a\"".to_owned());
        let documents = [
            format!("{{\"repository\": \"x\", {unknown}}}"),
            format!("{{\"repository\": \"x\", \"include\": [{patterns}]}}"),
        ];
        for document in documents {
            let errors = read::<ServiceConfig>("a", document.as_bytes(), |_| Vec::new()).unwrap_err();
            assert_eq!(errors.len(), MAX_ERRORS + 1);
            assert!(errors.last().unwrap().detail.contains("more than 100"));
        }
        let long = format!("{{\"repository\": \"x\", \"{}\": 0}}", "k".repeat(200_000));
        let errors = read::<ServiceConfig>("a", long.as_bytes(), |_| Vec::new()).unwrap_err();
        assert_eq!((errors.len(), errors[0].detail.len()), (1, LONGEST_REASON));
    }

    #[test]
    fn all_errors_are_reported_by_field_and_parse_errors_first() {
        let body = r#"{"name": "b", "ref": "a..b", "folder": "../etc", "include": "x", "colour": 1, "version": 7}"#;
        let read_both = read_with::<ServiceConfig>(
            "a",
            body.as_bytes(),
            |fields| wrong_ref(fields, |_| None).into_iter().collect(),
            |_| Vec::new(),
        );
        let mut wrong: Vec<_> = read_both.unwrap_err().into_iter().map(|error| error.field).collect();
        wrong.sort();
        assert_eq!(wrong, ["colour", "folder", "include", "name", "ref", "repository", "version"]);
        let patterns = r#"{"repository": "x", "include": ["!a", "ok", "!b"], "exclude": ["", "b"]}"#;
        assert_eq!(fields::<ServiceConfig>("a", patterns), ["include", "include", "exclude"]);
        let one_of_each = r#"{"repository": "x", "lfs": "yes", "include": ["!a"]}"#;
        assert_eq!(fields::<ServiceConfig>("a", one_of_each), ["lfs"]);
        assert_eq!(fields::<RepositoryConfig>("a", r#"{"poll_interval": "often"}"#), ["url", "poll_interval"]);
        for verify in ["{}", "7", r#"{"mode": "tag"}"#, r#"{"mode": "tag", "keys": 1}"#] {
            let body = format!(r#"{{"url": "https://h/x", "verify": {verify}}}"#);
            assert_eq!(fields::<RepositoryConfig>("a", &body), ["verify"], "{verify}");
        }
        let several = r#"{"url": "http://h/x", "poll_interval": "1ms", "username": "u", "proxy": "x"}"#;
        let expected = ["poll_interval", "username", "username", "proxy"];
        assert_eq!(fields::<RepositoryConfig>("a", several), expected);
        // Forbidden values are reported together with the other errors.
        let more = |document: &RepositoryConfig| not_permitted(document, None, &UpstreamsConfig::default());
        let errors = read::<RepositoryConfig>("a", br#"{"url": "file:///etc", "poll_interval": "1ms"}"#, more);
        let wrong: Vec<String> = errors.unwrap_err().into_iter().map(|error| error.field).collect();
        assert_eq!(wrong, ["poll_interval", "url"]);
        for body in ["", "[]", "{", "\u{0}", "7"] {
            assert_eq!(fields::<ServiceConfig>("a", body), [""], "{body}");
        }
        let errors = read::<RepositoryConfig>("a", br#"{"url": "https://u:s3cret@h/x"}"#, |_| Vec::new()).unwrap_err();
        assert!(errors[0].detail.contains("password") && !errors[0].detail.contains("s3cret"), "{errors:?}");
    }
}
