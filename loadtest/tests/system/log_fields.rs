//! Logs of all roles go to one place, where a field has one meaning: one type and one form, whichever role wrote it.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use serde_json::Value;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{Node, until};
use weir_protocol::digest::TarballDigest;

use crate::site::{Plan, Site, noise};

/// Fields that several roles write, and each role that must have written one for the test to mean something.
const SHARED: [(&str, &[&str]); 14] = [
    ("service", &["origin", "edge", "agent"]),
    ("generation", &["origin", "edge", "agent"]),
    ("digest", &["origin", "edge", "agent"]),
    ("commit", &["origin", "edge", "agent"]),
    ("descriptor_revision", &["origin", "edge"]),
    ("revision_id", &["agent"]),
    ("request_id", &["origin", "edge", "agent"]),
    ("status", &["origin", "edge"]),
    ("bytes", &["origin", "edge"]),
    ("duration_seconds", &["origin", "edge", "agent"]),
    ("protocol", &["origin", "edge"]),
    ("route", &["origin", "edge"]),
    ("address", &["origin", "edge"]),
    ("tier", &["edge"]),
];

#[tokio::test(flavor = "multi_thread")]
async fn a_field_has_one_type_and_one_form_in_the_logs_of_all_roles() -> anyhow::Result<()> {
    let fill = |upstream: &GitRepository| {
        upstream.write("deploy/prod/large", noise(64 << 10))?;
        upstream.write("deploy/prod/version", "1")?;
        upstream.commit_and_push("one").map(drop)
    };
    let mut site =
        Site::new(fill, Plan { exec: Some("true".to_owned()), log: "access = \"all\"", ..Plan::default() }).await?;
    for node in [&mut site.origin, &mut site.edge, &mut site.agent] {
        node.log_filter = Some("weir=debug");
    }
    site.start().await?;
    site.until_released("shop-prod", "version", "1").await?;
    // A delta follows a version as a revision of its descriptor.
    site.upstream.write("deploy/prod/version", "2")?;
    site.upstream.commit_and_push("two")?;
    site.until_released("shop-prod", "version", "2").await?;
    until_logged(&site, &site.origin, "revised").await?;
    // Each role misses its upstream.
    site.git.take().context("the Git server runs")?.stop().await;
    until_logged(&site, &site.origin, "the upstream cannot be polled").await?;
    site.origin.terminate().await?;
    site.edge.terminate().await?;
    until_logged(&site, &site.agent, "a poll failed").await?;
    site.agent.terminate().await?;

    let mut fields: BTreeMap<String, Vec<(&str, Value, String)>> = BTreeMap::new();
    for (role, node) in [("origin", &site.origin), ("edge", &site.edge), ("agent", &site.agent)] {
        for line in node.log().lines() {
            let record: serde_json::Map<String, Value> =
                serde_json::from_str(line).with_context(|| format!("not a JSON object of {role}: {line}"))?;
            for (field, value) in record {
                fields.entry(field).or_default().push((role, value, line.to_owned()));
            }
        }
    }
    for (field, roles) in SHARED {
        let found = fields.get(field).map_or(&[][..], Vec::as_slice);
        for role in roles {
            ensure!(found.iter().any(|(by, ..)| by == role), "{role} logged no `{field}`:\n{}", site.logs());
        }
    }
    let mut faults = Vec::new();
    for (field, values) in &fields {
        let (_, first, line) = &values[0];
        if let Some((_, _, other)) = values.iter().find(|(_, value, _)| type_of(value) != type_of(first)) {
            faults.push(format!("`{field}` has two types:\n{line}\n{other}"));
        }
        if let Some((.., line)) = values.iter().find(|(_, value, _)| !has_form(field, value)) {
            faults.push(format!("`{field}` has another form:\n{line}"));
        }
    }
    ensure!(faults.is_empty(), "{}", faults.join("\n"));
    Ok(())
}

async fn until_logged(site: &Site, node: &Node, message: &str) -> anyhow::Result<()> {
    let message = format!("\"message\":\"{message}\"");
    until(&message, async || node.log().contains(&message)).await.with_context(|| site.logs())
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether a value has the form of all fields of this name.
fn has_form(field: &str, value: &Value) -> bool {
    let text = value.as_str().unwrap_or_default();
    match field {
        "commit" => is_object_id(text),
        "digest" => text.parse::<TarballDigest>().is_ok(),
        "revision_id" => text.split_once(':').is_some_and(|(_, id)| is_object_id(id)),
        "generation" | "descriptor_revision" | "bytes" => value.is_u64(),
        "status" => value.as_u64().is_some_and(|status| (100..600).contains(&status)),
        "duration_seconds" => value.is_f64(),
        "request_id" => text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit()),
        "protocol" => ["h1", "h2", "h3"].contains(&text),
        "tier" => ["memory", "disk", "origin"].contains(&text),
        "address" => text.parse::<SocketAddr>().is_ok(),
        // A counter at one role, and an object id at another.
        "revision" => false,
        _ => true,
    }
}

fn is_object_id(text: &str) -> bool {
    matches!(text.len(), 40 | 64) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
