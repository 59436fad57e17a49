//! The seeds of the fuzzers, replayed without libFuzzer.

#[path = "../../fuzz/src/targets/mod.rs"]
mod targets;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use targets::TARGETS;

#[test]
fn every_fuzz_target_accepts_its_seeds() -> anyhow::Result<()> {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    for (name, target) in TARGETS {
        for seed in fs::read_dir(seeds.join(name))? {
            let seed = seed?.path();
            // Shown when the target panics.
            println!("{}", seed.display());
            target(&fs::read(&seed)?);
        }
    }
    let mut folders = BTreeSet::new();
    for folder in fs::read_dir(&seeds)? {
        folders.insert(folder?.file_name());
    }
    let names: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).into()).collect();
    assert_eq!(folders, names, "each target has seeds, and each folder of seeds a target");
    Ok(())
}
