//! Whether the last reload was refused: what runs is not what the files say, which nobody would notice.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus::IntGauge;

/// The last reloads of a role. Clones share them.
#[derive(Debug, Clone)]
pub struct LastReload {
    refused: Arc<Mutex<Refused>>,
    shown: IntGauge,
}

/// Why the last reload was refused, of each kind: certificates that are renewed say nothing about the configuration.
#[derive(Debug, Default)]
struct Refused {
    by_signal: Option<String>,
    of_files: Option<String>,
}

impl LastReload {
    /// `shown`: 1 while a reload is refused.
    pub fn new(shown: IntGauge) -> Self {
        Self { refused: Arc::default(), shown }
    }

    /// Notes the outcome of a reload by a signal, which reads everything.
    pub fn by_signal(&self, outcome: &anyhow::Result<()>) {
        let by_signal = outcome.as_ref().err().map(|error| format!("{error:#}"));
        self.set(|refused| *refused = Refused { by_signal, of_files: None });
    }

    /// Notes the outcome of a reload of files that have changed.
    pub fn of_files(&self, outcome: &anyhow::Result<()>) {
        let of_files = outcome.as_ref().err().map(|error| format!("{error:#}"));
        self.set(|refused| refused.of_files = of_files);
    }

    /// What is refused until a reload works, for `/readyz`.
    pub fn refused(&self) -> Option<String> {
        let refused = self.lock();
        let why = refused.by_signal.as_ref().or(refused.of_files.as_ref())?;
        Some(format!("the last reload was refused, and what was read before applies: {}", why.replace('\n', "; ")))
    }

    fn set(&self, change: impl FnOnce(&mut Refused)) {
        let mut refused = self.lock();
        change(&mut refused);
        self.shown.set((refused.by_signal.is_some() || refused.of_files.is_some()).into());
    }

    fn lock(&self) -> MutexGuard<'_, Refused> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_configuration_is_reported_until_a_signal_applies_one() {
        let last = LastReload::new(IntGauge::new("refused", "refused").unwrap());
        let failed = |why: &'static str| Err(anyhow::anyhow!(why));
        assert_eq!((last.refused(), last.shown.get()), (None, 0));
        last.by_signal(&failed("line 3"));
        // Renewed certificates.
        last.of_files(&failed("no key"));
        last.of_files(&Ok(()));
        assert!(last.refused().unwrap().ends_with("line 3") && last.shown.get() == 1);
        last.by_signal(&Ok(()));
        assert_eq!((last.refused(), last.shown.get()), (None, 0));
        last.of_files(&failed("no key"));
        assert!(last.refused().unwrap().ends_with("no key") && last.shown.get() == 1);
        last.of_files(&Ok(()));
        assert_eq!((last.refused(), last.shown.get()), (None, 0));
    }
}
