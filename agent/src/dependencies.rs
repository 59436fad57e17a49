//! `depends_on`: whether a switch waits for other services. Pure.

use std::collections::{BTreeMap, BTreeSet};

use weir_protocol::name::ServiceName;
use weir_protocol::name_glob::NameGlob;

/// How far a followed service is, for those that depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// No edge has said since the start which release it is to have.
    Unknown,
    /// It has another release than it is to have.
    Behind,
    /// Its hooks have not succeeded for its release.
    HookDue,
    Done,
}

/// What a switch waits for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Waits {
    #[error("the switch waits for `depends_on`: no edge has said yet which services there are")]
    NoList,
    #[error("the switch waits for labels, which its `check` uses: no edge has sent any for this agent that it may get")]
    NoLabels,
    #[error("the switch waits for `{0}`: no edge has said yet which release it is to have")]
    Unknown(ServiceName),
    #[error("the switch waits for `{0}`, which does not have its newest release yet")]
    Behind(ServiceName),
    #[error("the switch waits for `{0}`, whose hooks have not succeeded yet")]
    HookDue(ServiceName),
    /// Each waits for the next, and the last for the first.
    #[error("the switch waits for itself, by {}: change a `depends_on`", path(.0))]
    Cycle(Vec<ServiceName>),
}

impl Waits {
    /// The service that is waited for.
    pub(crate) fn service(&self) -> Option<&ServiceName> {
        match self {
            Self::NoList | Self::NoLabels => None,
            Self::Unknown(service) | Self::Behind(service) | Self::HookDue(service) => Some(service),
            Self::Cycle(services) => services.first(),
        }
    }
}

/// What a service with these `depends_on` waits for: the first of the followed ones that is not done. It never waits for
/// itself, which its own patterns may match.
pub(crate) fn waits<'s>(
    own: &ServiceName,
    depends_on: &[NameGlob],
    followed: impl IntoIterator<Item = &'s ServiceName>,
    progress: impl Fn(&ServiceName) -> Progress,
) -> Option<Waits> {
    let is_meant = |name: &ServiceName| name != own && depends_on.iter().any(|pattern| pattern.matches(name.as_str()));
    followed.into_iter().filter(|name| is_meant(name)).find_map(|name| {
        Some(match progress(name) {
            Progress::Unknown => Waits::Unknown(name.clone()),
            Progress::Behind => Waits::Behind(name.clone()),
            Progress::HookDue => Waits::HookDue(name.clone()),
            Progress::Done => return None,
        })
    })
}

/// Which service waits for which.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    waits_for: BTreeMap<ServiceName, ServiceName>,
}

impl Waiting {
    /// Records what a service waits for. One that waits for itself by way of others waits for ever: then it is these.
    pub(crate) fn record(&mut self, own: &ServiceName, waits: Option<Waits>) -> Option<Waits> {
        self.waits_for.remove(own);
        let waits = waits?;
        if let Some(service) = waits.service() {
            self.waits_for.insert(own.clone(), service.clone());
        }
        Some(self.cycle(own).map_or(waits, Waits::Cycle))
    }

    /// Those between a service and itself, the first one first.
    fn cycle(&self, own: &ServiceName) -> Option<Vec<ServiceName>> {
        let mut path = Vec::new();
        let mut next = self.waits_for.get(own)?;
        // Others may be a cycle that does not lead back here.
        while path.len() <= self.waits_for.len() {
            path.push(next.clone());
            if next == own {
                return Some(path);
            }
            next = self.waits_for.get(next)?;
        }
        None
    }

    /// Whether something waits for a service.
    pub(crate) fn is_awaited(&self, service: &ServiceName) -> bool {
        self.waits_for.values().any(|awaited| awaited == service)
    }

    /// Takes those that wait for a service: they decide again.
    pub(crate) fn take(&mut self, service: &ServiceName) -> BTreeSet<ServiceName> {
        self.take_if(|awaited| awaited == service)
    }

    /// Takes those that wait for a service that is not followed any more.
    pub(crate) fn take_all_but(&mut self, followed: &BTreeSet<ServiceName>) -> BTreeSet<ServiceName> {
        self.take_if(|awaited| !followed.contains(awaited))
    }

    fn take_if(&mut self, is_meant: impl Fn(&ServiceName) -> bool) -> BTreeSet<ServiceName> {
        let all = std::mem::take(&mut self.waits_for).into_iter();
        let (taken, kept): (BTreeMap<_, _>, _) = all.partition(|(_, awaited)| is_meant(awaited));
        self.waits_for = kept;
        taken.into_keys().collect()
    }
}

/// A cycle among names: the first of it is also the last.
pub(crate) fn cycle_of_names(depends_on: &BTreeMap<&str, Vec<&str>>) -> Option<String> {
    fn visit<'n>(
        name: &'n str,
        all: &BTreeMap<&'n str, Vec<&'n str>>,
        path: &mut Vec<&'n str>,
        done: &mut BTreeSet<&'n str>,
    ) -> Option<String> {
        if let Some(start) = path.iter().position(|before| *before == name) {
            path.push(name);
            return Some(path[start..].join(" → "));
        }
        if !done.insert(name) {
            return None;
        }
        path.push(name);
        let found = all.get(name).into_iter().flatten().find_map(|next| visit(next, all, path, done));
        path.pop();
        found
    }
    let mut done = BTreeSet::new();
    depends_on.keys().find_map(|name| visit(name, depends_on, &mut Vec::new(), &mut done))
}

fn path(services: &[ServiceName]) -> String {
    services.iter().map(|service| format!("`{service}`")).collect::<Vec<_>>().join(" → ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(name: &str) -> ServiceName {
        name.parse().unwrap()
    }

    fn decide(own: &str, depends_on: &[&str], followed: &[(&str, Progress)]) -> Option<Waits> {
        let depends_on: Vec<NameGlob> = depends_on.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let names: Vec<_> = followed.iter().map(|(service, _)| name(service)).collect();
        waits(&name(own), &depends_on, &names, |service| {
            followed.iter().find(|(name, _)| *name == service.as_str()).unwrap().1
        })
    }

    #[test]
    fn a_service_waits_for_the_first_that_is_not_done() {
        use Progress::{Behind, Done, HookDue, Unknown};
        let depends_on = ["crds", "infra-*"];
        for (followed, expected) in [
            (&[][..], None),
            (&[("app", Behind), ("crds", Done), ("infra-a", Done), ("other", Behind)], None),
            (&[("crds", Unknown)], Some(Waits::Unknown(name("crds")))),
            (&[("crds", Behind), ("infra-a", HookDue)], Some(Waits::Behind(name("crds")))),
            (&[("crds", Done), ("infra-a", Done), ("infra-b", HookDue)], Some(Waits::HookDue(name("infra-b")))),
        ] {
            assert_eq!(decide("app", &depends_on, followed), expected, "{followed:?}");
        }
        assert_eq!(decide("infra-a", &["infra-*"], &[("infra-a", Behind), ("infra-b", Done)]), None, "not for itself");
        assert_eq!(decide("app", &[], &[("crds", Unknown)]), None);
    }

    #[test]
    fn who_waits_is_woken_once_and_who_waits_for_itself_is_told_by_whom() {
        let mut waiting = Waiting::default();
        let mut record =
            |own: &str, dependency: &str| waiting.record(&name(own), Some(Waits::Behind(name(dependency)))).unwrap();
        assert_eq!(record("a", "b"), Waits::Behind(name("b")));
        assert_eq!(record("b", "c"), Waits::Behind(name("c")));
        assert_eq!(record("c", "a"), Waits::Cycle(["a", "b", "c"].map(name).to_vec()));
        assert_eq!(record("d", "a"), Waits::Behind(name("a")), "it is in no cycle");
        let text = record("a", "b").to_string();
        assert!(text.contains("waits for itself, by `b` → `c` → `a`"), "{text}");
        // The second of them has another reason now.
        assert_eq!(record("b", "z"), Waits::Behind(name("z")));
        assert_eq!(record("a", "b"), Waits::Behind(name("b")));
        assert_eq!(waiting.take(&name("a")), ["c", "d"].map(name).into());
        assert_eq!(waiting.take(&name("a")), BTreeSet::new());
        assert!(waiting.is_awaited(&name("z")) && !waiting.is_awaited(&name("c")));
        assert_eq!(waiting.record(&name("a"), None), None);
        assert_eq!(waiting.take_all_but(&BTreeSet::from([name("q")])), BTreeSet::from([name("b")]));
        assert_eq!(waiting.record(&name("a"), Some(Waits::NoList)), Some(Waits::NoList));
    }

    #[test]
    fn cycles_among_names_are_found() {
        let all = |pairs: &[(&'static str, &[&'static str])]| {
            cycle_of_names(&pairs.iter().map(|(name, depends_on)| (*name, depends_on.to_vec())).collect())
        };
        assert_eq!(all(&[("a", &["b", "c"]), ("b", &["c"]), ("c", &["not-listed"])]), None);
        assert_eq!(all(&[("a", &["b"]), ("b", &["c"]), ("c", &["b"])]).as_deref(), Some("b → c → b"));
        assert_eq!(all(&[("a", &["a"])]).as_deref(), Some("a → a"));
    }
}
