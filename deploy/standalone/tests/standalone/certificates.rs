//! `weir certificates`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn certificates_writes_the_files_of_the_examples_with_private_keys() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("new/folder");
    let run = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args([
            "certificates",
            "--out",
            out.to_str().unwrap(),
            "--host",
            "edge.example",
            "10.1.2.3",
            "--agent",
            "a",
            "b",
            "--edge",
            "paris",
            "--origin",
            "two",
        ])
        .output()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for name in
        ["ca", "origin", "edge", "edge-client", "agent", "agent-a", "agent-b", "edge-paris", "origin-two", "operator"]
    {
        assert!(out.join(format!("{name}.pem")).exists(), "{name}.pem");
        let key = fs::metadata(out.join(format!("{name}.key")))?;
        assert_eq!(key.permissions().mode() & 0o777, 0o600, "{name}.key");
    }
    let run = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["certificates", "--out", out.to_str().unwrap(), "--host", "no host"])
        .output()?;
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("neither a DNS name nor an IP address"));
    Ok(())
}

/// Whoever trusts the authority would be cut off by another one.
#[test]
fn an_authority_without_its_key_is_not_replaced() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let run = || Command::new(env!("CARGO_BIN_EXE_weir")).args(["certificates", "--out"]).arg(dir.path()).output();
    assert!(run()?.status.success());
    let before = fs::read(dir.path().join("ca.pem"))?;
    fs::rename(dir.path().join("ca.key"), dir.path().join("away"))?;
    let refused = run()?;
    let error = String::from_utf8_lossy(&refused.stderr);
    assert!(refused.status.code() == Some(1) && error.contains("restore the key"), "{error}");
    assert_eq!(fs::read(dir.path().join("ca.pem"))?, before);
    fs::rename(dir.path().join("away"), dir.path().join("ca.key"))?;
    assert!(run()?.status.success());
    assert_eq!(fs::read(dir.path().join("ca.pem"))?, before);
    Ok(())
}
