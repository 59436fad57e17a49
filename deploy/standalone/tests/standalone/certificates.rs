//! `weir certificates`.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;

#[test]
fn certificates_has_the_names_of_the_examples_and_keeps_keys_private() -> anyhow::Result<()> {
    let dir = tempfile::tempdir()?;
    let out = dir.path().join("new/folder");
    let run = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["certificates", "--out", out.to_str().unwrap(), "--host", "edge.example", "10.1.2.3"])
        .output()?;
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    for name in ["ca", "origin", "edge", "edge-client", "agent", "operator"] {
        assert!(out.join(format!("{name}.pem")).exists(), "{name}.pem");
        let key = std::fs::metadata(out.join(format!("{name}.key")))?;
        assert_eq!(key.permissions().mode() & 0o777, 0o600, "{name}.key");
    }
    let run = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["certificates", "--out", out.to_str().unwrap(), "--host", "no host"])
        .output()?;
    assert!(!run.status.success());
    assert!(String::from_utf8_lossy(&run.stderr).contains("neither a DNS name nor an IP address"));
    Ok(())
}
