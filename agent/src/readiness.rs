//! Whether an agent is ready, and why it is degraded.

use std::time::{Duration, SystemTime};

use weir_protocol::name::ServiceName;
use weir_runtime::admin::Readiness;

use crate::services::OLD;
use crate::status::ServiceStatus;

/// An agent is ready once it knows its services and every one has a release. One that no edge has, perhaps because its name is
/// wrong, only degrades an agent that has a release of another. Failing polls and hooks, and a release that is not proved to be
/// current, degrade it, because the release in force stays in force. So does a service that the edge no longer lists, and an
/// edge that is cut off from its origins: `age` is that of its last answer. So do old releases that pile up.
pub(crate) fn readiness(
    services: &[(ServiceName, ServiceStatus)],
    are_known: bool,
    age: Duration,
    now: SystemTime,
) -> Readiness {
    let (mut missing, mut warnings) = (Vec::new(), Vec::new());
    if age > OLD {
        let age = age.as_secs();
        warnings.push(format!("the edge is cut off from its origins: an origin confirmed its answer {age} s ago"));
    }
    let has_any = services.iter().any(|(_, status)| status.release.is_some());
    for (name, status) in services {
        match (&status.release, status.is_unpublished && has_any) {
            (Some(_), _) => {}
            (None, true) => warnings.push(format!("no edge has {name}: check its name, and that it is published")),
            (None, false) => missing.push(name.as_str()),
        }
        if let Some(since) = status.unassigned_since {
            let since = humantime::format_rfc3339_seconds(since);
            warnings.push(format!(
                "{name} is unassigned since {since}: it ends after `unassign_after` if no edge lists it"
            ));
        }
        if let Some(error) = &status.last_error {
            warnings.push(format!("the last poll of {name} failed: {}", one_line(error)));
        }
        if let Some(error) = &status.hook_error {
            warnings.push(format!("a hook of {name}: {}", one_line(error)));
        }
        if let count @ 1.. = status.unremoved_releases {
            warnings.push(format!(
                "{count} old releases of {name} cannot be removed and take disk space: the log says which file, and why"
            ));
        }
        if let Some(problem) = status.freshness(now).and_then(|assessed| assessed.problem) {
            warnings.push(format!("{name} is not proved to be current: {problem}"));
        }
    }
    if services.is_empty() && !are_known {
        let reason = "no edge has said yet which services this agent is to follow";
        return Readiness::NotReady(vec![reason.to_owned()]);
    }
    if !missing.is_empty() {
        return Readiness::NotReady(vec![format!("no release of {}", missing.join(", "))]);
    }
    if warnings.is_empty() { Readiness::Ready } else { Readiness::Degraded(warnings) }
}

fn one_line(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use weir_protocol::digest::TarballDigest;

    use super::*;
    use weir_protocol::observed::HookState;

    use crate::status::Release;
    use crate::verify::Proof;

    #[test]
    fn releases_make_an_agent_ready_and_failures_degrade_it() {
        let (shop, bakery): (ServiceName, ServiceName) = ("shop".parse().unwrap(), "bakery".parse().unwrap());
        let digest = TarballDigest::of(b"one");
        let release = Release {
            digest,
            generation: 1,
            commit: None,
            revision_id: None,
            version: None,
            directory: "releases/1".into(),
        };
        let well = ServiceStatus { release: Some(release), ..ServiceStatus::default() };
        let failing = ServiceStatus { last_error: Some("401:\n a token".to_owned()), ..well.clone() };
        let unrun = ServiceStatus { hook: HookState::Running, hook_error: Some("status 1".to_owned()), ..well.clone() };
        let both = |one: &ServiceStatus, other: &ServiceStatus| {
            readiness(
                &[(shop.clone(), one.clone()), (bakery.clone(), other.clone())],
                true,
                Duration::ZERO,
                SystemTime::UNIX_EPOCH,
            )
        };
        assert_eq!(both(&well, &well), Readiness::Ready);
        let reasons = ["the last poll of shop failed: 401: a token", "a hook of bakery: status 1"].map(str::to_owned);
        assert_eq!(both(&failing, &unrun), Readiness::Degraded(reasons.into()));
        let limit = Duration::from_secs(60);
        let proof = Some((Proof::new(SystemTime::UNIX_EPOCH - 2 * limit), limit));
        let unproved = ServiceStatus { proof, ..well.clone() };
        let Readiness::Degraded(reasons) = both(&well, &unproved) else { panic!("it is not degraded") };
        assert!(reasons[0].starts_with("bakery is not proved to be current: no freshness statement"), "{reasons:?}");
        let none = ServiceStatus::default();
        let reason = "no release of bakery".to_owned();
        assert_eq!(both(&failing, &none), Readiness::NotReady(vec![reason]));
        let misspelt = ServiceStatus { is_unpublished: true, ..none };
        let Readiness::Degraded(reasons) = both(&well, &misspelt) else { panic!("it is not degraded") };
        assert_eq!(reasons, ["no edge has bakery: check its name, and that it is published"]);
        assert!(matches!(both(&misspelt, &misspelt), Readiness::NotReady(_)));
        assert!(matches!(readiness(&[], false, Duration::ZERO, SystemTime::UNIX_EPOCH), Readiness::NotReady(_)));
        assert_eq!(readiness(&[], true, OLD, SystemTime::UNIX_EPOCH), Readiness::Ready);
        let Readiness::Degraded(reasons) = readiness(&[], true, Duration::from_secs(95), SystemTime::UNIX_EPOCH) else {
            panic!("it is not degraded");
        };
        assert!(reasons[0].contains("95 s ago"), "{reasons:?}");
    }
}
