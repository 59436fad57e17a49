//! The report of an agent to an edge: what runs there, and the releases that are in place. Nothing in it decides
//! anything.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::descriptor::{Generation, rfc3339};
use crate::digest::TarballDigest;
use crate::labels::Labels;
use crate::name::ServiceName;
use crate::text_type::{checked_text, truncated};

/// The longest report, in bytes.
pub const MAX_REPORT_BYTES: usize = 256 << 10;

/// The longest error, in bytes.
pub const MAX_ERROR_BYTES: usize = 2 << 10;

/// The longest version, in bytes.
pub const MAX_VERSION_BYTES: usize = 100;

/// The longest name of an instance, in bytes.
pub const MAX_INSTANCE_BYTES: usize = 64;

/// How often an agent reports when nothing changes, in seconds.
pub const INTERVAL_SECONDS: u64 = 600;

checked_text! {
    /// One run of an agent: two living ones of the same agent name are a mistake of the operator.
    Instance, is_instance, InstanceError, |text| InstanceError(truncated(text))
}

/// The text is not the name of an instance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not an instance: 1 to {MAX_INSTANCE_BYTES} of `A-Z`, `a-z`, `0-9`, `.`, `_`, `-`")]
pub struct InstanceError(String);

fn is_instance(text: &str) -> bool {
    let may_stand = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-');
    (1..=MAX_INSTANCE_BYTES).contains(&text.len()) && text.bytes().all(may_stand)
}

/// The report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The run of the agent.
    pub instance: Instance,
    /// Grows with each report of an instance. A lower one is dropped.
    pub seq: u64,
    /// The agent's version, for display.
    pub version: String,
    /// Labels that the agent gives itself, for display alone.
    #[serde(default)]
    pub labels: Labels,
    /// Each name once. Sorted by name when it was read.
    pub services: Vec<ServiceReport>,
}

/// A service in a report.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServiceReport {
    /// The service.
    pub service: ServiceName,
    /// The digest of the release in place; `None` before the first.
    pub digest: Option<TarballDigest>,
    /// Its generation.
    pub generation: Option<Generation>,
    /// When the state of this row began: the release, or its absence. Whole seconds, UTC.
    #[serde(with = "rfc3339")]
    pub since: SystemTime,
    /// Whether the agent was told to stay at this release.
    #[serde(default)]
    pub pinned: bool,
    /// The hook of this release.
    #[serde(default)]
    pub hook: HookState,
    /// How the release arrived; `None`: before this run of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transfer: Option<Transfer>,
    /// Why the service is not as it should be. At most [`MAX_ERROR_BYTES`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a release arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// What was sent of its tarball.
    pub kind: TransferKind,
    /// The bytes that edges sent.
    pub received_bytes: u64,
    /// The bytes of the tarball.
    pub tarball_bytes: u64,
}

/// What is sent of a tarball.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransferKind {
    /// The whole body.
    Full,
    /// The difference to an older tarball.
    Delta,
    /// The frames that the agent lacks.
    Frames,
    /// A kind of a later version.
    #[serde(other)]
    Other,
}

impl TransferKind {
    /// The values of a metric's label.
    pub const LABELS: [&str; 3] = ["full", "delta", "frames"];

    /// The value of a metric's label, and of a field in logs.
    pub fn as_str(self) -> &'static str {
        Self::LABELS.get(self as usize).copied().unwrap_or("other")
    }
}

/// The state of a hook.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HookState {
    /// There is no hook.
    #[default]
    None,
    /// It has to run for this release.
    Pending,
    /// It runs.
    Running,
    /// It succeeded.
    Succeeded,
    /// It failed.
    Failed,
    /// A state of a later version.
    #[serde(other)]
    Other,
}

/// The bytes are not a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// More than [`MAX_REPORT_BYTES`].
    #[error("a report has at most {MAX_REPORT_BYTES} bytes: shorten the errors of its services")]
    TooLong,
    /// Not JSON, or a field is missing or wrong.
    #[error("the report cannot be read: {0}")]
    Malformed(#[from] serde_json::Error),
    /// The version is too long.
    #[error("the report's `version` has more than {MAX_VERSION_BYTES} bytes")]
    Version,
    /// An error is too long.
    #[error("the report's `error` of `{0}` has more than {MAX_ERROR_BYTES} bytes")]
    ErrorText(ServiceName),
    /// A name stands twice.
    #[error("the report has the service `{0}` twice")]
    Twice(ServiceName),
}

impl Report {
    /// Reads a report, and sorts its services. Unknown fields are ignored.
    ///
    /// # Errors
    /// It is malformed, has a service twice, or exceeds a bound.
    pub fn parse(json: &[u8]) -> Result<Self, ReportError> {
        if json.len() > MAX_REPORT_BYTES {
            return Err(ReportError::TooLong);
        }
        let mut read: Self = crate::json::from_slice(json)?;
        read.services.sort_by(|one, other| one.service.cmp(&other.service));
        if read.version.len() > MAX_VERSION_BYTES {
            return Err(ReportError::Version);
        }
        if let Some(pair) = read.services.windows(2).find(|pair| pair[0].service == pair[1].service) {
            return Err(ReportError::Twice(pair[1].service.clone()));
        }
        let is_long = |row: &&ServiceReport| row.error.as_ref().is_some_and(|error| error.len() > MAX_ERROR_BYTES);
        match read.services.iter().find(is_long) {
            Some(row) => Err(ReportError::ErrorText(row.service.clone())),
            None => Ok(read),
        }
    }

    /// The JSON document of a valid report. Errors are cut to fit: first to [`MAX_ERROR_BYTES`], then to shorter ones
    /// until the whole is within [`MAX_REPORT_BYTES`], with none left at the end. Transfers are left out before that.
    ///
    /// # Errors
    /// It is too long without both, has a service twice, or its version is too long.
    pub fn to_json(&self) -> Result<Vec<u8>, ReportError> {
        let mut fitting = self.clone();
        let mut longest = MAX_ERROR_BYTES;
        loop {
            for row in &mut fitting.services {
                row.error = row.error.take().map(|error| cut(error, longest)).filter(|error| !error.is_empty());
            }
            let json = serde_json::to_vec(&fitting)?;
            if json.len() <= MAX_REPORT_BYTES || longest == 0 {
                return Self::parse(&json).map(|_| json);
            }
            if fitting.services.iter_mut().filter_map(|row| row.transfer.take()).count() == 0 {
                longest /= 2;
            }
        }
    }
}

/// The start of a text, of at most `longest` bytes.
fn cut(mut text: String, longest: usize) -> String {
    text.truncate(text.floor_char_boundary(longest));
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GOLDEN: &str = include_str!("../golden/agent/report.json");

    fn row(service: &str) -> ServiceReport {
        ServiceReport {
            service: service.parse().unwrap(),
            digest: Some(TarballDigest::of(b"tar")),
            generation: Some(1_795_164_249_650),
            since: humantime::parse_rfc3339("2026-11-20T09:30:00Z").unwrap(),
            pinned: false,
            hook: HookState::Succeeded,
            transfer: None,
            error: None,
        }
    }

    fn example() -> Report {
        let waiting = ServiceReport {
            digest: None,
            generation: None,
            hook: HookState::None,
            error: Some("no edge has it".to_owned()),
            ..row("docs")
        };
        Report {
            instance: "4f2a-1".parse().unwrap(),
            seq: 7,
            version: "0.3.0".to_owned(),
            labels: serde_json::from_str(r#"{"rack":"b2"}"#).unwrap(),
            services: vec![waiting, row("shop-prod")],
        }
    }

    #[test]
    fn a_report_has_exactly_these_bytes() {
        assert_eq!(String::from_utf8(example().to_json().unwrap()).unwrap() + "\n", GOLDEN);
        assert_eq!(Report::parse(GOLDEN.trim_end().as_bytes()).unwrap(), example());
        let later = GOLDEN.replace("succeeded", "waiting").replace(r#""seq""#, r#""later":{},"seq""#);
        assert_eq!(Report::parse(later.as_bytes()).unwrap().services[1].hook, HookState::Other);
    }

    #[test]
    fn a_transfer_is_left_out_before_an_error_is_cut() {
        let transfer =
            Some(Transfer { kind: TransferKind::Frames, received_bytes: 301_000, tarball_bytes: 417_000_000 });
        let with = |count: usize| {
            let row = |i: usize| ServiceReport { transfer, error: Some("503".to_owned()), ..row(&format!("{i:0>60}")) };
            let many = Report { services: (0..count).map(row).collect(), ..example() };
            Report::parse(&many.to_json().unwrap()).unwrap().services.pop().unwrap()
        };
        assert_eq!((with(10).transfer, with(800).transfer), (transfer, None));
        assert_eq!(with(800).error.as_deref(), Some("503"));
        let later = r#"{"kind":"peers","received_bytes":1,"tarball_bytes":2}"#;
        assert_eq!(serde_json::from_str::<Transfer>(later).unwrap().kind, TransferKind::Other);
    }

    #[test]
    fn what_exceeds_a_bound_is_refused() {
        let long = format!(r#""{}""#, "e".repeat(MAX_ERROR_BYTES + 1));
        let version = format!(r#""{}""#, "1".repeat(MAX_VERSION_BYTES + 1));
        for (field, other, expected) in [
            (r#""no edge has it""#, long.as_str(), "`error` of `docs` has more than 2048 bytes"),
            (r#""0.3.0""#, version.as_str(), "`version` has more than 100 bytes"),
            (r#""docs""#, r#""shop-prod""#, "has the service `shop-prod` twice"),
            (r#""4f2a-1""#, r#""a b""#, "`a b` is not an instance"),
            (r#""seq":7"#, r#""seq":-7"#, "invalid value"),
            (r#""rack""#, r#""r k""#, "`r k` is not a label's key"),
            (r#""seq":7"#, r#""seq":7,"seq":8"#, "twice"),
        ] {
            let changed = GOLDEN.replacen(field, other, 1);
            assert_ne!(changed, GOLDEN);
            let error = Report::parse(changed.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{changed}: {error}");
        }
        assert!(matches!(Report::parse(&vec![b' '; MAX_REPORT_BYTES + 1]), Err(ReportError::TooLong)));
    }

    #[test]
    fn errors_are_cut_until_a_report_fits() {
        let failing = |i: usize| ServiceReport { error: Some("\u{e9}".repeat(2_000)), ..row(&format!("{i:0>100}")) };
        let one = Report { services: vec![failing(0)], ..example() };
        let read = Report::parse(&one.to_json().unwrap()).unwrap();
        assert_eq!(read.services[0].error.as_ref().unwrap().len(), MAX_ERROR_BYTES);
        let many = Report { services: (0..500).map(failing).collect(), ..example() };
        let json = many.to_json().unwrap();
        let error = Report::parse(&json).unwrap().services[499].error.clone().unwrap();
        assert!(json.len() <= MAX_REPORT_BYTES && (1..MAX_ERROR_BYTES).contains(&error.len()), "{}", error.len());
        let too_many = Report { services: (0..2_000).map(failing).collect(), ..example() };
        assert!(matches!(too_many.to_json(), Err(ReportError::TooLong)));
    }

    proptest! {
        #[test]
        fn reports_round_trip(
            instance in "[A-Za-z0-9._-]{1,64}", seq: u64, version in ".{0,25}", error in proptest::option::of(".{1,200}"),
            pinned: bool, names in proptest::collection::btree_set("[a-z0-9]{1,20}", 0..10),
        ) {
            let row = |name: &String| ServiceReport { error: error.clone(), pinned, ..row(name) };
            let services = names.iter().map(row).collect();
            let report =
                Report { instance: instance.parse().unwrap(), seq, version, labels: Labels::default(), services };
            prop_assert_eq!(Report::parse(&report.to_json().unwrap()).unwrap(), report);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            let _ = Report::parse(&bytes);
        }
    }
}
