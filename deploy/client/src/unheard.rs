//! Agents that operators have defined, and that no edge has reported.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::http::{Client, Query, if_permitted};
use crate::kind::Kind;
use crate::text::count;

/// The most that are named.
const MOST: usize = 10;

/// Their names; none for an operator who may not read entries. `heard`: the agents that edges have reported.
pub(crate) async fn names(client: &Client, heard: &[Value]) -> anyhow::Result<Vec<String>> {
    let heard: BTreeSet<_> = heard.iter().filter_map(|entry| entry["agent"].as_str()).collect();
    let defined = client.list(&Kind::Agent.list(), &Query::new(), Kind::Agent.plural()).await;
    let (defined, _) = if_permitted(defined)?.unwrap_or_default();
    let names = defined.iter().filter_map(|entry| entry["name"].as_str());
    Ok(names.filter(|name| !heard.contains(name)).map(str::to_owned).collect())
}

/// A sentence that names them. `None`: there are none.
pub(crate) fn said(names: &[String]) -> Option<String> {
    let shown = &names[..names.len().min(MOST)];
    let rest = names.len() - shown.len();
    let rest = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    let (have, them) = if names.len() == 1 { ("has", "it") } else { ("have", "them") };
    let all = count(names.len() as u64, "agent");
    let said =
        || format!("never heard: {all} {have} an entry, and no edge has reported {them}: {}{rest}", shown.join(", "));
    (!names.is_empty()).then(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agents_that_nobody_has_heard_of_are_named() {
        let names = |number| (0..number).map(|n| format!("c{n}")).collect::<Vec<_>>();
        assert_eq!(said(&names(0)), None);
        assert_eq!(said(&names(1)).unwrap(), "never heard: 1 agent has an entry, and no edge has reported it: c0");
        let many = said(&names(12)).unwrap();
        assert!(many.contains("12 agents have an entry") && many.ends_with("c9 and 2 more"), "{many}");
    }
}
