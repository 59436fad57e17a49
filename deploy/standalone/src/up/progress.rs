//! The progress of a clone: a changing line on a terminal, one line for each step elsewhere.

use std::cell::RefCell;
use std::io::{self, Write};
use std::time::Duration;

use indicatif::{HumanBytes, ProgressBar, ProgressStyle};
use weir_origin::reconcile::{Phase, RepositoryState};

/// The refresh interval of the line on a terminal.
const TICK: Duration = Duration::from_millis(120);

/// Shows the progress of a repository, and prints lines above it.
pub(super) struct Progress {
    /// Hidden when standard error is no terminal.
    bar: ProgressBar,
    /// The last step shown.
    step: RefCell<Option<String>>,
}

impl Progress {
    pub(super) fn new() -> Self {
        let bar = ProgressBar::new_spinner();
        bar.set_style(ProgressStyle::with_template("{spinner} {msg} ({elapsed})").expect("it is a template"));
        Self { bar, step: RefCell::default() }
    }

    /// Shows a clone or a build. Polls are too frequent to be shown.
    pub(super) fn show(&self, state: &RepositoryState) {
        let (step, detail) = match &state.phase {
            // Before its first step and after its last one, a clone has nothing to show.
            Phase::Fetching { progress } if progress.phase == "idle" => return,
            Phase::Fetching { progress } => {
                let of = progress.total.map(|total| format!(" {} of {total}", progress.done)).unwrap_or_default();
                let bytes =
                    if progress.bytes > 0 { format!(", {}", HumanBytes(progress.bytes)) } else { String::new() };
                (Some(format!("cloning    {}", progress.phase)), format!("{of}{bytes}"))
            }
            _ if !state.building.is_empty() => (Some("building   the tarball".to_owned()), String::new()),
            _ => (None, String::new()),
        };
        let is_new = self.step.replace(step.clone()) != step;
        let Some(step) = step else { return self.bar.finish_and_clear() };
        if self.bar.is_hidden() {
            if is_new {
                // A closed pipe is reported by the next line that matters.
                let _ = self.print(&step);
            }
            return;
        }
        if self.bar.is_finished() {
            self.bar.reset();
        }
        if is_new {
            self.bar.enable_steady_tick(TICK);
        }
        self.bar.set_message(step + &detail);
    }

    /// Writes a line to standard output.
    ///
    /// # Errors
    /// Standard output is closed.
    pub(super) fn print(&self, text: &str) -> io::Result<()> {
        self.bar.suspend(|| writeln!(io::stdout(), "{text}"))
    }
}
