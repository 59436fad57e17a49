//! What the kernel counts for a process on this machine.

use std::fs;
use std::time::Duration;

use anyhow::Context;

/// The kernel counts processor time for user space in hundredths of a second, independent of its own tick.
const TICK: Duration = Duration::from_millis(10);

/// The processor time that a process has used, in user space and in the kernel.
///
/// # Errors
/// There is no such process.
pub fn time(pid: u32) -> anyhow::Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).with_context(|| format!("there is no process {pid}"))?;
    // The name, in parentheses, may hold spaces: fields are counted from behind it.
    let fields = stat.rsplit_once(')').context("the kernel's own format")?.1;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    Ok(TICK * (fields[11].parse::<u32>()? + fields[12].parse::<u32>()?))
}

/// The memory in bytes that a process has for itself, files not counted.
///
/// # Errors
/// There is no such process.
pub fn anonymous_memory(pid: u32) -> anyhow::Result<u64> {
    let status =
        fs::read_to_string(format!("/proc/{pid}/status")).with_context(|| format!("there is no process {pid}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("the kernel's own format")?;
    Ok(1024 * line.trim_end_matches("kB").trim().parse::<u64>()?)
}
