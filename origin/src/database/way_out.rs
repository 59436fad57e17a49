//! A database that keeps an origin from starting: which file, and what is to be done.

use std::path::Path;

use super::DatabaseError;

const STATE: &str = "`weir-origin fsck --config FILE --mend` repairs it, or sets it aside and takes over what can be read \
                     of it";
const CATALOG: &str = "`weir-origin fsck --config FILE --mend` repairs it when no row is lost by that; otherwise put back \
                       a copy of it, or, when there is none, move it away and run `weir-origin new-catalog --config FILE`: \
                       what operators defined is withdrawn then";

/// What is told before the error itself. `is_catalog`: Git cannot bring back what it holds.
pub(crate) fn way_out(path: &Path, is_catalog: bool, error: Option<&DatabaseError>) -> String {
    let shown = path.display();
    match error {
        Some(error) if error.is_damage() => {
            format!("{shown} is damaged: {}", if is_catalog { CATALOG } else { STATE })
        }
        _ => format!("{shown} cannot be opened"),
    }
}
