//! Changes what a stopped origin has stored, as another version of the program might have written it.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use crate::prelude::*;

/// The file of the repository's record.
pub(crate) fn record_file(home: &Home) -> PathBuf {
    home.data_dir().join(format!("records/repositories/{REPOSITORY}.record"))
}

/// The file of a private object of the repository.
pub(crate) fn private_object(home: &Home, digest: &ObjectDigest) -> PathBuf {
    home.data_dir().join("objects").join(REPOSITORY).join("private").join(digest.hex())
}

/// The record of the repository.
pub(crate) fn record(home: &Home) -> Value {
    let file = std::fs::read_to_string(record_file(home)).unwrap();
    serde_json::from_str(file.split_once('\n').unwrap().1).unwrap()
}

/// The state pages that a record names, in their order.
pub(crate) fn pages(record: &Value) -> Vec<ObjectDigest> {
    let pages = record["pages"].as_array().unwrap();
    pages.iter().map(|page| page["digest"].as_str().unwrap().parse().unwrap()).collect()
}

fn write_record(home: &Home, record: &Value) {
    let (nonce, bytes) = ("0".repeat(32), record.to_string());
    let checksum = blake3::hash(format!("{nonce} {bytes}").as_bytes()).to_hex();
    std::fs::write(record_file(home), format!("weir-record-1 {nonce} {checksum}\n{bytes}")).unwrap();
}

/// Replaces the stored document of the repository.
pub(crate) fn replace_repository(home: &Home, document: &Value) {
    let mut record = record(home);
    let definition = &mut record["definition"];
    match definition.get_mut("document") {
        Some(stored) => *stored = document.clone(),
        None => *definition = document.clone(),
    }
    write_record(home, &record);
}

/// Replaces the stored document of a service of the repository.
pub(crate) fn replace_service(home: &Home, service: &str, document: &Value) {
    let mut record = record(home);
    for (number, digest) in pages(&record).into_iter().enumerate() {
        let page = std::fs::read_to_string(private_object(home, &digest)).unwrap();
        let Some(row) = page.lines().find(|row| row.contains(&format!("\"service\":\"{service}\""))) else { continue };
        let fields: BTreeMap<&str, &RawValue> = serde_json::from_str(row).unwrap();
        let definition = fields["definition"].get();
        let mut changed: Value = serde_json::from_str(definition).unwrap();
        changed["document"] = document.clone();
        let page = page.replace(row, &row.replace(definition, &changed.to_string()));
        let digest = ObjectDigest::of(page.as_bytes());
        std::fs::write(private_object(home, &digest), &page).unwrap();
        record["pages"][number]["digest"] = digest.to_string().into();
        if let Some(size) = record["pages"][number].get_mut("size") {
            *size = page.len().into();
        }
        write_record(home, &record);
        return;
    }
    panic!("no page has `{service}`: {record}");
}
