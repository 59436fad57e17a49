//! The paths of the OCI API.

use weir_protocol::digest::Sha256;
use weir_protocol::name::ServiceName;

use super::NAMESPACE;
use super::error::OciError;

/// A parsed path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OciRoute {
    /// What clients request first, to see whether this is a registry.
    Base,
    Token,
    Manifest(ServiceName, Reference),
    Blob(ServiceName, Sha256),
    Tags(ServiceName),
    Referrers(ServiceName, Sha256),
}

/// What names a manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Reference {
    /// May be one that nobody can have.
    Tag(String),
    Digest(Sha256),
    /// A tag of cosign for what is attached to the manifest with this digest: `sha256-<hex>.sig`.
    Attached(Sha256, String),
}

/// Whether a path is one of this API.
pub(crate) fn is_path(path: &str) -> bool {
    path.strip_prefix("/v2").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

impl OciRoute {
    /// Parses the path of a URL, without its query.
    pub(super) fn parse(path: &str) -> Result<Self, OciError> {
        let mut segments = path.strip_prefix("/v2").unwrap_or_default().split('/').skip(1);
        let segments: [Option<&str>; 5] = std::array::from_fn(|_| segments.next());
        let service = |name: &str| name.parse::<ServiceName>().map_err(|_| OciError::no_such_path());
        match segments {
            [None | Some(""), None, ..] => Ok(Self::Base),
            [Some("token"), None, ..] => Ok(Self::Token),
            [Some(NAMESPACE), Some(name), Some(kind), Some(last), None] => {
                let service = service(name)?;
                match (kind, last) {
                    ("manifests", reference) => Ok(Self::Manifest(service, Reference::parse(reference)?)),
                    ("blobs", digest) => Ok(Self::Blob(service, sha256(digest)?)),
                    ("referrers", digest) => Ok(Self::Referrers(service, sha256(digest)?)),
                    ("tags", "list") => Ok(Self::Tags(service)),
                    _ => Err(OciError::no_such_path()),
                }
            }
            _ => Err(OciError::no_such_path()),
        }
    }

    /// The value of a metric's label.
    pub(super) fn label(&self) -> &'static str {
        match self {
            OciRoute::Base => "oci",
            OciRoute::Token => "oci_token",
            OciRoute::Manifest(..) => "oci_manifest",
            OciRoute::Blob(..) => "oci_blob",
            OciRoute::Tags(_) => "oci_tags",
            OciRoute::Referrers(..) => "oci_referrers",
        }
    }

    /// The service in the path, if there is one.
    pub(super) fn service(&self) -> Option<&ServiceName> {
        match self {
            OciRoute::Base | OciRoute::Token => None,
            OciRoute::Manifest(service, _)
            | OciRoute::Blob(service, _)
            | OciRoute::Tags(service)
            | OciRoute::Referrers(service, _) => Some(service),
        }
    }

    /// The response for a client that may not see it: the same as if the service did not exist.
    pub(super) fn absent(&self) -> OciError {
        self.service().map_or_else(OciError::no_such_path, OciError::no_such_repository)
    }
}

impl Reference {
    fn parse(text: &str) -> Result<Self, OciError> {
        // No tag has a colon.
        if text.contains(':') {
            return sha256(text).map(Self::Digest);
        }
        let of = text.strip_prefix("sha256-").and_then(|rest| rest.split_once('.')?.0.parse().ok());
        Ok(of.map_or_else(|| Self::Tag(text.to_owned()), |of| Self::Attached(of, text.to_owned())))
    }
}

fn sha256(digest: &str) -> Result<Sha256, OciError> {
    digest.strip_prefix("sha256:").and_then(|hex| hex.parse().ok()).ok_or_else(OciError::malformed_digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_the_specification() {
        let service: ServiceName = "shop".parse().unwrap();
        let digest = Sha256::of(b"manifest");
        let manifest = |reference| OciRoute::Manifest(service.clone(), reference);
        for (path, expected) in [
            ("/v2", OciRoute::Base),
            ("/v2/", OciRoute::Base),
            ("/v2/token", OciRoute::Token),
            ("/v2/weir/shop/manifests/1.2.3_up", manifest(Reference::Tag("1.2.3_up".to_owned()))),
            ("/v2/weir/shop/manifests/.nobody", manifest(Reference::Tag(".nobody".to_owned()))),
            (&format!("/v2/weir/shop/manifests/sha256:{digest}"), manifest(Reference::Digest(digest))),
            (&format!("/v2/weir/shop/blobs/sha256:{digest}"), OciRoute::Blob(service.clone(), digest)),
            (&format!("/v2/weir/shop/referrers/sha256:{digest}"), OciRoute::Referrers(service.clone(), digest)),
            (
                &format!("/v2/weir/shop/manifests/sha256-{digest}.sig"),
                manifest(Reference::Attached(digest, format!("sha256-{digest}.sig"))),
            ),
            ("/v2/weir/shop/manifests/sha256-0.sig", manifest(Reference::Tag("sha256-0.sig".to_owned()))),
            ("/v2/weir/shop/tags/list", OciRoute::Tags(service.clone())),
        ] {
            assert!(is_path(path), "{path}");
            assert_eq!(OciRoute::parse(path).unwrap(), expected, "{path}");
        }
        for (path, code) in [
            ("/v2/_catalog", "NAME_UNKNOWN"),
            ("/v2//", "NAME_UNKNOWN"),
            ("/v2/token/", "NAME_UNKNOWN"),
            ("/v2/weir", "NAME_UNKNOWN"),
            ("/v2/library/shop/manifests/latest", "NAME_UNKNOWN"),
            ("/v2/weir/SHOP/manifests/latest", "NAME_UNKNOWN"),
            ("/v2/weir/shop/manifests/latest/", "NAME_UNKNOWN"),
            ("/v2/weir/shop/tags", "NAME_UNKNOWN"),
            ("/v2/weir/shop/blobs/uploads/", "NAME_UNKNOWN"),
            ("/v2/weir/shop/blobs/sha256:00", "DIGEST_INVALID"),
            (&format!("/v2/weir/shop/manifests/sha512:{digest}"), "DIGEST_INVALID"),
        ] {
            assert_eq!(OciRoute::parse(path).unwrap_err().code(), code, "{path}");
        }
        assert!(!is_path("/v1/services/v2") && !is_path("/v20") && !is_path("/"));
    }
}
