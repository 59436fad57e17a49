//! The rows of a group's services, made once for all requests and event streams of its agents.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use weir_cache::clock::Moment;
use weir_protocol::batch_poll::{BatchPoll, BatchPollError, BatchRow, RowState};
use weir_protocol::labels::Labels;
use weir_protocol::name::ServiceName;

use super::group_key::GroupKey;
use crate::catalog::Entry;
use crate::version::Version;

/// For how long rows are those of the catalog unless it changes: with time a service gets too stale.
const ROWS_KEPT: Duration = Duration::from_secs(1);

/// The most states from which the steps to one are remembered: most streams know the one before.
const MAX_STEPS: usize = 4;

/// The services that a group follows, as of a state of the catalog's names.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) services: Vec<ServiceName>,
    names_version: AtomicU64,
    /// The last rows that were made.
    last: Mutex<Option<Arc<Rows>>>,
    /// The last rows of the catalog.
    stored: Mutex<Option<Stored>>,
    /// Of the last poll.
    polled: Mutex<Option<Arc<Polled>>>,
}

/// What a poll found of all services, each published and fresh.
#[derive(Debug)]
pub(super) struct Polled {
    pub(super) entries: Vec<Arc<Entry>>,
    pub(super) rows: Arc<Rows>,
}

/// Rows as the catalog had them.
#[derive(Debug)]
struct Stored {
    rows: Arc<Rows>,
    /// After so many changes.
    version: u64,
    at: Moment,
}

/// A state of all services of a group, and the body that says so.
#[derive(Debug)]
pub(super) struct Rows {
    /// In the order of the services.
    pub(super) states: Vec<Row>,
    /// The positions of those of which some agents get a staged version.
    pub(super) staged: Box<[usize]>,
    pub(super) body: Bytes,
    /// The entity tag of the body, without quotes.
    pub(super) tag: String,
    pub(super) etag: HeaderValue,
    /// The lines that streams send to come from another state to this one.
    steps: Mutex<Vec<(String, Arc<[EventLine]>)>>,
}

/// A line of an event stream.
#[derive(Debug, Clone)]
pub(super) struct EventLine {
    /// The kind of the event.
    pub(super) kind: &'static str,
    pub(super) line: Bytes,
}

/// The state of one service.
#[derive(Debug, Clone)]
pub(super) enum Row {
    Current(Arc<Version>),
    NotPublished,
    TooStale,
}

impl PartialEq for Row {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Row::Current(one), Row::Current(other)) => {
                // What is offered is no part of the tag.
                let have_one_tag = one.values.descriptor_tag.text == other.values.descriptor_tag.text;
                Arc::ptr_eq(one, other) || one.later().is_none() && have_one_tag
            }
            (one, other) => std::mem::discriminant(one) == std::mem::discriminant(other),
        }
    }
}

impl Row {
    pub(super) fn to_batch_row(&self, service: &ServiceName) -> BatchRow {
        let row = |state| BatchRow {
            service: service.clone(),
            state,
            digest: None,
            generation: None,
            revision_id: None,
            etag: None,
        };
        match self {
            Row::NotPublished => row(RowState::NotPublished),
            Row::TooStale => row(RowState::TooStale),
            Row::Current(version) => {
                let publication = version.descriptor().publication();
                BatchRow {
                    digest: Some(publication.digest),
                    generation: Some(publication.generation),
                    revision_id: Some(publication.revision_id.clone()),
                    etag: Some(version.values.descriptor_tag.text.clone()),
                    ..row(RowState::Current)
                }
            }
        }
    }
}

impl Following {
    pub(super) fn new(services: Vec<ServiceName>, names_version: u64) -> Self {
        let (last, stored, polled) = Default::default();
        Self { services, names_version: names_version.into(), last, stored, polled }
    }

    pub(super) fn names_version(&self) -> u64 {
        self.names_version.load(Ordering::Relaxed)
    }

    /// The same after these names appeared or went. `None`: no other services follow from it.
    pub(super) fn after(
        &self,
        group: &GroupKey,
        (names_version, names): (u64, Vec<ServiceName>),
        is_known: impl Fn(&ServiceName) -> bool,
    ) -> Option<Self> {
        let mut others = None;
        for name in names.iter().filter(|name| group.takes(name)) {
            let is_followed = is_known(name) || group.patterns.iter().any(|pattern| pattern.as_str() == name.as_str());
            match others.as_ref().unwrap_or(&self.services).binary_search(name) {
                Err(at) if is_followed => others.get_or_insert_with(|| self.services.clone()).insert(at, name.clone()),
                Ok(at) if !is_followed => drop(others.get_or_insert_with(|| self.services.clone()).remove(at)),
                _ => {}
            }
        }
        if others.is_none() {
            self.names_version.fetch_max(names_version, Ordering::Relaxed);
        }
        others.map(|services| Self::new(services, names_version))
    }

    /// The last poll that found all services published and fresh.
    pub(super) fn polled(&self) -> Option<Arc<Polled>> {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_polled(&self, polled: Polled) {
        *self.polled.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(polled));
    }

    /// The memory of the rows, approximately, in bytes.
    pub(super) fn weight(&self) -> usize {
        1_000 + 400 * self.services.len()
    }

    /// The rows of the catalog: those that were made after its last change, a moment ago, or of these states. `version`: that of
    /// its rows, from before the states are read.
    ///
    /// # Errors
    /// There are too many services.
    pub(super) fn stored(
        &self,
        version: u64,
        now: Moment,
        states: impl FnOnce() -> Vec<Row>,
    ) -> Result<Arc<Rows>, BatchPollError> {
        let mut stored = self.stored.lock().unwrap_or_else(PoisonError::into_inner);
        let is_kept = |stored: &&Stored| stored.version == version && now.since(stored.at) < ROWS_KEPT;
        if let Some(stored) = stored.as_ref().filter(is_kept) {
            return Ok(stored.rows.clone());
        }
        let rows = self.rows(states())?;
        *stored = Some(Stored { rows: rows.clone(), version, at: now });
        Ok(rows)
    }

    /// The rows of these states, one for each service. The body is made only when a state differs from the last.
    ///
    /// # Errors
    /// There are too many services.
    pub(super) fn rows(&self, states: Vec<Row>) -> Result<Arc<Rows>, BatchPollError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.states == states) {
            return Ok(last.clone());
        }
        let rows = Arc::new(Rows::new(&self.services, states)?);
        *last = Some(rows.clone());
        Ok(rows)
    }
}

impl Rows {
    /// The rows of these states, one for each service.
    ///
    /// # Errors
    /// There are too many services.
    pub(super) fn new(services: &[ServiceName], states: Vec<Row>) -> Result<Self, BatchPollError> {
        let rows = services.iter().zip(&states).map(|(service, row)| row.to_batch_row(service)).collect();
        let body = BatchPoll::new(rows)?.to_json();
        let etag = BatchPoll::etag(&body);
        let is_staged = |row: &Row| matches!(row, Row::Current(version) if version.later().is_some());
        Ok(Self {
            staged: states.iter().enumerate().filter(|(_, row)| is_staged(row)).map(|(position, _)| position).collect(),
            states,
            body: body.into(),
            tag: etag.trim_matches('"').to_owned(),
            etag: HeaderValue::try_from(etag).expect("quoted digits are visible ASCII"),
            steps: Mutex::default(),
        })
    }

    /// The entity tag of the answer to an agent with these labels, without quotes.
    pub(super) fn tag_with(&self, labels: &Labels) -> String {
        BatchPoll::tag_with_labels(&self.tag, labels)
    }

    /// That answer.
    pub(super) fn body_with(&self, labels: &Labels) -> Bytes {
        if labels.is_empty() { self.body.clone() } else { BatchPoll::with_labels(&self.body, labels).into() }
    }

    /// The lines that come from the state with this tag to this one.
    pub(super) fn step_from(&self, tag: &str, lines: impl FnOnce() -> Arc<[EventLine]>) -> Arc<[EventLine]> {
        let mut steps = self.steps.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = steps.iter().find(|(from, _)| from == tag) {
            return known.clone();
        }
        let lines = lines();
        if steps.len() < MAX_STEPS {
            steps.push((tag.to_owned(), lines.clone()));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::access::Agent;
    use crate::self_api::following::Wanted;
    use weir_protocol::access_list::Fleet;
    use weir_protocol::descriptor::{Descriptor, DescriptorFields};
    use weir_protocol::digest::TarballDigest;
    use weir_protocol::staged::Staged;
    use weir_protocol::token::SigningKey;

    #[test]
    fn what_is_offered_of_a_version_that_is_back_is_what_is_known_now() {
        let golden = include_str!("../../../shared/protocol/golden/agent/descriptor.json").trim_end();
        let in_force = Descriptor::parse(golden.into()).unwrap().fields().clone();
        let mut later = in_force.clone();
        later.publication.generation += 1;
        later.publication.digest = TarballDigest::of(b"later");
        let later = Descriptor::signed(later, &[SigningKey::generate().unwrap().0], false);
        let staged = Staged {
            descriptor: serde_json::from_slice(later.bytes()).unwrap(),
            audience: serde_json::from_str(r#"{"percent":100}"#).unwrap(),
        };
        let current = Descriptor::new(DescriptorFields { staged: Some(Box::new(staged)), ..in_force });
        let [dropped, back] = [(); 2].map(|()| Arc::new(Version::new(current.clone())));
        let following = Following::new(vec![current.publication().service.clone()], 1);
        let rows = |version: &Arc<Version>| following.rows(vec![Row::Current(version.clone())]).unwrap();
        let before = rows(&dropped);
        assert!(back.offer(later.publication().generation, later.publication().digest));
        let after = rows(&back);
        let Row::Current(version) = &after.states[0] else { panic!("it is published") };
        assert!(version.later_for(&"laptop".parse().unwrap(), &Labels::default()).is_some());
        assert_eq!(after.tag, before.tag);
    }

    #[test]
    fn of_changed_names_only_those_that_match_are_looked_up() {
        let name = |name: &str| name.parse::<ServiceName>().unwrap();
        let globs = |globs: &[&str]| globs.iter().map(|glob| glob.parse().unwrap()).collect::<Vec<_>>();
        let agent = Agent {
            name: "laptop".parse().unwrap(),
            labels: Labels::default(),
            proved: weir_protocol::observed::Proved::Token,
            services: globs(&["shop-*", "docs"]),
            valid_until: None,
        };
        let wanted = Wanted::Matching(globs(&["shop-*", "bank-*", "docs", "shop-z"]));
        let group = GroupKey::of(&agent, &wanted, &Fleet::default());
        let services = ["docs", "shop-b", "shop-z"].map(name).to_vec();
        let following = Following::new(services.clone(), 1);
        let known = [name("shop-a"), name("other"), name("bank-a")];
        let looked_up = RefCell::new(Vec::new());
        let after = |names: &[&str], version| {
            following.after(&group, (version, names.iter().map(|one| name(one)).collect()), |name| {
                looked_up.borrow_mut().push(name.to_string());
                known.contains(name)
            })
        };
        assert!(after(&["other", "bank-a"], 3).is_none() && looked_up.borrow().is_empty());
        assert_eq!(following.names_version(), 3);
        let next = after(&["shop-a", "other", "shop-b", "docs", "shop-z"], 8).expect("other services");
        assert_eq!(next.services, ["docs", "shop-a", "shop-z"].map(name), "one came, one went, two are named");
        assert_eq!((next.names_version(), looked_up.take().len()), (8, 4));
        assert_eq!((following.services, following.names_version.into_inner()), (services, 3));
    }
}
