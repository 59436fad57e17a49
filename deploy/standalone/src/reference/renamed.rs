//! The names that `renamed.md` calls old are used nowhere.

use std::fs;
use std::process::Command;

use super::root;

/// Common words, which a reader has to look for. Labels among them are found where PromQL uses them.
const COMMON: [&str; 8] = ["why", "for", "place", "where", "questions", "unseen", "kicked", "fetches"];

/// The program's own list of renamed keys, for its errors.
const RENAMED_KEYS: &str = "shared/runtime/src/config/renamed_keys.rs";

#[test]
fn errors_name_the_successor_of_each_renamed_key() {
    let table = fs::read_to_string(root().join("docs/reference/renamed.md")).unwrap();
    let list = fs::read_to_string(root().join(RENAMED_KEYS)).unwrap();
    let keys = table.split("\n## ").find(|section| section.starts_with("Configuration keys")).unwrap();
    let rows: Vec<_> = keys.lines().filter(|line| line.starts_with("| `")).collect();
    assert_eq!(rows.len(), list.matches("    (\"").count());
    for row in rows {
        let names: Vec<_> = row.trim_matches('|').rsplit('|').map(|cell| cell.trim().trim_matches('`')).collect();
        let pair = format!("(\"{}\", \"{}\")", names[1], names[0]);
        assert!(list.contains(&pair), "{RENAMED_KEYS} lacks {pair}");
    }
}

#[test]
fn nothing_uses_an_old_name() {
    let table = fs::read_to_string(root().join("docs/reference/renamed.md")).unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|'));
    // The last two columns are the old and the new names.
    let cells = rows.filter_map(|row| row.trim_matches('|').rsplit('|').nth(1));
    let (mut old, mut old_labels) = (Vec::new(), Vec::new());
    for cell in cells {
        let names = cell.split('`').skip(1).step_by(2).flat_map(str::split_whitespace);
        if cell.trim_start().starts_with("label ") {
            old_labels.extend(names.clone());
        }
        old.extend(names.filter(|name| !COMMON.contains(name)));
    }
    assert!(old.len() > 10 && old_labels.contains(&"why"), "{old:?} {old_labels:?}");
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let listed = String::from_utf8(listed.expect("git lists the files").stdout).unwrap();
    // The last has them as examples.
    let is_exempt = |file: &str| {
        file == "docs/reference/renamed.md"
            || file.starts_with("docs/decisions/")
            || file == RENAMED_KEYS
            || file.ends_with("reference/renamed.rs")
    };
    let mut found = Vec::new();
    for file in listed.lines().filter(|file| !is_exempt(file)) {
        // What is no text, and what was removed, has no names.
        let Ok(text) = fs::read_to_string(root().join(file)) else { continue };
        for (number, line) in text.lines().enumerate() {
            let names = words(line).into_iter().filter(|word| old.contains(&word.as_str()));
            let labels = labels(line).into_iter().filter(|label| old_labels.contains(label)).map(str::to_owned);
            let used = names.chain(labels);
            found.extend(used.map(|word| format!("{file}:{}: `{word}` has another name in 0.2", number + 1)));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// The words of a line. `a_(b|c)_d`, as in a regular expression, stands for `a_b_d` and `a_c_d`.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut current, mut rest) = (Vec::new(), vec![String::new()], line);
    while let Some(next) = rest.chars().next() {
        let group = rest.strip_prefix("(?:").or_else(|| rest.strip_prefix('(')).and_then(|group| group.split_once(')'));
        let group = group.filter(|(group, _)| group.contains('|') && group.chars().all(|c| is_word(c) || c == '|'));
        if let Some((alternatives, after)) = group {
            let extended =
                |start: &String| alternatives.split('|').map(|each| format!("{start}{each}")).collect::<Vec<_>>();
            current = current.iter().flat_map(extended).collect();
            rest = after;
            continue;
        }
        if is_word(next) {
            current.iter_mut().for_each(|word| word.push(next));
        } else {
            words.extend(std::mem::replace(&mut current, vec![String::new()]));
        }
        rest = &rest[next.len_utf8()..];
    }
    words.extend(current);
    words
}

/// The labels that a line of PromQL uses: in `by (label)`, `without (label)` and `{label="value"}`; and those of a template,
/// `$labels.label` and `{{label}}`.
fn labels(line: &str) -> Vec<&str> {
    let lists = ["by", "without", "on", "ignoring"].into_iter().flat_map(|keyword| {
        let after = line.match_indices(keyword).filter(|(at, _)| !line[..*at].ends_with(is_word));
        after.filter_map(|(at, _)| line[at + keyword.len()..].trim_start().strip_prefix('(')?.split(')').next())
    });
    let listed = lists.flat_map(|list| list.split(',').map(str::trim));
    let matchers = ["=\"", "=\\\"", "!=\"", "!=\\\"", "=~\"", "=~\\\"", "!~\"", "!~\\\"", "}}"];
    let matched = matchers.into_iter().flat_map(|matcher| {
        line.match_indices(matcher).filter_map(|(at, _)| line[..at].trim_end().rsplit(|c| !is_word(c)).next())
    });
    let template =
        line.match_indices("$labels.").filter_map(|(at, dot)| line[at + dot.len()..].split(|c| !is_word(c)).next());
    listed.chain(matched).chain(template).collect()
}

#[test]
fn names_are_found_in_promql() {
    let line = "sum by (why, edge) (rate({__name__=~\"weir_edge_(asks|queries)_collapsed_total\"}[5m]))";
    let found = words(line);
    for name in ["weir_edge_asks_collapsed_total", "weir_edge_queries_collapsed_total", "why"] {
        assert!(found.iter().any(|word| word == name), "{name}: {found:?}");
    }
    assert!(words("x_(?:a|b)").contains(&"x_b".to_owned()));
    assert_eq!(labels(line), ["why", "edge", "__name__"]);
    for line in [
        "sum without(why) (x)",
        "x / on (why) y",
        r#"x{a="b",why!~"c"}"#,
        r#""expr": "x{why=\"c\"}""#,
        "because of {{why}}",
        "because of {{ $labels.why }}",
    ] {
        assert!(labels(line).contains(&"why"), "{line}");
    }
    assert!(!labels("nobody knows why (or who)").contains(&"why"));
}
