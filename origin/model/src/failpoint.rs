//! Steps at which a test kills the process to inspect the result: `WEIR_FAILPOINT` names one. Compiled only into
//! debug builds.

/// A step between two changes on disk. Its name must be unique: the test finds the steps by these lines, and kills
/// the process at each.
#[macro_export]
macro_rules! failpoint {
    ($step:literal) => {
        #[cfg(debug_assertions)]
        $crate::failpoint::reached($step);
    };
}

/// Aborts the process if this is the named step.
#[cfg(debug_assertions)]
pub fn reached(step: &str) {
    static KILLED_AT: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("WEIR_FAILPOINT").ok());
    if KILLED_AT.as_deref() == Some(step) {
        std::process::abort();
    }
}
