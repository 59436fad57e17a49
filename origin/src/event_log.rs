//! The event log: recent publications and deletions, in memory, in the order in which they became visible.
//!
//! Readers remember an offset, so a slow reader costs no memory. If the log has dropped the events after its offset,
//! it restarts with a snapshot. Offsets count from the start of the process; cursors of an earlier process are
//! unknown.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::watch;
use weir_protocol::event::{Cursor, Event, EventKind};
use weir_publish::Announce;

use crate::config::LimitsConfig;
use crate::metrics::Metrics;

/// The most bytes in one read, unless a single line is longer.
const READ_BYTES: usize = 256 << 10;

/// The number of an event; the first one of a process is 1.
pub(crate) type Sequence = u64;

#[derive(Debug)]
pub(crate) struct EventLog {
    /// Distinguishes the cursors of this process from those of others.
    epoch: String,
    ring: Mutex<Ring>,
    newest: watch::Sender<Sequence>,
    max_events: usize,
    max_bytes: usize,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Bytes>,
    bytes: usize,
    /// The number of dropped events; the oldest one here has the next number.
    dropped: Sequence,
}

/// The result of a read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Read {
    /// Complete lines, and the offset of the next read.
    Lines(Vec<Bytes>, Sequence),
    /// There are no later events yet.
    UpToDate,
    /// Events after the offset were dropped.
    Expired,
}

impl EventLog {
    pub(crate) fn new(limits: &LimitsConfig, metrics: Metrics) -> Self {
        Self {
            epoch: format!("{:016x}", fastrand::u64(..)),
            ring: Mutex::default(),
            newest: watch::Sender::new(0),
            max_events: limits.events,
            max_bytes: usize::try_from(limits.event_bytes.as_u64()).unwrap_or(usize::MAX),
            metrics,
        }
    }

    /// Appends a change that became visible. Changes of one service must be appended in order, before the next one
    /// becomes visible.
    pub(crate) fn append(&self, kind: EventKind) {
        let event = kind.as_str();
        let mut ring = self.ring();
        let sequence = ring.newest() + 1;
        match (Event { cursor: self.cursor(sequence), kind }).line() {
            Ok(line) => ring.push(line),
            Err(error) => {
                // Connected readers miss this event, but find the change when they poll.
                tracing::error!(%error, "an event cannot be written");
                return;
            }
        }
        while ring.lines.len() > self.max_events || ring.bytes > self.max_bytes {
            ring.drop_oldest();
        }
        self.metrics.events.with_label_values(&[event]).inc();
        self.metrics.event_log_events.set(i64::try_from(ring.lines.len()).unwrap_or(i64::MAX));
        self.metrics.event_log_bytes.set(i64::try_from(ring.bytes).unwrap_or(i64::MAX));
        self.newest.send_replace(sequence);
    }

    /// Appends what a publisher announces.
    pub(crate) fn announce(self: &Arc<Self>) -> Announce {
        let log = self.clone();
        Arc::new(move |event| log.append(event))
    }

    /// The number of the newest event, as it changes.
    pub(crate) fn follow(&self) -> watch::Receiver<Sequence> {
        self.newest.subscribe()
    }

    /// The number of the newest event. State that is read after this call includes at least all events up to it.
    pub(crate) fn newest(&self) -> Sequence {
        self.ring().newest()
    }

    /// The cursor of a reader that has processed all events up to this one.
    pub(crate) fn cursor(&self, sequence: Sequence) -> Cursor {
        format!("{}.{sequence}", self.epoch).parse().expect("hexadecimal digits, a dot and digits")
    }

    /// The cursor of a reader within a snapshot; it restarts with a new snapshot.
    pub(crate) fn cursor_of_snapshot(&self) -> Cursor {
        format!("{}.snapshot", self.epoch).parse().expect("hexadecimal digits, a dot and a word")
    }

    /// The offset of a cursor. `None`: it is from another process, or later events were dropped.
    pub(crate) fn offset(&self, cursor: &str) -> Option<Sequence> {
        let (epoch, sequence) = cursor.split_once('.')?;
        let sequence = sequence.parse().ok().filter(|_| epoch == self.epoch)?;
        let ring = self.ring();
        (ring.dropped..=ring.newest()).contains(&sequence).then_some(sequence)
    }

    /// Reads the events after an offset.
    pub(crate) fn read(&self, after: Sequence) -> Read {
        let ring = self.ring();
        let Some(skipped) = after.checked_sub(ring.dropped) else { return Read::Expired };
        let mut bytes = 0;
        let fits = |line: &&Bytes| {
            let first = bytes == 0;
            bytes += line.len();
            first || bytes <= READ_BYTES
        };
        let skipped = usize::try_from(skipped).unwrap_or(usize::MAX);
        let lines: Vec<Bytes> = ring.lines.iter().skip(skipped).take_while(fits).cloned().collect();
        if lines.is_empty() {
            return Read::UpToDate;
        }
        let next = after + lines.len() as u64;
        Read::Lines(lines, next)
    }

    fn ring(&self) -> MutexGuard<'_, Ring> {
        // No code that can panic runs with the lock held.
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ring {
    fn newest(&self) -> Sequence {
        self.dropped + self.lines.len() as u64
    }

    fn push(&mut self, line: Bytes) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    fn drop_oldest(&mut self) {
        if let Some(line) = self.lines.pop_front() {
            self.bytes -= line.len();
            self.dropped += 1;
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bytesize::ByteSize;
    use proptest::prelude::*;

    pub(crate) fn log(events: usize, event_bytes: u64) -> EventLog {
        let limits = LimitsConfig { events, event_bytes: ByteSize(event_bytes), ..LimitsConfig::default() };
        EventLog::new(&limits, Metrics::register(&prometheus::Registry::new()).unwrap())
    }

    fn gone(number: u64) -> EventKind {
        EventKind::Tombstone { service: format!("s{number}").parse().unwrap(), generation: number }
    }

    /// The numbers of the tombstones in some lines.
    fn numbers(lines: &[Bytes]) -> Vec<u64> {
        let number = |line: &Bytes| match Event::parse(&line.slice(..line.len() - 1)).unwrap().unwrap().kind {
            EventKind::Tombstone { generation, .. } => generation,
            other => panic!("{other:?}"),
        };
        lines.iter().map(number).collect()
    }

    #[test]
    fn the_cursors_of_others_and_of_a_snapshot_are_unknown() {
        let log = log(3, 1 << 20);
        (1..=4).for_each(|number| log.append(gone(number)));
        assert_eq!(log.offset(&log.cursor(0).to_string()), None, "what follows it was dropped");
        let (known, snapshot) = (log.cursor(4).to_string(), log.cursor_of_snapshot().to_string());
        assert_eq!(log.offset(&known), Some(4));
        let other = self::log(3, 1 << 20).cursor(0).to_string();
        let future = log.cursor(5).to_string();
        for unknown in [&snapshot, &other, &future, "", "x", "4", &known[..16], &format!("{known}.1")] {
            assert_eq!(log.offset(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn bytes_are_bounded_too_and_are_read_in_parts() {
        let log = log(1_000_000, 1 << 20);
        let descriptor = Bytes::from(format!("\"{}\"", "x".repeat(100 << 10)));
        for _ in 0..50 {
            log.append(EventKind::Descriptor(descriptor.clone()));
        }
        assert!(log.ring().bytes <= 1 << 20);
        let first = log.ring().dropped;
        assert_eq!(first + 10, log.newest());
        let Read::Lines(lines, next) = log.read(first) else { panic!("lines") };
        assert_eq!((lines.len(), next), (2, first + 2), "256 KiB at a time");
        // An event larger than the whole log is dropped at once, and readers restart with a snapshot.
        log.append(EventKind::Descriptor(format!("\"{}\"", "x".repeat(2 << 20)).into()));
        assert_eq!((log.read(first + 10), log.read(log.newest())), (Read::Expired, Read::UpToDate));
    }

    proptest! {
        #[test]
        fn a_reader_misses_no_event_or_gets_expired(
            bound in 1usize..8, steps in proptest::collection::vec(any::<bool>(), 0..60),
        ) {
            let log = log(bound, 1 << 20);
            let (mut place, mut read, mut appended) = (0, 0, 0);
            for append in steps {
                if append {
                    appended += 1;
                    log.append(gone(appended));
                    continue;
                }
                match log.read(place) {
                    Read::Lines(lines, next) => {
                        for number in numbers(&lines) {
                            read += 1;
                            prop_assert_eq!(number, read);
                        }
                        place = next;
                    }
                    Read::UpToDate => prop_assert_eq!(read, appended),
                    Read::Expired => {
                        prop_assert!(appended - read > bound as u64);
                        (place, read) = (log.newest(), appended);
                    }
                }
            }
        }
    }
}
