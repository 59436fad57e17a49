//! The lines that differ between two versions of a file.

use std::io::{self, IsTerminal};
use std::time::Duration;

use serde_json::Value;
use similar::TextDiff;

use crate::text::text;

/// How long the lines of one file may be compared; the rest of it counts as changed.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Prints the lines of a difference, or why there are none.
pub(crate) fn print(difference: &Value) -> anyhow::Result<()> {
    let mut lines = lines(difference);
    // What a repository has in its files does not steer a terminal.
    if io::stdout().is_terminal() {
        lines = lines.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "?");
    }
    if lines.is_empty() { Ok(()) } else { Ok(weir_runtime::output::print(lines.trim_end_matches('\n'))?) }
}

fn lines(difference: &Value) -> String {
    match difference["no_text"].as_str() {
        None => {}
        Some("binary") => return "  (binary)".to_owned(),
        Some("too-large") => return "  (too large to be shown)".to_owned(),
        Some(_) => return "  (not shown: the files above fill the answer)".to_owned(),
    }
    let path = text(&difference["path"]);
    let side = |key: &str, prefix: &str| match difference[key].as_str() {
        Some(contents) => (contents.to_owned(), format!("{prefix}/{path}")),
        None => (String::new(), "/dev/null".to_owned()),
    };
    let ((old, from), (new, to)) = (side("old_text", "a"), side("new_text", "b"));
    let diff = TextDiff::configure().timeout(TIMEOUT).diff_lines(old.as_str(), new.as_str());
    diff.unified_diff().header(&from, &to).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn lines_are_shown_as_diff_u_does() {
        let changed = json!({"path": "sub/app.yaml", "old_text": "a: 1\nb: 2\nc: 3", "new_text": "a: 1\nb: 9\nc: 3\n"});
        let expected = "\
--- a/sub/app.yaml
+++ b/sub/app.yaml
@@ -1,3 +1,3 @@
 a: 1
-b: 2
-c: 3
\\ No newline at end of file
+b: 9
+c: 3
";
        assert_eq!(lines(&changed), expected);
        let added = lines(&json!({"path": "new", "new_text": "one\n"}));
        assert_eq!(added, "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+one\n");
        let removed = lines(&json!({"path": "old", "old_text": "one\n"}));
        assert_eq!(removed, "--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-one\n");
        assert_eq!(lines(&json!({"path": "logo.png", "no_text": "binary"})), "  (binary)");
        // Another mode, or the target of a link, is said elsewhere.
        assert_eq!(lines(&json!({"path": "run", "old_text": "one\n", "new_text": "one\n"})), "");
        assert_eq!(lines(&json!({"path": "link"})), "");
    }
}
