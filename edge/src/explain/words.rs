//! An explanation in sentences, for a person. Pure.

use std::time::Duration;

use weir_shared::digest::TarballDigest;

use super::{Explanation, Form, HeldVersion, TableEntry};
use crate::service_table::freshness::Verdict;

/// The sentences, the most important first.
pub(super) fn of(it: &Explanation, digest: Option<&TarballDigest>) -> Vec<String> {
    let mut words = Vec::new();
    match (&it.version, digest, &it.table) {
        (Some(version), _, _) => words.push(held(&it.service, version)),
        (None, Some(digest), _) => words.push(format!(
            "{} is not held of {}: its descriptor is asked of the origin when somebody wants it.",
            digest, it.service
        )),
        (None, None, Some(table)) if table.unreadable => {
            words.push(format!("What stands on disk of {} cannot be read.", it.service));
        }
        (None, None, Some(table)) => words.push(format!(
            "{} is gone, as its origin said {} ago; its highest generation was {}.",
            it.service,
            seconds(table.age_seconds),
            table.highest_generation
        )),
        (None, None, None) => words
            .push(format!("Nothing is known of {} here: nobody has asked for it, or no origin has it.", it.service)),
    }
    // Before all else that may be the matter: whatever an origin says now, this edge cannot take it.
    if let Some(reason) = &it.table_failure {
        words.push(format!(
            "This edge can take no new version of it, whatever its origin says, because its disk does not take the \
             table: {reason}. What is held is served until there is space, or the disk is well again."
        ));
    }
    let is_past = |version: &HeldVersion| !version.is_current;
    match (&it.version, &it.table) {
        // What is known of the current version says nothing of one that is not held.
        (None, _) if digest.is_some() => {}
        (Some(version), _) if is_past(version) => {
            words.push("It is a past version: it never changes, and is never stale.".to_owned());
        }
        (_, Some(table)) => {
            words.push(freshness(table));
            words.push(next_request(table));
        }
        (_, None) if it.last_failure.is_some() => {
            words.push("The next request is answered with what came of the last question.".to_owned());
        }
        (_, None) => words.push("The next request asks the origins, and waits for them.".to_owned()),
    }
    if it.being_asked {
        words.push("An origin is being asked right now; whoever waits shares the answer.".to_owned());
    }
    if let Some(reason) = &it.last_failure {
        let pause = seconds(it.last_failure_holds_seconds.unwrap_or_default());
        words.push(format!("The last question brought nothing: {reason}. It is not repeated for {pause} after it."));
    }
    if let Some(table) = &it.table {
        words.push(origin(table));
        words.extend(refused(table));
    }
    words.extend(it.version.iter().flat_map(|version| &version.representations).map(form));
    if !it.past_versions.is_empty() {
        words.push(format!("Past versions whose descriptors are held: {}.", it.past_versions.join(", ")));
    }
    words
}

fn held(service: &str, version: &HeldVersion) -> String {
    format!(
        "{service} is held: generation {} (revision {}) is {} of commit {} of repository {}, {} bytes, published {} ago.",
        version.generation,
        version.revision,
        version.digest,
        version.commit,
        version.repository,
        version.size,
        seconds(version.published_seconds_ago),
    )
}

fn freshness(table: &TableEntry) -> String {
    let age = seconds(table.age_seconds);
    match (table.verdict, table.stale_seconds) {
        (Verdict::Fresh, _) => {
            let by = if table.by_event_stream {
                "the origin's event stream said that nothing has changed"
            } else {
                "the origin spoke"
            };
            format!("It is fresh for another {}: {by} {age} ago.", seconds(table.fresh_seconds_left))
        }
        (_, 0) => format!("It is stale because an operator has purged it; the origin spoke {age} ago."),
        (_, stale) => format!("It has been stale for {}: the origin spoke {age} ago.", seconds(stale)),
    }
}

fn next_request(table: &TableEntry) -> String {
    let is_down = table.origin.as_ref().is_some_and(|origin| !origin.up && origin.last_error.is_some());
    let wait = seconds(table.wait_seconds);
    match table.verdict {
        Verdict::Fresh => "The next request is answered at once, and asks nobody.".to_owned(),
        Verdict::StaleWhileRevalidate => {
            "The next request is answered at once, and has the origin asked in the background.".to_owned()
        }
        Verdict::Ask if is_down => "The next request is answered at once with what is held, because the origin is \
                                          known to be down; it is asked in the background."
            .to_owned(),
        Verdict::Expired => format!(
            "It is older than this edge may serve: the next request waits {wait} for the origin, and gets 504 when it \
             does not answer."
        ),
        Verdict::Ask => {
            format!("The next request asks the origin and waits {wait} for it; in vain, it gets what is held.")
        }
    }
}

fn origin(table: &TableEntry) -> String {
    match &table.origin {
        None => "The origin that it came from is not configured any more: all are asked.".to_owned(),
        Some(origin) => match (&origin.last_error, origin.up) {
            (Some(error), _) => format!("It comes from origin {}, which does not answer: {error}.", origin.name),
            (None, true) => format!("It comes from origin {}, which answers.", origin.name),
            (None, false) => format!("It comes from origin {}, which was not asked yet.", origin.name),
        },
    }
}

fn refused(table: &TableEntry) -> Option<String> {
    let refused = table.refused.as_ref()?;
    Some(format!(
        "{} ago the origin offered generation {} (revision {}), which was refused: {} (revision {}) had been seen. After \
         a clock that was far ahead, set generation_floor in the origin's configuration.",
        seconds(refused.seconds_ago),
        refused.generation,
        refused.revision,
        table.highest_generation,
        table.highest_revision,
    ))
}

fn form(form: &Form) -> String {
    let (encoding, blob, size) = (form.encoding, &form.blob, form.size);
    let place = match &form.held {
        _ if form.on_its_way => "is on its way here, or being verified".to_owned(),
        None => "is not here: the first who wants it has it fetched".to_owned(),
        Some(held) => {
            let verified = match (held.verified, held.tier) {
                (true, "file") => "verified, and not written to since",
                (true, _) => "verified",
                (false, _) => "to be verified before its next use",
            };
            let used = held.idle_seconds.map_or_else(String::new, |idle| format!(", last used {} ago", seconds(idle)));
            format!("is here ({}), {verified}{used}", held.tier)
        }
    };
    format!("As {encoding} it is blob {blob} of {size} bytes, which {place}.")
}

fn seconds(seconds: u64) -> String {
    let duration = Duration::from_secs(seconds);
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{} s", duration.as_secs()),
        (0, 0, minutes) => format!("{minutes} min {} s", seconds % 60),
        (0, hours, minutes) => format!("{hours} h {minutes} min"),
        (days, hours, _) => format!("{days} d {hours} h"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{OriginState, RefusedOffer};
    use super::*;
    use crate::blob_cache::HeldBlob;

    fn explanation(verdict: Verdict, age: u64, stale: u64, error: Option<&str>) -> Explanation {
        let version = HeldVersion {
            digest: "b3-aa".to_owned(),
            is_current: true,
            generation: 7,
            revision: 2,
            commit: "cafe".to_owned(),
            repository: "shop".to_owned(),
            size: 1000,
            published_seconds_ago: 90_061,
            representations: vec![
                Form {
                    encoding: "zstd",
                    blob: "b3-bb".to_owned(),
                    size: 100,
                    held: Some(HeldBlob { tier: "file", verified: true, bytes: 100, idle_seconds: Some(61) }),
                    on_its_way: false,
                },
                Form { encoding: "gzip", blob: "b3-cc".to_owned(), size: 200, held: None, on_its_way: false },
            ],
        };
        Explanation {
            service: "shop-prod".to_owned(),
            words: Vec::new(),
            table_failure: None,
            version: Some(version),
            past_versions: Vec::new(),
            table: Some(TableEntry {
                highest_generation: 7,
                highest_revision: 2,
                gone: false,
                unreadable: false,
                freshness: verdict.as_str(),
                verdict,
                age_seconds: age,
                fresh_seconds_left: 15u64.saturating_sub(age),
                stale_seconds: stale,
                wait_seconds: 2,
                by_event_stream: false,
                origin: Some(OriginState {
                    name: "o:1".to_owned(),
                    up: error.is_none(),
                    last_error: error.map(str::to_owned),
                }),
                refused: None,
            }),
            last_failure: None,
            last_failure_holds_seconds: None,
            being_asked: false,
        }
    }

    fn says(explanation: &Explanation, digest: Option<&TarballDigest>, expected: &[&str]) {
        let words = of(explanation, digest).join("\n");
        for part in expected {
            assert!(words.contains(part), "`{part}` is not in\n{words}");
        }
    }

    #[test]
    fn each_state_is_told_with_its_numbers_and_what_comes_next() {
        says(
            &explanation(Verdict::Fresh, 6, 0, None),
            None,
            &[
                "generation 7 (revision 2)",
                "published 1 d 1 h ago",
                "fresh for another 9 s",
                "asks nobody",
                "o:1, which answers",
                "is here (file), verified, and not written to since, last used 1 min 1 s ago",
                "As gzip it is blob b3-cc of 200 bytes, which is not here",
            ],
        );
        says(
            &explanation(Verdict::StaleWhileRevalidate, 20, 5, None),
            None,
            &["stale for 5 s", "asked in the background"],
        );
        says(&explanation(Verdict::Ask, 3, 0, None), None, &["an operator has purged it", "waits 2 s for it"]);
        let down = explanation(Verdict::Ask, 7300, 7285, Some("origin o:1 cannot be reached: refused"));
        says(&down, None, &["stale for 2 h 1 min", "known to be down", "cannot be reached: refused"]);
        says(&explanation(Verdict::Expired, 20, 5, None), None, &["504"]);
        let mut full = explanation(Verdict::StaleWhileRevalidate, 20, 5, None);
        full.table_failure = Some("No space left on device".to_owned());
        let second = &of(&full, None)[1];
        assert!(second.contains("can take no new version") && second.contains("No space left"), "{second}");
        let mut regressed = explanation(Verdict::Ask, 20, 5, None);
        regressed.table.as_mut().unwrap().refused = Some(RefusedOffer { generation: 6, revision: 1, seconds_ago: 3 });
        regressed.last_failure = Some("it went back".to_owned());
        regressed.last_failure_holds_seconds = Some(1);
        regressed.being_asked = true;
        says(
            &regressed,
            None,
            &["generation 6 (revision 1), which was refused: 7", "it went back", "for 1 s", "right now"],
        );
    }

    #[test]
    fn what_is_not_held_is_said_so() {
        let digest = TarballDigest::of(b"x");
        let mut other = explanation(Verdict::Fresh, 6, 0, None);
        other.version = None;
        says(&other, Some(&digest), &["is not held of shop-prod"]);
        let words = of(&other, Some(&digest)).join(" ");
        assert!(!words.contains("fresh") && !words.contains("at once"), "nothing is said of the current one: {words}");
        says(&other, None, &["is gone", "highest generation was 7"]);
        other.table.as_mut().unwrap().unreadable = true;
        says(&other, None, &["cannot be read"]);
        other.table = None;
        says(&other, None, &["Nothing is known of shop-prod", "asks the origins"]);
        other.last_failure = Some("there is no such service".to_owned());
        other.last_failure_holds_seconds = Some(30);
        says(&other, None, &["answered with what came of the last question", "no such service", "for 30 s"]);
        assert!(!of(&other, None).join(" ").contains("asks the origins"));
        let mut past = explanation(Verdict::Fresh, 6, 0, None);
        past.version.as_mut().unwrap().is_current = false;
        says(&past, Some(&digest), &["never changes"]);
    }
}
