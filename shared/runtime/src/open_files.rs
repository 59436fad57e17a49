//! How many files and sockets this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that are left for files, databases and connections to others, at the least; of few, half.
const RESERVE: u64 = 256;

/// Raises the soft limit to the hard one, and gives what it is then; `None`: there is no limit. The usual soft limit of
/// 1,024 is for programs that use `select`; which this one does not.
pub fn raise_limit() -> Option<u64> {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, ..limit };
    // One that may not be raised stays as it is.
    let _ = setrlimit(Resource::Nofile, raised);
    getrlimit(Resource::Nofile).current
}

/// How many of so many descriptors a listener may take for its connections: a quarter is left for everything else.
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
    fn what_connections_leave_is_enough_for_everything_else() {
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
