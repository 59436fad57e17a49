//! Judges what was seen of a cluster. Each rule is a pure function that lists what violates it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use weir_loadtest::git_requests::Wants;

use super::history::{CutOff, Death, Fetch, History, Poll, Push, Seen, Vouch};

/// What is judged besides the rules that always hold.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// The cluster's `session_ttl`.
    pub(crate) ttl: Duration,
    /// The most that clocks and the test's own delays may take.
    pub(crate) margin: Duration,
    /// The longest time without publications after an owner's death; `None`: times are not judged.
    pub(crate) takeover: Option<Duration>,
    /// Mirrors move without a clone.
    pub(crate) one_clone: bool,
}

/// Everything in a history that violates a rule.
pub(crate) fn violations(history: &History, rules: &Rules) -> Vec<String> {
    let mut found = overlaps(&history.fetches, rules.margin);
    found.extend(conflicts(&history.publications));
    found.extend(regressions(&history.publications));
    found.extend(failures(&history.polls));
    found.extend(acts_while_cut_off(&history.vouches, &history.fetches, &history.cut_off, rules));
    found.extend(lost_pushes(&history.pushes, &history.publications));
    if history.failed_polls > 0 {
        found.push(format!("agents count {} failed polls", history.failed_polls));
    }
    if let Some(limit) = rules.takeover {
        found.extend(slow_takeovers(&history.deaths, &history.pushes, &history.publications, limit));
    }
    if rules.one_clone {
        found.extend(later_clones(&history.fetches));
    }
    found
}

/// Requests of different origins for one repository that overlap by more than `margin`.
fn overlaps(fetches: &[Fetch], margin: Duration) -> Vec<String> {
    let mut by_begin: Vec<&Fetch> = fetches.iter().collect();
    by_begin.sort_by_key(|fetch| (&fetch.repository, fetch.began));
    let mut found = Vec::new();
    for (index, first) in by_begin.iter().enumerate() {
        let later = by_begin[index + 1..]
            .iter()
            .take_while(|second| second.repository == first.repository && second.began + margin < first.ended);
        for second in later.filter(|second| second.origin != first.origin) {
            if first.ended.min(second.ended) > second.began + margin {
                found.push(format!("fetches overlap: {first:?} and {second:?}"));
            }
        }
    }
    found
}

/// Publications with one generation and different digests.
fn conflicts(publications: &[Seen]) -> Vec<String> {
    let mut first = BTreeMap::new();
    let mut found = Vec::new();
    for seen in publications {
        let known: &&Seen = first.entry((&seen.service, seen.generation)).or_insert(seen);
        if known.digest != seen.digest {
            found.push(format!("two publications have one generation: {known:?} and {seen:?}"));
        }
    }
    found
}

/// Edges whose answers go back. Events of origins are not ordered: a stream may begin again.
fn regressions(publications: &[Seen]) -> Vec<String> {
    let mut newest: BTreeMap<_, &Seen> = BTreeMap::new();
    let mut found = Vec::new();
    for seen in publications.iter().filter(|seen| seen.node.starts_with("edge")) {
        let last = newest.entry((&seen.node, seen.reader, &seen.service)).or_insert(seen);
        if seen.generation < last.generation {
            found.push(format!("an edge went back: {last:?}, then {seen:?}"));
        }
        *last = seen;
    }
    found
}

/// Polls that no edge answered.
fn failures(polls: &[Poll]) -> Vec<String> {
    let failed = polls.iter().filter_map(|poll| Some((poll, poll.failure.as_ref()?)));
    failed.map(|(poll, why)| format!("a poll of {} failed at {:.1?}: {why}", poll.service, poll.at)).collect()
}

/// Heartbeats and requests to upstreams by an origin whose session must have ended, because it was cut off from the engine.
fn acts_while_cut_off(vouches: &[Vouch], fetches: &[Fetch], cut_off: &[CutOff], rules: &Rules) -> Vec<String> {
    let is_cut_off = |origin: &str, at: Duration| {
        cut_off.iter().any(|cut| cut.origin == origin && cut.from + rules.ttl + rules.margin < at && at < cut.until)
    };
    let vouches = vouches.iter().filter(|vouch| is_cut_off(&vouch.origin, vouch.at));
    let fetches = fetches.iter().filter(|fetch| is_cut_off(&fetch.origin, fetch.began));
    let vouches = vouches.map(|vouch| format!("vouched without a session: {vouch:?}"));
    vouches.chain(fetches.map(|fetch| format!("fetched without a session: {fetch:?}"))).collect()
}

/// Services whose last push was never published. A push before the last may have been followed by the next before a poll.
fn lost_pushes(pushes: &[Push], publications: &[Seen]) -> Vec<String> {
    let published: BTreeSet<(&str, &str)> =
        publications.iter().map(|seen| (seen.service.as_str(), seen.commit.as_str())).collect();
    let last: BTreeMap<&str, &Push> = pushes.iter().map(|push| (push.service.as_str(), push)).collect();
    let lost = last.values().filter(|push| !published.contains(&(push.service.as_str(), push.commit.as_str())));
    lost.map(|push| format!("a push was lost: {push:?}")).collect()
}

/// Pushes around an owner's death that took longer than `limit` to be published, as they or as a later one.
fn slow_takeovers(deaths: &[Death], pushes: &[Push], publications: &[Seen], limit: Duration) -> Vec<String> {
    // A push before a death may not have been noticed yet: it is due as if it came with the death.
    let mut found = Vec::new();
    let mut first_seen: BTreeMap<(&str, &str), Duration> = BTreeMap::new();
    for seen in publications {
        let at = first_seen.entry((seen.service.as_str(), seen.commit.as_str())).or_insert(seen.at);
        *at = seen.at.min(*at);
    }
    // When each push was published, at the latest by a later push of the service.
    let mut by_service: BTreeMap<&str, Vec<&Push>> = BTreeMap::new();
    for push in pushes {
        by_service.entry(push.service.as_str()).or_default().push(push);
    }
    for pushes in by_service.values() {
        let mut published = Duration::MAX;
        for push in pushes.iter().rev() {
            let own = first_seen.get(&(push.service.as_str(), push.commit.as_str()));
            published = published.min(own.copied().unwrap_or(Duration::MAX));
            for death in deaths {
                let due = push.at.max(death.at) + limit;
                let is_meant =
                    push.at < death.undisturbed_until && published > death.at && due < death.undisturbed_until;
                if is_meant && published > due {
                    let (origin, died) = (&death.origin, death.at);
                    found.push(format!("{origin} died at {died:.1?}, and this took until {published:.1?}: {push:?}"));
                }
            }
        }
    }
    found
}

/// Clones of a repository after its first. One that was broken off is made again.
fn later_clones(fetches: &[Fetch]) -> Vec<String> {
    let mut has: BTreeMap<&str, &Fetch> = BTreeMap::new();
    let mut found = Vec::new();
    for fetch in fetches.iter().filter(|fetch| fetch.wants != Wants::Refs) {
        match has.get(fetch.repository.as_str()) {
            Some(first) if fetch.wants == Wants::Clone => {
                found.push(format!("cloned again: {fetch:?} after {first:?}"));
            }
            Some(_) => {}
            None => drop(has.insert(&fetch.repository, fetch)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARGIN: Duration = Duration::from_millis(300);

    fn at(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn fetch(origin: &str, wants: Wants, began: u64, ended: u64) -> Fetch {
        let (origin, repository) = (origin.to_owned(), "shop".to_owned());
        Fetch { origin, repository, wants, began: at(began), ended: at(ended) }
    }

    fn seen(node: &str, generation: u64, millis: u64) -> Seen {
        Seen {
            at: at(millis),
            node: node.to_owned(),
            reader: 0,
            service: "shop".parse().unwrap(),
            generation,
            digest: weir_protocol::digest::TarballDigest::of(&generation.to_be_bytes()),
            commit: format!("commit-{generation}"),
        }
    }

    fn push(number: u64, millis: u64) -> Push {
        Push { at: at(millis), service: "shop".parse().unwrap(), commit: format!("commit-{number}") }
    }

    #[test]
    fn fetches_of_different_owners_overlap_by_the_margin_at_most() {
        let one = fetch("origin-1", Wants::Refs, 1000, 2000);
        let judge = |second: Fetch| overlaps(&[second, one.clone()], MARGIN).len();
        assert_eq!(judge(fetch("origin-2", Wants::Newer, 1699, 2500)), 1);
        assert_eq!(judge(fetch("origin-2", Wants::Newer, 1701, 2500)), 0, "within the margin");
        assert_eq!(judge(fetch("origin-2", Wants::Refs, 1100, 1350)), 0, "within the margin");
        assert_eq!(judge(fetch("origin-1", Wants::Newer, 1100, 2500)), 0, "the same owner");
        assert_eq!(judge(Fetch { repository: "other".to_owned(), ..fetch("origin-2", Wants::Refs, 1100, 2500) }), 0);
        // A short one of the same owner between both hides nothing.
        let between = fetch("origin-1", Wants::Refs, 1100, 1200);
        assert_eq!(overlaps(&[one.clone(), between, fetch("origin-2", Wants::Refs, 1300, 1900)], MARGIN).len(), 1);
    }

    #[test]
    fn one_generation_has_one_digest() {
        let one = seen("origin-1", 7, 0);
        let other = Seen { digest: weir_protocol::digest::TarballDigest::of(b"other"), ..seen("edge-1", 7, 10) };
        assert_eq!(conflicts(&[one.clone(), seen("edge-2", 7, 5), seen("edge-1", 8, 5)]).len(), 0);
        assert_eq!(conflicts(&[one, other]).len(), 1);
    }

    #[test]
    fn no_edge_goes_back() {
        let judge = |nodes: [&str; 2]| regressions(&[seen(nodes[0], 8, 0), seen(nodes[1], 7, 1)]).len();
        assert_eq!(judge(["edge-1", "edge-1"]), 1);
        assert_eq!(judge(["edge-1", "edge-2"]), 0);
        let other = Seen { reader: 1, ..seen("edge-1", 7, 1) };
        assert_eq!(regressions(&[seen("edge-1", 8, 0), other]).len(), 0, "readers may be told in any order");
        assert_eq!(judge(["origin-1", "origin-1"]), 0, "a snapshot may repeat");
    }

    #[test]
    fn no_poll_fails() {
        let poll = |failure: Option<&str>| Poll {
            at: at(0),
            service: "shop".parse().unwrap(),
            failure: failure.map(str::to_owned),
        };
        assert_eq!(failures(&[poll(None), poll(Some("edge-1: 503"))]).len(), 1);
    }

    #[test]
    fn who_is_cut_off_neither_vouches_nor_fetches() {
        let rules = Rules { ttl: at(3000), margin: MARGIN, takeover: None, one_clone: false };
        let cut = CutOff { origin: "origin-1".to_owned(), from: at(10_000), until: at(20_000) };
        let judge = |origin: &str, when| {
            let vouch = Vouch { at: at(when), origin: origin.to_owned() };
            let fetch = fetch(origin, Wants::Refs, when, when + 10);
            acts_while_cut_off(&[vouch], &[fetch], std::slice::from_ref(&cut), &rules).len()
        };
        assert_eq!(judge("origin-1", 13_301), 2);
        assert_eq!(judge("origin-1", 13_299), 0, "its session lasts as long");
        assert_eq!(judge("origin-1", 20_001), 0, "it may have a new one");
        assert_eq!(judge("origin-2", 15_000), 0);
    }

    #[test]
    fn the_last_push_is_published() {
        let pushes = [push(1, 0), push(2, 1000)];
        assert_eq!(lost_pushes(&pushes, &[seen("edge-1", 2, 1500)]).len(), 0, "the first was followed by the second");
        assert_eq!(lost_pushes(&pushes, &[seen("edge-1", 1, 500)]).len(), 1);
    }

    #[test]
    fn a_takeover_takes_the_limit_at_most() {
        let limit = at(13_000);
        let judge = |pushed, published, undisturbed| {
            let death = Death { origin: "origin-1".to_owned(), at: at(10_000), undisturbed_until: at(undisturbed) };
            slow_takeovers(&[death], &[push(1, pushed)], &[seen("edge-1", 1, published)], limit).len()
        };
        assert_eq!(judge(9_500, 23_001, 60_000), 1);
        assert_eq!(judge(9_500, 22_999, 60_000), 0);
        assert_eq!(judge(9_500, 9_900, 60_000), 0, "it was published before");
        assert_eq!(judge(12_000, 24_999, 60_000), 0);
        assert_eq!(judge(9_500, 30_000, 20_000), 0, "something else went wrong meanwhile");
        // A push that is skipped is published with the next.
        let death = Death { origin: "origin-1".to_owned(), at: at(10_000), undisturbed_until: at(60_000) };
        let pushes = [push(1, 10_500), push(2, 11_500)];
        assert_eq!(slow_takeovers(std::slice::from_ref(&death), &pushes, &[seen("edge-1", 2, 15_000)], limit).len(), 0);
        assert_eq!(slow_takeovers(&[death], &pushes, &[], limit).len(), 2);
    }

    #[test]
    fn a_repository_is_cloned_once() {
        let one = fetch("origin-1", Wants::Clone, 0, 10);
        assert_eq!(later_clones(&[one.clone(), fetch("origin-2", Wants::Newer, 20, 30)]).len(), 0);
        assert_eq!(later_clones(&[one, fetch("origin-2", Wants::Clone, 20, 30)]).len(), 1);
    }

    #[test]
    fn every_rule_is_asked() {
        let margin = MARGIN;
        let history = History {
            fetches: vec![fetch("origin-1", Wants::Clone, 5000, 7000), fetch("origin-2", Wants::Clone, 5500, 7500)],
            publications: vec![seen("edge-1", 8, 0), seen("edge-1", 7, 1)],
            polls: vec![Poll { at: at(0), service: "shop".parse().unwrap(), failure: Some(String::new()) }],
            vouches: vec![Vouch { at: at(4000), origin: "origin-1".to_owned() }],
            pushes: vec![push(9, 0)],
            cut_off: vec![CutOff { origin: "origin-1".to_owned(), from: at(0), until: at(4500) }],
            deaths: vec![Death { origin: "origin-1".to_owned(), at: at(0), undisturbed_until: at(60_000) }],
            failed_polls: 1,
        };
        let rules = Rules { ttl: at(3000), margin, takeover: Some(at(13_000)), one_clone: true };
        let found = violations(&history, &rules);
        // Overlap, an edge that went back, a failed poll, a vouch, a lost push, agents, a takeover, a clone.
        assert_eq!(found.len(), 8, "{found:#?}");
        assert_eq!(violations(&history, &Rules { takeover: None, one_clone: false, ..rules }).len(), 6);
        assert_eq!(violations(&History::default(), &rules), [""; 0]);
    }
}
