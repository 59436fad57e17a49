//! The paths of the data plane, which edges serve to agents and origins to edges.

use crate::digest::{DigestError, ObjectDigest, TarballDigest};
use crate::name::{NameError, NodeName, RepositoryName, ServiceName};

/// Why a path is not one of a table of [`routes`](crate::routes).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Unknown path: `404`.
    #[error("no such path")]
    Unknown,
    /// Known path with a malformed name or digest: `400`.
    #[error("{0}")]
    Malformed(String),
}

impl From<NameError> for RouteError {
    fn from(error: NameError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<DigestError> for RouteError {
    fn from(error: DigestError) -> Self {
        Self::Malformed(error.to_string())
    }
}

/// Defines the paths below `/v1/` of an API, each by its segments and its value of a metric's label. Of two that match,
/// the first counts. Segments that are no literals are parsed; their errors become [`RouteError`]s.
#[macro_export]
macro_rules! routes {
    ($(#[$of:meta])* $vis:vis enum $Route:ident {
        $($(#[$doc:meta])* $variant:ident$(($($field:ident: $type:ty),+))? = [$($segment:tt)/+] $label:literal,)+
    }) => {
        $(#[$of])*
        #[derive(Debug, Clone, PartialEq, Eq)]
        $vis enum $Route {
            $($(#[$doc])* $variant$(($($type),+))?,)+
        }

        impl $Route {
            /// Parses the path of a URL, without its query. Names contain no percent-encoding, so none is decoded.
            ///
            /// # Errors
            /// There is no such path, or a name or a digest in it is malformed.
            $vis fn parse(path: &str) -> ::std::result::Result<Self, $crate::route::RouteError> {
                use $crate::route::RouteError;
                let rest = path.strip_prefix("/v1/").ok_or(RouteError::Unknown)?;
                let (mut segments, mut count) = ([""; $crate::route::MAX_SEGMENTS], 0);
                for segment in rest.split('/') {
                    *segments.get_mut(count).ok_or(RouteError::Unknown)? = segment;
                    count += 1;
                }
                match segments[..count] {
                    $([$($segment),+] => Ok($Route::$variant$(($($field.parse::<$type>()?),+))?),)+
                    _ => Err(RouteError::Unknown),
                }
            }

            /// The value of a metric's label: one per kind of path, without names.
            $vis fn label(&self) -> &'static str {
                match self {
                    $($Route::$variant { .. } => $label,)+
                }
            }
        }

        impl ::std::fmt::Display for $Route {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.write_str("/v1")?;
                match self {
                    $($Route::$variant$(($($field),+))? => {
                        $(write!(f, "/{}", $segment)?;)+
                    })+
                }
                Ok(())
            }
        }
    };
}

/// The most segments of a path after `/v1/`.
pub const MAX_SEGMENTS: usize = 5;

routes! {
    /// A parsed path.
    pub enum Route {
        /// The descriptor of a service.
        Service(service: ServiceName) = ["services" / service] "service",
        /// Its current tarball.
        Tarball(service: ServiceName) = ["services" / service / "tarball"] "tarball",
        /// One retained version.
        TarballVersion(service: ServiceName, digest: TarballDigest) = ["services" / service / "tarballs" / digest] "tarball_version",
        /// The manifest of its zstd representation.
        TarballFrames(service: ServiceName, digest: TarballDigest) = ["services" / service / "tarballs" / digest / "frames"] "tarball_frames",
        /// The descriptors of the current version and of all retained ones.
        Versions(service: ServiceName) = ["services" / service / "versions"] "versions",
        /// The descriptor of a retained version.
        Version(service: ServiceName, digest: TarballDigest) = ["services" / service / "versions" / digest] "version",
        /// The bytes of a frame, a manifest or a `dcz` body.
        Object(repository: RepositoryName, digest: ObjectDigest) = ["objects" / repository / digest] "object",
        /// The documents of a shard of the access list.
        AccessShard(digest: ObjectDigest) = ["access" / digest] "access",
        /// The event stream.
        Events = ["events"] "events",
        /// The origins of the cluster.
        Members = ["members"] "members",
        /// Freshness statements, for edges.
        Heartbeats = ["heartbeats"] "heartbeats",
        /// What the agents of an edge run.
        Observed = ["observed"] "observed",
        /// The same of an edge behind this shield, by its name.
        ObservedVia(shield: NodeName) = ["observed" / "via" / shield] "observed",
        /// The batch poll.
        AgentServices = ["agents" / "self" / "services"] "agent_services",
        /// The agent's event stream.
        AgentEvents = ["agents" / "self" / "events"] "agent_events",
        /// What the agent runs.
        AgentObserved = ["agents" / "self" / "observed"] "agent_observed",
        /// Freshness statements, for the agent.
        AgentHeartbeats = ["agents" / "self" / "heartbeats"] "agent_heartbeats",
    }
}

impl Route {
    /// The service in the path, if there is one.
    pub fn service(&self) -> Option<&ServiceName> {
        match self {
            Route::Service(service)
            | Route::Tarball(service)
            | Route::TarballVersion(service, _)
            | Route::TarballFrames(service, _)
            | Route::Versions(service)
            | Route::Version(service, _) => Some(service),
            Route::Object(..)
            | Route::AccessShard(_)
            | Route::Events
            | Route::Members
            | Route::Heartbeats
            | Route::Observed
            | Route::ObservedVia(_)
            | Route::AgentServices
            | Route::AgentEvents
            | Route::AgentObserved
            | Route::AgentHeartbeats => None,
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
            Route::Versions(service.clone()),
            Route::Version(service, digest),
            Route::Object("shop".parse().unwrap(), ObjectDigest::of(b"frame")),
            Route::Events,
            Route::Members,
            Route::Heartbeats,
            Route::Observed,
            Route::ObservedVia("shield-1".parse().unwrap()),
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
