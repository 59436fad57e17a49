//! The pages of `docs/reference` that are generated from the code, compared with the files.

mod configuration;
mod limits;
mod metrics;
mod operators;
mod source;

use std::fs;
use std::path::{Path, PathBuf};

const NOTE: &str = "<!-- Generated from the code by `WEIR_REFERENCE=write cargo test -p weir reference`. -->\n\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Compares a page with its file, or writes the file if `WEIR_REFERENCE=write`.
fn compare(name: &str, page: &str) {
    let path = root().join("docs/reference").join(name);
    let page = format!("{}\n", page.replacen("\n\n", &format!("\n\n{NOTE}"), 1).trim_end());
    if std::env::var_os("WEIR_REFERENCE").is_some_and(|value| value == "write") {
        fs::create_dir_all(root().join("docs/reference")).unwrap();
        fs::write(&path, &page).unwrap();
    }
    let file = fs::read_to_string(&path).unwrap_or_default();
    let (mut of_file, mut of_code) = (file.lines(), page.lines());
    for number in 1.. {
        let (file, code) = (of_file.next(), of_code.next());
        assert_eq!(
            file, code,
            "docs/reference/{name}, line {number}: the file (left) differs from the code (right). To write the file again: \
             WEIR_REFERENCE=write cargo test -p weir reference"
        );
        if code.is_none() {
            break;
        }
    }
}

/// A row of a table.
fn row(cells: &[&str]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// The head of a table.
fn head(cells: &[&str]) -> String {
    format!("{}{}\n", row(cells), "|---".repeat(cells.len()) + "|")
}
