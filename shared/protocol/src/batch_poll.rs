//! The batch poll: the state of all services that an agent is to follow and may read, in one answer.

use serde::{Deserialize, Serialize};

use crate::descriptor::Generation;
use crate::digest::TarballDigest;
use crate::labels::Labels;
use crate::name::ServiceName;
use crate::revision_id::RevisionId;

/// The most services of an answer.
pub const MAX_ROWS: usize = 10_000;

/// The longest answer, in bytes.
pub const MAX_BATCH_BYTES: usize = 8 << 20;

/// The longest entity tag in a row, in bytes.
pub const MAX_ETAG_BYTES: usize = 100;

/// The hex digits of the answer's entity tag.
const TAG_DIGITS: usize = 32;

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchPoll {
    /// Sorted by name, each name once.
    services: Vec<BatchRow>,
    #[serde(default, skip_serializing_if = "Labels::is_empty")]
    labels: Labels,
}

/// A service in the answer. It has no age, so that the same state gives the same bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchRow {
    /// The service.
    pub service: ServiceName,
    /// Its state.
    pub state: RowState,
    /// The digest of the current tarball. Present when the state is `current`, as the fields below.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub digest: Option<TarballDigest>,
    /// The generation of the publication. Unsigned: it says that there is something to fetch, and nothing more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<Generation>,
    /// The revision of the publication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision_id: Option<RevisionId>,
    /// The entity tag of the descriptor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etag: Option<String>,
}

/// The state of a service at the edge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RowState {
    /// The edge serves this version.
    Current,
    /// The service has no publication, as far as the edge knows.
    NotPublished,
    /// The edge has a version, but it is too old to be served.
    TooStale,
    /// A state of a later version. Nothing changes at the agent.
    #[serde(other)]
    Other,
}

/// The bytes are not the answer of a batch poll.
#[derive(Debug, thiserror::Error)]
pub enum BatchPollError {
    /// A bound is exceeded.
    #[error("the answer of the batch poll is longer than {MAX_BATCH_BYTES} bytes or {MAX_ROWS} services")]
    TooLong,
    /// Not JSON, or a field is missing or wrong.
    #[error("the answer of the batch poll cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// Not sorted, or a name stands twice.
    #[error("the answer of the batch poll is not sorted at `{0}`, or has it twice")]
    NotSorted(ServiceName),
    /// A row of the state `current` has no digest, generation, revision id or tag, or a tag that is none.
    #[error("the answer of the batch poll is incomplete at `{0}`")]
    Incomplete(ServiceName),
}

impl BatchRow {
    /// Whether a `current` row has all its fields, and the tag can be one.
    pub(crate) fn is_complete(&self) -> bool {
        let is_tag = |tag: &String| tag.len() <= MAX_ETAG_BYTES && tag.bytes().all(|b| b.is_ascii_graphic());
        let has_all = self.digest.is_some() && self.generation.is_some() && self.revision_id.is_some();
        self.etag.as_ref().is_none_or(is_tag)
            && (self.state != RowState::Current || has_all && self.etag.as_ref().is_some())
    }
}

impl BatchPoll {
    /// An answer of rows in any order; of two with one name the first stays.
    ///
    /// # Errors
    /// There are more than [`MAX_ROWS`].
    pub fn new(mut services: Vec<BatchRow>) -> Result<Self, BatchPollError> {
        services.sort_by(|a, b| a.service.cmp(&b.service));
        services.dedup_by(|later, earlier| later.service == earlier.service);
        if services.len() > MAX_ROWS {
            Err(BatchPollError::TooLong)
        } else {
            Ok(Self { services, labels: Labels::default() })
        }
    }

    /// The rows, sorted by name.
    pub fn services(&self) -> &[BatchRow] {
        &self.services
    }

    /// The labels that operators and its token assert of the agent. None: the edge may not know, or be of an earlier version.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// Reads an answer. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is too long, malformed, not sorted or incomplete.
    pub fn parse(json: &[u8]) -> Result<Self, BatchPollError> {
        if json.len() > MAX_BATCH_BYTES {
            return Err(BatchPollError::TooLong);
        }
        let read: Self = crate::json::from_slice(json)?;
        if read.services.len() > MAX_ROWS {
            return Err(BatchPollError::TooLong);
        }
        if let Some(pair) = read.services.windows(2).find(|pair| pair[0].service >= pair[1].service) {
            return Err(BatchPollError::NotSorted(pair[1].service.clone()));
        }
        match read.services.iter().find(|row| !row.is_complete()) {
            Some(row) => Err(BatchPollError::Incomplete(row.service.clone())),
            None => Ok(read),
        }
    }

    /// The body.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("plain data")
    }

    /// The body of an answer with labels, of one without: many agents have the same rows.
    pub fn with_labels(body: &[u8], labels: &Labels) -> Vec<u8> {
        let labels = serde_json::to_vec(labels).expect("plain data");
        let rows = body.strip_suffix(b"}").filter(|_| labels != b"{}");
        rows.map_or_else(|| body.to_vec(), |rows| [rows, br#","labels":"#, &labels, b"}"].concat())
    }

    /// The entity tag of that answer, without quotes, of the one of the rows.
    pub fn tag_with_labels(rows: &str, labels: &Labels) -> String {
        if labels.is_empty() {
            return rows.to_owned();
        }
        let labels = serde_json::to_vec(labels).expect("plain data");
        blake3::hash(&[rows.as_bytes(), b"\n", &labels].concat()).to_hex()[..TAG_DIGITS].to_owned()
    }

    /// The entity tag of a body without labels: of the rows, which have no ages. Equal rows have the same tag at each edge.
    pub fn etag(body: &[u8]) -> String {
        format!("\"{}\"", &blake3::hash(body).to_hex()[..TAG_DIGITS])
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::labels::{MAX_KEY_BYTES, MAX_LABELS, MAX_VALUE_BYTES};

    const GOLDEN: &str = include_str!("../golden/agent/batch-poll.json");
    const GOLDEN_LABELS: &str = include_str!("../golden/agent/batch-poll-labels.json");

    fn row(service: &str, state: RowState) -> BatchRow {
        let service = service.parse().unwrap();
        BatchRow { service, state, digest: None, generation: None, revision_id: None, etag: None }
    }

    fn current(service: &str) -> BatchRow {
        BatchRow {
            digest: Some(TarballDigest::of(b"tar")),
            generation: Some(1_795_164_249_650),
            revision_id: Some(format!("sha1:{}", "b".repeat(40)).parse().unwrap()),
            etag: Some("\"1795164249650.2\"".to_owned()),
            ..row(service, RowState::Current)
        }
    }

    fn example() -> BatchPoll {
        let rows =
            vec![row("shop-test", RowState::TooStale), current("shop-prod"), row("docs", RowState::NotPublished)];
        BatchPoll::new(rows).unwrap()
    }

    /// Entity tags depend on these bytes: a change here changes the tag of each fleet's answers once.
    #[test]
    fn an_answer_has_exactly_these_bytes() {
        assert_eq!(String::from_utf8(example().to_json()).unwrap() + "\n", GOLDEN);
        let body = GOLDEN.trim_end().as_bytes();
        assert_eq!(BatchPoll::parse(body).unwrap(), example());
        let tag = BatchPoll::etag(body);
        assert!(tag.len() == 34 && tag.starts_with('"') && tag.ends_with('"'), "{tag}");
        assert_ne!(BatchPoll::etag(&BatchPoll::default().to_json()), tag);
    }

    #[test]
    fn labels_are_behind_the_rows_and_part_of_the_tag() {
        let labels = |json: &str| serde_json::from_str::<Labels>(json).unwrap();
        let (none, canary) = (Labels::default(), labels(r#"{"ring":"canary"}"#));
        let rows = example().to_json();
        let body = BatchPoll::with_labels(&rows, &canary);
        assert_eq!(String::from_utf8(body.clone()).unwrap() + "\n", GOLDEN_LABELS);
        let read = BatchPoll::parse(&body).unwrap();
        assert_eq!((read.labels(), read.services()), (&canary, example().services()));
        assert_eq!(read.to_json(), body);
        assert_eq!(BatchPoll::with_labels(&rows, &none), rows);
        let tag = BatchPoll::etag(&rows).trim_matches('"').to_owned();
        assert_eq!(BatchPoll::tag_with_labels(&tag, &none), tag);
        let tags =
            [r#"{"ring":"canary"}"#, r#"{"ring":"all"}"#].map(|json| BatchPoll::tag_with_labels(&tag, &labels(json)));
        assert!(tags[0].len() == TAG_DIGITS && tags[0] != tag && tags[0] != tags[1], "{tags:?}");
        let wrong = GOLDEN_LABELS.replace("canary", "a\\nb");
        assert!(BatchPoll::parse(wrong.as_bytes()).unwrap_err().to_string().contains("the label `ring`"), "{wrong}");
    }

    #[test]
    fn answers_of_later_versions_are_read_and_wrong_ones_refused() {
        let later = GOLDEN.replace("not-published", "sleeping").replace(r#""state""#, r#""later":1,"state""#);
        assert_eq!(BatchPoll::parse(later.as_bytes()).unwrap().services()[0].state, RowState::Other);
        let digest = format!(r#""digest":"{}","#, TarballDigest::of(b"tar"));
        for (field, other, expected) in [
            ("docs", "zoo", "not sorted at `shop-prod`"),
            ("docs", "shop-prod", "not sorted at `shop-prod`"),
            (digest.as_str(), "", "incomplete at `shop-prod`"),
            (r#""\"1795164249650.2\"""#, r#""a\nb""#, "incomplete at `shop-prod`"),
            (r#""docs""#, r#""Docs""#, "is not a service name"),
            (r#""services""#, r#""rows""#, "missing field"),
        ] {
            let changed = GOLDEN.replacen(field, other, 1);
            assert_ne!(changed, GOLDEN);
            let error = BatchPoll::parse(changed.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{changed}: {error}");
        }
        assert!(matches!(BatchPoll::parse(&vec![b' '; MAX_BATCH_BYTES + 1]), Err(BatchPollError::TooLong)));
    }

    #[test]
    fn the_largest_answer_is_within_its_bounds() {
        let longest = |i: usize| BatchRow {
            generation: Some(u64::MAX),
            revision_id: Some(format!("sha256:{}", "b".repeat(193)).parse().unwrap()),
            etag: Some("\"".repeat(MAX_ETAG_BYTES)),
            ..current(&format!("{i:x>100}"))
        };
        let full = BatchPoll::new((0..MAX_ROWS).map(longest).collect()).unwrap();
        let label = |i: usize| (format!("{i:a>MAX_KEY_BYTES$}"), "\"".repeat(MAX_VALUE_BYTES));
        let labels = Labels::try_from((0..MAX_LABELS).map(label).collect::<BTreeMap<_, _>>()).unwrap();
        let body = BatchPoll::with_labels(&full.to_json(), &labels);
        assert_eq!(BatchPoll::parse(&body).unwrap(), BatchPoll { labels, ..full });
        assert!(BatchPoll::new((0..=MAX_ROWS).map(longest).collect()).is_err());
    }

    proptest! {
        #[test]
        fn answers_round_trip_and_have_one_tag(names in proptest::collection::vec("[a-c]{1,2}", 0..12), turn: usize) {
            let rows: Vec<_> = names.iter().map(|name| current(name)).collect();
            let mut turned = rows.clone();
            turned.rotate_left(turn % rows.len().max(1));
            let (one, two) = (BatchPoll::new(rows).unwrap(), BatchPoll::new(turned).unwrap());
            prop_assert_eq!(BatchPoll::etag(&one.to_json()), BatchPoll::etag(&two.to_json()));
            prop_assert_eq!(BatchPoll::parse(&one.to_json()).unwrap(), two);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = BatchPoll::parse(&bytes);
        }
    }
}
