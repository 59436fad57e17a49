//! Steps at which a test kills the process, to see what is left: `WEIR_FAILPOINT` names one. They are compiled into
//! debug builds alone.

/// A step between two changes of what is on the disk. Its name must be the only one of that name: the test finds the
/// steps by these lines, and kills the process at each.
macro_rules! failpoint {
    ($step:literal) => {
        #[cfg(debug_assertions)]
        $crate::failpoint::reached($step);
    };
}

pub(crate) use failpoint;

/// Ends the process as a kill would when this is the step that is named.
#[cfg(debug_assertions)]
pub(crate) fn reached(step: &str) {
    static KILLED_AT: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("WEIR_FAILPOINT").ok());
    if KILLED_AT.as_deref() == Some(step) {
        std::process::abort();
    }
}
