//! `weir-origin fsck`: checks, and mends, what a stopped origin keeps.

use std::io::{IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use bytesize::ByteSize;
use clap::Args;
use weir_origin::config::Config;
use weir_origin::fsck::{self, Options, Outcome, Progress, Report};
use weir_shared::process::failure;

/// The exit code when nothing could be checked.
const NOT_CHECKED: u8 = 8;

/// The shortest time between two lines of progress.
const BETWEEN_LINES: Duration = Duration::from_millis(200);

/// Checks everything that a stopped origin keeps: every byte of every blob, every row of its databases, and that each
/// version which they name can be had in each of its forms.
///
/// Nothing is changed without --mend. With it damaged blobs are removed, and built again from the mirrors; no upstream is
/// asked. Rows that cannot be read are dropped, indices are written anew, damaged databases repaired. What cannot be
/// brought back is named. Generations never go back. What operators defined is never dropped.
///
/// Exit codes, as those of fsck(8): 0 no damage; 1 all damage was mended; 4 damage is left, or something is lost; 8 nothing
/// could be checked, because an origin runs on the directory or a database cannot be read at all; 2 a wrong option.
#[derive(Debug, Args)]
pub(crate) struct FsckArguments {
    /// The configuration of the origin: it says where the directory is, and what is to be built again.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Mends what can be mended.
    #[arg(long)]
    mend: bool,
    /// Writes what was found as one JSON document.
    #[arg(long)]
    json: bool,
    /// Blobs that are read at a time; by default as many as there are cores.
    #[arg(long, value_name = "NUMBER")]
    threads: Option<NonZeroUsize>,
}

/// Runs it. What was found goes to standard output, how far it is to standard error when that is a terminal.
pub(crate) fn run(arguments: &FsckArguments) -> ExitCode {
    match checked(arguments) {
        Ok(report) => ExitCode::from(report.exit_code()),
        Err(error) => {
            failure::tell(crate::PROGRAM, &error);
            ExitCode::from(NOT_CHECKED)
        }
    }
}

fn checked(arguments: &FsckArguments) -> anyhow::Result<Report> {
    let config = Config::load(&arguments.config)?;
    let threads = arguments.threads.or_else(|| available_parallelism().ok()).map_or(1, NonZeroUsize::get);
    let line = ProgressLine::default();
    let report = fsck::run(&config, Options { mend: arguments.mend, threads }, &|progress| line.show(progress))?;
    line.end();
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", in_words(&report, arguments.mend))?;
    }
    Ok(report)
}

/// A line a fault, and one that sums up.
fn in_words(report: &Report, mended: bool) -> String {
    let mut text = String::new();
    for found in &report.found {
        let word = match found.outcome {
            Outcome::Mended => "mended",
            Outcome::Lost => "lost",
            Outcome::Left if found.fault.is_damage() => "damage",
            Outcome::Left => "note",
        };
        let remark = found.remark.as_ref().map(|remark| format!("; {remark}")).unwrap_or_default();
        text += &format!("{word}: {}: {}{remark}\n", found.object, found.detail);
    }
    let damage = |outcome| {
        let of_it = report.found.iter().filter(|found| found.fault.is_damage() && found.outcome == outcome);
        of_it.count()
    };
    let (left, lost) = (damage(Outcome::Left), damage(Outcome::Lost));
    text += &format!(
        "{} versions, {} blobs of {}, {} definitions of operators were read: {} mended, {lost} lost, {left} left damaged\n",
        report.versions,
        report.blobs,
        ByteSize(report.bytes).display().iec(),
        report.definitions,
        damage(Outcome::Mended),
    );
    if left > 0 && !mended {
        text += "--mend mends what can be mended\n";
    }
    text
}

/// One line on a terminal that says how far it is.
#[derive(Default)]
struct ProgressLine {
    shown: Mutex<Option<Instant>>,
}

impl ProgressLine {
    fn show(&self, Progress { read, all }: Progress) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if !std::io::stderr().is_terminal() || shown.is_some_and(|shown| shown.elapsed() < BETWEEN_LINES) {
            return;
        }
        *shown = Some(Instant::now());
        let (read, all) = (ByteSize(read), ByteSize(all));
        eprint!("\r{} of {} read   ", read.display().iec(), all.display().iec());
    }

    fn end(&self) {
        if self.shown.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            eprintln!();
        }
    }
}
