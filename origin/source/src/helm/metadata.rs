//! The configuration of a chart in a registry: its `Chart.yaml` as JSON, as `helm push` writes it. Pure.

use serde_json::{Map, Value};

use super::yaml::{Node, Yaml};

/// The largest `Chart.yaml`, in bytes.
pub(crate) const MAX_METADATA_BYTES: u64 = 256 << 10;

/// The most levels of maps and lists. helm knows three.
const MAX_DEPTH: usize = 8;

/// The keys whose values are no texts.
const BOOLEANS: [&str; 2] = ["deprecated", "enabled"];

/// The configuration of a chart with this `Chart.yaml`. Numbers are texts, because helm reads all of them as texts.
///
/// # Errors
/// It is not a document that can be written as JSON.
pub(crate) fn config(chart_yaml: &[u8]) -> Result<Vec<u8>, String> {
    let mut yaml = Yaml::open(chart_yaml)?;
    let node = yaml.node()?;
    let mut value = value(&mut yaml, node, 0)?;
    yaml.finish()?;
    // The same bytes at every origin, whatever the features of the program.
    value.sort_all_objects();
    match value {
        Value::Object(_) => Ok(value.to_string().into_bytes()),
        _ => Err("it is not a map".to_owned()),
    }
}

fn value(yaml: &mut Yaml<&[u8]>, node: Node, depth: usize) -> Result<Value, String> {
    if depth > MAX_DEPTH {
        return Err(yaml.wrong("it is nested too deeply"));
    }
    match node {
        Node::Text(text) => Ok(Value::String(text)),
        Node::Null => Ok(Value::Null),
        Node::Alias | Node::End => Err(yaml.wrong("it has an alias")),
        Node::List => {
            let mut list = Vec::new();
            loop {
                match yaml.node()? {
                    Node::End => return Ok(Value::Array(list)),
                    node => list.push(value(yaml, node, depth + 1)?),
                }
            }
        }
        Node::Map => {
            let mut map = Map::new();
            loop {
                let key = match yaml.node()? {
                    Node::End => return Ok(Value::Object(map)),
                    Node::Text(key) => key,
                    _ => return Err(yaml.wrong("it has a key that is no text")),
                };
                let node = yaml.node()?;
                let value = match value(yaml, node, depth + 1)? {
                    Value::String(text) if BOOLEANS.contains(&&*key) => Value::Bool(text == "true"),
                    Value::Null => continue,
                    value => value,
                };
                map.insert(key, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_the_metadata_as_texts() {
        let yaml = "apiVersion: v2\nname: shop\nversion: 1.0.0\nappVersion: 1.10\ndeprecated: true\nicon: ~\n\
                    dependencies:\n- {name: db, version: '1', enabled: false, tags: [a]}\nannotations: {x: '1'}\n";
        let json = String::from_utf8(config(yaml.as_bytes()).unwrap()).unwrap();
        let expected = "{\"annotations\":{\"x\":\"1\"},\"apiVersion\":\"v2\",\"appVersion\":\"1.10\",\
                        \"dependencies\":[{\"enabled\":false,\"name\":\"db\",\"tags\":[\"a\"],\"version\":\"1\"}],\
                        \"deprecated\":true,\"name\":\"shop\",\"version\":\"1.0.0\"}";
        assert_eq!(json, expected);
    }

    #[test]
    fn what_helm_would_not_read_is_refused() {
        let deep = format!("a: {}{}", "[".repeat(20), "]".repeat(20));
        for text in ["", "- x\n", "a: &x b\nc: *x\n", "[a]: b\n", "a: b\n---\nc: d\n", &deep] {
            assert!(config(text.as_bytes()).is_err(), "{text}");
        }
    }
}
