//! The paths of the data plane, which edges serve to agents and origins to edges.

use std::fmt;

use crate::digest::{ObjectDigest, TarballDigest};
use crate::name::{RepositoryName, ServiceName};

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// `/v1/services/{service}`: the descriptor.
    Service(ServiceName),
    /// `/v1/services/{service}/tarball`: the current tarball.
    Tarball(ServiceName),
    /// `/v1/services/{service}/tarballs/{digest}`: one retained version.
    TarballVersion(ServiceName, TarballDigest),
    /// `/v1/services/{service}/tarballs/{digest}/frames`: the manifest of its zstd representation.
    TarballFrames(ServiceName, TarballDigest),
    /// `/v1/services/{service}/versions/{digest}`: the descriptor of a retained version.
    Version(ServiceName, TarballDigest),
    /// `/v1/objects/{repository}/{digest}`: the bytes of a frame, a manifest or a `dcz` body.
    Object(RepositoryName, ObjectDigest),
    /// `/v1/events`: the event stream.
    Events,
    /// `/v1/members`: the origins of the cluster.
    Members,
    /// `/v1/heartbeats`: freshness statements, for edges.
    Heartbeats,
    /// `/v1/observed`: what the agents of an edge run.
    Observed,
    /// `/v1/agents/self/services`: the batch poll.
    AgentServices,
    /// `/v1/agents/self/events`: the agent's event stream.
    AgentEvents,
    /// `/v1/agents/self/observed`: what the agent runs.
    AgentObserved,
    /// `/v1/agents/self/heartbeats`: freshness statements, for the agent.
    AgentHeartbeats,
}

/// Why a path is not a [`Route`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Unknown path: `404`.
    #[error("no such path")]
    Unknown,
    /// Known path with a malformed name or digest: `400`.
    #[error("{0}")]
    Malformed(String),
}

impl Route {
    /// Parses the path of a URL, without its query. Names contain no percent-encoding.
    pub fn parse(path: &str) -> Result<Self, RouteError> {
        fn read<T: std::str::FromStr<Err: fmt::Display>>(text: &str) -> Result<T, RouteError> {
            text.parse().map_err(|error: T::Err| RouteError::Malformed(error.to_string()))
        }
        let rest = path.strip_prefix("/v1/").ok_or(RouteError::Unknown)?;
        let mut segments = rest.split('/');
        let mut next = || segments.next();
        let route = (next(), next(), next(), next(), next(), next());
        match route {
            (Some("services"), Some(service), None, ..) => Ok(Route::Service(read(service)?)),
            (Some("services"), Some(service), Some("tarball"), None, ..) => Ok(Route::Tarball(read(service)?)),
            (Some("services"), Some(service), Some("tarballs"), Some(digest), None, _) => {
                Ok(Route::TarballVersion(read(service)?, read(digest)?))
            }
            (Some("services"), Some(service), Some("tarballs"), Some(digest), Some("frames"), None) => {
                Ok(Route::TarballFrames(read(service)?, read(digest)?))
            }
            (Some("services"), Some(service), Some("versions"), Some(digest), None, _) => {
                Ok(Route::Version(read(service)?, read(digest)?))
            }
            (Some("objects"), Some(repository), Some(digest), None, ..) => {
                Ok(Route::Object(read(repository)?, read(digest)?))
            }
            (Some("events"), None, ..) => Ok(Route::Events),
            (Some("members"), None, ..) => Ok(Route::Members),
            (Some("heartbeats"), None, ..) => Ok(Route::Heartbeats),
            (Some("observed"), None, ..) => Ok(Route::Observed),
            (Some("agents"), Some("self"), Some(what), None, ..) => match what {
                "services" => Ok(Route::AgentServices),
                "events" => Ok(Route::AgentEvents),
                "observed" => Ok(Route::AgentObserved),
                "heartbeats" => Ok(Route::AgentHeartbeats),
                _ => Err(RouteError::Unknown),
            },
            _ => Err(RouteError::Unknown),
        }
    }

    /// The service in the path, if there is one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Route::Service(service)
            | Route::Tarball(service)
            | Route::TarballVersion(service, _)
            | Route::TarballFrames(service, _)
            | Route::Version(service, _) => Some(service),
            Route::Object(..)
            | Route::Events
            | Route::Members
            | Route::Heartbeats
            | Route::Observed
            | Route::AgentServices
            | Route::AgentEvents
            | Route::AgentObserved
            | Route::AgentHeartbeats => None,
        }
    }

    /// The value of a metric's label: one per kind of path, without names.
    pub fn label(&self) -> &'static str {
        match self {
            Route::Service(_) => "service",
            Route::Tarball(_) => "tarball",
            Route::TarballVersion(..) => "tarball_version",
            Route::TarballFrames(..) => "tarball_frames",
            Route::Version(..) => "version",
            Route::Object(..) => "object",
            Route::Events => "events",
            Route::Members => "members",
            Route::Heartbeats => "heartbeats",
            Route::Observed => "observed",
            Route::AgentServices => "agent_services",
            Route::AgentEvents => "agent_events",
            Route::AgentObserved => "agent_observed",
            Route::AgentHeartbeats => "agent_heartbeats",
        }
    }
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Route::Service(service) => write!(f, "/v1/services/{service}"),
            Route::Tarball(service) => write!(f, "/v1/services/{service}/tarball"),
            Route::TarballVersion(service, digest) => write!(f, "/v1/services/{service}/tarballs/{digest}"),
            Route::TarballFrames(service, digest) => write!(f, "/v1/services/{service}/tarballs/{digest}/frames"),
            Route::Version(service, digest) => write!(f, "/v1/services/{service}/versions/{digest}"),
            Route::Object(repository, digest) => write!(f, "/v1/objects/{repository}/{digest}"),
            Route::Events => f.write_str("/v1/events"),
            Route::Members => f.write_str("/v1/members"),
            Route::Heartbeats => f.write_str("/v1/heartbeats"),
            Route::Observed => f.write_str("/v1/observed"),
            Route::AgentServices => f.write_str("/v1/agents/self/services"),
            Route::AgentEvents => f.write_str("/v1/agents/self/events"),
            Route::AgentObserved => f.write_str("/v1/agents/self/observed"),
            Route::AgentHeartbeats => f.write_str("/v1/agents/self/heartbeats"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn routes_round_trip() {
        let service: ServiceName = "shop-prod".parse().unwrap();
        let digest = TarballDigest::of(b"tar");
        for route in [
            Route::Service(service.clone()),
            Route::Tarball(service.clone()),
            Route::TarballVersion(service.clone(), digest),
            Route::TarballFrames(service.clone(), digest),
            Route::Version(service, digest),
            Route::Object("shop".parse().unwrap(), ObjectDigest::of(b"frame")),
            Route::Events,
            Route::Members,
            Route::Heartbeats,
            Route::AgentServices,
            Route::AgentEvents,
            Route::AgentObserved,
            Route::AgentHeartbeats,
        ] {
            assert_eq!(Route::parse(&route.to_string()), Ok(route));
        }
    }

    #[test]
    fn unknown_paths_and_malformed_names_differ() {
        for path in [
            "",
            "/",
            "/v1",
            "/v1/",
            "/v2/services/a",
            "/v1/services",
            "/v1/services/a/b",
            "/v1/services/a/tarball/",
            "/v1/services/a/",
            "/v1/objects",
            "/v1/objects/a",
            "/v1/objects/a/b3-0/",
            "/v1/objects/a/b3-0/pieces",
            "/v1/events/",
            "/v1/events/a",
            "/v1/members/",
            "/v1/members/a",
            "/v1/services/a/versions/b3-0/zstd",
            "/v1/services/a/tarballs/b3-0/frames/0",
            "/v1/services/a/heartbeat",
            "/v1/heartbeat",
            "/v1/heartbeats/a",
            "/v1/agents",
            "/v1/agents/self",
            "/v1/agents/self/",
            "/v1/agents/self/descriptor",
            "/v1/agents/cluster-1/services",
            "/v1/agents/self/services/a",
        ] {
            assert_eq!(Route::parse(path), Err(RouteError::Unknown), "{path}");
        }
        for path in [
            "/v1/services/",
            "/v1/services/A/tarball",
            "/v1/services/../tarball",
            "/v1/services/a/tarballs/b3-0",
            "/v1/services/a/tarballs/b3-0/frames",
            "/v1/objects/a/x",
            "/v1/objects/A/b3-0",
        ] {
            assert!(matches!(Route::parse(path), Err(RouteError::Malformed(_))), "{path}");
        }
    }

    proptest! {
        #[test]
        fn parsed_routes_round_trip(path in "/v1/(services|objects|events|members|heartbeats|agents/self)(/[a-z0-9._/-]{0,40}){0,4}") {
            if let Ok(route) = Route::parse(&path) {
                prop_assert_eq!(route.to_string(), path);
            }
        }
    }
}
