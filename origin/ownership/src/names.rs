//! Which repository has the name of a service: decisions about an entry of a names record, without I/O.
//!
//! A repository takes a name before its record defines or publishes a service under it, and keeps the name until a
//! compare-and-set of its record has removed the service, or has withdrawn it so that it can be passed on. An owner that was
//! superseded cannot do either, so the fence in an entry need not be raised at each change of the owner: only a repository
//! that takes the name again raises it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use weir_protocol::descriptor::Generation;
use weir_protocol::name::{RepositoryName, ServiceName};

/// Names are spread over this many records.
pub const NAME_BUCKETS: usize = 256;

/// A free name is forgotten when the clock has passed its last generation by this time, in milliseconds.
const FORGET_AFTER: u64 = 24 * 60 * 60 * 1000;

/// The names of one bucket.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Names(BTreeMap<ServiceName, Entry>);

/// What is known of a name. Without an entry it is free, and no generation of it is above the clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Entry {
    /// A repository has the name.
    Held {
        /// The one that has it.
        repository: RepositoryName,
        /// That of the owner that took or passed on the name: no owner with a lower one changes the entry.
        fence: u64,
        /// The repository publishes above this generation; 0: above the clock.
        #[serde(default, skip_serializing_if = "is_zero")]
        last: Generation,
        /// This repository may take the name. Until it does, the one that has it publishes nothing, and may take it back.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        passed_to: Option<RepositoryName>,
    },
    /// Any repository may take the name, and publishes above this generation.
    Freed {
        /// The last generation that was published under it.
        last: Generation,
    },
}

/// What the owner of a repository requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRequest {
    /// The name.
    pub name: ServiceName,
    /// The repository that requests it.
    pub repository: RepositoryName,
    /// The fence of the owner.
    pub fence: u64,
    /// What is to become of the entry.
    pub change: NameChange,
}

/// What becomes of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameChange {
    /// Before a service is defined or published. A repository takes a name back that it has passed on.
    Take,
    /// After the row was withdrawn, with its last generation.
    PassOn {
        /// The repository that may take it.
        to: RepositoryName,
        /// The last generation of the row.
        last: Generation,
    },
    /// After the row was removed, with its last generation.
    Free {
        /// The last generation of the row.
        last: Generation,
    },
}

/// The result of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameAnswer {
    /// The repository publishes above this generation, if it has the name now.
    Done {
        /// Publish above it; 0: above the clock.
        last: Generation,
    },
    /// Another repository has the name, or may take it.
    HeldBy(RepositoryName),
    /// A later owner of the repository has changed the entry.
    Superseded,
}

impl Names {
    #[cfg(test)]
    pub(super) fn get(&self, name: &ServiceName) -> Option<&Entry> {
        self.0.get(name)
    }

    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = (&ServiceName, &Entry)> {
        self.0.iter()
    }

    /// The bucket of a name.
    pub fn bucket(name: &ServiceName) -> u8 {
        blake3::hash(name.as_str().as_bytes()).as_bytes()[0]
    }

    /// Carries out a request. The same request again changes nothing.
    pub fn apply(&mut self, request: &NameRequest) -> NameAnswer {
        let NameRequest { name, repository, fence, change } = request;
        let entry = self.0.get(name);
        if let Some(Entry::Held { repository: holder, fence: held_at, .. }) = entry
            && holder == repository
            && fence < held_at
        {
            return NameAnswer::Superseded;
        }
        let (next, answer) = match change {
            NameChange::Take => take(entry, repository, *fence),
            NameChange::PassOn { to, last } => pass_on(entry, repository, *fence, to, *last),
            NameChange::Free { last } => free(entry, repository, *last),
        };
        if let Some(next) = next {
            self.0.insert(name.clone(), next);
        }
        answer
    }

    /// Forgets what the clock, in Unix milliseconds, has passed for long.
    pub fn prune(&mut self, now: u64) {
        let is_old = |last: Generation| now > last.saturating_add(FORGET_AFTER);
        self.0.retain(|_, entry| match entry {
            Entry::Freed { last } => !is_old(*last),
            Entry::Held { last, .. } => {
                if is_old(*last) {
                    *last = 0;
                }
                true
            }
        });
    }
}

impl IntoIterator for Names {
    type Item = (ServiceName, Entry);
    type IntoIter = std::collections::btree_map::IntoIter<ServiceName, Entry>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

type Decided = (Option<Entry>, NameAnswer);

fn take(entry: Option<&Entry>, repository: &RepositoryName, fence: u64) -> Decided {
    let last = match entry {
        None => 0,
        Some(Entry::Freed { last }) => *last,
        Some(Entry::Held { repository: holder, passed_to, last, .. })
            if holder == repository || passed_to.as_ref() == Some(repository) =>
        {
            *last
        }
        Some(Entry::Held { repository: holder, .. }) => return (None, NameAnswer::HeldBy(holder.clone())),
    };
    let held = Entry::Held { repository: repository.clone(), fence, last, passed_to: None };
    (Some(held), NameAnswer::Done { last })
}

fn pass_on(
    entry: Option<&Entry>,
    repository: &RepositoryName,
    fence: u64,
    to: &RepositoryName,
    last: Generation,
) -> Decided {
    let before = match entry {
        None => 0,
        Some(Entry::Freed { last }) => *last,
        Some(Entry::Held { repository: holder, last, .. }) if holder == repository => *last,
        // It was passed on before, and taken.
        Some(Entry::Held { repository: holder, last, .. }) if holder == to => {
            return (None, NameAnswer::Done { last: *last });
        }
        Some(Entry::Held { repository: holder, .. }) => return (None, NameAnswer::HeldBy(holder.clone())),
    };
    let last = last.max(before);
    let held = Entry::Held { repository: repository.clone(), fence, last, passed_to: Some(to.clone()) };
    (Some(held), NameAnswer::Done { last })
}

fn free(entry: Option<&Entry>, repository: &RepositoryName, last: Generation) -> Decided {
    match entry {
        Some(Entry::Held { repository: holder, last: before, .. }) if holder == repository => {
            let last = last.max(*before);
            (Some(Entry::Freed { last }), NameAnswer::Done { last })
        }
        // It was freed before, or another repository has it.
        Some(Entry::Held { last, .. } | Entry::Freed { last }) => (None, NameAnswer::Done { last: *last }),
        None => (None, NameAnswer::Done { last: 0 }),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(generation: &Generation) -> bool {
    *generation == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_000_000_000;

    fn request(repository: &str, fence: u64, change: NameChange) -> NameRequest {
        NameRequest { name: "one".parse().unwrap(), repository: repository.parse().unwrap(), fence, change }
    }

    fn take(repository: &str, fence: u64) -> NameRequest {
        request(repository, fence, NameChange::Take)
    }

    fn pass_on(repository: &str, fence: u64, to: &str, last: Generation) -> NameRequest {
        request(repository, fence, NameChange::PassOn { to: to.parse().unwrap(), last })
    }

    fn free(repository: &str, fence: u64, last: Generation) -> NameRequest {
        request(repository, fence, NameChange::Free { last })
    }

    fn held_by(repository: &str) -> NameAnswer {
        NameAnswer::HeldBy(repository.parse().unwrap())
    }

    const fn done(last: Generation) -> NameAnswer {
        NameAnswer::Done { last }
    }

    #[test]
    fn a_name_has_one_repository_until_it_is_freed() {
        let mut names = Names::default();
        for (request, expected) in [
            (take("shop", 3), done(0)),
            (take("blog", 9), held_by("shop")),
            (free("blog", 9, NOW), done(0)),
            (take("blog", 9), held_by("shop")),
            (take("shop", 4), done(0)),
            (free("shop", 3, NOW), NameAnswer::Superseded),
            (free("shop", 4, NOW), done(NOW)),
            (free("shop", 4, NOW), done(NOW)),
            (take("blog", 9), done(NOW)),
        ] {
            assert_eq!(names.apply(&request), expected, "{request:?}");
        }
        let json = serde_json::to_string(&names).unwrap();
        assert_eq!(json, r#"{"one":{"repository":"blog","fence":9,"last":1795000000000}}"#);
        assert_eq!(serde_json::from_str::<Names>(&json).unwrap(), names);
    }

    #[test]
    fn a_name_that_is_passed_on_is_taken_or_taken_back_once() {
        let passed = |to| {
            let mut names = Names::default();
            for request in [take("shop", 3), pass_on("shop", 3, to, NOW)] {
                names.apply(&request);
            }
            names
        };
        let mut names = passed("blog");
        for (request, expected) in [
            (take("docs", 1), held_by("shop")),
            (pass_on("shop", 3, "blog", NOW), done(NOW)),
            (take("blog", 1), done(NOW)),
            // The same PUT again, and what an owner requests late.
            (pass_on("shop", 3, "blog", NOW + 1), done(NOW)),
            (pass_on("shop", 3, "docs", NOW), held_by("blog")),
            (take("shop", 3), held_by("blog")),
            (free("shop", 3, NOW + 1), done(NOW)),
            (take("blog", 1), done(NOW)),
        ] {
            assert_eq!(names.apply(&request), expected, "{request:?}");
        }
        let mut names = passed("blog");
        for (request, expected) in [
            (take("shop", 4), done(NOW)),
            (pass_on("shop", 3, "blog", NOW), NameAnswer::Superseded),
            (take("blog", 1), held_by("shop")),
            (pass_on("shop", 4, "docs", NOW + 5), done(NOW + 5)),
            (take("docs", 1), done(NOW + 5)),
        ] {
            assert_eq!(names.apply(&request), expected, "{request:?}");
        }
        let mut names = passed("blog");
        assert_eq!(names.apply(&free("shop", 3, NOW + 1)), done(NOW + 1), "it is deleted during the move");
        assert_eq!(names.apply(&take("docs", 1)), done(NOW + 1));
    }

    #[test]
    fn a_free_name_is_forgotten_a_day_later() {
        let mut names = Names::default();
        for request in [take("shop", 1), free("shop", 1, NOW)] {
            names.apply(&request);
        }
        names.prune(NOW + FORGET_AFTER);
        assert!(names.get(&"one".parse().unwrap()).is_some());
        names.prune(NOW + FORGET_AFTER + 1);
        assert_eq!(names, Names::default());
    }
}
