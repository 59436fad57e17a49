//! The tutorial of three processes, as a new operator pastes it.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::Context;
use weir_loadtest::processes::{binary, free_address};

/// The processes that a script leaves in the background.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let _ = Command::new("kill").args(["-KILL", "--", &format!("-{}", self.0)]).status();
    }
}

/// All `sh` blocks of a page, in their order.
fn script(page: &str) -> anyhow::Result<String> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page))?;
    let blocks = text.split("\n```sh\n").skip(1).map(|rest| rest.split("```").next().unwrap_or(rest));
    Ok(blocks.collect::<Vec<_>>().join("\n"))
}

#[test]
fn the_commands_of_the_tutorial_work() -> anyhow::Result<()> {
    for program in ["jq", "curl", "git"] {
        if Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err() {
            assert!(std::env::var_os("CI").is_none(), "the tutorial needs {program}");
            eprintln!("{program} is not installed: the tutorial was not run");
            return Ok(());
        }
    }
    let mut script = script("docs/tutorials/three-machines.md")?;
    assert!(script.contains("weir-agent") && script.contains("rollback"), "{script}");
    // The ports of the tutorial may be somebody else's here.
    for port in ["7400", "7401", "7443", "7490", "7491", "7492"] {
        let usual = format!("127.0.0.1:{port}");
        assert!(script.contains(&usual), "{usual}");
        script = script.replace(&usual, &free_address()?.to_string());
    }

    let dir = tempfile::tempdir()?;
    let output = dir.path().join("output");
    let bin = binary("weir-origin")?;
    let path = format!("{}:{}", bin.parent().context("a binary is in a folder")?.display(), std::env::var("PATH")?);
    let mut shell = Command::new("timeout")
        .args(["--foreground", "180", "sh", "-exc", &script])
        .current_dir(dir.path())
        .env("PATH", path)
        .envs([("GIT_AUTHOR_NAME", "me"), ("GIT_AUTHOR_EMAIL", "me@example.com")])
        .envs([("GIT_COMMITTER_NAME", "me"), ("GIT_COMMITTER_EMAIL", "me@example.com")])
        .stdin(Stdio::null())
        .stdout(File::create(&output)?)
        .stderr(File::options().append(true).open(&output)?)
        .process_group(0)
        .spawn()?;
    let _group = Group(shell.id());
    let ended = shell.wait()?;
    let output = String::from_utf8_lossy(&fs::read(&output)?).into_owned();
    assert!(ended.success(), "{output}");
    Ok(())
}
