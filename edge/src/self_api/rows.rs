//! The rows of an agent's services, made once for all requests of that agent.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use http::HeaderValue;
use weir_protocol::access_list::Fleet;
use weir_protocol::batch_poll::{BatchPoll, BatchPollError, BatchRow, RowState};
use weir_protocol::name::ServiceName;

use crate::catalog::Entry;
use crate::version::Version;

/// The services that an agent follows, as of a state of operators' rules and of the catalog's names.
#[derive(Debug)]
pub(super) struct Following {
    pub(super) services: Vec<ServiceName>,
    pub(super) fleet: Arc<Fleet>,
    pub(super) names_version: u64,
    /// The last rows that were made.
    last: Mutex<Option<Arc<Rows>>>,
    /// Of the last poll.
    polled: Mutex<Option<Arc<Polled>>>,
}

/// What a poll found of all services, each published and fresh.
#[derive(Debug)]
pub(super) struct Polled {
    pub(super) entries: Vec<Arc<Entry>>,
    pub(super) rows: Arc<Rows>,
}

/// A state of all services of an agent, and the body that says so.
#[derive(Debug)]
pub(super) struct Rows {
    /// In the order of the services.
    pub(super) states: Vec<Row>,
    pub(super) body: Bytes,
    /// The entity tag of the body, without quotes.
    pub(super) tag: String,
    pub(super) etag: HeaderValue,
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
                Arc::ptr_eq(one, other) || one.values.descriptor_tag.text == other.values.descriptor_tag.text
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
    pub(super) fn new(services: Vec<ServiceName>, fleet: Arc<Fleet>, names_version: u64) -> Self {
        Self { services, fleet, names_version, last: Mutex::default(), polled: Mutex::default() }
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

    /// The rows of these states, one for each service. The body is made only when a state differs from the last.
    ///
    /// # Errors
    /// There are too many services.
    pub(super) fn rows(&self, states: Vec<Row>) -> Result<Arc<Rows>, BatchPollError> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.as_ref().filter(|last| last.states == states) {
            return Ok(last.clone());
        }
        let rows = self.services.iter().zip(&states).map(|(service, row)| row.to_batch_row(service)).collect();
        let body = BatchPoll::new(rows)?.to_json();
        let etag = BatchPoll::etag(&body);
        let rows = Arc::new(Rows {
            states,
            body: body.into(),
            tag: etag.trim_matches('"').to_owned(),
            etag: HeaderValue::try_from(etag).expect("quoted digits are visible ASCII"),
        });
        *last = Some(rows.clone());
        Ok(rows)
    }
}
