//! The clock by which sessions end. The monotonic clock of [`Instant`] stops while the machine is suspended; the others take
//! over meanwhile.

use std::sync::LazyLock;
use std::time::{Duration, Instant};

/// Now, with the time for which the machine was suspended since the first call. Only times of this clock can be compared with
/// it, and a timer does not count what it counts.
///
/// A virtual machine that is paused with all its clocks cannot know.
pub fn now() -> Instant {
    static FIRST: LazyLock<(Instant, Duration)> = LazyLock::new(|| (Instant::now(), since_boot()));
    let (first, booted) = *FIRST;
    first + since_boot().saturating_sub(booted)
}

/// `CLOCK_BOOTTIME`: clock_gettime(2).
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static FIRST: LazyLock<Instant> = LazyLock::new(Instant::now);
    FIRST.elapsed()
}
