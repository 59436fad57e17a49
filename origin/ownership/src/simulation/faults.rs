//! What may happen to a message.

use std::time::Duration;

use super::clock::{Micros, micros};

/// Chances for each message, in percent.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    pub(super) lost: u8,
    pub(super) late: u8,
    pub(super) duplicated: u8,
    /// The longest delay of a late message that its sender still waits for, and of any.
    pub(super) latest: [Duration; 2],
}

impl Faults {
    /// A mixture for a run: some runs have few faults, some have many.
    pub(super) fn random(rng: &mut fastrand::Rng, ttl: Duration) -> Self {
        let most = [0, 2, 10][rng.usize(..3)];
        Self {
            lost: rng.u8(..=most),
            late: rng.u8(..=most),
            duplicated: rng.u8(..=most),
            latest: [ttl / 6, ttl.mul_f64(0.1 + 1.4 * rng.f64())],
        }
    }

    pub(super) fn hits(rng: &mut fastrand::Rng, chance: u8) -> bool {
        chance > 0 && rng.u8(..100) < chance
    }

    /// How long a message travels.
    pub(super) fn delay(&self, rng: &mut fastrand::Rng) -> Micros {
        if Self::hits(rng, self.late) {
            let latest = self.latest[rng.usize(..2)];
            rng.u64(..micros(latest))
        } else {
            rng.u64(1_000..20_000)
        }
    }
}
