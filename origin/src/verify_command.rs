//! `weir-origin verify`: checks everything that a stopped origin has stored.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use bytesize::ByteSize;
use clap::Args;
use weir_origin::config::Config;
use weir_origin::verify;
use weir_publish::verify::Report;
use weir_runtime::failure;

/// The exit code if nothing could be verified.
const NOT_VERIFIED: u8 = 8;

/// Checks everything that a stopped origin has stored.
///
/// It reads every record, state page, history segment, manifest, recipe and frame, and reports what is damaged and which
/// services are affected.
///
/// Nothing is changed without --delete-corrupt. With it, damaged frames, manifests and recipes are deleted; an origin
/// rebuilds them when they are requested. Records, state pages and history are never deleted.
///
/// Exit codes: 0 no damage; 1 damage that an origin repairs by rebuilding; 4 something is lost, needs an operator, or could
/// not be read; 8 nothing could be verified, because the store is empty, in use by an origin, or cannot be opened; 2 a wrong
/// option.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// The configuration file of the origin, which names its store.
    #[arg(long, env = "WEIR_CONFIG", value_name = "FILE")]
    config: PathBuf,
    /// Deletes damaged objects that can be rebuilt.
    #[arg(long)]
    delete_corrupt: bool,
    /// Writes the findings as one JSON document.
    #[arg(long)]
    json: bool,
}

/// Runs the command. The report goes to standard output.
pub(crate) async fn run(arguments: &VerifyArguments) -> ExitCode {
    match verified(arguments).await {
        Ok(report) => ExitCode::from(report.exit_code()),
        Err(error) => {
            failure::report(crate::PROGRAM, &error);
            ExitCode::from(NOT_VERIFIED)
        }
    }
}

async fn verified(arguments: &VerifyArguments) -> anyhow::Result<Report> {
    let config = Config::load(&arguments.config)?;
    let report = Box::pin(verify(&config, arguments.delete_corrupt)).await?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        serde_json::to_writer(&mut out, &report)?;
        writeln!(out)?;
    } else {
        write!(out, "{}", in_words(&report))?;
    }
    Ok(report)
}

/// One line for each finding, then a summary.
fn in_words(report: &Report) -> String {
    let mut text = String::new();
    for finding in &report.findings {
        let deleted = if finding.deleted { " (deleted)" } else { "" };
        text += &format!(
            "{}: {}: {}{deleted}; {}\n",
            finding.severity, finding.object, finding.problem, finding.consequence
        );
    }
    text += &format!(
        "{} repositories, {} versions, {} objects of {} were read: {} findings\n",
        report.repositories,
        report.versions,
        report.objects,
        ByteSize(report.bytes).display().iec(),
        report.findings.len()
    );
    text
}
