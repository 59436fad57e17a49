//! An explanation in sentences, for a person. Pure.

use std::time::Duration;

use weir_shared::digest::TarballDigest;

use super::{Explanation, Form, HeldVersion, StoredEntry};
use crate::cache::CachedFrames;
use crate::catalog::Freshness;

/// The sentences, the most important first.
pub(super) fn of(it: &Explanation, digest: Option<&TarballDigest>) -> Vec<String> {
    let mut words = Vec::new();
    match (&it.version, digest, &it.entry) {
        (Some(version), _, _) => words.push(held(&it.service, version)),
        (None, Some(digest), _) => words.push(format!(
            "{} is not held of {}: its descriptor is asked of the origin when somebody wants it.",
            digest, it.service
        )),
        (None, None, Some(entry)) => words.push(format!(
            "{} is gone, as its origin said {} ago; its highest generation was {}.",
            it.service,
            seconds(entry.age_seconds),
            entry.highest_generation
        )),
        (None, None, None) => words
            .push(format!("Nothing is known of {} here: nobody has asked for it, or no origin has it.", it.service)),
    }
    if let Some(reason) = &it.catalog_failure {
        words.push(format!(
            "The disk does not take the catalog: {reason}. Everything is served from memory; a crash would set this edge \
             back to what the disk took last."
        ));
    }
    let is_past = |version: &HeldVersion| !version.is_current;
    match (&it.version, &it.entry) {
        // What is known of the current version says nothing of one that is not held.
        (None, _) if digest.is_some() => {}
        (Some(version), _) if is_past(version) => {
            words.push("It is a past version: it never changes, and is never stale.".to_owned());
        }
        (_, Some(entry)) => {
            words.push(freshness(entry));
            words.push(next_request(entry));
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
    if let Some(entry) = &it.entry {
        words.push(origin(entry));
        words.extend(refused(entry));
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

fn freshness(entry: &StoredEntry) -> String {
    let age = seconds(entry.age_seconds);
    match (entry.verdict, entry.stale_seconds) {
        (Freshness::Fresh, _) => {
            let by = if entry.by_event_stream {
                "the origin's event stream said that nothing has changed"
            } else {
                "the origin spoke"
            };
            format!("It is fresh for another {}: {by} {age} ago.", seconds(entry.fresh_seconds_left))
        }
        (_, 0) => format!("It is stale because an operator has purged it; the origin spoke {age} ago."),
        (_, stale) => format!("It has been stale for {}: the origin spoke {age} ago.", seconds(stale)),
    }
}

fn next_request(entry: &StoredEntry) -> String {
    let is_down = entry.origin.as_ref().is_some_and(|origin| !origin.up && origin.last_error.is_some());
    let wait = seconds(entry.wait_seconds);
    match entry.verdict {
        Freshness::Fresh => "The next request is answered at once, and asks nobody.".to_owned(),
        Freshness::StaleWhileRevalidate => {
            "The next request is answered at once, and has the origin asked in the background.".to_owned()
        }
        Freshness::Revalidate if is_down => {
            "The next request is answered at once with what is held, because the origin is \
                                          known to be down; it is asked in the background."
                .to_owned()
        }
        Freshness::Expired => format!(
            "It is older than this edge may serve: the next request waits {wait} for the origin, and gets 504 when it \
             does not answer."
        ),
        Freshness::Revalidate => {
            format!("The next request asks the origin and waits {wait} for it; in vain, it gets what is held.")
        }
    }
}

fn origin(entry: &StoredEntry) -> String {
    match &entry.origin {
        None => "The origin that it came from is not configured any more: all are asked.".to_owned(),
        Some(origin) => match (&origin.last_error, origin.up) {
            (Some(error), _) => format!("It comes from origin {}, which does not answer: {error}.", origin.name),
            (None, true) => format!("It comes from origin {}, which answers.", origin.name),
            (None, false) => format!("It comes from origin {}, which was not asked yet.", origin.name),
        },
    }
}

fn refused(entry: &StoredEntry) -> Option<String> {
    let refused = entry.refused.as_ref()?;
    Some(format!(
        "{} ago the origin offered generation {} (revision {}), which was refused: {} (revision {}) had been seen. After \
         a clock that was far ahead, set generation_floor in the origin's configuration.",
        seconds(refused.seconds_ago),
        refused.generation,
        refused.revision,
        entry.highest_generation,
        entry.highest_revision,
    ))
}

fn form(form: &Form) -> String {
    let Form { encoding, object, size, cached } = form;
    let CachedFrames { frames, in_memory, on_disk, missing, being_fetched } = cached;
    let here = match missing {
        0 => format!("all are here: {in_memory} in memory, {on_disk} on disk"),
        missing => format!("{missing} are not here; {in_memory} are in memory, {on_disk} on disk"),
    };
    let fetched = if *being_fetched { ", and more is being fetched now" } else { "" };
    format!("As {encoding} it is {size} bytes in frames: {frames}, named by {object}; {here}{fetched}.")
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

    fn explanation(verdict: Freshness, age: u64, stale: u64, error: Option<&str>) -> Explanation {
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
                    object: "b3-bb".to_owned(),
                    size: 100,
                    cached: CachedFrames { frames: 3, in_memory: 1, on_disk: 3, ..CachedFrames::default() },
                },
                Form {
                    encoding: "gzip",
                    object: "b3-cc".to_owned(),
                    size: 200,
                    cached: CachedFrames { frames: 1, missing: 1, being_fetched: true, ..CachedFrames::default() },
                },
            ],
        };
        Explanation {
            service: "shop-prod".to_owned(),
            words: Vec::new(),
            catalog_failure: None,
            version: Some(version),
            past_versions: Vec::new(),
            entry: Some(StoredEntry {
                highest_generation: 7,
                highest_revision: 2,
                gone: false,
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
            &explanation(Freshness::Fresh, 6, 0, None),
            None,
            &[
                "generation 7 (revision 2)",
                "published 1 d 1 h ago",
                "fresh for another 9 s",
                "asks nobody",
                "o:1, which answers",
                "frames: 3, named by b3-bb; all are here: 1 in memory, 3 on disk.",
                "frames: 1, named by b3-cc; 1 are not here; 0 are in memory, 0 on disk, and more is being fetched",
            ],
        );
        says(
            &explanation(Freshness::StaleWhileRevalidate, 20, 5, None),
            None,
            &["stale for 5 s", "asked in the background"],
        );
        says(&explanation(Freshness::Revalidate, 3, 0, None), None, &["an operator has purged it", "waits 2 s for it"]);
        let down = explanation(Freshness::Revalidate, 7300, 7285, Some("origin o:1 cannot be reached: refused"));
        says(&down, None, &["stale for 2 h 1 min", "known to be down", "cannot be reached: refused"]);
        says(&explanation(Freshness::Expired, 20, 5, None), None, &["504"]);
        let mut full = explanation(Freshness::StaleWhileRevalidate, 20, 5, None);
        full.catalog_failure = Some("No space left on device".to_owned());
        let second = &of(&full, None)[1];
        assert!(second.contains("does not take the catalog") && second.contains("No space left"), "{second}");
        let mut regressed = explanation(Freshness::Revalidate, 20, 5, None);
        regressed.entry.as_mut().unwrap().refused = Some(RefusedOffer { generation: 6, revision: 1, seconds_ago: 3 });
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
        let mut other = explanation(Freshness::Fresh, 6, 0, None);
        other.version = None;
        says(&other, Some(&digest), &["is not held of shop-prod"]);
        let words = of(&other, Some(&digest)).join(" ");
        assert!(!words.contains("fresh") && !words.contains("at once"), "nothing is said of the current one: {words}");
        says(&other, None, &["is gone", "highest generation was 7"]);
        other.entry = None;
        says(&other, None, &["Nothing is known of shop-prod", "asks the origins"]);
        other.last_failure = Some("there is no such service".to_owned());
        other.last_failure_holds_seconds = Some(30);
        says(&other, None, &["answered with what came of the last question", "no such service", "for 30 s"]);
        assert!(!of(&other, None).join(" ").contains("asks the origins"));
        let mut past = explanation(Freshness::Fresh, 6, 0, None);
        past.version.as_mut().unwrap().is_current = false;
        says(&past, Some(&digest), &["never changes"]);
    }
}
