//! `[[agent]]` and `[[assignment]]`: which agents follow which services. Operators send the same documents, and those of
//! issuers.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_protocol::access_list::{Entries, Entry, Fleet, MAX_KIND_BYTES};
use weir_protocol::assignment::{Agent, Assignment};
use weir_protocol::issuer::Issuer;
use weir_protocol::labels::Labels;
use weir_protocol::name::{AssignmentName, IssuerName, NodeName};
use weir_protocol::name_glob::NameGlob;

use super::Config;

/// An agent that operators know by name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentConfig {
    /// Name of the agent, as in its token or certificate.
    pub name: NodeName,
    /// Labels of the agent, such as `{ ring = "canary" }`. They override the labels of its token.
    #[serde(default)]
    pub labels: Labels,
}

/// Which agents follow which services. An assignment grants no access: an agent still needs a credential that may read the
/// services.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AssignmentConfig {
    /// Name of the assignment.
    pub name: AssignmentName,
    /// Pattern of agents' names; `*` for all. Required without `labels`; with both, both must match.
    #[serde(default)]
    pub agents: Option<NameGlob>,
    /// Labels that an agent must have, with these values.
    #[serde(default)]
    pub labels: Labels,
    /// Patterns of services, 1 to 100.
    pub services: Vec<NameGlob>,
}

/// An issuer of agents' tokens, as operators send it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct IssuerDocument {
    name: IssuerName,
    issuer: String,
    audience: String,
    subjects: Vec<String>,
    jwks: Value,
    agent: String,
    services: Vec<NameGlob>,
}

/// A document of an entry that travels to edges. It refuses unknown keys, which readers of entries ignore.
pub(crate) trait EntryDocument: Serialize {
    /// What travels.
    type Entry: Entry + DeserializeOwned;

    /// The entry.
    ///
    /// # Errors
    /// Its fields contradict each other or exceed a bound. The message names it.
    fn entry(&self) -> Result<Self::Entry, String> {
        let fields = serde_json::to_value(self).map_err(|error| error.to_string())?;
        serde_json::from_value(fields).map_err(|error| error.to_string())
    }
}

impl EntryDocument for AgentConfig {
    type Entry = Agent;
}

impl EntryDocument for AssignmentConfig {
    type Entry = Assignment;
}

impl EntryDocument for IssuerDocument {
    type Entry = Issuer;
}

impl Config {
    /// Agents and assignments of the file.
    ///
    /// # Errors
    /// An entry is not valid, two have one name, or there are too many. The message names the entry.
    pub(crate) fn fleet(&self) -> Result<Fleet, String> {
        let (agents, assignments) =
            (of_file("[[agent]]", &self.agents)?, of_file("[[assignment]]", &self.assignments)?);
        Ok(Fleet { agents, assignments, issuers: Entries::default() })
    }
}

fn of_file<D: EntryDocument>(table: &str, documents: &[D]) -> Result<Entries<D::Entry>, String> {
    let entries = documents.iter().map(D::entry).collect::<Result<Vec<_>, _>>()?;
    let bytes = serde_json::to_vec(&entries).map_or(usize::MAX, |json| json.len());
    if bytes > MAX_KIND_BYTES {
        return Err(format!(
            "{table}: all of them have {bytes} bytes as JSON, more than {MAX_KIND_BYTES}: use fewer labels"
        ));
    }
    Entries::new(0, [], entries).map_err(|error| format!("{table}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fleet(toml: &str) -> Result<Fleet, String> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default, rename = "agent")]
            agents: Vec<AgentConfig>,
            #[serde(default, rename = "assignment")]
            assignments: Vec<AssignmentConfig>,
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("origin.toml");
        std::fs::write(&path, toml).unwrap();
        let File { agents, assignments } =
            weir_runtime::config::read(&path).map_err(|error: weir_runtime::config::ConfigError| error.to_string())?;
        let (agents, assignments) = (of_file("[[agent]]", &agents)?, of_file("[[assignment]]", &assignments)?);
        Ok(Fleet { agents, assignments, issuers: Entries::default() })
    }

    #[test]
    fn the_documented_tables_are_read_and_errors_name_the_entry() {
        let toml = r#"
            [[agent]]
            name = "cluster-1"
            labels = { ring = "canary", region = "eu" }
            [[assignment]]
            name = "shop-to-all"
            agents = "cluster-*"
            services = ["shop-*"]"#;
        let read = fleet(toml).unwrap();
        assert_eq!((read.agents.file().count(), read.assignments.file().count()), (1, 1));
        for (part, other, expected) in [
            ("agents = \"cluster-*\"", "", "assignment `shop-to-all` names no agents: set `agents`"),
            ("[\"shop-*\"]", "[]", "assignment `shop-to-all` names no services"),
            ("labels = {", "label = {", "unknown field `label`"),
            ("region", "\"re gion\"", "`re gion` is not a label's key"),
            (
                "[[assignment]]",
                "[[agent]]\nname = \"cluster-1\"\n[[assignment]]",
                "two of the agents have the name `cluster-1`",
            ),
        ] {
            let changed = toml.replacen(part, other, 1);
            assert_ne!(changed, toml);
            let error = fleet(&changed).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
    }
}
