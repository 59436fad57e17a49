//! How much memory this process may have: the limit of its control group, as containers and units of systemd have one.

use std::fs;
use std::path::Path;

/// The least `memory.max` of the control group of this process and of those above it (version 2). `None`: there is no limit.
pub fn memory_limit() -> Option<u64> {
    limit(&fs::read_to_string("/proc/self/cgroup").ok()?, Path::new("/sys/fs/cgroup"))
}

/// In a namespace of its own a process sees its group as `/`; where it sees a path of the host instead, folders may be missing.
fn limit(groups: &str, root: &Path) -> Option<u64> {
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let max = |group: &Path| fs::read_to_string(root.join(group).join("memory.max")).ok()?.trim().parse().ok();
    Path::new(group).ancestors().filter_map(max).min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_limit_applies() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("pods/edge")).unwrap();
        let found = |groups| limit(groups, root.path());
        assert_eq!(found("0::/pods/edge\n"), None);
        fs::write(root.path().join("pods/edge/memory.max"), "max\n").unwrap();
        assert_eq!(found("0::/pods/edge\n"), None);
        fs::write(root.path().join("pods/memory.max"), "2147483648\n").unwrap();
        assert_eq!(found("4:memory:/other\n0::/pods/edge\n"), Some(2 << 30));
        fs::write(root.path().join("memory.max"), "1073741824\n").unwrap();
        assert_eq!((found("0::/pods/edge\n"), found("0::/\n")), (Some(1 << 30), Some(1 << 30)));
        assert_eq!((found("0::/of/the/host\n"), found("4:memory:/\n")), (Some(1 << 30), None));
    }
}
