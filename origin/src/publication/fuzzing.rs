//! What fuzzers call: rows as a disk may have left them.

use std::collections::HashMap;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redb::TableDefinition;
use weir_shared::digest::TarballDigest;

use super::contents::CONTENT;
use super::decision;
use super::history::{self, Entry, HISTORY, Time, Why};
use super::inspection::parse_content;
use super::pin::{PINS, from_unix};
use super::rows::{CURRENT, GENERATION, SUPERSEDED, parse};
use super::state::{State, StateError};
use crate::config::RetentionConfig;
use crate::database::DatabaseFile;
use crate::signing::Signer;
use crate::wall_clock::Clock;

const SERVICE: &str = "shop-prod";

/// A state in which one row after the other has these bytes is looked at, used, and mended: it is sound then.
#[cfg_attr(test, expect(unreachable_pub, reason = "fuzzers call it, which are a crate of their own"))]
pub fn database_row(bytes: &[u8]) {
    one(bytes);
    let number = bytes.first_chunk().map_or(7, |number| u64::from_le_bytes(*number));
    let digest = TarballDigest::of(b"tar");
    let now = UNIX_EPOCH + Duration::from_secs(1_795_000_000);
    let file = DatabaseFile::in_memory().expect("there is memory");
    let mut state = State::of(file, RetentionConfig::default()).expect("an empty state");
    let put = |transaction: &redb::WriteTransaction| -> Result<(), StateError> {
        transaction.open_table(CURRENT)?.insert(SERVICE, bytes)?;
        transaction.open_table(CURRENT)?.insert("other", bytes)?;
        transaction.open_table(SUPERSEDED)?.insert((SERVICE, digest.as_bytes()), (number, bytes))?;
        transaction.open_table(HISTORY)?.insert((SERVICE, number), bytes)?;
        transaction.open_table(CONTENT)?.insert(&[7; 32], bytes)?;
        transaction.open_table(GENERATION)?.insert(SERVICE, number)?;
        transaction.open_table(PINS)?.insert(std::str::from_utf8(bytes).unwrap_or(SERVICE), number)?;
        let signatures: TableDefinition<'_, &str, &str> = TableDefinition::new("signatures_v1");
        transaction.open_table(signatures)?.insert("keys", std::str::from_utf8(bytes).unwrap_or_default())?;
        Ok(())
    };
    state.write(put).expect("memory fails nobody");
    used(&state, &digest, now);
    let seen = state.inspect().expect("it can be read");
    state.mend_rows(&seen, now).expect("memory fails nobody");
    let after = state.inspect().expect("it can be read");
    assert!(after.unreadable.is_empty() && after.behind.is_empty(), "{after:?}");
    // No index can be right about a blob of two sizes.
    let mut sizes = HashMap::new();
    let mut forms = after.versions.iter().flat_map(|version| &version.forms);
    let contradicts = forms.any(|form| *sizes.entry(form.digest).or_insert(form.size) != form.size);
    assert!(!after.has_wrong_index || contradicts, "{after:?}");
    state.sign_with(std::sync::Arc::default()).expect("memory fails nobody");
    used(&state, &digest, now);
}

fn used(state: &State, digest: &TarballDigest, now: SystemTime) {
    let service = SERVICE.parse().expect("it is a name");
    let repository = "shop".parse().expect("it is a name");
    let done = (|| {
        let current = state.all_current()?;
        state.check_index(&current, now)?;
        state.pins()?;
        state.version(&service, digest)?;
        state.history(&service, None, 10)?;
        state.commits(&repository)?;
        state.age_history(now)?;
        state.expire(now, Clock::Steady)?;
        state.superfluous(now, None, 10)?;
        state.kept()?;
        Ok::<_, StateError>(())
    })();
    done.expect("a row that cannot be read is passed over");
}

/// What is read of a row is written so that it is read back.
fn one(bytes: &[u8]) {
    let signer = Signer::default();
    if let Ok(descriptor) = parse(SERVICE, bytes) {
        let rewritten = signer.descriptor(decision::rewritten(&descriptor));
        let read = parse(SERVICE, rewritten.bytes()).expect("it was written");
        assert_eq!(read.publication(), descriptor.publication());
        let last = Some(descriptor.publication().generation);
        let back = signer.descriptor(decision::again(&descriptor, last, UNIX_EPOCH, 0));
        assert!(back.version() > descriptor.version() || last == Some(u64::MAX));
        again(&Entry::new(&descriptor, Why::RolledBack, Some("an operator")));
    }
    if let Ok(entry) = serde_json::from_slice::<Entry>(bytes) {
        again(&entry);
    }
    if let Ok(content) = parse_content(bytes) {
        let json = serde_json::to_vec(&content).expect("plain data");
        assert_eq!(parse_content(&json).expect("it was written"), content);
    }
    if let Some(since) = bytes.first_chunk() {
        let _ = String::from(Time::from(from_unix(u64::from_le_bytes(*since))));
    }
}

fn again(entry: &Entry) {
    let json = serde_json::to_vec(entry).expect("plain data");
    assert_eq!(history::parse_entry(entry.generation, &json).expect("it was written"), *entry);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publication::tests::{content, published};
    use proptest::prelude::*;

    fn rows() -> Vec<Vec<u8>> {
        let descriptor = published(None, 'a', &content("tar", "blob"));
        let entry = Entry::new(&descriptor, Why::Followed, None);
        vec![
            descriptor.bytes().to_vec(),
            serde_json::to_vec(&entry).unwrap(),
            serde_json::to_vec(&content("tar", "blob")).unwrap(),
        ]
    }

    #[test]
    fn rows_as_they_are_written_and_rows_of_nothing_are_passed_over_or_used() {
        rows().iter().for_each(|row| database_row(row));
        for row in [&b""[..], b"{}", b"null", &[0xff; 40], b"shop-prod"] {
            database_row(row);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn no_row_that_has_changed_is_more_than_passed_over(
            which in 0usize..3,
            at: prop::sample::Index,
            byte: u8,
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut row = rows()[which].clone();
            let at = at.index(row.len());
            row[at] = byte;
            row.truncate(cut.map_or(row.len(), |cut| cut.index(row.len())));
            database_row(&row);
        }
    }
}
