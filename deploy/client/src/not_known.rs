//! What an answer about the fleet does not know. It is said below each table, so that no number is smaller without a word.

use serde_json::Value;

use crate::text::{Clock, text};

/// A sentence for each thing that is not known.
pub(crate) fn sentences(answer: &Value, clock: Clock) -> Vec<String> {
    let mut said = Vec::new();
    for edge in answer["incomplete"].as_array().into_iter().flatten() {
        let (name, since) = (text(&edge["edge"]), clock.time(&edge["since"]));
        said.push(format!("not known: what agents of the edge {name} run; it has not told all since {since}"));
    }
    let number = |key: &str| answer[key].as_u64().filter(|number| *number > 0);
    if let Some(number) = number("unknown") {
        said.push(format!("not known: whether {number} more rows lack the revision, which the history does not have"));
    }
    if let Some(number) = number("agents_without_rows") {
        said.push(format!("not known: what {number} agents run, which no edge has heard since the origin started"));
    }
    said
}

/// Prints them.
pub(crate) fn print(answer: &Value, clock: Clock) -> anyhow::Result<()> {
    let said = sentences(answer, clock);
    if !said.is_empty() {
        weir_runtime::output::print(format_args!("\n{}", said.join("\n")))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn everything_that_is_not_known_is_said() {
        let clock = Clock::new(true);
        assert!(sentences(&json!({"incomplete": [], "unknown": 0, "agents_without_rows": 0}), clock).is_empty());
        let answer = json!({
            "incomplete": [{"edge": "paris", "since": "2026-01-02T03:04:05Z"}], "unknown": 2, "agents_without_rows": 3,
        });
        let said = sentences(&answer, clock);
        assert!(said[0].contains("paris") && said[0].contains("2026-01-02T03:04:05Z"), "{said:?}");
        assert!(said[1].contains("2 more rows") && said[2].contains("3 agents"), "{said:?}");
    }
}
