//! `status` of each role's program: what the running process says of itself, without an HTTP client.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::Value;
use weir_protocol::plain_text::make_plain;

use super::admin::status_at;
use super::failure;
use super::output;

/// The most entries of a list or a table that are shown as text.
const SHOWN: usize = 40;

/// Asks the process at a socket, and prints the answer. 0: it is ready. 1: it is not. 2: no process answers.
pub async fn run(program: &str, socket: &Path, json: bool) -> ExitCode {
    let document = match status_at(socket).await {
        Ok(document) => document,
        Err(error) => return failure::invalid(program, error),
    };
    let text = if json { format!("{document:#}") } else { in_words(&document) };
    match output::print(text.trim_end()) {
        Ok(()) if document["ready"] == true => ExitCode::SUCCESS,
        Ok(()) => ExitCode::FAILURE,
        Err(error) => failure::invalid(program, error),
    }
}

/// Whether it is ready and the reasons first; then each value in a line, and each entry of a list or a table in a line.
fn in_words(document: &Value) -> String {
    let mut text = String::new();
    let reasons = document["reasons"].as_array().map_or(&[][..], Vec::as_slice);
    text += match (document["ready"] == true, reasons) {
        (true, []) => "ready\n",
        (true, _) => "ready, but degraded\n",
        (false, _) => "not ready\n",
    };
    for reason in reasons {
        let _ = writeln!(text, "  {}", plain(reason));
    }
    let Some(fields) = document.as_object() else { return text + &plain(document) + "\n" };
    let rest = || fields.iter().filter(|(name, _)| !matches!(name.as_str(), "ready" | "reasons"));
    for (name, value) in rest().filter(|(_, value)| !is_nested(value) && !value.is_null()) {
        let _ = writeln!(text, "{name}: {}", plain(value));
    }
    for (name, value) in rest().filter(|(_, value)| is_nested(value)) {
        let entries: Vec<(&str, &Value)> = match value {
            Value::Array(all) => all.iter().map(|entry| ("-", entry)).collect(),
            Value::Object(all) => all.iter().map(|(name, entry)| (name.as_str(), entry)).collect(),
            _ => Vec::new(),
        };
        let _ = writeln!(text, "{name}: {}", entries.len());
        for (name, entry) in entries.iter().take(SHOWN) {
            let _ = writeln!(text, "  {name} {}", line(entry));
        }
        if entries.len() > SHOWN {
            let _ = writeln!(text, "  … {} more: --json shows all", entries.len() - SHOWN);
        }
    }
    text
}

fn is_nested(value: &Value) -> bool {
    value.is_array() || value.is_object()
}

/// The values of an entry: `key=value` of each field that has one; of what is nested the number of its entries.
fn line(entry: &Value) -> String {
    let Some(fields) = entry.as_object() else { return plain(entry) };
    let shown = fields.iter().filter(|(_, value)| !value.is_null()).map(|(name, value)| match value {
        Value::Array(all) if all.is_empty() => String::new(),
        Value::Array(all) => format!("{name}={}", all.iter().map(plain).collect::<Vec<_>>().join(",")),
        Value::Object(inner) => {
            let inner = inner.iter().filter(|(_, value)| !is_nested(value) && !value.is_null());
            inner.map(|(key, value)| format!("{name}.{key}={}", plain(value))).collect::<Vec<_>>().join(" ")
        }
        other => format!("{name}={}", plain(other)),
    });
    shown.filter(|text| !text.is_empty()).collect::<Vec<_>>().join(" ")
}

/// A value without quotes, on one line.
fn plain(value: &Value) -> String {
    let mut text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    make_plain(&mut text, usize::MAX);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn reasons_come_first_and_each_entry_has_a_line() {
        let text = in_words(&json!({
            "role": "agent", "ready": true, "reasons": ["shop: its hook\nfails"],
            "edges": [{ "url": "https://edge", "in_use": true, "last": null, "tried": [] }],
            "services": { "shop": { "phase": "current", "current": { "digest": "b3-1", "more": {} } } },
        }));
        let expected = "ready, but degraded\n  shop: its hook fails\nrole: agent\nedges: 1\n  - url=https://edge in_use=true\n\
                        services: 1\n  shop phase=current current.digest=b3-1\n";
        assert_eq!(text, expected);
        assert_eq!(in_words(&json!({ "ready": false, "reasons": [] })), "not ready\n");
        let many = in_words(&json!({ "ready": true, "list": vec![1; SHOWN + 2] }));
        assert!(many.contains("list: 42") && many.ends_with("… 2 more: --json shows all\n"), "{many}");
    }
}
