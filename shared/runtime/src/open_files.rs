//! The limit of open files and sockets of this process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are reserved for files, databases and outgoing connections; half of a limit below twice that.
const RESERVE: u64 = 256;

/// Raises the soft limit to the hard one, and returns it; `None`: there is no limit. The usual soft limit of 1,024 exists for
/// programs that use `select`, which this one does not.
pub fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    // If this fails, the limit stays as it is.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current
}

/// How many of `wanted` connections a listener may accept under a limit of descriptors: at least a quarter is reserved.
#[must_use]
pub fn for_connections(limit: Option<u64>, wanted: usize) -> usize {
    let Some(limit) = limit else { return wanted };
    let left = (limit - RESERVE.min(limit / 2).max(limit / 4)).max(1);
    wanted.min(usize::try_from(left).unwrap_or(usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_leave_descriptors_for_everything_else() {
        for (limit, wanted, given) in [
            (None, 50_000, 50_000),
            (Some(1_048_576), 50_000, 50_000),
            (Some(40_000), 50_000, 30_000),
            (Some(1024), 50_000, 768),
            (Some(200), 50_000, 100),
            (Some(0), 50_000, 1),
        ] {
            assert_eq!(for_connections(limit, wanted), given, "{limit:?}");
        }
        assert_eq!(raise_limit(), getrlimit(Resource::Nofile).maximum);
    }
}
