//! What the README has people paste.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use weir_loadtest::git_repository::GitRepository;
use weir_loadtest::processes::{binary, free_address};

/// The processes that a script leaves in the background.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0)]).status();
    }
}

/// The commands below a heading.
fn commands(heading: &str) -> anyhow::Result<String> {
    let readme = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md"))?;
    let section = readme.split(heading).nth(1).with_context(|| format!("the README has a section {heading}"))?;
    let block = section.split("```console\n").nth(1).and_then(|rest| rest.split("```").next());
    Ok(block.context("the section has commands")?.to_owned())
}

#[test]
fn run_it_for_real_works_when_it_is_pasted_into_a_clone() -> anyhow::Result<()> {
    let script = commands("## Run it for real")?;
    // This has been done, into another folder.
    let (build, rest) = script.split_once('\n').context("it has several lines")?;
    assert!(build.starts_with("cargo build --release --workspace"), "{build}");

    let dir = tempfile::tempdir()?;
    let clone = GitRepository::create(dir.path(), "weir")?;
    clone.write("docs/page.md", "to be delivered")?;
    clone.write("README.md", "not below docs")?;
    for role in ["origin", "edge", "agent"] {
        let file = format!("deploy/config/{role}.toml");
        let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(&file);
        clone.write(&file, fs::read_to_string(example)?)?;
    }
    // The ports of the examples may be somebody else's here.
    let mut ports: Vec<(String, String)> = Vec::new();
    for usual in ["7400", "7443", "7490", "7491", "7492"] {
        ports.push((format!("127.0.0.1:{usual}"), free_address()?.to_string()));
    }
    for role in ["origin", "edge", "agent"] {
        let file = clone.work().join(format!("deploy/config/{role}.toml"));
        let text = fs::read_to_string(&file)?;
        fs::write(file, ports.iter().fold(text, |text, (usual, free)| text.replace(usual, free)))?;
    }
    clone.commit_and_push("one")?;

    let said = dir.path().join("said");
    let bin = binary("weir-origin")?;
    let path = format!("{}:{}", bin.parent().context("a binary is in a folder")?.display(), std::env::var("PATH")?);
    let mut shell = Command::new("sh")
        .args(["-ec", rest])
        .current_dir(clone.work())
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(File::create(&said)?)
        .stderr(File::options().append(true).open(&said)?)
        .process_group(0)
        .spawn()?;
    let _group = Group(shell.id());
    let ended = shell.wait()?;
    let said = fs::read_to_string(&said)?;
    assert!(ended.success(), "{said}");
    let current = clone.work().join("trial/agent-data/shop-prod/current");
    assert_eq!(fs::read_to_string(current.join("page.md"))?, "to be delivered", "{said}");
    assert!(!current.join("README.md").exists());
    Ok(())
}
