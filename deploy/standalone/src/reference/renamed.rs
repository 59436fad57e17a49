//! The names that `renamed.md` calls old are used nowhere.

use std::fs;
use std::process::Command;

use super::root;

/// Common words, which a reader has to look for.
const COMMON: [&str; 7] = ["why", "for", "place", "where", "questions", "unseen", "kicked"];

#[test]
fn nothing_uses_an_old_name() {
    let table = fs::read_to_string(root().join("docs/reference/renamed.md")).unwrap();
    let rows = table.lines().filter(|line| line.starts_with('|'));
    // The last two columns are the old and the new names.
    let old = rows.filter_map(|row| row.trim_matches('|').rsplit('|').nth(1));
    let old = old.flat_map(|cell| cell.split('`').skip(1).step_by(2)).filter(|name| !COMMON.contains(name));
    let old: Vec<&str> = old.flat_map(|name| name.split_whitespace()).collect();
    assert!(old.len() > 10, "{old:?}");
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root())
        .output();
    let listed = String::from_utf8(listed.expect("git lists the files").stdout).unwrap();
    let is_history = |file: &str| file == "docs/reference/renamed.md" || file.starts_with("docs/decisions/");
    let mut found = Vec::new();
    for file in listed.lines().filter(|file| !is_history(file)) {
        // What is no text, and what was removed, has no names.
        let Ok(text) = fs::read_to_string(root().join(file)) else { continue };
        let words = |line: &str| {
            line.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map(str::to_owned).collect::<Vec<_>>()
        };
        for (number, line) in text.lines().enumerate() {
            let used = words(line).into_iter().filter(|word| old.contains(&word.as_str()));
            found.extend(used.map(|word| format!("{file}:{}: `{word}` has another name in 0.2", number + 1)));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
