//! `weir apply` and `weir delete`: objects from files, as in an origin's configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, IsTerminal, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use clap::Args;
use reqwest::{Method, StatusCode};
use serde_json::{Map, Value};
use weir_runtime::output::print;

use crate::connection::ConnectionArguments;
use crate::http::{Client, Query, Refused};
use crate::kind::Kind;
use crate::text::{count, counted, revision, text};

pub(crate) const EXAMPLES: &str = "\
Examples:
  weir apply -f hub.toml --dry-run     what would change
  weir apply -f hub.toml -f clusters.toml
  weir apply -f team.toml --prune --prefix team-a-
      Also deletes the services, agents and assignments whose names begin so and that no file has any more.

A file has the sections of an origin's configuration, as TOML or as JSON:

  [[repository]]
  name = \"shop\"
  url = \"https://git.example/shop.git\"

  [[service]]
  name = \"shop-prod\"
  repository = \"shop\"
  ref = \"main\"
  folder = \"prod\"

  [[assignment]]
  name = \"shop-to-all\"
  agents = \"*\"
  services = [\"shop-*\"]";

/// What the API adds to a document.
const ADDED: [&str; 4] = ["defined_by", "version", "status", "warnings"];

/// Kinds of which objects are deleted because no file has them: nothing that others depend on.
const PRUNED: [Kind; 3] = [Kind::Assignment, Kind::Agent, Kind::Service];

/// What to apply.
#[derive(Debug, Args)]
pub struct ApplyArguments {
    /// A file; `-` is the standard input; may be repeated
    #[arg(short, long, required = true, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Say what would change, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Go on after an object that is refused
    #[arg(long)]
    keep_going: bool,
    /// Delete objects that no file has, whose names begin with the prefix
    #[arg(long, requires = "prefix")]
    prune: bool,
    /// The beginning of the names that --prune may delete
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Delete without a question
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// What to delete.
#[derive(Debug, Args)]
pub struct DeleteArguments {
    /// The kind
    #[arg(value_enum)]
    kind: Kind,
    /// Its name
    name: String,
    /// Of a repository also its services; of a service although it is a part of others
    #[arg(long)]
    cascade: bool,
    #[command(flatten)]
    connection: ConnectionArguments,
}

/// Documents by kind and name.
type Documents = BTreeMap<(Kind, String), Value>;

pub(crate) async fn apply(arguments: &ApplyArguments) -> anyhow::Result<()> {
    let mut documents = Documents::new();
    for file in &arguments.file {
        read(file, &mut documents)?;
    }
    let (client, mut refused) = (Client::new(&arguments.connection)?, 0);
    let ordered = in_order(&documents);
    if arguments.dry_run {
        check(&client, &documents).await?;
    }
    for ((kind, name), document) in &ordered {
        match put(&client, (*kind, name), document, arguments.dry_run.then_some(&documents)).await {
            Ok(said) => print(format_args!("{} {name} {said}", kind.singular()))?,
            Err(error) => {
                let error = error.context(format!("{} {name}", kind.singular()));
                if !arguments.keep_going {
                    return Err(error);
                }
                eprintln!("weir: {error:#}");
                refused += 1;
            }
        }
    }
    if refused > 0 {
        let pruned = if arguments.prune { ", so nothing was deleted" } else { "" };
        let all = count(ordered.len() as u64, "object");
        bail!("{refused} of {all} refused{pruned}");
    }
    if arguments.prune {
        prune(&client, &documents, arguments).await?;
    }
    Ok(())
}

/// Has an origin check agents, assignments and issuers, and store nothing.
async fn check(client: &Client, documents: &Documents) -> anyhow::Result<()> {
    let mut batch = Map::new();
    for ((kind, _), document) in documents {
        if matches!(kind, Kind::Agent | Kind::Assignment | Kind::Issuer) {
            let list = batch.entry(kind.plural()).or_insert_with(|| Value::Array(Vec::new()));
            list.as_array_mut().into_iter().for_each(|list| list.push(document.clone()));
        }
    }
    let query: Query = vec![("dry_run", "true".to_owned())];
    if !batch.is_empty() {
        client.send(Method::POST, "/v1/batch", &query, Some(&Value::Object(batch))).await?;
    }
    Ok(())
}

/// Reads the sections of a file.
fn read(file: &Path, to: &mut Documents) -> anyhow::Result<()> {
    let mut contents = String::new();
    let is_input = file == Path::new("-");
    let input = if is_input { io::stdin().read_to_string(&mut contents).map(|_| ()) } else { Ok(()) };
    input.context("cannot read the standard input")?;
    if !is_input {
        contents = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    }
    let sections: Map<String, Value> = if contents.trim_start().starts_with('{') {
        serde_json::from_str(&contents).with_context(|| format!("{} is no JSON", file.display()))?
    } else {
        toml::from_str(&contents).with_context(|| format!("{} is no TOML", file.display()))?
    };
    for (section, documents) in sections {
        let Some(kind) = Kind::ALL.into_iter().find(|kind| kind.singular() == section) else {
            let kinds: Vec<_> = Kind::ALL.map(Kind::singular).into();
            bail!("{}: `{section}` is no kind of objects: {}", file.display(), kinds.join(", "));
        };
        let documents = documents.as_array().with_context(|| format!("{}: write `[[{section}]]`", file.display()))?;
        for document in documents {
            let name = document["name"].as_str();
            let name = name.with_context(|| format!("{}: a [[{section}]] has no `name`", file.display()))?;
            if to.insert((kind, name.to_owned()), document.clone()).is_some() {
                bail!("{}: the {section} `{name}` is there twice", file.display());
            }
        }
    }
    Ok(())
}

fn has_parts(document: &Value) -> bool {
    document["parts"].as_array().is_some_and(|parts| !parts.is_empty())
}

/// What others need is first: a part before the service that has it.
fn in_order(documents: &Documents) -> Vec<(&(Kind, String), &Value)> {
    let mut ordered: Vec<_> = documents.iter().collect();
    ordered.sort_by_key(|((kind, _), document)| (*kind, has_parts(document)));
    ordered
}

/// Creates or changes an object. Returns what was done. `dry_run`: all documents, of which none is stored.
async fn put(
    client: &Client,
    (kind, name): (Kind, &str),
    document: &Value,
    dry_run: Option<&Documents>,
) -> anyhow::Result<String> {
    let path = kind.path(name)?;
    let before = client.find(&path).await?;
    if let Some(all) = dry_run {
        // As the change itself is refused; the others are checked as a batch.
        let is_of_file = before.as_ref().is_some_and(|before| before["defined_by"] == "file");
        if is_of_file && kind == Kind::Service {
            bail!("the configuration file of the origin defines it, and only a change of that file changes it");
        }
        let is_alike = match kind {
            Kind::Repository | Kind::Rollout => check_alone(client, &path, document).await? == "unchanged",
            _ => false,
        };
        let differs = |before: &Value| [changes(before, document), left_out(before, document)].concat();
        let changes = before.as_ref().map(|before| if is_alike { Vec::new() } else { differs(before) });
        let said = match changes {
            None => "would be created".to_owned(),
            Some(changes) if changes.is_empty() => "is as the file has it".to_owned(),
            Some(changes) => format!("would be changed\n{}", changes.join("\n")),
        };
        return Ok(match kind {
            Kind::Service => format!("{said}\n  {}", content(client, &path, &without_plan(document, all)).await?),
            _ => said,
        });
    }
    let (status, after) = client.send(Method::PUT, &path, &Query::new(), Some(document)).await?;
    let mut said = match &before {
        _ if status == StatusCode::CREATED => "created".to_owned(),
        Some(before) if before["version"] == after["version"] => "unchanged".to_owned(),
        Some(before) => [vec!["changed".to_owned()], changes(before, &after)].concat().join("\n"),
        None => "changed".to_owned(),
    };
    for warning in after["warnings"].as_array().into_iter().flatten() {
        said = format!("{said}\n  warning: {}", text(warning));
    }
    Ok(said)
}

/// Has an origin check a repository or a plan, and store nothing. Returns what would become of it.
async fn check_alone(client: &Client, path: &str, document: &Value) -> anyhow::Result<String> {
    let checked = client.send(Method::POST, &format!("{path}/dry-run"), &Query::new(), Some(document)).await;
    match checked {
        Err(error) if error.downcast_ref::<Refused>().is_some_and(|refused| refused.kind == "no-such-path") => {
            print("(this origin cannot check it without storing it: it is of an earlier release)")?;
            Ok(String::new())
        }
        checked => checked.map(|(_, checked)| text(&checked["outcome"])),
    }
}

/// Whether a document is refused as it is, and not for what it needs, which may be in the same files.
fn is_refused(error: &anyhow::Error, document: &Value) -> bool {
    let has_part_services =
        document["parts"].as_array().is_some_and(|parts| parts.iter().any(|part| part["service"].is_string()));
    error.downcast_ref::<Refused>().is_some_and(|refused| match refused.status {
        StatusCode::FORBIDDEN => true,
        StatusCode::BAD_REQUEST => !has_part_services,
        _ => false,
    })
}

/// A service without its plan, if that is a document of the same files: it may not be there yet, and changes no tarball.
fn without_plan(document: &Value, all: &Documents) -> Value {
    let mut document = document.clone();
    let is_of_files = |plan: &Value| all.contains_key(&(Kind::Rollout, text(plan)));
    if document.get("rollout").is_some_and(is_of_files) {
        document.as_object_mut().map(|fields| fields.remove("rollout"));
    }
    document
}

/// What the tarball of a service would have. Its repository may be a document of the same files that is not there yet.
async fn content(client: &Client, path: &str, document: &Value) -> anyhow::Result<String> {
    let query: Query = vec![("limit", "1".to_owned())];
    let answer = client.send(Method::POST, &format!("{path}/dry-run"), &query, Some(document)).await;
    Ok(match answer {
        Ok((_, found)) => format!(
            "its tarball: {}, {}, of {}",
            counted(&found["entries_total"], "entry"),
            counted(&found["file_bytes_total"], "byte"),
            revision(&found)
        ),
        Err(error) if error.is::<Refused>() && !is_refused(&error, document) => {
            format!("its tarball is not known: {error:#}")
        }
        Err(error) => return Err(error),
    })
}

/// A line for each key that differs.
fn changes(before: &Value, after: &Value) -> Vec<String> {
    let keys = |of: &Value| of.as_object().map(|fields| fields.keys().cloned().collect::<Vec<_>>()).unwrap_or_default();
    let keys: BTreeSet<String> = keys(after).into_iter().filter(|key| !ADDED.contains(&key.as_str())).collect();
    let differs = keys.iter().filter(|key| before[key.as_str()] != after[key.as_str()]);
    differs.map(|key| format!("  {key}: {} -> {}", before[key.as_str()], after[key.as_str()])).collect()
}

/// What the stored document says and the file does not: an apply sets it to its default.
fn left_out(before: &Value, document: &Value) -> Vec<String> {
    let is_said = |value: &Value| match value {
        Value::Null | Value::Bool(false) => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(items) => !items.is_empty(),
        Value::Object(fields) => !fields.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    };
    let fields = before.as_object().into_iter().flatten();
    let fields = fields.filter(|(key, value)| !ADDED.contains(&key.as_str()) && is_said(value));
    let fields = fields.filter(|(key, _)| key.as_str() != "name" && document.get(key.as_str()).is_none());
    fields.map(|(key, value)| format!("  {key}: {value} is not in the file: its default applies")).collect()
}

/// Deletes what no file has. Only what the API has defined.
async fn prune(client: &Client, documents: &Documents, arguments: &ApplyArguments) -> anyhow::Result<()> {
    let prefix = arguments.prefix.as_deref().unwrap_or_default();
    if prefix.is_empty() {
        bail!("--prefix is empty: it would delete everything");
    }
    let mut surplus = Vec::new();
    for kind in PRUNED {
        let (stored, _) = client.list(&kind.list(), &Query::new(), kind.plural()).await?;
        let (parts, composed): (Vec<_>, Vec<_>) = stored.iter().partition(|one| !has_parts(one));
        // A service that is a part of others goes after them.
        let stored = composed.into_iter().chain(parts);
        let names = stored.filter(|one| one["defined_by"] == "api").map(|one| text(&one["name"]));
        surplus.extend(
            names
                .filter(|name| name.starts_with(prefix) && !documents.contains_key(&(kind, name.clone())))
                .map(|name| (kind, name)),
        );
    }
    for (kind, name) in &surplus {
        print(format_args!(
            "{} {name} {}",
            kind.singular(),
            if arguments.dry_run { "would be deleted" } else { "is in no file" }
        ))?;
    }
    if surplus.is_empty() || arguments.dry_run {
        return Ok(());
    }
    if !arguments.yes && !is_agreed(surplus.len())? {
        bail!("nothing was deleted");
    }
    for (kind, name) in surplus {
        client.send(Method::DELETE, &kind.path(&name)?, &Query::new(), None).await?;
        print(format_args!("{} {name} deleted", kind.singular()))?;
    }
    Ok(())
}

fn is_agreed(number: usize) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("--prune would delete {}: add --yes", count(number as u64, "object"));
    }
    eprint!("Delete {}? Type yes: ", count(number as u64, "object"));
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    Ok(answer.trim() == "yes")
}

pub(crate) async fn delete(arguments: &DeleteArguments) -> anyhow::Result<()> {
    let DeleteArguments { kind, name, cascade, .. } = arguments;
    let client = Client::new(&arguments.connection)?;
    let query: Query = cascade.then(|| ("cascade", "true".to_owned())).into_iter().collect();
    client.send(Method::DELETE, &kind.path(name)?, &query, None).await?;
    Ok(print(format_args!("{} {name} deleted", kind.singular()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn documents(contents: &str) -> anyhow::Result<Documents> {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("hub");
        std::fs::write(&file, contents).unwrap();
        let mut documents = Documents::new();
        read(&file, &mut documents).map(|()| documents)
    }

    #[test]
    fn a_file_has_the_sections_of_an_origin() {
        let toml = "
            [[service]]
            name = \"a\"
            parts = [{ service = \"b\" }]
            [[service]]
            name = \"b\"
            repository = \"shop\"
            [[repository]]
            name = \"shop\"
            url = \"https://git.example/shop.git\"
        ";
        let read = documents(toml).unwrap();
        let names: Vec<_> = in_order(&read).into_iter().map(|((_, name), _)| name.as_str()).collect();
        assert_eq!(names, ["shop", "b", "a"]);
        let json = json!({"agent": [{"name": "cluster-1", "labels": {"ring": "canary"}}]}).to_string();
        assert_eq!(documents(&json).unwrap()[&(Kind::Agent, "cluster-1".to_owned())]["labels"]["ring"], "canary");
        for (wrong, expected) in [
            ("[[servce]]\nname = \"a\"\n", "`servce` is no kind"),
            ("[service]\nname = \"a\"\n", "write `[[service]]`"),
            ("[[service]]\nref = \"main\"\n", "has no `name`"),
            ("[[agent]]\nname = \"a\"\n[[agent]]\nname = \"a\"\n", "there twice"),
        ] {
            let error = format!("{:#}", documents(wrong).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_document_is_refused_for_itself_and_not_for_what_it_needs() {
        let refused = |status: StatusCode| {
            anyhow::Error::from(Refused { status, kind: String::new(), detail: String::new(), errors: Vec::new() })
        };
        let (plain, composed) = (json!({"ref": "main"}), json!({"parts": [{"service": "a"}, {"repository": "b"}]}));
        let all = [
            (StatusCode::BAD_REQUEST, [true, false]),
            (StatusCode::FORBIDDEN, [true; 2]),
            (StatusCode::CONFLICT, [false; 2]),
        ];
        for (status, expected) in all {
            let is = [&plain, &composed].map(|document| is_refused(&refused(status), document));
            assert_eq!(is, expected, "{status}");
        }
    }

    #[test]
    fn only_keys_of_the_document_that_differ_are_changes() {
        let before = json!({"name": "a", "ref": "main", "folder": "x", "version": "1", "status": {}});
        assert_eq!(changes(&before, &json!({"name": "a", "ref": "next"})), ["  ref: \"main\" -> \"next\""]);
        assert!(changes(&before, &json!({"name": "a", "ref": "main", "version": "2"})).is_empty());
        let before = json!({"name": "a", "ref": "main", "exclude": ["x"], "include": [], "version": "1"});
        let said = left_out(&before, &json!({"ref": "main"}));
        assert_eq!(said, ["  exclude: [\"x\"] is not in the file: its default applies"]);
    }
}
