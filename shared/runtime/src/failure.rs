//! Reports a fatal error in one line, with the name of the program.

use std::process::ExitCode;
use std::time::SystemTime;

use serde_json::json;

use super::telemetry::LogFormat;

/// Reports the error of a command to a person: `weir-origin: …`, on standard error.
pub fn report(program: &str, error: &anyhow::Error) {
    eprintln!("{}", line(program, error));
}

/// Reports the fatal error of a role in the format of its log, whatever the log filter is. `role`: the format if none was chosen.
pub fn report_in_log(program: &str, role: LogFormat, error: &anyhow::Error) {
    match role.or_environment().unwrap_or(role) {
        LogFormat::Text => report(program, error),
        LogFormat::Json => eprintln!("{}", record(program, error, SystemTime::now())),
    }
}

/// The exit code of invalid configuration, which is reported to a person.
pub fn invalid(program: &str, error: impl Into<anyhow::Error>) -> ExitCode {
    report(program, &error.into());
    ExitCode::from(2)
}

/// The exit code of invalid configuration, which is reported in the role's log.
pub fn invalid_in_log(program: &str, role: LogFormat, error: impl Into<anyhow::Error>) -> ExitCode {
    report_in_log(program, role, &error.into());
    ExitCode::from(2)
}

/// The exit code of a command. Its error is reported to a person.
pub fn exit_code(program: &str, done: anyhow::Result<()>) -> ExitCode {
    let failed = done.inspect_err(|error| report(program, error)).is_err();
    ExitCode::from(u8::from(failed))
}

/// The exit code of a role that has ended. Its error is reported in its log.
pub fn exit_code_in_log(program: &str, role: LogFormat, done: anyhow::Result<()>) -> ExitCode {
    let failed = done.inspect_err(|error| report_in_log(program, role, error)).is_err();
    ExitCode::from(u8::from(failed))
}

/// Joins the causes. A cause that the line contains already is left out: many errors include theirs.
fn line(program: &str, error: &anyhow::Error) -> String {
    let mut line = program.to_owned();
    for cause in error.chain().map(ToString::to_string) {
        if !line.contains(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

fn record(program: &str, error: &anyhow::Error, now: SystemTime) -> String {
    let timestamp = humantime::format_rfc3339_micros(now).to_string();
    json!({ "timestamp": timestamp, "level": "ERROR", "message": line(program, error), "target": program }).to_string()
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot read x: {source}")]
    struct Read {
        source: std::io::Error,
    }

    #[test]
    fn each_cause_is_reported_once_in_one_line() {
        let error =
            Err::<(), _>(Read { source: std::io::Error::other("no such file") }).context("the data cannot be opened");
        let error = error.unwrap_err();
        let expected = "weir-origin: the data cannot be opened: cannot read x: no such file";
        assert_eq!(line("weir-origin", &error), expected);
        let record: serde_json::Value =
            serde_json::from_str(&record("weir-origin", &error, SystemTime::UNIX_EPOCH)).unwrap();
        assert_eq!((&record["level"], &record["message"]), (&json!("ERROR"), &json!(expected)));
        assert_eq!(record["timestamp"], "1970-01-01T00:00:00.000000Z");
    }
}
