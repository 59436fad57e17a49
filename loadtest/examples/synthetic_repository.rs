//! Makes the repository that builds of tarballs are measured with: the same objects on every machine.
//!
//! `cargo run --release -p weir-loadtest --example synthetic_repository -- DIR` makes a bare repository of 50,000 files in
//! 2,500 folders, 416 MB, with a history of 500 commits that each change some of them, and repacks it as a server does.
//! `main` is the last of them; `one-file` and `attributes` stand on it, with a change of one file and of the
//! `.gitattributes` at the top.

use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, ensure};
use weir_loadtest::git_repository::git_command;

const TOP_FOLDERS: u64 = 20;
const SUB_FOLDERS: u64 = 125;
const FILES: u64 = 20;
const COMMITS: u64 = 500;
const CHANGES: u64 = 20;

fn main() -> anyhow::Result<()> {
    let dir = PathBuf::from(std::env::args_os().nth(1).context("give the directory to make")?);
    std::fs::create_dir_all(&dir)?;
    let git = |arguments: &[&str]| -> anyhow::Result<()> {
        ensure!(git_command(&dir).args(arguments).status()?.success(), "git {arguments:?} failed");
        Ok(())
    };
    git(&["init", "--quiet", "--bare", "--initial-branch=main", "."])?;
    let mut import = git_command(&dir).args(["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn()?;
    write_history(&mut BufWriter::new(import.stdin.take().context("stdin is piped")?))?;
    ensure!(import.wait()?.success(), "git fast-import failed");
    git(&["repack", "-a", "-d", "-f", "--quiet", "--window=4", "--threads=2"])
}

fn write_history(out: &mut impl Write) -> io::Result<()> {
    commit(out, "main", 0)?;
    file(out, "README.md", b"Made by a program, for measurements.\n")?;
    file(out, ".gitattributes", b"*.md text\n")?;
    let mut words = Random(1);
    let vocabulary: Vec<String> = (0..5000).map(|_| word(&mut words)).collect();
    let files = TOP_FOLDERS * SUB_FOLDERS * FILES;
    for number in 0..files {
        file(out, &path(number), &text(number, 0, &vocabulary))?;
    }
    let mut random = Random(2);
    for revision in 1..=COMMITS {
        commit(out, "main", revision)?;
        for _ in 0..CHANGES {
            let number = random.below(files);
            file(out, &path(number), &text(number, revision, &vocabulary))?;
        }
    }
    for (branch, changed, contents) in [
        ("one-file", path(files / 2), text(files / 2, COMMITS + 1, &vocabulary)),
        ("attributes", ".gitattributes".to_owned(), b"*.md text\n*.none export-ignore\n".to_vec()),
    ] {
        writeln!(out, "reset refs/heads/{branch}\nfrom refs/heads/main\n")?;
        commit(out, branch, COMMITS + 1)?;
        file(out, &changed, &contents)?;
    }
    out.flush()
}

fn commit(out: &mut impl Write, branch: &str, revision: u64) -> io::Result<()> {
    let message = format!("revision {revision}");
    writeln!(out, "commit refs/heads/{branch}\ncommitter Weir <weir@example.org> {} +0000", 1_700_000_000 + revision)?;
    writeln!(out, "data {}\n{message}", message.len())
}

fn file(out: &mut impl Write, path: &str, contents: &[u8]) -> io::Result<()> {
    writeln!(out, "M 100644 inline {path}\ndata {}", contents.len())?;
    out.write_all(contents)?;
    writeln!(out)
}

fn path(number: u64) -> String {
    let (folder, file) = (number / FILES, number % FILES);
    format!("team-{:02}/service-{:03}/file-{file:02}.yaml", folder / SUB_FOLDERS, folder % SUB_FOLDERS)
}

/// 600 bytes to 31 kB of lines. Another revision changes the first and perhaps another one.
fn text(number: u64, revision: u64, vocabulary: &[String]) -> Vec<u8> {
    let mut random = Random(number * 2 + 12_345);
    let size = 600 + random.below(4) * random.below(10_300);
    let mut changes = Random(number ^ (revision << 32));
    let changed = [0, changes.below(40)];
    let (mut text, mut line) = (Vec::new(), 0);
    while (text.len() as u64) < size {
        text.resize(text.len() + 2 * random.below(5) as usize, b' ');
        for _ in 0..3 + random.below(6) {
            // Some words come often, as in any text.
            let at = random.below(5000) * random.below(5000) / 5000;
            text.extend_from_slice(vocabulary[at as usize].as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(format!("{:x}", random.below(1 << 24)).as_bytes());
        if revision > 0 && changed.contains(&line) {
            text.extend_from_slice(format!(" revision {revision}").as_bytes());
        }
        text.push(b'\n');
        line += 1;
    }
    text
}

fn word(random: &mut Random) -> String {
    let syllables =
        ["ka", "ro", "mi", "ten", "lu", "sar", "ve", "po", "net", "di", "ga", "wor", "ix", "ab", "sel", "u"];
    (0..1 + random.below(4)).map(|_| syllables[random.below(16) as usize]).collect()
}

/// A generator that is the same for ever, which those of libraries do not promise.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((u128::from(self.0 >> 11) * u128::from(bound)) >> 53) as u64
    }
}
