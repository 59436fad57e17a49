//! Bounds the memory that glibc's allocator keeps for threads.

use std::os::unix::process::CommandExt;

/// Starts this program again, in the same process, with one arena of glibc's allocator. By default there are up to eight for
/// each core, and each keeps some megabytes of what was freed: a third of the memory of an idle origin or agent. A value that
/// the environment already has is kept. Call it before threads start.
pub fn limit_arenas() {
    const VARIABLE: &str = "MALLOC_ARENA_MAX";
    if let (None, Ok(program)) = (std::env::var_os(VARIABLE), std::env::current_exe()) {
        // It returns only when it fails; then the program runs as it is.
        let _ = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(VARIABLE, "1").exec();
    }
}
