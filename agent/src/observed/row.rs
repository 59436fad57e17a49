//! The row of a service. Pure.

use std::time::SystemTime;

use weir_protocol::name::ServiceName;
use weir_protocol::observed::{Applied, Current, HookState, Phase, Problem, ProblemKind, Row};

use crate::status::ServiceStatus;

/// The row of a service that is followed. `since`: when the agent switched to the release, if it is another one than before.
pub(super) fn row(
    service: &ServiceName,
    status: ServiceStatus,
    before: Option<&Row>,
    since: Option<SystemTime>,
    now: SystemTime,
) -> Row {
    let (phase, problem) = (status.phase(), status.current_problem(now));
    let known = before.and_then(|before| before.current.as_ref());
    let digest = status.release.as_ref().map(|release| release.digest);
    let same_release = before.filter(|_| known.map(|known| known.digest) == digest);
    let current = status.release.map(|release| Current {
        digest: release.digest,
        generation: release.generation,
        revision_id: release.revision_id,
        since: match known.filter(|known| known.digest == release.digest) {
            Some(known) => known.since,
            None => since.unwrap_or(now),
        },
    });
    Row {
        service: service.clone(),
        desired: status.desired,
        current,
        phase,
        hook: status.hook,
        applied: status.applied,
        problem: problem.map(|problem| shown(problem, same_release.and_then(|before| before.problem.as_ref()))),
        transfer: status.transfer,
    }
}

/// A problem that lasts is a change at ever longer intervals, not at each attempt. What a command wrote changes with these.
fn shown(problem: Problem, before: Option<&Problem>) -> Problem {
    let mut problem = Problem { tries: shown_tries(problem.tries), ..problem };
    if let Some(before) = before
        && (before.kind, before.since, before.tries, &before.text)
            == (problem.kind, problem.since, problem.tries, &problem.text)
    {
        problem.output.clone_from(&before.output);
    }
    problem
}

/// The last power of two.
fn shown_tries(tries: u64) -> u64 {
    tries.checked_ilog2().map_or(0, |log| 1 << log)
}

/// The row of a service that is assigned, and that `allow` excludes.
pub(super) fn not_allowed(service: &ServiceName, since: SystemTime) -> Row {
    let text = "it is assigned, and `allow` of this agent excludes it".to_owned();
    Row {
        service: service.clone(),
        desired: None,
        current: None,
        phase: Phase::Unassigned,
        hook: HookState::None,
        applied: Applied::Unsaid,
        problem: Some(Problem { kind: ProblemKind::NotAllowed, since, tries: 1, text, output: None }),
        transfer: None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_protocol::digest::TarballDigest;

    use super::*;
    use crate::status::Release;

    #[test]
    fn a_row_begins_with_its_release_and_its_problem_changes_ever_more_rarely() {
        let service: ServiceName = "shop".parse().unwrap();
        let (at, later) = (SystemTime::UNIX_EPOCH, SystemTime::UNIX_EPOCH + Duration::from_secs(60));
        let of = |content: &[u8], before: Option<&Row>, since| {
            let release = Release {
                digest: TarballDigest::of(content),
                generation: 7,
                commit: None,
                revision_id: None,
                version: None,
                directory: "".into(),
            };
            let status = ServiceStatus { release: Some(release), ..ServiceStatus::default() };
            row(&service, status, before, since, later)
        };
        let since = |row: &Row| row.current.as_ref().map(|current| current.since);
        let one = of(b"one", None, Some(at));
        assert_eq!((since(&one), one.phase), (Some(at), Phase::Current));
        assert_eq!(of(b"one", Some(&one), Some(later)), one, "`current` may be made again");
        assert_eq!(since(&of(b"two", Some(&one), Some(later))), Some(later));
        assert_eq!(since(&of(b"two", None, None)), Some(later));
        // What a command wrote is news only with the tries that are shown.
        let failed = |tries, output: &str, before: Option<&Problem>| {
            let text = "exec exited with 1".to_owned();
            let output = Some(output.to_owned());
            shown(Problem { kind: ProblemKind::HookFailed, since: at, tries, text, output }, before)
        };
        let two = failed(2, "at 09:30", None);
        assert_eq!(failed(3, "at 09:31", Some(&two)), two);
        let four = failed(4, "at 09:32", Some(&two));
        assert_eq!((four.tries, four.output.as_deref()), (4, Some("at 09:32")));
        let tries: Vec<_> = (0..=9).map(shown_tries).collect();
        assert_eq!(tries, [0, 1, 2, 2, 4, 4, 4, 4, 8, 8]);
    }
}
