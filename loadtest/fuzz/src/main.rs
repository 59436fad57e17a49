//! The fuzzers, all in one program: `WEIR_FUZZ` names the one that runs.

#![no_main]

mod targets;

use std::sync::OnceLock;

use libfuzzer_sys::fuzz_target;

use targets::{TARGETS, Target};

static CHOSEN: OnceLock<Target> = OnceLock::new();

fuzz_target!(|bytes: &[u8]| {
    let target = CHOSEN.get_or_init(|| {
        let name = std::env::var("WEIR_FUZZ").unwrap_or_default();
        let found = TARGETS.iter().find(|(known, _)| *known == name);
        let names = || TARGETS.iter().map(|(known, _)| *known).collect::<Vec<_>>().join(" ");
        found.unwrap_or_else(|| panic!("WEIR_FUZZ must be one of: {}", names())).1
    });
    target(bytes);
});
