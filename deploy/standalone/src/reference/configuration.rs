//! `configuration.md`: the keys of each role, from the structs that read them and the values that they have by default.

use serde_json::Value;

use super::source::{Key, Types};
use super::{compare, head, row};

const INTRODUCTION: &str = "# Configuration

Each role reads one TOML file: `weir-origin --config origin.toml`. An unknown key is an error. `--check-config` checks the file \
and the files that it names. Commented examples are in `deploy/config`.

| type | written as |
|---|---|
| duration | `\"30s\"`, `\"2m\"`, `\"1h 30m\"` |
| size | `\"64MiB\"`, `\"10GB\"`, `\"512B\"`, always with a unit |
| path | absolute, or relative to the folder of the file, or to `WEIR_BASE_DIR` from there |
| address | IP address and port, `\"127.0.0.1:7400\"`. Port 0 takes a free port |
| name | `[a-z0-9][a-z0-9._-]{0,99}` |
| pattern | a name in which `*` stands for any characters |

Default `–`: the key is not set. Reload `SIGHUP`: a new value is applied when the process gets SIGHUP. All other keys need a \
restart.
";

/// `[log]` of the roles that have an access log.
const ACCESS_LOG: &str = "shared/runtime/src/serve/access_log/config.rs";

/// `[admin]` of origins and agents.
const ADMIN: &str = "shared/runtime/src/admin/config.rs";

/// `[repository.layer]`.
const LAYER: &str = "origin/upstream/src/layer_selector.rs";

/// The name in the reference of a type of the code.
fn type_name(kind: &str) -> &'static str {
    match kind {
        "Duration" => "duration",
        "ByteSize" => "size",
        "PathBuf" => "path",
        "SocketAddr" => "address",
        "u8" | "usize" | "u32" | "u64" | "Generation" => "integer",
        "bool" => "boolean",
        "String" | "Window" | "KeySource" | "PlatformName" | "RefText" | "SourceKind" | "TrustDomain"
        | "AgentTemplate" => "string",
        "FolderPath" => "folder",
        "ChartName" | "NodeName" | "ServiceName" | "RepositoryName" | "AssignmentName" | "RolloutName"
        | "StageName" => "name",
        "NameGlob" | "LabelGlob" => "pattern",
        "Endpoint" | "EdgeUrl" | "ProxyUrl" => "URL",
        "Labels" => "table of strings",
        "Hosts" | "KeyHosts" => "list of hosts",
        "HookCommand" => "string or list of strings",
        "Redirects" => "string or list of hosts",
        other => panic!("the reference has no word for the type {other}: add one to `type_name`"),
    }
}

/// The sentence that begins with `Default:` or is `Required.`, apart from the others.
fn default_of(description: &str) -> (Option<String>, String) {
    let mut stated = None;
    let others = description.split_inclusive(". ").filter(|sentence| {
        let text = sentence.trim().trim_end_matches('.');
        let found = if text == "Required" { Some("required") } else { text.strip_prefix("Default: ") };
        stated = found.map(str::to_owned).or(stated.take());
        found.is_none()
    });
    let others = others.collect::<String>().trim().to_owned();
    (stated, others)
}

fn shown(value: Option<&Value>, kind: &str) -> String {
    match value {
        None | Some(Value::Null) => "–".to_owned(),
        Some(Value::Array(list)) if list.is_empty() => "–".to_owned(),
        // As it may be written: `64.0 MiB` is what is read most easily, and no value of an example.
        Some(Value::String(size)) if kind == "ByteSize" => {
            format!("`\"{}\"`", size.replace(".0 ", "").replace(' ', ""))
        }
        Some(value) => format!("`{value}`"),
    }
}

struct Role<'a> {
    types: Types,
    defaults: Value,
    reloadable: &'a [&'a str],
}

impl Role<'_> {
    /// The tables of a struct: its own keys, then those that are tables themselves.
    fn tables(&self, kind: &str, path: &str, title: &str) -> String {
        let (description, keys) = self.types.table(kind).unwrap_or_else(|| panic!("there is no struct {kind}"));
        let (below, own): (Vec<&Key>, Vec<&Key>) = keys.iter().partition(|key| self.types.table(&key.kind).is_some());
        let mut page = format!("\n### {title}\n\n{description}\n");
        if !own.is_empty() {
            page += "\n";
            page += &head(&["key", "type", "default", "reload", "description"]);
        }
        for key in own {
            page += &self.key(key, path);
        }
        for key in below {
            let path = if path.is_empty() { key.name.clone() } else { format!("{path}.{}", key.name) };
            let title = if key.is_list { format!("`[[{path}]]`") } else { format!("`[{path}]`") };
            page += &self.tables(&key.kind, &path, &title);
        }
        page
    }

    fn key(&self, key: &Key, table: &str) -> String {
        let path = if table.is_empty() { key.name.clone() } else { format!("{table}.{}", key.name) };
        // Of a list of tables the first has the defaults.
        let value = path.split('.').try_fold(&self.defaults, |value, name| {
            let value = if let Value::Array(list) = value { list.first()? } else { value };
            value.get(name)
        });
        let (stated, mut description) = default_of(&key.description);
        let mut kind = self.types.values(&key.kind).map_or_else(
            || type_name(&key.kind).to_owned(),
            |values| {
                values.iter().for_each(|(value, meaning)| description += &format!(" `\"{value}\"`: {meaning}"));
                "string".to_owned()
            },
        );
        if key.is_list {
            kind = format!("list of {kind}s");
        }
        let default = match stated {
            Some(stated) => stated,
            None if key.is_required => "required".to_owned(),
            None => shown(value, &key.kind),
        };
        let is_reloadable = self
            .reloadable
            .iter()
            .any(|of| path.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')));
        let reload = if is_reloadable { "SIGHUP" } else { "" };
        row(&[&format!("`{}`", key.name), &kind, &default, reload, &description])
    }
}

#[test]
fn the_configuration_reference_matches_the_code() {
    let mut page = INTRODUCTION.to_owned();
    let origin = {
        use weir_origin::config::{Config, TlsConfig};
        use weir_source::ServiceConfig;
        use weir_upstream::RepositoryConfig;
        let file = std::path::PathBuf::new;
        let tls = TlsConfig { certificate: file(), key: file(), client_ca: file() };
        let name = || "n".parse().unwrap();
        Config {
            repositories: vec![RepositoryConfig::new(name_of(), "https://h/r")],
            services: vec![ServiceConfig::new(name_of(), name_of())],
            ..Config::new(name(), "d", tls)
        }
    };
    let edge = {
        use weir_edge::config::{CacheConfig, Config, TlsConfig};
        let tls = TlsConfig { certificate: "c".into(), key: "k".into() };
        Config::new(name_of(), "127.0.0.1:0".parse().unwrap(), tls, CacheConfig::new("d"), Vec::new())
    };
    let agent = weir_agent::Config::new(Vec::new(), "ca", "root");
    for (title, sources, defaults, reloadable) in [
        (
            "Origin",
            &[
                "origin/src/config",
                "origin/source/src/config",
                "origin/upstream/src/config",
                "origin/publish/src/config.rs",
                "origin/rollout/src/plan.rs",
                "origin/store/src/config.rs",
                "origin/store/src/etcd_config.rs",
                ACCESS_LOG,
                ADMIN,
                LAYER,
            ][..],
            serde_json::to_value(origin),
            weir_origin::config::RELOADABLE,
        ),
        (
            "Edge",
            &["edge/src/config", "edge/cache/src/config.rs", ACCESS_LOG][..],
            serde_json::to_value(edge),
            weir_edge::config::RELOADABLE,
        ),
        (
            "Agent",
            &["agent/src/config.rs", "agent/src/config", "agent/release/src/unchanged.rs", ADMIN][..],
            serde_json::to_value(agent),
            weir_agent::config::RELOADABLE,
        ),
    ] {
        let role = Role { types: Types::read(sources), defaults: defaults.unwrap(), reloadable };
        let file = title.to_lowercase();
        page += &format!("\n## {title}\n{}", role.tables("Config", "", &format!("`{file}.toml`")));
    }
    compare("configuration.md", &page);
}

fn name_of<T: std::str::FromStr<Err: std::fmt::Debug>>() -> T {
    "n".parse().unwrap()
}
