//! Limits the lines of the access log. Pure.

use std::time::{Duration, Instant};

/// The time in which lines are counted.
const WINDOW: Duration = Duration::from_secs(1);

/// Admits a number of lines in each second.
#[derive(Debug)]
pub(super) struct LineLimit {
    most: u32,
    window: Instant,
    admitted: u32,
    left_out: u64,
}

/// Whether a line is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// It is, and so many were left out before it and are not reported yet.
    Written {
        left_out: u64,
    },
    LeftOut,
}

impl LineLimit {
    pub(super) fn new(most: u32, now: Instant) -> Self {
        Self { most, window: now, admitted: 0, left_out: 0 }
    }

    pub(super) fn next(&mut self, now: Instant) -> Line {
        if now.saturating_duration_since(self.window) >= WINDOW {
            (self.window, self.admitted) = (now, 0);
        }
        if self.admitted >= self.most {
            self.left_out += 1;
            return Line::LeftOut;
        }
        self.admitted += 1;
        Line::Written { left_out: std::mem::take(&mut self.left_out) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_limit_of_a_second_are_counted_and_reported_with_the_next() {
        let start = Instant::now();
        let at = |milliseconds| start + Duration::from_millis(milliseconds);
        let mut limit = LineLimit::new(2, start);
        let written = |left_out| Line::Written { left_out };
        assert_eq!(
            [0, 1, 2, 999].map(|time| limit.next(at(time))),
            [written(0), written(0), Line::LeftOut, Line::LeftOut]
        );
        assert_eq!([1000, 1001, 1002].map(|time| limit.next(at(time))), [written(2), written(0), Line::LeftOut]);
        assert_eq!(limit.next(at(60_000)), written(1));
    }
}
