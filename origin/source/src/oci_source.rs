//! Which services have an OCI form, and what it says of their upstream.

use weir_protocol::oci::is_repository_component;
use weir_upstream::RepositoryConfig;

use crate::ServiceConfig;

/// What the OCI form of a service's versions says of their upstream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciSource {
    /// The URL, without credentials. `None`: it is on the origin's machine, or there are several.
    pub url: Option<String>,
}

/// Whether the versions of a service have an OCI form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum OciChoice {
    /// It is off.
    #[default]
    Off,
    /// It is on.
    On(OciSource),
    /// It is on for all services, but the name of this one is no name of OCI.
    NoName,
}

impl OciChoice {
    /// By the key of the service, else by that of the repository that publishes it, else by the origin's.
    pub fn of(service: &ServiceConfig, home: Option<&RepositoryConfig>, enabled: bool) -> Self {
        let inherited = home.and_then(|home| home.oci).unwrap_or(enabled);
        if !service.oci.unwrap_or(inherited) {
            return Self::Off;
        }
        if !is_repository_component(service.name.as_str()) {
            return Self::NoName;
        }
        let url = home.filter(|_| service.parts.is_empty()).and_then(|home| home.url.public());
        Self::On(OciSource { url })
    }

    /// Whether they have one.
    pub fn is_on(&self) -> bool {
        matches!(self, Self::On(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_decides_then_its_repository_then_the_origin() {
        let url = "ssh://deploy@git.example:2222/acme/shop.git";
        for (of_service, of_repository, enabled, expected) in [
            (None, None, false, false),
            (None, None, true, true),
            (None, Some(false), true, false),
            (None, Some(true), false, true),
            (Some(false), Some(true), true, false),
            (Some(true), Some(false), false, true),
        ] {
            let mut service = ServiceConfig::new("shop-prod".parse().unwrap(), "shop".parse().unwrap());
            let mut repository = RepositoryConfig::new("shop".parse().unwrap(), url);
            (service.oci, repository.oci) = (of_service, of_repository);
            let oci = OciChoice::of(&service, Some(&repository), enabled);
            assert_eq!(oci.is_on(), expected, "{of_service:?} {of_repository:?} {enabled}");
            let url = Some("ssh://git.example:2222/acme/shop.git".to_owned());
            assert!(!expected || oci == OciChoice::On(OciSource { url }), "{oci:?}");
        }
    }

    #[test]
    fn a_name_that_is_none_of_oci_is_refused_only_where_it_was_asked_for() {
        let mut service = ServiceConfig::new("a..b".parse().unwrap(), "shop".parse().unwrap());
        assert_eq!((service.errors(), OciChoice::of(&service, None, true)), (Vec::new(), OciChoice::NoName));
        service.oci = Some(true);
        let errors = service.errors();
        assert!(
            errors.len() == 1 && errors[0].field == "oci" && errors[0].detail.contains("`oci = false`"),
            "{errors:?}"
        );
    }
}
